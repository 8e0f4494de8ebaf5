//! Radix tree over token ids: which sequences are stored, how far, and what to evict. Knows nothing
//! about the stored state. Each salt has a root of its own.
//!
//! A node holds consecutive tokens and their span; at its end it may hold a snapshot. Nodes whose
//! state was evicted or never stored are kept for a while as tombstones, so that eviction can be
//! distinguished from a first request.

mod evict;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::evict::MAX_TOMBSTONES;
use super::key::{PrefixKey, common, is_image_key};
use crate::api::CacheSalt;

/// State that takes memory.
pub(crate) trait HeapSize {
    fn bytes(&self) -> usize;
}

/// State of consecutive tokens.
pub(crate) trait Span: HeapSize + Sized {
    /// Splits into the state of the first `at` tokens and that of the others; neither is empty.
    fn split(self, at: usize) -> [Self; 2];
}

pub(crate) struct RadixTree<S, C> {
    /// The first one is the root of sequences without a salt, which is never removed.
    nodes: Vec<Node<S, C>>,
    /// Roots of the other sequences; each has children.
    salted: BTreeMap<CacheSalt, usize>,
    /// Unused indices of `nodes`.
    free: Vec<usize>,
    /// Whether state can be resumed only at snapshots, not at any token.
    needs_snapshots: bool,
    /// Number of lookups so far; ages are counted in lookups.
    clock: u64,
    /// Total of all spans and snapshots.
    bytes: usize,
    /// Memory of tombstones, in bytes.
    tombstones: usize,
}

struct Node<S, C> {
    /// That of a root is the root itself.
    parent: usize,
    /// Position of the first token.
    start: usize,
    /// Empty in roots and unused nodes only.
    tokens: Vec<u32>,
    /// Keyed by first token.
    children: BTreeMap<u32, usize>,
    /// `None` if evicted or never stored; then no descendant has one either.
    span: Option<S>,
    /// The span is missing because it did not fit into the cache, even alone.
    too_large: bool,
    snapshot: Option<C>,
    /// Value of `clock` at the last use.
    used: u64,
}

/// The stored part of a sequence.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// Nodes that store its first tokens; the last one may match in part.
    path: Vec<usize>,
    /// Tokens along the path.
    pub stored: usize,
    /// Tokens in common with the closest sequence that is or was stored.
    pub known: usize,
    /// Whether that sequence continues with another token, instead of ending.
    pub differs: bool,
    /// Whether it continues with an image that the looked up sequence does not have there or later.
    pub image_dropped: bool,
    /// Known tokens that never fit, and the position of the first one.
    pub too_large: usize,
    pub too_large_from: usize,
}

impl Lookup {
    /// Combines lookups in two trees. The result has counts only: nodes belong to one tree.
    pub(crate) fn merge(&self, other: &Lookup) -> Lookup {
        let longer = if other.known > self.known { other } else { self };
        let stored = self.stored.max(other.stored);
        Lookup {
            path: vec![],
            stored,
            known: longer.known,
            differs: longer.differs,
            image_dropped: longer.image_dropped,
            too_large: self.too_large,
            too_large_from: self.too_large_from,
        }
    }
}

const ROOT: usize = 0;
/// Most tokens that introduce an image.
const IMAGE_INTRODUCTION: usize = 8;

/// Whether an image that is not in `tokens` begins in the first of `stored`, so that it was dropped
/// or replaced.
fn begins_with_other_image(stored: &[u32], tokens: &[u32]) -> bool {
    let first = stored.iter().take(IMAGE_INTRODUCTION).find(|key| is_image_key(**key));
    first.is_some_and(|first| !tokens.contains(first))
}

impl<S: Span, C: HeapSize> RadixTree<S, C> {
    pub(crate) fn new(needs_snapshots: bool) -> RadixTree<S, C> {
        RadixTree {
            nodes: vec![Node::new(ROOT, 0, vec![])],
            salted: BTreeMap::new(),
            free: vec![],
            needs_snapshots,
            clock: 0,
            bytes: 0,
            tombstones: 0,
        }
    }

