//! Drafts by a block diffusion model ([`DFlash`]): its context of each sequence, and one pass over
//! several sequences.

use std::rc::Rc;

use mlx::{Array, Dtype};

use crate::{
    batch::{Batch, BatchRow},
    cache::Cache,
    models::{DFlash, Model},
    sample::{Sampler, guess},
    speculate::{
        acceptance::CONFIDENCE_BINS,
        drafter::{
            Draft, DraftRequest, Drafter, DrafterInfo, DrafterState, HiddenObserver, HiddenSource,
            HiddenStates,
        },
        drafters::rows::{concatenated, pick, sampler},
    },
};

/// Maximum hidden states that wait for the next draft: they take more memory than the keys and
/// values made of them.
pub(crate) const MAX_PENDING: usize = 256;
/// Assumes that the drafter's confidence predicts acceptance.
const PRIOR: [f64; CONFIDENCE_BINS] = [0.15, 0.4, 0.55, 0.65, 0.75, 0.9];

pub(crate) struct DFlashDrafter {
    model: Rc<dyn Model>,
    block: DFlash,
}

/// Keys and values of one sequence, made of the model's hidden states alone.
struct DFlashContext {
    caches: Vec<Cache>,
    /// Hidden states of consecutive positions that are not in the caches: of each layer,
    /// `[n, hidden_size]`.
    pending: Vec<Vec<Array>>,
    /// Position of the first of them.
    from: usize,
    /// Position after the last of them.
    to: usize,
}

/// A sequence to draft for.
struct DFlashRow<'a> {
    context: DFlashContext,
    sampler: Sampler,
    tokens: &'a [u32],
    depth: usize,
}

impl DFlashDrafter {
    /// `block` was loaded for `model`.
    pub(crate) fn new(model: Rc<dyn Model>, block: DFlash) -> DFlashDrafter {
        DFlashDrafter { model, block }
    }

    /// Catches up with the rows, and computes hidden states `[rows * size, hidden_size]` of the
    /// blocks after them, which the caches do not keep.
    #[track_caller]
    fn forward(&self, rows: &mut [DFlashRow]) -> Option<Array> {
        let embedding = self.model.embedding()?;
        let mut contexts: Vec<&mut DFlashContext> = rows.iter_mut().map(|row| &mut row.context).collect();
        catch_up(&self.block, &mut contexts);
        let last: Vec<u32> = rows.iter().filter_map(|row| row.tokens.last().copied()).collect();
        let parts = rows.iter_mut().map(|row| {
            let DFlashContext { caches, to, .. } = &mut row.context;
            BatchRow { num_tokens: self.block.size, num_draft: 0, num_computed: *to, caches }
        });
        let embedded = embedding.forward(&self.block.tokens(&last));
        let hidden = self.block.forward(embedded, &mut Batch::new(parts));
        rows.iter_mut().for_each(|row| row.context.drop_block(&self.block));
        Some(hidden)
    }

    /// Each row's draft, from hidden states `[rows * size, hidden_size]`.
    fn sample(&self, rows: &mut [DFlashRow], hidden: &Array) -> mlx::Result<Vec<Draft>> {
        let size = self.block.size as i32;
        let depths: Vec<i32> = rows.iter().map(|row| (row.depth as i32).min(size - 1)).collect();
        let masks = (0..).zip(&depths).flat_map(|(i, &depth)| i * size + 1..=i * size + depth);
        let logits = self.model.logits(&pick(hidden, &masks.collect::<Vec<i32>>())).astype(Dtype::Float32);
        let ranges = rows.iter_mut().zip(&depths).map(|(row, &depth)| {
            let at = row.tokens.len();
            (&mut row.sampler, at..at + depth as usize)
        });
        let chosen = guess(&logits, ranges);
        mlx::eval([&chosen])?;
        let mut chosen = chosen.to_vec::<u32>()?.into_iter();
        let own = |&depth: &i32| {
            let tokens = chosen.by_ref().take(depth as usize).collect();
            Draft { tokens, ..Draft::default() }
        };
        Ok(depths.iter().map(own).collect())
    }
}

