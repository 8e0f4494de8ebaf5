use proptest::prelude::*;

use super::*;
use crate::prefix::OwnedPrefixKey;

/// The tokens of a span, 10 bytes each.
#[derive(Clone, Debug, PartialEq)]
struct TokenSpan(Vec<u32>);

/// The tokens before a snapshot.
#[derive(Clone, Debug, PartialEq)]
struct TokenSnapshot(Vec<u32>);

impl HeapSize for TokenSpan {
    fn bytes(&self) -> usize {
        10 * self.0.len()
    }
}

impl Span for TokenSpan {
    fn split(self, at: usize) -> [TokenSpan; 2] {
        assert!(at > 0 && at < self.0.len(), "both parts have tokens");
        [TokenSpan(self.0[..at].to_vec()), TokenSpan(self.0[at..].to_vec())]
    }
}

impl HeapSize for TokenSnapshot {
    fn bytes(&self) -> usize {
        70
    }
}

fn key(tokens: &[u32]) -> PrefixKey<'_> {
    PrefixKey { salt: None, tokens }
}

type TestTree = RadixTree<TokenSpan, TokenSnapshot>;

fn insert(tree: &mut TestTree, tokens: &[u32], snapshot: bool) -> bool {
    insert_under(tree, key(tokens), snapshot)
}

fn insert_under(tree: &mut TestTree, key: PrefixKey, snapshot: bool) -> bool {
    let (from, tokens) = (tree.find(key).stored, key.tokens);
    let span = (from < tokens.len()).then(|| TokenSpan(tokens[from..].to_vec()));
    tree.insert(key, from, span, snapshot.then(|| TokenSnapshot(tokens.to_vec())))
}

/// The tokens of all spans of a sequence's first `length` tokens.
fn read(tree: &TestTree, tokens: &[u32], length: usize) -> Vec<u32> {
    read_under(tree, key(tokens), length)
}

fn read_under(tree: &TestTree, key: PrefixKey, length: usize) -> Vec<u32> {
    let found = tree.find(key);
    tree.spans(&found, length).flat_map(|(span, n)| span.0[..n].to_vec()).collect()
}

#[test]
fn tree_shares_common_prefix() {
    let mut tree = TestTree::new(false);
    assert!(insert(&mut tree, &[1, 2, 3, 4], false));
    assert!(insert(&mut tree, &[1, 2, 5, 6], false));
    assert_eq!(tree.stored(), (6, 3));
    assert_eq!(tree.bytes(), 60);
    let found = tree.find(key(&[1, 2, 5, 7]));
    assert_eq!((found.stored, found.known, found.differs), (3, 3, true));
    assert_eq!(tree.resumable(&found, 2), 2);
    assert_eq!(read(&tree, &[1, 2, 5, 7], 3), [1, 2, 5]);
    let found = tree.find(key(&[1, 2, 5, 6, 7]));
    assert_eq!((found.stored, found.differs), (4, false), "the stored sequence ends");
}

#[test]
fn insert_after_gap_is_refused() {
    let mut tree = TestTree::new(false);
    assert!(!tree.insert(key(&[1, 2, 3]), 2, Some(TokenSpan(vec![3])), None));
    assert_eq!((tree.bytes(), tree.stored()), (0, (0, 0)));
}

#[test]
fn resumable_position_is_last_snapshot() {
    let mut tree = TestTree::new(true);
    insert(&mut tree, &[1, 2, 3, 4, 5, 6], true);
    insert(&mut tree, &[1, 2, 3], true);
    let found = tree.find(key(&[1, 2, 3, 4, 5, 9]));
    assert_eq!((found.stored, tree.resumable(&found, 5)), (5, 3));
    assert_eq!(tree.snapshot(&found, 3), Some(&TokenSnapshot(vec![1, 2, 3])));
    assert_eq!(tree.resumable(&tree.find(key(&[1, 2, 3, 4, 5, 6])), 5), 3, "the last token must be computed");
}

#[test]
fn eviction_removes_least_valuable_and_leaves_tombstone() {
    let mut tree = TestTree::new(false);
    insert(&mut tree, &[1, 2, 3], false);
    insert(&mut tree, &[1, 2, 4], false);
    let found = tree.find(key(&[1, 2, 3]));
    tree.touch(&found, 3);
    assert_eq!(tree.shrink(30), 1);
    let found = tree.find(key(&[1, 2, 4]));
    assert_eq!((found.stored, found.known), (2, 3), "the unused branch is evicted and leaves a tombstone");
    assert_eq!(tree.find(key(&[1, 2, 3])).stored, 3);
    assert!(insert(&mut tree, &[1, 2, 4, 5], false));
    assert_eq!(read(&tree, &[1, 2, 4, 5], 4), [1, 2, 4, 5]);
    tree.shrink(0);
    tree.drop_tombstones(0);
    assert_eq!((tree.bytes(), tree.tombstones, tree.find(key(&[1])).known), (0, 0, 0));
}

