//! A step: launches the rows of several sequences, then reads their results.

use std::rc::Rc;

use kernels::SampleError;
use mlx::{Array, Dtype, PendingRead};

use super::{
    delivery::End,
    forward::{Forward, select},
    progress::PendingToken,
    row::{HiddenRow, StepRow},
    schedule::Scheduled,
    sequence::Sequence,
    step_shape::StepShape,
};
use crate::{
    api::ModelInfo,
    models::Model,
    prefix::{CopiedState, PrefixCache},
    sample::{SampleOutput, SampleRow, fault_of, logprobs::Logprobs, sample},
    speculate::HiddenCapture,
};

/// A launched step, read by [`Step::collect`].
pub(crate) struct Step {
    rows: Vec<StepRow>,
    decodes: bool,
    lossy: bool,
    sampled: Option<SampledTokens>,
}

/// Tokens of the rows that sample, in their order: one after the known tokens and one after each
/// drafted token.
struct SampledTokens {
    /// Uint32 `[n]`.
    tokens: PendingRead,
    /// Float32 `[n]`, read by [`fault_of`].
    faults: PendingRead,
    vocab_size: usize,
}

/// The results of a step that its sequences do not keep.
#[derive(Default)]
pub(crate) struct StepOutput {
    /// Sequences that end with it; their final event is not sent yet.
    pub ended: Vec<(Sequence, End)>,
    /// For drafters, of sequences that continue.
    pub hidden: Vec<(u64, HiddenRow)>,
    /// State to store, with its tokens.
    pub copied: Vec<(Vec<u32>, CopiedState)>,
}

impl Step {
    /// Builds the graph for the scheduled tokens and starts computing it.
    ///
    /// # Errors
    /// MLX could not start it: out of memory or a device error.
    ///
    /// # Panics
    /// On a bug in a model. The sequences' caches are then half changed and must be dropped.
    pub(crate) fn launch(
        model: &dyn Model,
        sequences: &mut [Sequence],
        scheduled: &[Scheduled],
        prefix: &PrefixCache,
        hidden_capture: &HiddenCapture,
    ) -> mlx::Result<Step> {
        let (mut chosen, counts) = select(sequences, scheduled);
        let lossy = chosen.iter().any(|s| !s.skipped_layers().is_empty());
        let decodes = |s: &Sequence| {
            let has_sampled = s.generated() + s.progress.num_unread > 0;
            has_sampled && s.progress.num_computed_tokens + 1 >= s.tokens.len()
        };
        let decodes = chosen.iter().all(|s| decodes(s));
        // Evaluating a sampled token evaluates all that it depends on; other state is evaluated
        // explicitly.
        let all_sample = chosen.iter().zip(&counts).all(|(s, n)| s.samples_after(*n));
        let Forward { hidden, layers, cache_arrays } =
            Forward::of(model, &mut chosen, &counts, hidden_capture, !all_sample);
        let (mut rows, mut ends) = (vec![], vec![]);
        let (mut start, mut room) = (0, prefix.budget_bytes());
        for (sequence, &n) in chosen.iter_mut().zip(&counts) {
            let mut row = StepRow::build(model, sequence, &hidden, start, n);
            start += n as i32;
            if prefix.is_enabled() {
                room -= row.snapshot(sequence, &hidden.slice(0, start - 1, start), prefix, room)?;
            }
            row.capture(sequence, hidden_capture.last.then_some(&hidden), &layers, start);
            ends.extend(start - row.num_sampled() as i32..start);
            rows.push(row);
        }
        let constrained =
            chosen.iter_mut().zip(&mut rows).filter(|(s, row)| row.samples && s.masks.is_some());
        let mut constrained = constrained.peekable();
        if constrained.peek().is_some() {
            // The device computes while the masks are awaited.
            mlx::async_eval([&hidden])?;
        }
        constrained.for_each(|(s, row)| row.masks = s.take_masks());
        let sampled = (!ends.is_empty()).then(|| {
            let logits = model.logits(&pick(&hidden, &ends)).astype(Dtype::Float32);
            let sampling = chosen.into_iter().zip(&mut rows).filter(|(_, row)| row.samples);
            SampledTokens::of(&logits, sampling.collect())
        });
        let sampled = sampled.transpose()?;
        let step = Step { rows, decodes, lossy, sampled };
        mlx::async_eval(step.arrays().chain(&cache_arrays))?;
        Ok(step)
    }

    /// Whether the next step cannot be built before this one is read: the accepted tokens are not
    /// known before.
    pub(crate) fn has_drafts(&self) -> bool {
        self.rows.iter().any(|row| !row.draft.is_empty())
    }

    /// Whether building it has waited for it: the CPU sampled its tokens, or computed their
    /// log-probabilities.
    pub(crate) fn was_awaited(&self) -> bool {
        let on_host = |sampled: &SampledTokens| !sampled.tokens.array().on_device();
        let has_logprobs = self.rows.iter().any(|row| row.logprobs.is_some());
        !mlx::on_gpu() && (has_logprobs || self.sampled.as_ref().is_some_and(on_host))
    }

