//! Drafts by another, smaller model with the same tokens: what it keeps of each sequence, and how it catches up with what
//! it has not seen. It knows nothing of the model that it drafts for.

use std::{
    collections::{BTreeSet, HashMap},
    rc::Rc,
};

use mlx::{Array, Dtype, Recurrence};

use super::mtp::{joined, pick};
use crate::{
    Options,
    batch::{Batch, Part},
    cache::Cache,
    models::Model,
    prefix::{Copied, CopiedSoFar, Prefix, common},
    request::{Priority, Request, Sampling},
    run::guarded,
    sample::{Sampler, guess},
    schedule::{Want, plan},
    speculate::{CONFIDENCE_BINS, Draft, DraftRequest, Drafter, MAX_DEPTH, StepCosts},
};

/// Positions of a draft to which recurrent state can return without being computed again.
pub const ROLLBACK_POINTS: usize = 8;

/// Proposes what a smaller model would say.
pub struct DraftModel {
    model: Rc<dyn Model>,
    /// What its steps cost.
    costs: StepCosts,
    /// Most tokens that it computes to catch up before it lets others go on.
    chunk: usize,
    /// Its state of past sequences, for those that begin alike.
    prefix: Prefix,
    sequences: HashMap<u64, DraftContext>,
    /// It has failed, and drafts no more.
    failed: bool,
}

/// What it keeps of one sequence.
struct DraftContext {
    caches: Vec<Cache>,
    /// Tokens whose state is in the caches; the last ones may be those of a draft.
    tokens: Vec<u32>,
    /// Of those, the ones that are no draft.
    certain: usize,
    /// Recurrent state, in the order of the caches, behind so many tokens: positions that a wrong draft goes back to.
    marks: Vec<(usize, Vec<Recurrence>)>,
    /// Positions at which to copy its state for others.
    keep_at: BTreeSet<usize>,
}

/// A sequence in a round of drafting.
struct DraftRow<'a> {
    asked: &'a DraftRequest<'a>,
    context: DraftContext,
    /// Its hidden state behind the last token, `[1, hidden_size]`, once it has caught up.
    last: Option<Array>,
    sampler: Sampler,
    /// Uint32 `[1]` each.
    drafted: Vec<Array>,
}

impl DraftModel {
    /// Of a loaded model whose tokens are those of the model it is to draft for; at most `prefix_bytes` of state of past
    /// sequences are kept.
    pub fn new(model: Rc<dyn Model>, costs: StepCosts, options: &Options, prefix_bytes: usize) -> DraftModel {
        let options = Options { prefix_cache_bytes: prefix_bytes, ..options.clone() };
        DraftModel {
            prefix: Prefix::new(&options, &model.make_caches(), None, None),
            chunk: options.prefill_chunk.max(1),
            model,
            costs,
            sequences: HashMap::new(),
            failed: false,
        }
    }

    /// Whether it can follow so far: within its context, and with tokens that it has.
    fn follows(&self, tokens: &[u32]) -> bool {
        let vocab_size = self.model.vocab_size();
        tokens.len() + MAX_DEPTH <= self.model.context_length()
            && tokens.iter().all(|&id| (id as usize) < vocab_size)
    }

    /// What is drawn with: the sequence's own noise, and of its biases those for tokens that this model has.
    fn sampler(&self, asked: &DraftRequest) -> Sampler {
        let vocab_size = self.model.vocab_size();
        let mut sampling: Sampling = asked.sampling.clone();
        sampling.logit_bias.retain(|id, _| (*id as usize) < vocab_size);
        let (prompt, generated) = asked.tokens.split_at(asked.prompt);
        Sampler::new(&sampling, vocab_size, prompt, generated)
    }

    /// The sequence's state behind as many of `tokens` as there is; never behind the last, which gives the logits of the
    /// next.
    #[track_caller]
    fn resume(&mut self, asked: &DraftRequest) -> mlx::Result<DraftContext> {
        let known = self.sequences.remove(&asked.sequence);
        if let Some(context) = known.and_then(|context| context.back_to(asked.tokens)) {
            return Ok(context);
        }
        let mut caches = self.model.make_caches();
        let request = Request::new(asked.tokens[..asked.prompt].to_vec(), 1);
        let mut begun = self.prefix.begin(&request, asked.tokens, &mut caches)?;
        // It computes nothing ahead: a copy before the prompt's last token would cost a step.
        if begun.keep_at.remove(&(asked.prompt - 1)) {
            begun.keep_at.insert(asked.prompt);
        }
        Ok(DraftContext {
            caches,
            tokens: asked.tokens[..begun.position].to_vec(),
            certain: begun.position,
            marks: vec![],
            keep_at: begun.keep_at,
        })
    }