    pub(crate) fn find(&self, PrefixKey { salt, tokens }: PrefixKey) -> Lookup {
        let (mut found, mut stored) = (Lookup::default(), true);
        let root = salt.map_or(Some(ROOT), |salt| self.salted.get(&salt).copied());
        let Some(mut at) = root else { return found };
        while let Some(first) = tokens.get(found.known) {
            let Some(&child) = self.nodes[at].children.get(first) else {
                let node = &self.nodes[at];
                found.differs = !node.children.is_empty();
                found.image_dropped =
                    self.continues_with_image(node, node.tokens.len(), &tokens[found.known..]);
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
                found.image_dropped =
                    found.differs && self.continues_with_image(node, common, &tokens[found.known..]);
                break;
            }
            at = child;
        }
        found
    }

    /// Whether an image that is not in `tokens` soon follows the first `at` tokens of a node.
    fn continues_with_image(&self, node: &Node<S, C>, at: usize, tokens: &[u32]) -> bool {
        let own = &node.tokens[at..];
        let children = node.children.values().map(|&child| &self.nodes[child].tokens[..]);
        let mut branches = children.filter(|_| own.len() < IMAGE_INTRODUCTION);
        begins_with_other_image(own, tokens) || branches.any(|branch| begins_with_other_image(branch, tokens))
    }

    /// The last position up to `limit` whose state is stored completely.
    pub(crate) fn resumable(&self, found: &Lookup, limit: usize) -> usize {
        if !self.needs_snapshots {
            return found.stored.min(limit);
        }
        let ends = found.path.iter().rev().map(|&i| &self.nodes[i]);
        let mut resumable =
            ends.filter(|node| node.snapshot.is_some() && node.end() <= limit.min(found.stored));
        resumable.next().map_or(0, Node::end)
    }

    /// The spans of the first `length` tokens, each with its number of tokens within them.
    pub(crate) fn spans(&self, found: &Lookup, length: usize) -> impl Iterator<Item = (&S, usize)> {
        let nodes = found.path.iter().map(|&i| &self.nodes[i]).filter(move |node| node.start < length);
        nodes.filter_map(move |node| Some((node.span.as_ref()?, node.tokens.len().min(length - node.start))))
    }

    /// The snapshot at `position`, if it is stored.
    pub(crate) fn snapshot(&self, found: &Lookup, position: usize) -> Option<&C> {
        let node = found.path.iter().map(|&i| &self.nodes[i]).find(|node| node.end() == position)?;
        node.snapshot.as_ref().filter(|_| position <= found.stored)
    }

    /// Marks the first `length` tokens as used.
    pub(crate) fn touch(&mut self, found: &Lookup, length: usize) {
        self.clock += 1;
        for &i in &found.path {
            if self.nodes[i].start < length {
                self.nodes[i].used = self.clock;
            }
        }
    }

    /// Stores the span of tokens `from..` and the snapshot after them. Returns `false` and stores
    /// nothing if the tokens before `from` are not stored.
    pub(crate) fn insert(
        &mut self,
        key: PrefixKey,
        from: usize,
        span: Option<S>,
        snapshot: Option<C>,
    ) -> bool {
        if self.find(key).stored < from {
            return false;
        }
        let tokens = key.tokens;
        if tokens.is_empty() {
            return true;
        }
        let mut rest = RemainingSpan { start: from, end: tokens.len(), span };
        let (mut at, mut position) = (self.root_of(key.salt), 0);
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
        if self.nodes[at].snapshot.is_none() {
            self.bytes += snapshot.as_ref().map_or(0, C::bytes);
            self.nodes[at].snapshot = snapshot;
        }
        true
    }

    /// Records that those of `tokens` that are not stored do not fit.
    pub(crate) fn set_too_large(&mut self, key: PrefixKey) {
        if key.tokens.is_empty() {
            return;
        }
        let stored = self.find(key).stored;
        self.insert(key, stored, None, None);
        let (mut at, mut position) = (self.root_of(key.salt), 0);
        while let Some(first) = key.tokens.get(position) {
            at = self.nodes[at].children[first];
            position = self.nodes[at].end();
            self.nodes[at].too_large = self.nodes[at].span.is_none();
        }
        self.drop_tombstones(MAX_TOMBSTONES);
    }

