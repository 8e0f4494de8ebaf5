//! One step: rows of several sequences through the model, and what each row asked to have read back.

use std::rc::Rc;

use mlx::{Array, Dtype};

use crate::{
    batch::Batch,
    models::Model,
    prefix::{Copied, Prefix},
    request::{Event, FinishReason, ModelInfo, RequestError, TokenLogprobs},
    sequence::Sequence,
};

/// A step that was launched; its results are read with [`Step::collect`].
pub struct Step {
    rows: Vec<Row>,
    sampled: Option<Sampled>,
}

/// What the rows that reached the end of what is known got, in their order.
struct Sampled {
    /// The new tokens, uint32 `[n]`.
    tokens: Rc<Array>,
    /// Sums of the logits they were chosen from, float32 `[n]`: not finite if one of them is not.
    sums: Array,
}

/// A token that was sampled and may not be read back yet.
#[derive(Clone)]
pub struct Last {
    /// Uint32 `[n]`.
    tokens: Rc<Array>,
    index: i32,
}

struct Row {
    sequence: u64,
    /// Whether the row is at the end of what is known; `false` for a part of a prompt that is not its end.
    samples: bool,
    /// Sum of the last hidden state, float32 scalar, where nothing is sampled: not finite if a number before it is not.
    sum: Option<Array>,
    /// Whether the sequence's state was to be copied; there may have been no room for it.
    keeps: bool,
    copied: Option<Copied>,
    logprobs: Option<Logprobs>,
    /// Position of the row's first token, and log-probabilities of the prompt tokens behind its tokens.
    prompt_logprobs: Option<(usize, Logprobs)>,
    /// Position of the first, and float32 logits `[n, vocab_size]`.
    logits: Option<(usize, Array)>,
}

/// Log-probabilities of chosen tokens, on their way.
struct Logprobs {
    /// Uint32 `[n]`.
    chosen: Array,
    /// Float32 `[n]`.
    values: Array,
    /// Uint32 and float32 `[n, top]`.
    top: Option<(Array, Array)>,
}

/// What a step that was read leaves behind.
#[derive(Default)]
pub struct Collected {
    /// Sequences that ended with it.
    pub ended: Vec<Sequence>,
    /// State to store: the tokens that it stands behind, and copies.
    pub copied: Vec<(Vec<u32>, Copied)>,
}

impl Step {
    /// Builds the graph for `plan` (sequence index, tokens) and starts computing it.
    ///
    /// # Errors
    /// MLX could not start it: out of memory or a device error.
    ///
    /// # Panics
    /// On a bug in a model. The sequences' caches are then half changed and must be dropped.
    pub fn launch(
        model: &dyn Model,
        sequences: &mut [Sequence],
        plan: &[(usize, usize)],
        prefix: &Prefix,
    ) -> mlx::Result<Step> {
        let mut chosen = select(sequences, plan);
        let tokens = inputs(&chosen, plan);
        // What a sampled token is computed from is computed with it; anything else has to be asked for.
        let all_sample = chosen.iter().zip(plan).all(|(s, &(_, n))| s.computed + n >= s.tokens.len());
        let rows = chosen.iter_mut().zip(plan).map(|(s, &(_, n))| (n, s.computed, &mut s.caches[..]));
        let mut batch = Batch::new(rows);
        let hidden = model.forward(&tokens, &mut batch);
        let cache_arrays: Vec<Array> = batch.cache_arrays().filter(|_| !all_sample).cloned().collect();
        let (mut rows, mut ends) = (vec![], vec![]);
        let mut start = 0;
        for (sequence, &(_, n)) in chosen.iter_mut().zip(plan) {
            let mut row = Row::build(model, sequence, &hidden, start, n);
            start += n as i32;
            if prefix.is_on() {
                row.keep(sequence, &hidden.slice(0, start - 1, start), prefix);
            }
            if row.samples {
                ends.push(start - 1);
            }
            rows.push(row);
        }
        let sampled = (!ends.is_empty()).then(|| {
            let logits = model.logits(&pick(&hidden, &ends)).astype(Dtype::Float32);
            let sampling = chosen.into_iter().zip(&mut rows).filter(|(_, row)| row.samples);
            Sampled::of(&logits, sampling.collect())
        });
        let step = Step { rows, sampled };
        mlx::async_eval(step.arrays().chain(&cache_arrays))?;
        Ok(step)
    }