    fn draft(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let mut rows = vec![];
        for asked in asked {
            if !self.follows(asked.tokens) {
                continue;
            }
            let (context, sampler) = (self.resume(asked)?, self.sampler(asked));
            rows.push(DraftRow { asked, context, last: None, sampler, drafted: vec![] });
        }
        self.catch_up(&mut rows)?;
        let mut ready: Vec<&mut DraftRow> = rows.iter_mut().filter(|row| row.last.is_some()).collect();
        if !ready.is_empty() {
            self.go_on(&mut ready)?;
        }
        let mut drafts = vec![Draft::default(); asked.len()];
        for row in rows {
            let draft = row.drafted.iter().map(Array::to_vec::<u32>).collect::<mlx::Result<Vec<_>>>()?;
            let draft = draft.concat();
            let mut context = row.context;
            if let Some((_, computed)) = draft.split_last() {
                context.tokens.extend(computed);
                if let Some(at) = asked.iter().position(|a| a.sequence == row.asked.sequence) {
                    drafts[at] = Draft { tokens: draft, ..Draft::default() };
                }
            }
            self.sequences.insert(row.asked.sequence, context);
        }
        Ok(drafts)
    }

    /// Computes what the rows have not seen, those first that lack least, and a chunk of tokens in all.
    #[track_caller]
    fn catch_up(&mut self, rows: &mut [DraftRow]) -> mlx::Result<()> {
        let mut left = self.chunk;
        while left > 0 {
            // Those that can catch up now do not share with those that cannot.
            let soon = rows.iter().any(|row| (1..=left).contains(&row.lacks()));
            let now = |row: &DraftRow| if soon && row.lacks() > left { Want::Nothing } else { row.wants() };
            let wants: Vec<(Want, Priority)> = rows.iter().map(|row| (now(row), Priority::Normal)).collect();
            let plan = plan(&wants, left);
            if plan.is_empty() {
                return Ok(());
            }
            left -= plan.iter().map(|(_, tokens)| tokens).sum::<usize>();
            let mut tokens: Vec<u32> = vec![];
            for &(i, n) in &plan {
                let DraftRow { asked, context, .. } = &mut rows[i];
                let from = context.tokens.len();
                context.tokens.extend(&asked.tokens[from..from + n]);
                context.certain = from + n;
                context.marks.clear();
                tokens.extend(&context.tokens[from..]);
            }
            let parts = rows.iter_mut().enumerate().filter_map(|(i, DraftRow { context, .. })| {
                let &(_, tokens) = plan.iter().find(|(planned, _)| *planned == i)?;
                Some(Part { tokens, ahead: 0, past: context.certain - tokens, caches: &mut context.caches })
            });
            let mut batch = Batch::new(parts);
            let hidden = self.model.forward(&Array::from_slice(&tokens, &[tokens.len() as i32]), &mut batch);
            let mut arrays: Vec<Array> = batch.cache_arrays().cloned().collect();
            let (mut end, mut copied) = (0, vec![]);
            for &(i, n) in &plan {
                let DraftRow { asked, context, last, .. } = &mut rows[i];
                end += n as i32;
                if context.certain == asked.tokens.len() {
                    *last = Some(hidden.slice(0, end - 1, end));
                }
                if context.keep_at.remove(&context.certain)
                    && let Some(copy) =
                        self.prefix.copy(&context.tokens, &context.caches, 0, CopiedSoFar::default(), false)
                {
                    arrays.extend(copy.arrays().cloned());
                    copied.push((context.tokens.clone(), copy));
                }
            }
            mlx::eval(arrays.iter())?;
            self.store(copied);
        }
        Ok(())
    }

    fn store(&mut self, copied: Vec<(Vec<u32>, Copied)>) {
        copied.into_iter().for_each(|(tokens, copied)| self.prefix.store(&tokens, copied));
    }

    /// Drafts what follows rows that have caught up, all in one pass for each token.
    #[track_caller]
    fn go_on(&self, rows: &mut [&mut DraftRow]) -> mlx::Result<()> {
        rows.iter_mut().for_each(|row| row.context.mark(0));
        let last: Vec<Array> = rows.iter().filter_map(|row| row.last.clone()).collect();
        let mut hidden = joined(&last);
        let mut going: Vec<usize> = (0..rows.len()).collect();
        for step in 0.. {
            let logits = self.model.logits(&hidden).astype(Dtype::Float32);
            let chosen = choose(&logits, rows, &going, step);
            for (i, &row) in (0..).zip(&going) {
                rows[row].drafted.push(chosen.slice(0, i, i + 1));
            }
            let on: Vec<i32> = (0..)
                .zip(&going)
                .filter(|(_, row)| rows[**row].asked.depth > step + 1)
                .map(|(i, _)| i)
                .collect();
            if on.is_empty() {
                break;
            }
            going = on.iter().map(|&i| going[i as usize]).collect();
            let parts = rows.iter_mut().enumerate().filter(|(i, _)| going.contains(i)).map(|(_, row)| {
                let DraftContext { caches, certain, .. } = &mut row.context;
                Part { tokens: 1, ahead: 0, past: *certain + step, caches }
            });
            hidden = self.model.forward(&pick(&chosen, &on), &mut Batch::new(parts));
            going.iter().for_each(|&row| rows[row].context.mark(step + 1));
        }
        mlx::eval(rows.iter().flat_map(|row| &row.drafted))
    }