    /// Evicts spans and snapshots for which the predicates are false, and all descendants of such
    /// spans.
    pub(crate) fn retain(&mut self, keep_span: impl Fn(&S) -> bool, keep_snapshot: impl Fn(&C) -> bool) {
        let roots = self.salted.values().copied().chain([ROOT]);
        let mut open: Vec<(usize, bool)> = roots.map(|root| (root, true)).collect();
        while let Some((i, parent_kept)) = open.pop() {
            let is_root = self.nodes[i].is_root();
            let keep = parent_kept && (is_root || self.nodes[i].span.as_ref().is_some_and(&keep_span));
            if !keep {
                self.evict(i);
            } else if self.nodes[i].snapshot.as_ref().is_some_and(|snapshot| !keep_snapshot(snapshot)) {
                self.drop_snapshot(i);
            }
            open.extend(self.nodes[i].children.values().map(|&child| (child, keep)));
        }
        self.drop_tombstones(MAX_TOMBSTONES);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of stored tokens, and of their spans.
    pub(crate) fn stored(&self) -> (usize, usize) {
        let stored = self.nodes.iter().filter(|node| node.span.is_some());
        stored.fold((0, 0), |(tokens, spans), node| (tokens + node.tokens.len(), spans + 1))
    }

    pub(crate) fn snapshots(&self) -> usize {
        self.nodes.iter().filter(|node| node.snapshot.is_some()).count()
    }

    /// The root of sequences with this salt, which must get a child.
    fn root_of(&mut self, salt: Option<CacheSalt>) -> usize {
        let Some(salt) = salt else { return ROOT };
        if let Some(&root) = self.salted.get(&salt) {
            return root;
        }
        let root = self.alloc(Node::new(ROOT, 0, vec![]));
        self.nodes[root].parent = root;
        self.salted.insert(salt, root);
        root
    }

    /// A new child, without a span.
    fn add(&mut self, parent: usize, tokens: &[u32]) -> usize {
        let start = self.nodes[parent].end();
        let i = self.alloc(Node { used: self.clock, ..Node::new(parent, start, tokens.to_vec()) });
        self.tombstones += self.nodes[i].heap_bytes();
        self.nodes[parent].children.insert(tokens[0], i);
        i
    }

    fn alloc(&mut self, node: Node<S, C>) -> usize {
        match self.free.pop() {
            Some(i) => {
                self.nodes[i] = node;
                i
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    fn fill(&mut self, i: usize, span: Option<S>) {
        let Some(span) = span else { return };
        self.tombstones -= self.nodes[i].heap_bytes();
        self.bytes += span.bytes();
        self.nodes[i].span = Some(span);
        self.nodes[i].too_large = false;
    }

    /// Splits node `i` after `at` tokens and returns the upper node; `i` itself if it has no
    /// others.
    fn split(&mut self, i: usize, at: usize) -> usize {
        if at == self.nodes[i].tokens.len() {
            return i;
        }
        let lower = &mut self.nodes[i];
        let tail = lower.tokens.split_off(at);
        let mut head = std::mem::replace(&mut lower.tokens, tail);
        // It has the capacity for all tokens.
        head.shrink_to_fit();
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
            Node { parent, start, tokens: head, children, span: above, too_large, snapshot: None, used };
        if upper.span.is_none() {
            self.tombstones += Node::<S, C>::BYTES;
        }
        let upper = self.alloc(upper);
        self.nodes[i].parent = upper;
        self.nodes[parent].children.insert(key, upper);
        upper
    }
}

impl<S, C> Node<S, C> {
    /// Memory of a node besides its tokens and state, with its entry in the parent's children.
    const BYTES: usize = size_of::<Self>() + 128;

    /// Without children and state.
    fn new(parent: usize, start: usize, tokens: Vec<u32>) -> Node<S, C> {
        Node {
            parent,
            start,
            tokens,
            children: BTreeMap::new(),
            span: None,
            too_large: false,
            snapshot: None,
            used: 0,
        }
    }

    fn is_root(&self) -> bool {
        self.tokens.is_empty()
    }

    fn end(&self) -> usize {
        self.start + self.tokens.len()
    }

    /// Memory that it takes without a span.
    fn heap_bytes(&self) -> usize {
        Self::BYTES + self.tokens.len() * size_of::<u32>()
    }
}

/// The rest, tokens `start..end`, of a span that is distributed over nodes.
struct RemainingSpan<S> {
    start: usize,
    end: usize,
    span: Option<S>,
}

impl<S: Span> RemainingSpan<S> {
    /// Removes the span of tokens `from..to`; that of earlier tokens is dropped.
    fn take(&mut self, from: usize, to: usize) -> Option<S> {
        self.cut(from);
        self.cut(to)
    }

    /// Removes the span of the tokens before `at`.
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