    pub(crate) fn shape(&self) -> StepShape {
        StepShape {
            decodes: self.decodes,
            rows: self.rows.len(),
            width: self.rows.iter().map(|row| row.num_tokens).sum(),
            drafted: self.has_drafts(),
            lossy: self.lossy,
        }
    }

    pub(crate) fn sequences(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().map(|row| row.sequence)
    }

    /// Waits for the step and hands its results to its sequences; sequences that end leave
    /// `sequences`. Sequences that had `ended` before may still have state to store.
    ///
    /// # Errors
    /// Computing the step failed.
    pub(crate) fn collect(
        self,
        sequences: &mut Vec<Sequence>,
        ended: &mut [Sequence],
        info: &ModelInfo,
    ) -> mlx::Result<StepOutput> {
        // Everything is read before anything is delivered: a step counts whole or not at all.
        let sampled = self.sampled.map(SampledTokens::read).transpose()?.unwrap_or_default();
        let mut sampled = sampled.into_iter();
        let read = |row: StepRow| {
            let own = sampled.by_ref().take(row.num_sampled()).collect();
            row.read(own)
        };
        let read = self.rows.into_iter().map(read).collect::<mlx::Result<Vec<_>>>()?;
        let mut output = StepOutput::default();
        for mut row in read {
            let running = sequences.iter().position(|s| s.id == row.sequence);
            let ended = ended.iter_mut().find(|s| s.id == row.sequence);
            let Some(sequence) = running.map(|at| &mut sequences[at]).or(ended) else { continue };
            output.copied.extend(row.take_copied(sequence));
            let Some(at) = running else {
                row.rewind_draft(sequence);
                continue;
            };
            let hidden = row.hidden();
            match row.deliver(sequence, info) {
                Ok(None) => {
                    sequence.flush();
                    output.hidden.extend(hidden.map(|hidden| (sequence.id, hidden)));
                }
                Ok(Some(reason)) => output.ended.push((sequences.remove(at), End::Finished(reason))),
                Err(error) => output.ended.push((sequences.remove(at), End::Failed(error))),
            }
        }
        Ok(output)
    }

    /// Waits for the step and drops its results: an error in it would otherwise surface in the next
    /// step.
    pub(crate) fn abandon(self) {
        if let Err(error) = mlx::eval(self.arrays()) {
            tracing::debug!("an abandoned step failed too: {error}");
        }
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let sampled =
            self.sampled.iter().flat_map(|sampled| [sampled.tokens.array(), sampled.faults.array()]);
        sampled.chain(self.rows.iter().flat_map(StepRow::arrays))
    }
}

/// Rows `indices`, ascending, of `x`.
fn pick(x: &Array, indices: &[i32]) -> Array {
    match *indices {
        [index] => x.slice(0, index, index + 1),
        _ if indices.len() as i32 == x.dim(0) => x.clone(),
        _ => x.take(&Array::from_slice(indices, &[indices.len() as i32]), 0),
    }
}

impl SampledTokens {
    /// Samples for the rows from float32 logits `[n, vocab_size]`.
    fn of(logits: &Array, mut rows: Vec<(&mut Sequence, &mut StepRow)>) -> mlx::Result<SampledTokens> {
        let sample_rows = rows.iter_mut().map(|(s, row)| SampleRow {
            position: s.progress.num_computed_tokens - row.draft.len(),
            sampler: &mut s.sampler,
            draft: &row.draft,
            allowed: row.masks.as_ref().map_or(&[], |masks| &masks.sets),
        });
        let SampleOutput { tokens, faults } = sample(logits, sample_rows.collect());
        let (read_tokens, faults) = (tokens.start_read()?, faults.start_read()?);
        let tokens = Rc::new(tokens);
        let mut start = 0;
        for (s, row) in rows {
            let end = start + row.num_sampled() as i32;
            if let Some(top) = s.request.logprobs {
                let own = tokens.slice(0, start, end);
                row.logprobs = Some(Logprobs::of(&logits.slice(0, start, end), own, top));
            }
            s.progress.pending =
                row.draft.is_empty().then(|| PendingToken { tokens: tokens.clone(), index: start });
            s.progress.num_unread += 1;
            start = end;
        }
        Ok(SampledTokens { tokens: read_tokens, faults, vocab_size: logits.dim(1) as usize })
    }

    /// # Panics
    /// If an id is outside the vocabulary: later code uses it as an index.
    fn read(self) -> mlx::Result<Vec<Result<u32, SampleError>>> {
        let (tokens, faults) = (self.tokens.to_vec::<u32>()?, self.faults.to_vec::<f32>()?);
        let wrong = tokens.iter().find(|&&id| id as usize >= self.vocab_size);
        assert!(wrong.is_none(), "token {wrong:?} was sampled of a vocabulary of {}", self.vocab_size);
        let read = |(token, fault)| fault_of(fault).map_or(Ok(token), Err);
        Ok(tokens.into_iter().zip(faults).map(read).collect())
    }
}
