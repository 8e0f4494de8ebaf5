//! Eviction: which state to remove when the cache is full.
//!
//! Candidates are spans without stored descendants, with their snapshots, and inner snapshots. The
//! value of a candidate is the number of tokens to recompute without it, divided by its bytes and
//! by its age in lookups; the least valuable one is removed first. A span that nothing can resume
//! from is worth nothing.

use super::{HeapSize, Node, RadixTree, Span};

/// Maximum tokens of evicted nodes.
const MAX_TOMBSTONES: usize = 1 << 20;

/// A node whose state can be evicted.
enum Victim {
    /// Its span, and its snapshot if it has one.
    Span(usize),
    Snapshot(usize),
}

impl<S: Span, C: HeapSize> RadixTree<S, C> {
    /// Evicts the least valuable state until at most `bytes` are left; returns the number of
    /// evictions.
    pub(crate) fn shrink(&mut self, bytes: usize) -> usize {
        let mut evicted = 0;
        while self.bytes > bytes {
            let Some(victim) = self.least_valuable() else { break };
            evicted += 1;
            match victim {
                Victim::Span(i) => self.evict(i),
                Victim::Snapshot(i) => self.drop_snapshot(i),
            }
        }
        self.drop_tombstones(MAX_TOMBSTONES);
        evicted
    }

    /// Removes everything, tombstones included.
    pub(crate) fn clear(&mut self) {
        *self = RadixTree { clock: self.clock, ..RadixTree::new(self.needs_snapshots) };
    }

    fn least_valuable(&self) -> Option<Victim> {
        let victims = self.nodes.iter().enumerate().filter_map(|(i, node)| {
            let span = node.span.as_ref()?;
            let snapshot = node.snapshot.as_ref().map(C::bytes);
            let is_leaf = node.children.values().all(|&child| self.nodes[child].span.is_none());
            let (victim, bytes) = match is_leaf {
                true => (Victim::Span(i), span.bytes() + snapshot.unwrap_or(0)),
                false => (Victim::Snapshot(i), snapshot?),
            };
            let age = self.clock - node.used + 1;
            Some((self.saved_tokens(i) as f64 / bytes.max(1) as f64 / age as f64, victim))
        });
        victims.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, victim)| victim)
    }

    /// Tokens that a sequence resuming at the end of node `i` would have to recompute without it.
    fn saved_tokens(&self, i: usize) -> usize {
        let node = &self.nodes[i];
        if !self.needs_snapshots {
            return node.tokens.len();
        }
        if node.snapshot.is_none() {
            return 0;
        }
        let mut ancestor = node.parent;
        while !self.nodes[ancestor].is_root() && self.nodes[ancestor].snapshot.is_none() {
            ancestor = self.nodes[ancestor].parent;
        }
        node.end() - self.nodes[ancestor].end()
    }

    pub(super) fn evict(&mut self, i: usize) {
        self.drop_snapshot(i);
        if let Some(span) = self.nodes[i].span.take() {
            self.bytes -= span.bytes();
            self.nodes[i].too_large = false;
            self.tombstones += self.nodes[i].tokens.len();
        }
    }

    pub(super) fn drop_snapshot(&mut self, i: usize) {
        let snapshot = self.nodes[i].snapshot.take();
        self.bytes -= snapshot.as_ref().map_or(0, C::bytes);
    }

    /// Removes the oldest tombstones until at most `tokens` are left.
    pub(super) fn drop_tombstones(&mut self, tokens: usize) {
        while self.tombstones > tokens {
            let leaves = self.nodes.iter().enumerate();
            let leaves = leaves.filter(|(_, node)| !node.is_root() && node.is_tombstone_leaf());
            let Some(oldest) = leaves.min_by_key(|(_, node)| node.used).map(|(i, _)| i) else { return };
            let node = &mut self.nodes[oldest];
            self.tombstones -= node.tokens.len();
            let (parent, tokens) = (node.parent, std::mem::take(&mut node.tokens));
            self.nodes[parent].children.remove(&tokens[0]);
            self.free.push(oldest);
            if self.nodes[parent].is_root() && self.nodes[parent].children.is_empty() {
                self.remove_root(parent);
            }
        }
    }

    /// Removes a root without children, unless it is that of sequences without a salt.
    fn remove_root(&mut self, root: usize) {
        let salts = self.salted.len();
        self.salted.retain(|_, other| *other != root);
        if self.salted.len() < salts {
            self.free.push(root);
        }
    }
}

impl<S, C> Node<S, C> {
    fn is_tombstone_leaf(&self) -> bool {
        self.span.is_none() && self.children.is_empty()
    }
}
