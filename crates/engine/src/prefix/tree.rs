//! A radix tree over token ids: which sequences are stored, how far, and which part is worth least. Pure bookkeeping: it
//! does not look into what is stored.
//!
//! A node stands for a run of tokens and holds what belongs to each of them (its span); at its end there may be a
//! checkpoint, what belongs to that position alone. What is evicted leaves its tokens behind for a while, so that a miss
//! can be told from a sequence that nobody had sent before.

mod evict;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

/// What a run of tokens has.
pub trait Span: Sized {
    fn bytes(&self) -> usize;
    /// What the first `at` tokens have, and the others; there is at least one of each.
    fn split(self, at: usize) -> [Self; 2];
}

/// What a position has.
pub trait Weight {
    fn bytes(&self) -> usize;
}

pub struct Tree<S, C> {
    /// The first is the root, which has no tokens and is never removed.
    nodes: Vec<Node<S, C>>,
    /// Places in `nodes` that nobody uses.
    free: Vec<usize>,
    /// State is resumed at checkpoints alone; otherwise at any token.
    needs_snapshots: bool,
    /// Lookups so far: the measure of age.
    clock: u64,
    /// Of all spans and checkpoints.
    bytes: usize,
    /// Tokens of nodes without a span.
    hollow: usize,
}

struct Node<S, C> {
    parent: usize,
    /// Position of the first token.
    start: usize,
    tokens: Vec<u32>,
    /// By their first tokens.
    children: BTreeMap<u32, usize>,
    /// `None` once evicted; so are all below it then.
    span: Option<S>,
    /// Why there is no span: it did not fit into the cache, not even alone.
    too_large: bool,
    checkpoint: Option<C>,
    /// The clock when it was last used.
    used: u64,
}

/// How much of a sequence is stored.
#[derive(Debug, Default)]
pub struct Found {
    /// Nodes that hold its beginning, the last one perhaps in part.
    path: Vec<usize>,
    /// Tokens along the path.
    pub stored: usize,
    /// Tokens in common with the closest sequence that is stored or was.
    pub known: usize,
    /// That sequence has another token there; it does not just end.
    pub differs: bool,
    /// Known tokens that were never stored because they did not fit, and the position of the first.
    pub too_large: usize,
    pub too_large_from: usize,
}

impl Found {
    /// How much of a sequence two trees know together; only for counting, as nodes belong to one tree.
    pub fn or_longer(&self, other: &Found) -> Found {
        let longer = if other.known > self.known { other } else { self };
        let stored = self.stored.max(other.stored);
        Found {
            path: vec![],
            stored,
            known: longer.known,
            differs: longer.differs,
            too_large: self.too_large,
            too_large_from: self.too_large_from,
        }
    }
}

const ROOT: usize = 0;

impl<S: Span, C: Weight> Tree<S, C> {
    pub fn new(needs_snapshots: bool) -> Tree<S, C> {
        let root = Node {
            parent: ROOT,
            start: 0,
            tokens: vec![],
            children: BTreeMap::new(),
            span: None,
            too_large: false,
            checkpoint: None,
            used: 0,
        };
        Tree { nodes: vec![root], free: vec![], needs_snapshots, clock: 0, bytes: 0, hollow: 0 }
    }

    pub fn find(&self, tokens: &[u32]) -> Found {
        let (mut found, mut at, mut stored) = (Found::default(), ROOT, true);
        while let Some(first) = tokens.get(found.known) {
            let Some(&child) = self.nodes[at].children.get(first) else {
                found.differs = !self.nodes[at].children.is_empty();
                break;
            };
            let node = &self.nodes[child];
            let common = common(&node.tokens, &tokens[found.known..]);
            found.known += common;
            stored &= node.span.is_some();
            if stored {
                found.stored = found.known;
                found.path.push(child);
            } else if node.too_large {
                if found.too_large == 0 {
                    found.too_large_from = found.known - common;
                }
                found.too_large += common;
            }
            if common < node.tokens.len() {
                found.differs = found.known < tokens.len();
                break;
            }
            at = child;
        }
        found
    }

    /// The last position, at most `limit`, whose state is stored whole.
    pub fn resumable(&self, found: &Found, limit: usize) -> usize {
        if !self.needs_snapshots {
            return found.stored.min(limit);
        }
        let ends = found.path.iter().rev().map(|&i| &self.nodes[i]);
        let mut whole =
            ends.filter(|node| node.checkpoint.is_some() && node.end() <= limit.min(found.stored));
        whole.next().map_or(0, Node::end)
    }

    /// What is stored of the first `length` tokens: spans, and how many tokens of each count.
    pub fn spans(&self, found: &Found, length: usize) -> impl Iterator<Item = (&S, usize)> {
        let nodes = found.path.iter().map(|&i| &self.nodes[i]).filter(move |node| node.start < length);
        nodes.filter_map(move |node| Some((node.span.as_ref()?, node.tokens.len().min(length - node.start))))
    }

    /// The checkpoint at `position`.
    pub fn checkpoint(&self, found: &Found, position: usize) -> Option<&C> {
        let node = found.path.iter().map(|&i| &self.nodes[i]).find(|node| node.end() == position)?;
        node.checkpoint.as_ref().filter(|_| position <= found.stored)
    }

    /// Counts a lookup that used the first `length` tokens.
    pub fn touch(&mut self, found: &Found, length: usize) {
        self.clock += 1;
        for &i in &found.path {
            if self.nodes[i].start < length {
                self.nodes[i].used = self.clock;
            }
        }
    }