    /// Which sequences are in the step.
    pub fn sequences(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().map(|row| row.sequence)
    }

    /// Waits for the step and hands its results to its sequences; those that end leave `sequences`. Those that had ended
    /// before take no more part, but may have state to store.
    ///
    /// # Errors
    /// Computing the step failed.
    pub fn collect(
        self,
        sequences: &mut Vec<Sequence>,
        before: &mut [Sequence],
        info: &ModelInfo,
    ) -> mlx::Result<Collected> {
        // Everything is read before anyone is told anything: a step counts whole or not at all.
        let sampled = self.sampled.map(Sampled::read).transpose()?.unwrap_or_default();
        let mut sampled = sampled.into_iter();
        let read = |row: Row| {
            let token = row.samples.then(|| sampled.next()).flatten();
            row.read(token)
        };
        let read = self.rows.into_iter().map(read).collect::<mlx::Result<Vec<_>>>()?;
        let mut collected = Collected::default();
        for mut row in read {
            let running = sequences.iter().position(|s| s.id == row.sequence);
            let ended = before.iter_mut().find(|s| s.id == row.sequence);
            let Some(sequence) = running.map(|at| &mut sequences[at]).or(ended) else { continue };
            collected.copied.extend(row.take_copied(sequence));
            let Some(at) = running else { continue };
            match row.deliver(sequence, info) {
                Ok(None) => {}
                Ok(Some(reason)) => {
                    sequence.finish(reason);
                    collected.ended.push(sequences.remove(at));
                }
                Err(error) => sequences.remove(at).emit(Event::Failed(error)),
            }
        }
        Ok(collected)
    }

    /// Waits until the device has left the step, whose results nobody wants. An error in it would otherwise be that of the
    /// next step.
    pub fn abandon(self) {
        if let Err(error) = mlx::eval(self.arrays()) {
            tracing::debug!("an abandoned step failed too: {error}");
        }
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let sampled = self.sampled.iter().flat_map(|sampled| [&*sampled.tokens, &sampled.sums]);
        let rows = self.rows.iter().flat_map(|row| {
            let logprobs = [row.logprobs.as_ref(), row.prompt_logprobs.as_ref().map(|(_, l)| l)];
            let logprobs = logprobs.into_iter().flatten().flat_map(Logprobs::arrays);
            let copied = row.copied.iter().flat_map(Copied::arrays).chain(&row.sum);
            row.logits.as_ref().map(|(_, logits)| logits).into_iter().chain(logprobs).chain(copied)
        });
        sampled.chain(rows)
    }
}

/// The token ids that rows compute, uint32 `[tokens]`: known ones, or those just sampled.
fn inputs(sequences: &[&mut Sequence], plan: &[(usize, usize)]) -> Array {
    if let Some(tokens) = same_as_before(sequences) {
        return tokens;
    }
    let inputs: Vec<Array> = sequences.iter().zip(plan).map(|(s, &(_, n))| input(s, n)).collect();
    if inputs.len() == 1 { inputs[0].clone() } else { Array::concatenate(&inputs, 0) }
}

/// The tokens one step sampled, if they are just what these sequences compute next.
fn same_as_before(sequences: &[&mut Sequence]) -> Option<Array> {
    let first = &sequences.first()?.last.as_ref()?.tokens;
    let same = |(i, s): (usize, &&mut Sequence)| match &s.last {
        Some(last) => {
            s.computed >= s.tokens.len() && Rc::ptr_eq(&last.tokens, first) && last.index == i as i32
        }
        None => false,
    };
    let all = first.dim(0) as usize == sequences.len() && sequences.iter().enumerate().all(same);
    all.then(|| (**first).clone())
}

