//! What goes when there is too much.
//!
//! Only ends go: a run below which nothing is stored, with its checkpoint, or a checkpoint further up by itself. Each is
//! worth the tokens that would have to be computed again without it, divided by its bytes and by its age in lookups;
//! what is worth least goes first. A run that nothing can be resumed from is worth nothing.

use super::{Node, ROOT, Span, Tree, Weight};

/// Tokens remembered of what was evicted.
const HOLLOW: usize = 1 << 20;

/// What can go.
enum End {
    Run(usize),
    Checkpoint(usize),
}

impl<S: Span, C: Weight> Tree<S, C> {
    /// Removes what is worth least until at most `bytes` are left; returns how many times.
    pub fn shrink(&mut self, bytes: usize) -> usize {
        let mut evicted = 0;
        while self.bytes > bytes {
            let Some(end) = self.least() else { break };
            evicted += 1;
            match end {
                End::Run(i) => self.empty(i),
                End::Checkpoint(i) => self.drop_checkpoint(i),
            }
        }
        self.forget(HOLLOW);
        evicted
    }

    /// Forgets everything, what was evicted included.
    pub fn clear(&mut self) {
        *self = Tree { clock: self.clock, ..Tree::new(self.needs_snapshots) };
    }

    fn least(&self) -> Option<End> {
        let ends = self.nodes.iter().enumerate().filter_map(|(i, node)| {
            let span = node.span.as_ref()?;
            let checkpoint = node.checkpoint.as_ref().map(C::bytes);
            let is_end = node.children.values().all(|&child| self.nodes[child].span.is_none());
            let (end, bytes) = match is_end {
                true => (End::Run(i), span.bytes() + checkpoint.unwrap_or(0)),
                false => (End::Checkpoint(i), checkpoint?),
            };
            let age = self.clock - node.used + 1;
            Some((self.saved(i) as f64 / bytes.max(1) as f64 / age as f64, end))
        });
        ends.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, end)| end)
    }

    /// Tokens that a sequence which goes on from the end of node `i` would have to compute again without it.
    fn saved(&self, i: usize) -> usize {
        let node = &self.nodes[i];
        if !self.needs_snapshots {
            return node.tokens.len();
        }
        if node.checkpoint.is_none() {
            return 0;
        }
        let mut above = node.parent;
        while above != ROOT && self.nodes[above].checkpoint.is_none() {
            above = self.nodes[above].parent;
        }
        node.end() - self.nodes[above].end()
    }

    pub(super) fn empty(&mut self, i: usize) {
        self.drop_checkpoint(i);
        if let Some(span) = self.nodes[i].span.take() {
            self.bytes -= span.bytes();
            self.nodes[i].too_large = false;
            self.hollow += self.nodes[i].tokens.len();
        }
    }

    pub(super) fn drop_checkpoint(&mut self, i: usize) {
        let checkpoint = self.nodes[i].checkpoint.take();
        self.bytes -= checkpoint.as_ref().map_or(0, C::bytes);
    }

    /// Forgets the oldest of what was evicted until at most `tokens` of it are left.
    pub(super) fn forget(&mut self, tokens: usize) {
        while self.hollow > tokens {
            let leaves = self.nodes.iter().enumerate();
            let leaves =
                leaves.filter(|(i, node)| *i != ROOT && !node.tokens.is_empty() && node.is_hollow_leaf());
            let Some(oldest) = leaves.min_by_key(|(_, node)| node.used).map(|(i, _)| i) else { return };
            let node = &mut self.nodes[oldest];
            self.hollow -= node.tokens.len();
            let (parent, tokens) = (node.parent, std::mem::take(&mut node.tokens));
            self.nodes[parent].children.remove(&tokens[0]);
            self.free.push(oldest);
        }
    }
}

impl<S, C> Node<S, C> {
    fn is_hollow_leaf(&self) -> bool {
        self.span.is_none() && self.children.is_empty()
    }
}
