//! Drafts by a smaller model with the same tokens: its context of each sequence, and how that
//! catches up. Knows nothing of the model that it drafts for.

use std::rc::Rc;

use mlx::{Array, Dtype};

use super::{
    draft_context::DraftContext,
    rows::{concatenated, pick},
};
use crate::{
    api::{MAX_DEPTH, Options, Request, Sampling},
    batch::{Batch, BatchRow},
    guard::guarded,
    models::Model,
    prefix::{CopiedState, CopyProgress, CopySource, PrefixCache, PrefixKey},
    sample::{Sampler, guess},
    speculate::{
        acceptance::CONFIDENCE_BINS,
        drafter::{Draft, DraftRequest, Drafter, DrafterInfo, DrafterState, StateStore},
        step_costs::StepCosts,
    },
};

/// Width of the step whose cost stands for that of catching up.
const CATCH_UP_WIDTH: usize = 32;
/// Assumes that the draft model's confidence predicts acceptance.
const PRIOR: [f64; CONFIDENCE_BINS] = [0.2, 0.4, 0.55, 0.65, 0.75, 0.9];

pub(crate) struct DraftModel {
    model: Rc<dyn Model>,
    /// Costs of its steps.
    costs: StepCosts,
    /// Maximum tokens computed in one call to catch up.
    chunk: usize,
    /// State of finished sequences, for those with the same prefix.
    prefix: PrefixCache,
    /// Set for good by the first failure.
    failed: bool,
}

/// A sequence to draft for.
struct DraftRow<'a> {
    /// Index of the request.
    index: usize,
    tokens: &'a [u32],
    depth: usize,
    context: DraftContext,
    /// Hidden state after the last token, `[1, hidden_size]`, once the context has caught up.
    last: Option<Array>,
    sampler: Sampler,
    /// Uint32 `[1]` each.
    drafted: Vec<Array>,
}

impl DraftModel {
    /// `model` has the tokens of the model that it drafts for. Keeps at most `prefix_bytes` of
    /// state of finished sequences.
    pub(crate) fn new(
        model: Rc<dyn Model>,
        costs: StepCosts,
        options: &Options,
        prefix_bytes: usize,
    ) -> DraftModel {
        let options = Options { prefix_cache_bytes: prefix_bytes, ..options.clone() };
        DraftModel {
            prefix: PrefixCache::new(&options, &model.make_caches(), None, None),
            chunk: options.prefill_chunk.max(1),
            model,
            costs,
            failed: false,
        }
    }

    /// Whether it can draft for these tokens: they are in its vocabulary and fit its context.
    fn supports(&self, tokens: &[u32]) -> bool {
        let vocab_size = self.model.vocab_size();
        tokens.len() + MAX_DEPTH <= self.model.context_length()
            && tokens.iter().all(|&id| (id as usize) < vocab_size)
    }

    /// The sequence's sampler, without biases of tokens outside this model's vocabulary.
    fn sampler(&self, request: &DraftRequest) -> Sampler {
        let vocab_size = self.model.vocab_size();
        let mut sampling: Sampling = request.sampling.clone();
        sampling.logit_bias.retain(|id, _| (*id as usize) < vocab_size);
        let (prompt, output) = request.tokens.split_at(request.prompt);
        Sampler::new(&sampling, vocab_size, prompt, output)
    }

    /// The sequence's context, with as many of its tokens as are computed; never the last one,
    /// which gives the logits of the next.
    #[track_caller]
    fn resume(&mut self, request: &mut DraftRequest) -> mlx::Result<DraftContext> {
        let known: Option<DraftContext> = request.state.take();
        if let Some(context) = known.and_then(|context| context.rewind_to_match(request.tokens)) {
            return Ok(context);
        }
        let mut caches = self.model.make_caches();
        let own = Request {
            cache_salt: request.cache_salt,
            ..Request::new(request.tokens[..request.prompt].to_vec(), 1)
        };
        let mut begun = self.prefix.attach_and_restore(&own, request.tokens, &mut caches)?;
        // A copy before the prompt's last token would cost a step of its own.
        if begun.snapshot_at.remove(&(request.prompt - 1)) {
            begun.snapshot_at.insert(request.prompt);
        }
        let tokens = request.tokens[..begun.position].to_vec();
        Ok(DraftContext::new(caches, request.cache_salt, tokens, begun.snapshot_at))
    }

