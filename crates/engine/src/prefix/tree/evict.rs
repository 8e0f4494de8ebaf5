//! Eviction: which state to remove when the cache is full.
//!
//! Candidates are spans without stored descendants, with their snapshots, and inner snapshots. The
//! value of a candidate is the number of tokens to recompute without it, divided by its bytes and
//! by its age in lookups; the least valuable one is removed first. A span that nothing can resume
//! from is worth nothing.

use super::{HeapSize, Node, RadixTree, Span};

/// Maximum memory of tombstones in bytes: a million tokens of long prompts, a third of that of
/// short ones.
pub(super) const MAX_TOMBSTONES: usize = 4 << 20;

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
            self.tombstones += self.nodes[i].heap_bytes();
        }
    }

    pub(super) fn drop_snapshot(&mut self, i: usize) {
        let snapshot = self.nodes[i].snapshot.take();
        self.bytes -= snapshot.as_ref().map_or(0, C::bytes);
    }

    /// Removes the oldest tombstones until they take at most `limit` bytes; then some more, so that
    /// few calls search for the oldest ones.
    pub(super) fn drop_tombstones(&mut self, limit: usize) {
        if self.tombstones <= limit {
            return;
        }
        let limit = limit - limit / 16;
        while self.tombstones > limit {
            let nodes = self.nodes.iter().enumerate();
            let leaves = nodes.filter(|(_, node)| !node.is_root() && node.is_tombstone_leaf());
            let mut leaves: Vec<(u64, usize)> = leaves.map(|(i, node)| (node.used, i)).collect();
            if leaves.is_empty() {
                return;
            }
            leaves.sort_unstable();
            for (_, leaf) in leaves {
                if self.tombstones <= limit {
                    return;
                }
                self.remove_tombstone(leaf);
            }
        }
    }

    fn remove_tombstone(&mut self, leaf: usize) {
        self.tombstones -= self.nodes[leaf].heap_bytes();
        let node = &mut self.nodes[leaf];
        let (parent, tokens) = (node.parent, std::mem::take(&mut node.tokens));
        self.nodes[parent].children.remove(&tokens[0]);
        self.free.push(leaf);
        if self.nodes[parent].is_root() && self.nodes[parent].children.is_empty() {
            self.remove_root(parent);
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