    /// Stores what tokens `from..` have, and their end. `false`, and nothing done, if what lies before `from` is not
    /// stored (any more).
    pub fn insert(&mut self, tokens: &[u32], from: usize, span: Option<S>, checkpoint: Option<C>) -> bool {
        if self.find(tokens).stored < from {
            return false;
        }
        let mut rest = Rest { start: from, end: tokens.len(), span };
        let (mut at, mut position) = (ROOT, 0);
        while position < tokens.len() {
            let (next, length) = match self.nodes[at].children.get(&tokens[position]) {
                None => (self.add(at, &tokens[position..]), tokens.len() - position),
                Some(&child) => {
                    let common = common(&self.nodes[child].tokens, &tokens[position..]);
                    (self.split(child, common), common)
                }
            };
            if self.nodes[next].span.is_none() {
                self.fill(next, rest.take(position, position + length));
            }
            self.nodes[next].used = self.clock;
            (at, position) = (next, position + length);
        }
        if at != ROOT && self.nodes[at].checkpoint.is_none() {
            self.bytes += checkpoint.as_ref().map_or(0, C::bytes);
            self.nodes[at].checkpoint = checkpoint;
        }
        true
    }

    /// Remembers that of `tokens` those that are not stored do not fit.
    pub fn set_too_large(&mut self, tokens: &[u32]) {
        let stored = self.find(tokens).stored;
        self.insert(tokens, stored, None, None);
        let (mut at, mut position) = (ROOT, 0);
        while let Some(first) = tokens.get(position) {
            at = self.nodes[at].children[first];
            position = self.nodes[at].end();
            self.nodes[at].too_large = self.nodes[at].span.is_none();
        }
    }

    /// Evicts the spans and checkpoints that are not to be kept, and all that lies below such a span.
    pub fn retain(&mut self, keep_span: impl Fn(&S) -> bool, keep_checkpoint: impl Fn(&C) -> bool) {
        let mut open = vec![(ROOT, true)];
        while let Some((i, above)) = open.pop() {
            let keep = above && (i == ROOT || self.nodes[i].span.as_ref().is_some_and(&keep_span));
            if !keep {
                self.empty(i);
            } else if self.nodes[i].checkpoint.as_ref().is_some_and(|checkpoint| !keep_checkpoint(checkpoint))
            {
                self.drop_checkpoint(i);
            }
            open.extend(self.nodes[i].children.values().map(|&child| (child, keep)));
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tokens whose spans are stored, in how many runs.
    pub fn stored(&self) -> (usize, usize) {
        let stored = self.nodes.iter().filter(|node| node.span.is_some());
        stored.fold((0, 0), |(tokens, runs), node| (tokens + node.tokens.len(), runs + 1))
    }

    pub fn checkpoints(&self) -> usize {
        self.nodes.iter().filter(|node| node.checkpoint.is_some()).count()
    }

    /// A new child, without a span.
    fn add(&mut self, parent: usize, tokens: &[u32]) -> usize {
        let node = Node {
            parent,
            start: self.nodes[parent].end(),
            tokens: tokens.to_vec(),
            children: BTreeMap::new(),
            span: None,
            too_large: false,
            checkpoint: None,
            used: self.clock,
        };
        self.hollow += tokens.len();
        let place = self.place(node);
        self.nodes[parent].children.insert(tokens[0], place);
        place
    }

    fn place(&mut self, node: Node<S, C>) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.nodes[place] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    fn fill(&mut self, i: usize, span: Option<S>) {
        let Some(span) = span else { return };
        self.hollow -= self.nodes[i].tokens.len();
        self.bytes += span.bytes();
        self.nodes[i].span = Some(span);
        self.nodes[i].too_large = false;
    }

    /// The node of the first `at` tokens of node `i`, which is `i` itself if it has no more.
    fn split(&mut self, i: usize, at: usize) -> usize {
        if at == self.nodes[i].tokens.len() {
            return i;
        }
        let lower = &mut self.nodes[i];
        let tail = lower.tokens.split_off(at);
        let head = std::mem::replace(&mut lower.tokens, tail);
        let before = lower.span.as_ref().map_or(0, S::bytes);
        let spans = lower.span.take().map(|span| span.split(at));
        let (parent, start, used, first) = (lower.parent, lower.start, lower.used, lower.tokens[0]);
        let too_large = lower.too_large;
        let (above, below) = spans.map_or((None, None), |[above, below]| (Some(above), Some(below)));
        self.bytes -= before;
        self.bytes += above.as_ref().map_or(0, S::bytes) + below.as_ref().map_or(0, S::bytes);
        lower.span = below;
        lower.start += at;
        let key = head[0];
        let children = BTreeMap::from([(first, i)]);
        let upper =
            Node { parent, start, tokens: head, children, span: above, too_large, checkpoint: None, used };
        let upper = self.place(upper);
        self.nodes[i].parent = upper;
        self.nodes[parent].children.insert(key, upper);
        upper
    }
}

impl<S, C> Node<S, C> {
    fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// What is left of a span while it is handed out: of tokens `start..end`.
struct Rest<S> {
    start: usize,
    end: usize,
    span: Option<S>,
}

impl<S: Span> Rest<S> {
    /// What tokens `from..to` have; what lies before them is dropped.
    fn take(&mut self, from: usize, to: usize) -> Option<S> {
        self.cut(from);
        self.cut(to)
    }

    /// Cuts off what lies before `at`, if anything does.
    fn cut(&mut self, at: usize) -> Option<S> {
        if at <= self.start {
            return None;
        }
        let span = self.span.take()?;
        if at >= self.end {
            return Some(span);
        }
        let [before, after] = span.split(at - self.start);
        (self.start, self.span) = (at, Some(after));
        Some(before)
    }
}

/// Tokens that two sequences have in common from their beginning.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
