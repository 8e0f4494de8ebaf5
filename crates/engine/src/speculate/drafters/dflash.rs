//! Drafts by a model that guesses blocks ([`DFlash`]): what it keeps of each sequence, and one pass over several of them.

use std::{collections::HashMap, rc::Rc};

use mlx::{Array, Dtype};

use crate::{
    batch::{Batch, Part},
    cache::Cache,
    models::{DFlash, Model},
    sample::{Sampler, guess},
    speculate::{CONFIDENCE_BINS, Draft, DraftRequest, Drafter, HiddenSource, HiddenStates},
};

use super::mtp::{joined, pick};

/// Most hidden states that wait to be taken in until somebody wants a draft: they take more room than what they become.
pub const MAX_PENDING: usize = 256;

/// Proposes what the block drafter guesses.
pub struct DFlashDrafter {
    model: Rc<dyn Model>,
    block: DFlash,
    sequences: HashMap<u64, DFlashContext>,
}

/// What it knows of one sequence: keys and values made of the model's hidden states alone.
struct DFlashContext {
    caches: Vec<Cache>,
    /// Hidden states behind consecutive positions that it has not taken in: of each of the layers, `[n, hidden_size]`.
    waiting: Vec<Vec<Array>>,
    /// Position of the first of them.
    from: usize,
    /// Behind the last of them.
    to: usize,
}

impl DFlashDrafter {
    /// `block` was loaded for `model`.
    pub fn new(model: Rc<dyn Model>, block: DFlash) -> DFlashDrafter {
        DFlashDrafter { model, block, sequences: HashMap::new() }
    }

    fn sampler(&self, asked: &DraftRequest) -> Sampler {
        let (prompt, generated) = asked.tokens.split_at(asked.prompt);
        Sampler::new(asked.sampling, self.model.vocab_size(), prompt, generated)
    }

    /// Takes in what waits for the rows, and guesses what follows them: hidden states `[rows * size, hidden_size]`. What the
    /// guesses leave in the caches is forgotten.
    #[track_caller]
    fn guess(&self, rows: &mut [DFlashRow]) -> Option<Array> {
        let embedding = self.model.embedding()?;
        let mut contexts: Vec<&mut DFlashContext> = rows.iter_mut().map(|row| &mut row.context).collect();
        catch_up(&self.block, &mut contexts);
        let last: Vec<u32> = rows.iter().filter_map(|row| row.asked.tokens.last().copied()).collect();
        let parts = rows.iter_mut().map(|row| {
            let DFlashContext { caches, to, .. } = &mut row.context;
            Part { tokens: self.block.size, ahead: 0, past: *to, caches }
        });
        let embedded = embedding.forward(&self.block.tokens(&last));
        let hidden = self.block.forward(embedded, &mut Batch::new(parts));
        rows.iter_mut().for_each(|row| row.context.forget(&self.block));
        Some(hidden)
    }

    /// Each row's draft, from hidden states `[rows * size, hidden_size]`.
    fn drafts(&self, rows: &[DFlashRow], hidden: &Array) -> mlx::Result<Vec<Draft>> {
        let size = self.block.size as i32;
        let depths: Vec<i32> = rows.iter().map(|row| (row.asked.depth as i32).min(size - 1)).collect();
        let places = (0..).zip(&depths).flat_map(|(i, &depth)| i * size + 1..=i * size + depth);
        let logits = self.model.logits(&pick(hidden, &places.collect::<Vec<i32>>())).astype(Dtype::Float32);
        let mut samplers: Vec<Sampler> = rows.iter().map(|row| self.sampler(row.asked)).collect();
        let ranges = rows.iter().zip(&depths).map(|(row, &depth)| {
            let at = row.asked.tokens.len();
            at..at + depth as usize
        });
        let chosen = guess(&logits, samplers.iter_mut().zip(ranges));
        mlx::eval([&chosen])?;
        let mut chosen = chosen.to_vec::<u32>()?.into_iter();
        let own = |&depth: &i32| {
            let tokens = chosen.by_ref().take(depth as usize).collect();
            Draft { tokens, ..Draft::default() }
        };
        Ok(depths.iter().map(own).collect())
    }
}

/// A sequence that a draft is made for.
struct DFlashRow<'a> {
    asked: &'a DraftRequest<'a>,
    context: DFlashContext,
}