#[test]
fn too_large_tokens_differ_from_evicted_ones() {
    let mut tree = TestTree::new(false);
    insert(&mut tree, &[1, 2, 3], false);
    tree.set_too_large(key(&[1, 2, 3, 4, 5]));
    tree.set_too_large(key(&[1, 9]));
    let check = |tree: &TestTree, tokens: &[u32], expected: [usize; 4]| {
        let found = tree.find(key(tokens));
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
    // Tokens that fit now are stored, and can be evicted.
    assert!(insert(&mut tree, &[1, 2, 3, 4], false));
    check(&tree, &[1, 2, 3, 4, 5], [4, 5, 1, 4]);
    tree.shrink(0);
    check(&tree, &[1, 2, 3, 4, 5], [0, 5, 1, 4]);
    tree.set_too_large(key(&[1, 2, 3, 4]));
    check(&tree, &[1, 2, 3, 4, 5], [0, 5, 5, 0]);
}

#[test]
fn tombstones_take_bounded_memory_whatever_leaves_them() {
    let evictions: [fn(&mut TestTree, &[u32]); 3] = [
        |tree, _| _ = tree.shrink(0),
        |tree, _| tree.retain(|_| false, |_| false),
        |tree, tokens| tree.set_too_large(key(tokens)),
    ];
    for evict in evictions {
        let mut tree = TestTree::new(false);
        let sequence = |i: u32| -> Vec<u32> { (0..1000).map(|token| token + 1000 * i).collect() };
        for i in 0..3000 {
            insert(&mut tree, &sequence(i)[..500], false);
            evict(&mut tree, &sequence(i));
        }
        let known = |i| tree.find(key(&sequence(i))).known;
        assert!(tree.tombstones <= MAX_TOMBSTONES, "{} bytes", tree.tombstones);
        assert!(known(2999) > known(0), "the oldest ones go first");
        audit(&tree);
    }
}

#[test]
fn eviction_removes_snapshot_that_saves_few_tokens_first() {
    let mut tree = TestTree::new(true);
    let tokens: Vec<u32> = (0..100).collect();
    insert(&mut tree, &tokens[..98], true);
    insert(&mut tree, &tokens, true);
    tree.shrink(tree.bytes() - 1);
    let found = tree.find(key(&tokens));
    assert_eq!(tree.resumable(&found, 99), 98);
    let nothing_to_resume = tree.find(key(&tokens));
    assert!(nothing_to_resume.stored <= 98);
}

#[test]
fn sequences_of_another_salt_are_not_found() {
    let mut tree = TestTree::new(true);
    let salts = [None, Some(CacheSalt::new([Some("a")])), Some(CacheSalt::new([Some("b")]))];
    let under = |salt, tokens| PrefixKey { salt, tokens };
    for (i, salt) in salts.into_iter().enumerate() {
        let found = tree.find(under(salt, &[1, 2, 3]));
        assert_eq!((found.stored, found.known, found.differs), (0, 0, false), "{salt:?}");
        assert!(insert_under(&mut tree, under(salt, &[1, 2, 3]), true));
        assert_eq!(tree.stored(), (3 * (i + 1), i + 1), "each salt has state of its own");
    }
    assert!(!tree.insert(under(Some(CacheSalt::new([])), &[1, 2, 3]), 1, None, None));
    assert_eq!(tree.salted.len(), 2);
    tree.shrink(0);
    tree.drop_tombstones(0);
    assert!(tree.salted.is_empty(), "roots go with their last sequence");
    assert_eq!(tree.find(under(salts[1], &[1, 2, 3])).known, 0);
    audit(&tree);
}

#[derive(Clone, Debug)]
enum Op {
    Insert(OwnedPrefixKey, bool),
    Use(OwnedPrefixKey),
    Shrink(usize),
    DropTombstones(usize),
    TooLarge(OwnedPrefixKey),
    /// Evicts spans of this length and snapshots at this position.
    Retain(usize),
}

fn keys() -> impl Strategy<Value = OwnedPrefixKey> {
    let salt = prop_oneof![2 => Just(None), 1 => Just(Some("a")), 1 => Just(Some("b"))];
    (salt, prop::collection::vec(0u32..3, 1..12)).prop_map(|(salt, tokens)| OwnedPrefixKey {
        salt: salt.map(|salt| CacheSalt::new([Some(salt)])),
        tokens,
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (keys(), any::<bool>()).prop_map(|(key, snapshot)| Op::Insert(key, snapshot)),
        2 => keys().prop_map(Op::Use),
        1 => (0usize..600).prop_map(Op::Shrink),
        1 => (0usize..8000).prop_map(Op::DropTombstones),
        1 => keys().prop_map(Op::TooLarge),
        1 => (1usize..8).prop_map(Op::Retain),
    ]
}

/// Recomputes all counters.
fn audit(tree: &TestTree) {
    let roots: Vec<usize> = tree.salted.values().copied().chain([ROOT]).collect();
    let unused = |i: &usize| tree.free.contains(i) || roots.contains(i);
    let (mut bytes, mut tombstones) = (0, 0);
    for i in (0..tree.nodes.len()).filter(|i| !unused(i)) {
        let node = &tree.nodes[i];
        bytes +=
            node.span.as_ref().map_or(0, HeapSize::bytes) + node.snapshot.as_ref().map_or(0, HeapSize::bytes);
        assert!(node.span.is_none() || !node.too_large);
        if node.span.is_none() {
            tombstones += node.heap_bytes();
            assert!(node.snapshot.is_none() && node.children.values().all(|&c| tree.nodes[c].span.is_none()));
        }
        assert_eq!(tree.nodes[node.parent].children[&node.tokens[0]], i);
        assert_eq!(tree.nodes[node.parent].end(), node.start);
    }
    assert_eq!((bytes, tombstones), (tree.bytes, tree.tombstones));
    for &root in &roots {
        let node = &tree.nodes[root];
        assert!(node.is_root() && node.span.is_none() && node.snapshot.is_none());
        assert!(root == ROOT || (node.parent == root && !node.children.is_empty()));
    }
}

proptest! {
    /// Compares with a list of everything ever inserted.
    #[test]
    fn tree_finds_same_as_list_of_sequences(ops in prop::collection::vec(op(), 1..60), needs_snapshots: bool) {
        let mut tree = TestTree::new(needs_snapshots);
        let (mut list, mut evicted): (Vec<(OwnedPrefixKey, bool)>, bool) = (vec![], false);
        for op in ops {
            match op {
                Op::Insert(own, snapshot) => {
                    let key = own.as_key();
                    prop_assert!(insert_under(&mut tree, key, snapshot));
                    prop_assert_eq!(tree.find(key).stored, key.tokens.len());
                    list.push((own, snapshot));
                }
                Op::Use(own) => {
                    let key = own.as_key();
                    let found = tree.find(key);
                    let longest = list.iter().map(|(other, _)| other.as_key().common(&key)).max().unwrap_or(0);
                    prop_assert!(found.stored <= longest && found.known <= longest && found.stored <= found.known);
                    let at = tree.resumable(&found, key.tokens.len());
                    prop_assert!(at <= found.stored);
                    prop_assert_eq!(read_under(&tree, key, at), &key.tokens[..at]);
                    if needs_snapshots && at > 0 {
                        prop_assert_eq!(tree.snapshot(&found, at), Some(&TokenSnapshot(key.tokens[..at].to_vec())));
                    }
                    if !evicted {
                        let ends = list.iter().filter(|(other, marked)| *marked && key.starts_with(&other.as_key()));
                        let best = ends.map(|(other, _)| other.tokens.len()).max().unwrap_or(0);
                        prop_assert_eq!((found.stored, found.known), (longest, longest));
                        prop_assert_eq!(at, if needs_snapshots { best } else { longest });
                    }
                    tree.touch(&found, at);
                }
                Op::Shrink(bytes) => {
                    evicted |= tree.bytes() > bytes;
                    tree.shrink(bytes);
                    prop_assert!(tree.bytes() <= bytes);
                }
                Op::DropTombstones(bytes) => {
                    tree.drop_tombstones(bytes);
                    prop_assert!(tree.tombstones <= bytes);
                }
                Op::TooLarge(own) => {
                    let key = own.as_key();
                    let stored = tree.find(key).stored;
                    tree.set_too_large(key);
                    let found = tree.find(key);
                    prop_assert_eq!((found.stored, found.known), (stored, key.tokens.len()));
                    prop_assert_eq!(found.too_large, key.tokens.len() - stored);
                    list.push((own, false));
                    evicted = true;
                }
                Op::Retain(length) => {
                    evicted = true;
                    tree.retain(|span| span.0.len() != length, |past| past.0.len() != length);
                    let mut left = tree.nodes.iter().filter_map(|node| Some((node.span.as_ref()?, &node.snapshot)));
                    let goes = |snapshot: &Option<TokenSnapshot>| snapshot.as_ref().is_some_and(|past| past.0.len() == length);
                    prop_assert!(left.all(|(span, snapshot)| span.0.len() != length && !goes(snapshot)));
                }
            }
            audit(&tree);
        }
    }
}