    fn draft(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let mut rows = vec![];
        for (index, request) in requests.iter_mut().enumerate() {
            if !self.supports(request.tokens) {
                continue;
            }
            let (context, sampler) = (self.resume(request)?, self.sampler(request));
            let DraftRequest { tokens, depth, .. } = *request;
            rows.push(DraftRow { index, tokens, depth, context, last: None, sampler, drafted: vec![] });
        }
        self.catch_up(&mut rows)?;
        let mut ready: Vec<&mut DraftRow> = rows.iter_mut().filter(|row| row.last.is_some()).collect();
        if !ready.is_empty() {
            self.decode(&mut ready)?;
        }
        let mut drafts = vec![Draft::default(); requests.len()];
        for DraftRow { index, mut context, drafted, .. } in rows {
            let tokens = drafted.iter().map(Array::to_vec::<u32>).collect::<mlx::Result<Vec<_>>>()?.concat();
            if let Some((_, computed)) = tokens.split_last() {
                context.tokens.extend(computed);
                drafts[index] = Draft { tokens, ..Draft::default() };
            }
            requests[index].state.set(context);
        }
        Ok(drafts)
    }

    /// Computes missing tokens of the rows, at most a chunk in all; rows that can catch up now go
    /// first.
    #[track_caller]
    fn catch_up(&mut self, rows: &mut [DraftRow]) -> mlx::Result<()> {
        let mut left = self.chunk;
        while left > 0 {
            let any_soon = rows.iter().any(|row| (1..=left).contains(&row.missing()));
            let wanted = |row: &DraftRow| if any_soon && row.missing() > left { 0 } else { row.next_part() };
            let shares = fair_shares(&rows.iter().map(wanted).collect::<Vec<usize>>(), left);
            if shares.is_empty() {
                return Ok(());
            }
            left -= shares.iter().map(|(_, tokens)| tokens).sum::<usize>();
            let mut tokens: Vec<u32> = vec![];
            for &(i, n) in &shares {
                let DraftRow { tokens: all, context, .. } = &mut rows[i];
                let from = context.tokens.len();
                context.extend(&all[from..from + n]);
                tokens.extend(&context.tokens[from..]);
            }
            let parts = rows.iter_mut().enumerate().filter_map(|(i, DraftRow { context, .. })| {
                let &(_, tokens) = shares.iter().find(|(shared, _)| *shared == i)?;
                Some(BatchRow {
                    num_tokens: tokens,
                    num_draft: 0,
                    num_computed: context.num_known - tokens,
                    caches: &mut context.caches,
                })
            });
            let mut batch = Batch::new(parts);
            let hidden = self.model.forward(&Array::from_slice(&tokens, &[tokens.len() as i32]), &mut batch);
            let mut arrays: Vec<Array> = batch.cache_arrays().cloned().collect();
            let (mut end, mut copied) = (0, vec![]);
            for &(i, n) in &shares {
                let DraftRow { tokens: all, context, last, .. } = &mut rows[i];
                end += n as i32;
                if context.num_known == all.len() {
                    *last = Some(hidden.slice(0, end - 1, end));
                }
                if context.snapshot_at.remove(&context.num_known)
                    && let Some(copy) = copy(&self.prefix, context)
                {
                    arrays.extend(copy.arrays().cloned());
                    copied.push((context.tokens.clone(), copy));
                }
            }
            mlx::eval(arrays.iter())?;
            copied.into_iter().for_each(|(tokens, copied)| self.prefix.store(&tokens, copied));
        }
        Ok(())
    }

    /// Drafts for rows that have caught up, with one pass for each position.
    #[track_caller]
    fn decode(&self, rows: &mut [&mut DraftRow]) -> mlx::Result<()> {
        rows.iter_mut().for_each(|row| row.context.add_rollback_point(0));
        let last: Vec<Array> = rows.iter().filter_map(|row| row.last.clone()).collect();
        let mut hidden = concatenated(&last);
        let mut going: Vec<usize> = (0..rows.len()).collect();
        for step in 0.. {
            let logits = self.model.logits(&hidden).astype(Dtype::Float32);
            let chosen = choose(&logits, rows, &going, step);
            for (i, &row) in (0..).zip(&going) {
                rows[row].drafted.push(chosen.slice(0, i, i + 1));
            }
            let deeper: Vec<i32> =
                (0..).zip(&going).filter(|(_, row)| rows[**row].depth > step + 1).map(|(i, _)| i).collect();
            if deeper.is_empty() {
                break;
            }
            going = deeper.iter().map(|&i| going[i as usize]).collect();
            let parts = rows.iter_mut().enumerate().filter(|(i, _)| going.contains(i)).map(|(_, row)| {
                let DraftContext { caches, num_known, .. } = &mut row.context;
                BatchRow { num_tokens: 1, num_draft: 0, num_computed: *num_known + step, caches }
            });
            hidden = self.model.forward(&pick(&chosen, &deeper), &mut Batch::new(parts));
            going.iter().for_each(|&row| rows[row].context.add_rollback_point(step + 1));
        }
        mlx::eval(rows.iter().flat_map(|row| &row.drafted))
    }

