use proptest::prelude::*;

use super::*;

/// A span that knows its own tokens; some bytes each.
#[derive(Clone, Debug, PartialEq)]
struct Run(Vec<u32>);

/// A checkpoint that knows what lies before it.
#[derive(Clone, Debug, PartialEq)]
struct Past(Vec<u32>);

impl Span for Run {
    fn bytes(&self) -> usize {
        10 * self.0.len()
    }

    fn split(self, at: usize) -> [Run; 2] {
        assert!(at > 0 && at < self.0.len(), "nothing is split into nothing");
        [Run(self.0[..at].to_vec()), Run(self.0[at..].to_vec())]
    }
}

impl Weight for Past {
    fn bytes(&self) -> usize {
        70
    }
}

type Runs = Tree<Run, Past>;

fn put(tree: &mut Runs, tokens: &[u32], checkpoint: bool) -> bool {
    let from = tree.find(tokens).stored;
    let span = (from < tokens.len()).then(|| Run(tokens[from..].to_vec()));
    tree.insert(tokens, from, span, checkpoint.then(|| Past(tokens.to_vec())))
}

/// What the spans of a sequence's beginning say, put together.
fn read(tree: &Runs, tokens: &[u32], length: usize) -> Vec<u32> {
    let found = tree.find(tokens);
    tree.spans(&found, length).flat_map(|(run, n)| run.0[..n].to_vec()).collect()
}

#[test]
fn sequences_share_what_they_have_in_common() {
    let mut tree = Runs::new(false);
    assert!(put(&mut tree, &[1, 2, 3, 4], false));
    assert!(put(&mut tree, &[1, 2, 5, 6], false));
    assert_eq!(tree.stored(), (6, 3));
    assert_eq!(tree.bytes(), 60);
    let found = tree.find(&[1, 2, 5, 7]);
    assert_eq!((found.stored, found.known, found.differs), (3, 3, true));
    assert_eq!(tree.resumable(&found, 2), 2);
    assert_eq!(read(&tree, &[1, 2, 5, 7], 3), [1, 2, 5]);
    let found = tree.find(&[1, 2, 5, 6, 7]);
    assert_eq!((found.stored, found.differs), (4, false), "it ends, and does not differ");
}

#[test]
fn what_is_behind_a_gap_is_refused() {
    let mut tree = Runs::new(false);
    assert!(!tree.insert(&[1, 2, 3], 2, Some(Run(vec![3])), None));
    assert_eq!((tree.bytes(), tree.stored()), (0, (0, 0)));
}

#[test]
fn a_checkpoint_is_where_it_can_be_resumed() {
    let mut tree = Runs::new(true);
    put(&mut tree, &[1, 2, 3, 4, 5, 6], true);
    put(&mut tree, &[1, 2, 3], true);
    let found = tree.find(&[1, 2, 3, 4, 5, 9]);
    assert_eq!((found.stored, tree.resumable(&found, 5)), (5, 3));
    assert_eq!(tree.checkpoint(&found, 3), Some(&Past(vec![1, 2, 3])));
    assert_eq!(tree.resumable(&tree.find(&[1, 2, 3, 4, 5, 6]), 5), 3, "the last token is to be computed");
}

#[test]
fn the_least_valuable_goes_first_and_is_remembered() {
    let mut tree = Runs::new(false);
    put(&mut tree, &[1, 2, 3], false);
    put(&mut tree, &[1, 2, 4], false);
    let found = tree.find(&[1, 2, 3]);
    tree.touch(&found, 3);
    assert_eq!(tree.shrink(30), 1);
    let found = tree.find(&[1, 2, 4]);
    assert_eq!((found.stored, found.known), (2, 3), "the branch not used went, and is remembered");
    assert_eq!(tree.find(&[1, 2, 3]).stored, 3);
    assert!(put(&mut tree, &[1, 2, 4, 5], false));
    assert_eq!(read(&tree, &[1, 2, 4, 5], 4), [1, 2, 4, 5]);
    tree.shrink(0);
    tree.forget(0);
    assert_eq!((tree.bytes(), tree.hollow, tree.find(&[1]).known), (0, 0, 0));
}

#[test]
fn too_large_tokens_are_told_from_evicted_ones() {
    let mut tree = Runs::new(false);
    put(&mut tree, &[1, 2, 3], false);
    tree.set_too_large(&[1, 2, 3, 4, 5]);
    tree.set_too_large(&[1, 9]);
    let check = |tree: &Runs, tokens: &[u32], expected: [usize; 4]| {
        let found = tree.find(tokens);
        assert_eq!(
            [found.stored, found.known, found.too_large, found.too_large_from],
            expected,
            "{tokens:?}"
        );
    };
    check(&tree, &[1, 2, 3, 4, 5, 6], [3, 5, 2, 3]);
    check(&tree, &[1, 2, 3, 4], [3, 4, 1, 3]);
    check(&tree, &[1, 9], [1, 2, 1, 1]);
    check(&tree, &[1, 2, 3], [3, 3, 0, 0]);
    assert_eq!(tree.bytes(), 30);
    // What fits after all is stored, and evicted like anything else.
    assert!(put(&mut tree, &[1, 2, 3, 4], false));
    check(&tree, &[1, 2, 3, 4, 5], [4, 5, 1, 4]);
    tree.shrink(0);
    check(&tree, &[1, 2, 3, 4, 5], [0, 5, 1, 4]);
    tree.set_too_large(&[1, 2, 3, 4]);
    check(&tree, &[1, 2, 3, 4, 5], [0, 5, 5, 0]);
}