fn input(sequence: &Sequence, tokens: usize) -> Array {
    let known = &sequence.tokens[sequence.computed.min(sequence.tokens.len())..];
    match &sequence.last {
        Some(Last { tokens, index }) if known.is_empty() => tokens.slice(0, *index, index + 1),
        _ => Array::from_slice(&known[..tokens], &[tokens as i32]),
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

/// The planned sequences, in the plan's (ascending) order.
fn select<'a>(sequences: &'a mut [Sequence], plan: &[(usize, usize)]) -> Vec<&'a mut Sequence> {
    let planned = |(i, _): &(usize, &mut Sequence)| plan.iter().any(|(p, _)| p == i);
    sequences.iter_mut().enumerate().filter(planned).map(|(_, s)| s).collect()
}

impl Sampled {
    /// A token for each row from float32 logits `[n, vocab_size]`.
    fn of(logits: &Array, mut rows: Vec<(&mut Sequence, &mut Row)>) -> Sampled {
        let greedy = rows.iter().all(|(s, _)| s.sampler.is_argmax());
        let tokens = if greedy { logits.argmax(-1) } else { sample(logits, &mut rows) };
        let tokens = Rc::new(tokens);
        for (i, (s, row)) in (0..).zip(rows) {
            if let Some(top) = s.request.logprobs {
                let own = tokens.slice(0, i, i + 1);
                row.logprobs = Some(Logprobs::of(&logits.slice(0, i, i + 1), own, top));
            }
            s.last = Some(Last { tokens: tokens.clone(), index: i });
            s.unread += 1;
        }
        Sampled { tokens, sums: logits.sum(-1, false) }
    }

    fn read(self) -> mlx::Result<Vec<(u32, bool)>> {
        let (tokens, sums) = (self.tokens.to_vec::<u32>()?, self.sums.to_vec::<f32>()?);
        Ok(tokens.into_iter().zip(sums.into_iter().map(f32::is_finite)).collect())
    }
}

/// Each row's token by that row's own sampler, uint32 `[n]`.
fn sample(logits: &Array, rows: &mut [(&mut Sequence, &mut Row)]) -> Array {
    let own = |(i, (s, _)): (i32, &mut (&mut Sequence, &mut Row))| {
        s.sampler.sample(&logits.slice(0, i, i + 1).reshape(&[-1]), s.computed)
    };
    let tokens: Vec<Array> = (0..).zip(rows).map(own).collect();
    if tokens.len() == 1 { tokens[0].clone() } else { Array::concatenate(&tokens, 0) }
}

impl Row {
    /// Logits of all the row's tokens, if they are wanted, and whether it samples.
    fn build(model: &dyn Model, s: &mut Sequence, hidden: &Array, start: i32, n: usize) -> Row {
        let at = s.computed;
        s.computed += n;
        let prompt = s.request.prompt.len();
        // Once a token is out, so are the prompt's log-probabilities: a replay does not bring them again.
        let scores_prompt = s.request.prompt_logprobs && at + 1 < prompt && s.generated() == 0;
        let mut row = Row {
            sequence: s.id,
            samples: s.computed >= s.tokens.len(),
            sum: None,
            keeps: false,
            copied: None,
            logprobs: None,
            prompt_logprobs: None,
            logits: None,
        };
        if !s.request.logits && !scores_prompt {
            return row;
        }
        let logits = model.logits(&hidden.slice(0, start, start + n as i32)).astype(Dtype::Float32);
        if scores_prompt {
            let next = &s.request.prompt[at + 1..(at + n + 1).min(prompt)];
            let scored = next.len() as i32;
            let chosen = Array::from_slice(next, &[scored]);
            let top = s.request.logprobs.unwrap_or(0);
            row.prompt_logprobs = Some((at + 1, Logprobs::of(&logits.slice(0, 0, scored), chosen, top)));
        }
        row.logits = s.request.logits.then_some((at, logits));
        row
    }

    /// Copies the sequence's state if that is due; `last` is the hidden state behind its last token, `[1, hidden_size]`.
    fn keep(&mut self, s: &mut Sequence, last: &Array, prefix: &Prefix) {
        if !self.samples {
            self.sum = Some(last.astype(Dtype::Float32).sum(-1, false));
        }
        self.keeps = s.is_due();
        if self.keeps {
            self.copied = prefix.copy(&s.tokens[..s.computed], &s.caches);
        }
    }