impl Drafter for DFlashDrafter {
    fn info(&self) -> DrafterInfo {
        let block_size = Some(self.block.size - 1);
        DrafterInfo { prior: PRIOR, block_size, ..DrafterInfo::new("block") }
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let mut drafts = vec![Draft::default(); requests.len()];
        let (mut rows, mut indices) = (vec![], vec![]);
        for (i, request) in requests.iter_mut().enumerate() {
            let DraftRequest { tokens, depth, .. } = *request;
            let is_known = |context: &DFlashContext| context.to + 1 == tokens.len() && depth > 0;
            if request.state.get().is_some_and(is_known)
                && let Some(context) = request.state.take()
            {
                let sampler = sampler(request, self.model.vocab_size());
                rows.push(DFlashRow { context, sampler, tokens, depth });
                indices.push(i);
            }
        }
        if rows.is_empty() {
            return Ok(drafts);
        }
        let Some(hidden) = self.forward(&mut rows) else { return Ok(drafts) };
        for (&i, draft) in indices.iter().zip(self.sample(&mut rows, &hidden)?) {
            drafts[i] = draft;
        }
        for (i, row) in indices.into_iter().zip(rows) {
            requests[i].state.set(row.context);
        }
        Ok(drafts)
    }

    fn hidden_observer(&mut self) -> Option<&mut dyn HiddenObserver> {
        Some(self)
    }
}

impl HiddenObserver for DFlashDrafter {
    fn source(&self) -> HiddenSource<'_> {
        HiddenSource::Layers(&self.block.target_layers)
    }

    fn observe(&mut self, states: &HiddenStates, state: &mut DrafterState) {
        let context = state.get_or_insert_with(|| DFlashContext::new(&self.block));
        context.push(states.from, &states.hidden);
        if context.to - context.from < MAX_PENDING {
            return;
        }
        catch_up(&self.block, &mut [&mut *context]);
        if let Err(error) = mlx::async_eval(context.caches.iter().flat_map(Cache::arrays)) {
            tracing::warn!("the block drafter drops a sequence: {error}");
            state.take::<DFlashContext>();
        }
    }
}

/// Computes keys and values of all pending hidden states, in one pass.
#[track_caller]
fn catch_up(block: &DFlash, contexts: &mut [&mut DFlashContext]) {
    let mut pending: Vec<&mut &mut DFlashContext> =
        contexts.iter_mut().filter(|context| context.from < context.to).collect();
    if pending.is_empty() {
        return;
    }
    let layer = |i: usize| {
        let parts = pending.iter().flat_map(|context| context.pending.iter().map(move |all| all[i].clone()));
        concatenated(&parts.collect::<Vec<Array>>())
    };
    let hidden: Vec<Array> = (0..block.target_layers.len()).map(layer).collect();
    let parts = pending.iter_mut().map(|context| {
        let DFlashContext { caches, pending, from, to } = &mut **context;
        pending.clear();
        let past = std::mem::replace(from, *to);
        BatchRow { num_tokens: *to - past, num_draft: 0, num_computed: past, caches }
    });
    block.observe(&hidden, &mut Batch::new(parts));
}

impl DFlashContext {
    fn new(block: &DFlash) -> DFlashContext {
        DFlashContext { caches: block.make_caches(), pending: vec![], from: 0, to: 0 }
    }

    /// Adds the hidden states, of each layer `[n, hidden_size]`, of the tokens from position `at`
    /// on. Skipped positions are left out, and pending ones before them are dropped.
    ///
    /// # Panics
    /// If they were added before, which is a bug.
    #[track_caller]
    fn push(&mut self, at: usize, hidden: &[Array]) {
        assert!(at >= self.to, "positions from {at} on were observed before, up to {}", self.to);
        if at > self.to {
            self.pending.clear();
        }
        if self.pending.is_empty() {
            self.from = at;
        }
        self.pending.push(hidden.to_vec());
        self.to = at + hidden.first().map_or(0, |x| x.dim(0) as usize);
    }

    /// Removes a block from the caches.
    fn drop_block(&mut self, block: &DFlash) {
        if self.caches.iter_mut().any(|cache| cache.rewind(block.size).is_err()) {
            self.caches = block.make_caches();
        }
    }
}

#[cfg(test)]
mod tests;