#[test]
fn a_checkpoint_that_saves_little_goes_before_what_saves_much() {
    let mut tree = Runs::new(true);
    let tokens: Vec<u32> = (0..100).collect();
    put(&mut tree, &tokens[..98], true);
    put(&mut tree, &tokens, true);
    tree.shrink(tree.bytes() - 1);
    let found = tree.find(&tokens);
    assert_eq!(tree.resumable(&found, 99), 98);
    let nothing_to_resume = tree.find(&tokens);
    assert!(nothing_to_resume.stored <= 98);
}

#[derive(Clone, Debug)]
enum Act {
    Put(Vec<u32>, bool),
    Use(Vec<u32>),
    Shrink(usize),
    Forget(usize),
    TooLarge(Vec<u32>),
    /// Only spans of other lengths, and checkpoints at other positions.
    Retain(usize),
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..3, 1..12)
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (tokens(), any::<bool>()).prop_map(|(tokens, checkpoint)| Act::Put(tokens, checkpoint)),
        2 => tokens().prop_map(Act::Use),
        1 => (0usize..600).prop_map(Act::Shrink),
        1 => (0usize..30).prop_map(Act::Forget),
        1 => tokens().prop_map(Act::TooLarge),
        1 => (1usize..8).prop_map(Act::Retain),
    ]
}

/// Every account by counting.
fn audit(tree: &Runs) {
    let live: Vec<usize> = (1..tree.nodes.len()).filter(|i| !tree.free.contains(i)).collect();
    let (mut bytes, mut hollow) = (0, 0);
    for &i in &live {
        let node = &tree.nodes[i];
        bytes +=
            node.span.as_ref().map_or(0, Span::bytes) + node.checkpoint.as_ref().map_or(0, Weight::bytes);
        assert!(node.span.is_none() || !node.too_large);
        if node.span.is_none() {
            hollow += node.tokens.len();
            assert!(
                node.checkpoint.is_none() && node.children.values().all(|&c| tree.nodes[c].span.is_none())
            );
        }
        assert_eq!(tree.nodes[node.parent].children[&node.tokens[0]], i);
        assert_eq!(tree.nodes[node.parent].end(), node.start);
    }
    assert_eq!((bytes, hollow), (tree.bytes, tree.hollow));
}

proptest! {
    /// Beside a plain list of everything ever put in.
    #[test]
    fn it_finds_what_a_list_of_sequences_would(acts in prop::collection::vec(act(), 1..60), needs_snapshots: bool) {
        let mut tree = Runs::new(needs_snapshots);
        let (mut list, mut evicted): (Vec<(Vec<u32>, bool)>, bool) = (vec![], false);
        for act in acts {
            match act {
                Act::Put(tokens, checkpoint) => {
                    prop_assert!(put(&mut tree, &tokens, checkpoint));
                    prop_assert_eq!(tree.find(&tokens).stored, tokens.len());
                    list.push((tokens, checkpoint));
                }
                Act::Use(tokens) => {
                    let found = tree.find(&tokens);
                    let longest = list.iter().map(|(other, _)| common(other, &tokens)).max().unwrap_or(0);
                    prop_assert!(found.stored <= longest && found.known <= longest && found.stored <= found.known);
                    let at = tree.resumable(&found, tokens.len());
                    prop_assert!(at <= found.stored);
                    prop_assert_eq!(read(&tree, &tokens, at), &tokens[..at]);
                    if needs_snapshots && at > 0 {
                        prop_assert_eq!(tree.checkpoint(&found, at), Some(&Past(tokens[..at].to_vec())));
                    }
                    if !evicted {
                        let ends = list.iter().filter(|(other, marked)| *marked && tokens.starts_with(other));
                        let best = ends.map(|(other, _)| other.len()).max().unwrap_or(0);
                        prop_assert_eq!((found.stored, found.known), (longest, longest));
                        prop_assert_eq!(at, if needs_snapshots { best } else { longest });
                    }
                    tree.touch(&found, at);
                }
                Act::Shrink(bytes) => {
                    evicted |= tree.bytes() > bytes;
                    tree.shrink(bytes);
                    prop_assert!(tree.bytes() <= bytes);
                }
                Act::Forget(tokens) => {
                    tree.forget(tokens);
                    prop_assert!(tree.hollow <= tokens);
                }
                Act::TooLarge(tokens) => {
                    let stored = tree.find(&tokens).stored;
                    tree.set_too_large(&tokens);
                    let found = tree.find(&tokens);
                    prop_assert_eq!((found.stored, found.known), (stored, tokens.len()));
                    prop_assert_eq!(found.too_large, tokens.len() - stored);
                    list.push((tokens, false));
                    evicted = true;
                }
                Act::Retain(length) => {
                    evicted = true;
                    tree.retain(|run| run.0.len() != length, |past| past.0.len() != length);
                    let mut left = tree.nodes.iter().filter_map(|node| Some((node.span.as_ref()?, &node.checkpoint)));
                    let goes = |checkpoint: &Option<Past>| checkpoint.as_ref().is_some_and(|past| past.0.len() == length);
                    prop_assert!(left.all(|(run, checkpoint)| run.0.len() != length && !goes(checkpoint)));
                }
            }
            audit(&tree);
        }
    }
}