    /// Keeps the state of a finished sequence for those with the same prefix.
    fn keep(&mut self, context: DraftContext) -> mlx::Result<()> {
        let known = context.num_known;
        let Some(context) = context.rewind_to(known).filter(|context| !context.tokens.is_empty()) else {
            return Ok(());
        };
        let Some(copied) = copy(&self.prefix, &context) else { return Ok(()) };
        mlx::eval(copied.arrays())?;
        self.prefix.store(&context.tokens, copied);
        Ok(())
    }

    fn fail(&mut self, error: &str) {
        tracing::warn!("the draft model failed and drafts no more: {error}");
        self.failed = true;
        self.prefix.clear_after_failure();
    }
}

impl Drafter for DraftModel {
    fn info(&self) -> DrafterInfo {
        let latency = self.costs.step(1).unwrap_or(0.0);
        DrafterInfo { prior: PRIOR, latency, ..DrafterInfo::new("draft_model") }
    }

    fn catch_up_cost(&self, request: &DraftRequest) -> Option<f64> {
        if self.failed || !self.supports(request.tokens) {
            return None;
        }
        let computed = match request.state.get::<DraftContext>() {
            Some(context) => context.tokens.len(),
            None if self.prefix.is_enabled() => {
                self.prefix.resumable(PrefixKey { salt: request.cache_salt, tokens: request.tokens })
            }
            None => 0,
        };
        // The cost of each draft includes a few tokens.
        let missing = request.tokens.len().saturating_sub(computed).saturating_sub(MAX_DEPTH) as f64;
        Some(missing * self.costs.step(CATCH_UP_WIDTH).unwrap_or(0.0) / CATCH_UP_WIDTH as f64)
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        if !self.failed {
            match guarded(|| self.draft(requests)) {
                Ok(drafts) => return Ok(drafts),
                Err(error) => self.fail(&error),
            }
        }
        requests.iter_mut().for_each(|request| *request.state = DrafterState::default());
        Ok(vec![Draft::default(); requests.len()])
    }

    fn state_store(&mut self) -> Option<&mut dyn StateStore> {
        Some(self)
    }
}

impl StateStore for DraftModel {
    fn store(&mut self, mut state: DrafterState) {
        let Some(context) = state.take().filter(|_| !self.failed) else { return };
        if let Err(error) = guarded(|| self.keep(context)) {
            self.fail(&error);
        }
    }
}

fn copy(prefix: &PrefixCache, context: &DraftContext) -> Option<CopiedState> {
    let DraftContext { cache_salt, tokens, caches, .. } = context;
    let source = CopySource { key: PrefixKey { salt: *cache_salt, tokens }, caches, ahead: 0, lossy: false };
    Some(prefix.start_copy(&source, CopyProgress::default())?.at_once(caches))
}

/// The next token of each of the rows `going`, uint32 `[n]`, from logits `[n, vocab_size]`: the one
/// that the sequence's own sampler would pick.
fn choose(logits: &Array, rows: &mut [&mut DraftRow], going: &[usize], step: usize) -> Array {
    let own = rows.iter_mut().enumerate().filter(|(i, _)| going.contains(i));
    let ranges = own.map(|(_, row)| {
        let at = row.tokens.len() + step;
        (&mut row.sampler, at..at + 1)
    });
    guess(logits, ranges)
}

/// Splits `budget` tokens among rows that want some: at least one each, if there are enough, and
/// else equal shares. Rows that want less leave the rest to the others.
fn fair_shares(wanted: &[usize], budget: usize) -> Vec<(usize, usize)> {
    let mut shares: Vec<(usize, usize)> =
        wanted.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
    shares.sort_by_key(|(_, n)| *n);
    shares.truncate(budget);
    let (mut left, mut rows) = (budget - shares.len(), shares.len());
    for (_, n) in &mut shares {
        let more = (*n - 1).min(left.div_ceil(rows));
        (left, rows) = (left - more, rows - 1);
        *n = 1 + more;
    }
    shares.sort();
    shares
}

impl DraftRow<'_> {
    /// Tokens that are not computed.
    fn missing(&self) -> usize {
        self.tokens.len() - self.context.tokens.len()
    }

    /// Missing tokens up to the next position to copy state at.
    fn next_part(&self) -> usize {
        let (computed, all) = (self.context.tokens.len(), self.tokens.len());
        let next = self.context.snapshot_at.iter().find(|&&at| at > computed && at < all);
        next.copied().unwrap_or(all) - computed
    }
}

#[cfg(test)]
mod tests;