    /// `sampled` is the row's token, and whether its logits were finite.
    fn read(self, sampled: Option<(u32, bool)>) -> mlx::Result<ReadRow> {
        let prompt = |(at, logprobs): (usize, Logprobs)| Ok::<_, mlx::Error>((at, logprobs.read()?));
        let sum = self.sum.map(|sum| sum.to_vec::<f32>()).transpose()?;
        Ok(ReadRow {
            sequence: self.sequence,
            finite: sampled.is_none_or(|(_, finite)| finite) && sum.is_none_or(|sum| sum[0].is_finite()),
            keeps: self.keeps,
            copied: self.copied,
            sampled,
            logprobs: self.logprobs.map(Logprobs::read).transpose()?.and_then(|mut all| all.pop()),
            prompt_logprobs: self.prompt_logprobs.map(prompt).transpose()?,
            logits: self
                .logits
                .map(|(at, l)| Ok::<_, mlx::Error>((at, l.dim(1), l.to_vec()?)))
                .transpose()?,
        })
    }
}

/// A row on the host.
struct ReadRow {
    sequence: u64,
    /// Whether what the row looked at was numbers.
    finite: bool,
    keeps: bool,
    copied: Option<Copied>,
    /// The token, and whether the logits it was chosen from are finite.
    sampled: Option<(u32, bool)>,
    logprobs: Option<TokenLogprobs>,
    prompt_logprobs: Option<(usize, Vec<TokenLogprobs>)>,
    logits: Option<(usize, i32, Vec<f32>)>,
}

impl ReadRow {
    /// The state to store, if it is sound.
    fn take_copied(&mut self, s: &mut Sequence) -> Option<(Vec<u32>, Copied)> {
        s.sound &= self.finite;
        let copied = self.copied.take();
        if self.keeps {
            s.keeping = None;
        }
        let copied = copied.filter(|_| s.sound)?;
        Some((s.tokens[..copied.position()].to_vec(), copied))
    }

    fn deliver(self, s: &mut Sequence, info: &ModelInfo) -> Result<Option<FinishReason>, RequestError> {
        if let Some((at, vocab_size, values)) = self.logits {
            s.logits(at, &values, vocab_size as usize);
        }
        if let Some((at, logprobs)) = self.prompt_logprobs {
            s.prompt_logprobs(at, logprobs);
        }
        let Some((token, finite)) = self.sampled else { return Ok(None) };
        if !finite {
            return Err(RequestError::NotFinite);
        }
        s.suspect = false;
        Ok(s.push(token, self.logprobs, info))
    }
}

impl Logprobs {
    /// Of `chosen` `[n]` and the `top` likeliest tokens under float32 `logits` `[n, vocab_size]`.
    fn of(logits: &Array, chosen: Array, top: usize) -> Logprobs {
        let n = logits.dim(0);
        let all = logits - logits.logsumexp(-1).reshape(&[n, 1]);
        let pick = |ids: &Array| all.take_along_axis(ids, 1);
        let values = pick(&chosen.reshape(&[n, 1])).reshape(&[n]);
        let top = top.min(logits.dim(1) as usize) as i32;
        let top = (top > 0).then(|| {
            let ids = (-&all).argsort(-1).slice(1, 0, top);
            (ids.clone(), pick(&ids))
        });
        Logprobs { chosen, values, top }
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let top = self.top.iter().flat_map(|(ids, values)| [ids, values]);
        [&self.chosen, &self.values].into_iter().chain(top)
    }

    fn read(self) -> mlx::Result<Vec<TokenLogprobs>> {
        let (ids, values) = (self.chosen.to_vec::<u32>()?, self.values.to_vec::<f32>()?);
        let (width, top): (usize, Vec<(u32, f32)>) = match self.top {
            None => (0, vec![]),
            Some((ids, values)) => {
                let width = ids.dim(1) as usize;
                (width, ids.to_vec::<u32>()?.into_iter().zip(values.to_vec::<f32>()?).collect())
            }
        };
        let entry = |(i, (id, logprob)): (usize, (u32, f32))| TokenLogprobs {
            id,
            logprob,
            top: top[i * width..(i + 1) * width].to_vec(),
        };
        Ok(ids.into_iter().zip(values).enumerate().map(entry).collect())
    }
}