    /// What a sequence leaves behind for those that begin alike.
    fn keep(&mut self, context: DraftContext) -> mlx::Result<()> {
        let certain = context.tokens[..context.certain].to_vec();
        let Some(context) = context.back(certain.len()).filter(|context| !context.tokens.is_empty()) else {
            return Ok(());
        };
        let Some(copied) =
            self.prefix.copy(&context.tokens, &context.caches, 0, CopiedSoFar::default(), false)
        else {
            return Ok(());
        };
        mlx::eval(copied.arrays())?;
        self.store(vec![(context.tokens, copied)]);
        Ok(())
    }

    /// It failed: nobody waits for it any more.
    fn stop(&mut self, error: &str) {
        tracing::warn!("the draft model failed and drafts no more: {error}");
        self.failed = true;
        self.sequences.clear();
        self.prefix.fail();
    }
}

impl Drafter for DraftModel {
    fn name(&self) -> &'static str {
        "draft_model"
    }

    /// As of heads: how sure it is says how often it is right, if it resembles the model.
    fn prior(&self) -> [f64; CONFIDENCE_BINS] {
        [0.2, 0.4, 0.55, 0.65, 0.75, 0.9]
    }

    fn each(&self) -> f64 {
        self.costs.step(1).unwrap_or(0.0)
    }

    fn catch_up_cost(&self, asked: &DraftRequest) -> Option<f64> {
        if self.failed || !self.follows(asked.tokens) {
            return None;
        }
        let has = match self.sequences.get(&asked.sequence) {
            Some(context) => context.tokens.len(),
            None if self.prefix.is_on() => self.prefix.resumable(asked.tokens),
            None => 0,
        };
        // A few tokens are in the cost of each draft.
        let lacks = asked.tokens.len().saturating_sub(has).saturating_sub(MAX_DEPTH) as f64;
        Some(lacks * self.costs.step(CHUNK).unwrap_or(0.0) / CHUNK as f64)
    }

    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        if !self.failed {
            match guarded(|| self.draft(asked)) {
                Ok(drafts) => return Ok(drafts),
                Err(error) => self.stop(&error),
            }
        }
        Ok(vec![Draft::default(); asked.len()])
    }

    fn forget(&mut self, sequence: u64) {
        let Some(context) = self.sequences.remove(&sequence) else { return };
        if let Err(error) = guarded(|| self.keep(context)) {
            self.stop(&error);
        }
    }
}

/// Tokens of the widest step whose cost is measured: those that it lacks cost about as much.
const CHUNK: usize = 32;

/// Each going row's next token, uint32 `[n]`, from logits `[n, vocab_size]`: what the sequence's own sampler would pick.
fn choose(logits: &Array, rows: &mut [&mut DraftRow], going: &[usize], step: usize) -> Array {
    let own = rows.iter_mut().enumerate().filter(|(i, _)| going.contains(i));
    let ranges = own.map(|(_, row)| {
        let at = row.asked.tokens.len() + step;
        (&mut row.sampler, at..at + 1)
    });
    guess(logits, ranges)
}

impl DraftRow<'_> {
    /// Tokens that it has not seen.
    fn lacks(&self) -> usize {
        self.asked.tokens.len() - self.context.tokens.len()
    }

    /// What it has to compute to catch up, up to where its state is to be kept.
    fn wants(&self) -> Want {
        let (has, all) = (self.context.tokens.len(), self.asked.tokens.len());
        let next = self.context.keep_at.iter().find(|&&at| at > has && at < all);
        match self.lacks() {
            0 => Want::Nothing,
            _ => Want::Prefill(next.copied().unwrap_or(all) - has),
        }
    }
}

impl DraftContext {
    /// Remembers the recurrent state behind so many tokens of a draft.
    fn mark(&mut self, drafted: usize) {
        if drafted < ROLLBACK_POINTS {
            let recurrent = self.caches.iter().filter_map(|cache| match cache {
                Cache::Recurrent(recurrent) => Some(recurrent.clone()),
                Cache::Kv(_) => None,
            });
            self.marks.push((self.certain + drafted, recurrent.collect()));
        }
    }

    /// As far back as needed to go on with `tokens`, whose last is to be computed; `None` if that is not there any more.
    fn back_to(self, tokens: &[u32]) -> Option<DraftContext> {
        let common = common(&self.tokens, &tokens[..tokens.len() - 1]);
        self.back(common)
    }

    /// Behind its first `length` tokens, or behind a few less; `None` if that is not there any more.
    fn back(mut self, length: usize) -> Option<DraftContext> {
        if length < self.tokens.len() {
            let mark = self.marks.iter().rev().find(|(at, _)| *at <= length);
            let recurrent = self.caches.iter().any(|cache| matches!(cache, Cache::Recurrent(_)));
            let length = if recurrent { mark?.0 } else { length };
            let mut states = mark.iter().flat_map(|(_, states)| states);
            for cache in &mut self.caches {
                match cache {
                    Cache::Recurrent(recurrent) => *recurrent = states.next()?.clone(),
                    kv => kv.rewind(self.tokens.len() - length).ok()?,
                }
            }
            self.tokens.truncate(length);
        }
        self.certain = self.tokens.len();
        self.marks.clear();
        Some(self)
    }
}

#[cfg(test)]
mod tests;