impl Drafter for DFlashDrafter {
    fn name(&self) -> &'static str {
        "block"
    }

    fn hidden(&self) -> HiddenSource<'_> {
        HiddenSource::Layers(&self.block.target_layers)
    }

    fn observe(&mut self, seen: &HiddenStates) {
        let context = self.sequences.entry(seen.sequence).or_insert_with(|| DFlashContext::new(&self.block));
        context.wait(seen.from, &seen.hidden);
        if context.to - context.from < MAX_PENDING {
            return;
        }
        catch_up(&self.block, &mut [&mut *context]);
        if let Err(error) = mlx::async_eval(context.caches.iter().flat_map(Cache::arrays)) {
            tracing::warn!("the block drafter forgets a sequence: {error}");
            self.sequences.remove(&seen.sequence);
        }
    }

    /// As of heads: how sure it is says how often it is right.
    fn prior(&self) -> [f64; CONFIDENCE_BINS] {
        [0.15, 0.4, 0.55, 0.65, 0.75, 0.9]
    }

    fn block_size(&self) -> Option<usize> {
        Some(self.block.size - 1)
    }

    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let mut drafts = vec![Draft::default(); asked.len()];
        let (mut rows, mut places) = (vec![], vec![]);
        for (i, asked) in asked.iter().enumerate() {
            let known = |context: &&DFlashContext| context.to + 1 == asked.tokens.len() && asked.depth > 0;
            if self.sequences.get(&asked.sequence).as_ref().is_some_and(known)
                && let Some(context) = self.sequences.remove(&asked.sequence)
            {
                rows.push(DFlashRow { asked, context });
                places.push(i);
            }
        }
        if rows.is_empty() {
            return Ok(drafts);
        }
        let Some(hidden) = self.guess(&mut rows) else { return Ok(drafts) };
        for (place, draft) in places.into_iter().zip(self.drafts(&rows, &hidden)?) {
            drafts[place] = draft;
        }
        self.sequences.extend(rows.into_iter().map(|row| (row.asked.sequence, row.context)));
        Ok(drafts)
    }

    fn forget(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }
}

/// Takes in what waits for each, all in one pass.
#[track_caller]
fn catch_up(block: &DFlash, contexts: &mut [&mut DFlashContext]) {
    let mut behind: Vec<&mut &mut DFlashContext> =
        contexts.iter_mut().filter(|context| context.from < context.to).collect();
    if behind.is_empty() {
        return;
    }
    let layer = |i: usize| {
        let parts = behind.iter().flat_map(|context| context.waiting.iter().map(move |all| all[i].clone()));
        joined(&parts.collect::<Vec<Array>>())
    };
    let hidden: Vec<Array> = (0..block.target_layers.len()).map(layer).collect();
    let parts = behind.iter_mut().map(|context| {
        let DFlashContext { caches, waiting, from, to } = &mut **context;
        waiting.clear();
        let past = std::mem::replace(from, *to);
        Part { tokens: *to - past, ahead: 0, past, caches }
    });
    block.observe(&hidden, &mut Batch::new(parts));
}

impl DFlashContext {
    fn new(block: &DFlash) -> DFlashContext {
        DFlashContext { caches: block.make_caches(), waiting: vec![], from: 0, to: 0 }
    }

    /// Notes the hidden states, of each layer `[n, hidden_size]`, of the tokens from position `at` on. It does without
    /// positions that were left out, and of those before with what was taken in.
    ///
    /// # Panics
    /// If they were noted before: a bug of ours.
    #[track_caller]
    fn wait(&mut self, at: usize, hidden: &[Array]) {
        assert!(at >= self.to, "positions from {at} on were shown before, up to {}", self.to);
        if at > self.to {
            self.waiting.clear();
        }
        if self.waiting.is_empty() {
            self.from = at;
        }
        self.waiting.push(hidden.to_vec());
        self.to = at + hidden.first().map_or(0, |x| x.dim(0) as usize);
    }

    /// Forgets a block.
    fn forget(&mut self, block: &DFlash) {
        if self.caches.iter_mut().any(|cache| cache.rewind(block.size).is_err()) {
            self.caches = block.make_caches();
        }
    }
}

#[cfg(test)]
mod tests;
