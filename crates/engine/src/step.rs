//! One step: rows of several sequences through the model, and what each row asked to have read back.

use mlx::{Array, Dtype};

use crate::{
    batch::Batch,
    models::Model,
    request::{Event, FinishReason, ModelInfo, RequestError, TokenLogprobs},
    sequence::Sequence,
};

/// A step that was launched; its results are read with [`Step::collect`].
pub struct Step {
    rows: Vec<Row>,
}

struct Row {
    sequence: u64,
    /// The new token, uint32 `[1]`; `None` for a part of a prompt that is not its end.
    token: Option<Array>,
    /// Sum of the logits it was chosen from, float32: not finite if one of them is not.
    sum: Option<Array>,
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
    ) -> mlx::Result<Step> {
        let inputs: Vec<Array> = plan.iter().map(|&(i, n)| input(&sequences[i], n)).collect();
        let tokens = if inputs.len() == 1 { inputs[0].clone() } else { Array::concatenate(&inputs, 0) };
        let (hidden, cache_arrays) = {
            let mut chosen = select(sequences, plan);
            let rows = chosen.iter_mut().zip(plan).map(|(s, &(_, n))| (n, s.computed, &mut s.caches[..]));
            let mut batch = Batch::new(rows);
            let hidden = model.forward(&tokens, &mut batch);
            let arrays: Vec<Array> = batch.cache_arrays().cloned().collect();
            (hidden, arrays)
        };
        let mut rows = vec![];
        let mut start = 0;
        for (sequence, &(_, n)) in select(sequences, plan).into_iter().zip(plan) {
            rows.push(Row::build(model, sequence, &hidden, start, n));
            start += n as i32;
        }
        let step = Step { rows };
        mlx::async_eval(step.arrays().chain(&cache_arrays))?;
        Ok(step)
    }

    /// Which sequences are in the step.
    pub fn sequences(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().map(|row| row.sequence)
    }

    /// Waits for the step and hands its results to its sequences; those that ended leave `sequences`.
    ///
    /// # Errors
    /// Computing the step failed.
    pub fn collect(self, sequences: &mut Vec<Sequence>, info: &ModelInfo) -> mlx::Result<()> {
        // Everything is read before anyone is told anything: a step counts whole or not at all.
        let read = self.rows.into_iter().map(Row::read).collect::<mlx::Result<Vec<_>>>()?;
        for row in read {
            let Some(at) = sequences.iter().position(|s| s.id == row.sequence) else { continue };
            match row.deliver(&mut sequences[at], info) {
                Ok(None) => {}
                Ok(Some(reason)) => sequences.remove(at).finish(reason),
                Err(error) => sequences.remove(at).emit(Event::Failed(error)),
            }
        }
        Ok(())
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.rows.iter().flat_map(|row| {
            let logprobs = [row.logprobs.as_ref(), row.prompt_logprobs.as_ref().map(|(_, l)| l)];
            let logprobs = logprobs.into_iter().flatten().flat_map(Logprobs::arrays);
            row.token.iter().chain(&row.sum).chain(row.logits.as_ref().map(|(_, l)| l)).chain(logprobs)
        })
    }
}

/// The token ids a row computes: known ones, or the one just sampled.
fn input(sequence: &Sequence, tokens: usize) -> Array {
    let known = &sequence.tokens[sequence.computed.min(sequence.tokens.len())..];
    match &sequence.last {
        Some(last) if known.is_empty() => last.clone(),
        _ => Array::from_slice(&known[..tokens], &[tokens as i32]),
    }
}

/// The planned sequences, in the plan's (ascending) order.
fn select<'a>(sequences: &'a mut [Sequence], plan: &[(usize, usize)]) -> Vec<&'a mut Sequence> {
    let planned = |(i, _): &(usize, &mut Sequence)| plan.iter().any(|(p, _)| p == i);
    sequences.iter_mut().enumerate().filter(planned).map(|(_, s)| s).collect()
}

impl Row {
    /// Logits, if any are wanted, and a sample, if the row reaches the end of what is known.
    fn build(model: &dyn Model, s: &mut Sequence, hidden: &Array, start: i32, n: usize) -> Row {
        let at = s.computed;
        s.computed += n;
        let samples = s.computed >= s.tokens.len();
        let prompt = s.request.prompt.len();
        // Once a token is out, so are the prompt's log-probabilities: a replay does not bring them again.
        let scores_prompt = s.request.prompt_logprobs && at + 1 < prompt && s.generated() == 0;
        let mut row = Row {
            sequence: s.id,
            token: None,
            sum: None,
            logprobs: None,
            prompt_logprobs: None,
            logits: None,
        };
        let all = s.request.logits || scores_prompt;
        if !all && !samples {
            return row;
        }
        let end = start + n as i32;
        let first = if all { start } else { end - 1 };
        let logits = model.logits(&hidden.slice(0, first, end)).astype(Dtype::Float32);
        if s.request.logits {
            row.logits = Some((at, logits.clone()));
        }
        if scores_prompt {
            let next = &s.request.prompt[at + 1..(at + n + 1).min(prompt)];
            let scored = next.len() as i32;
            let chosen = Array::from_slice(next, &[scored]);
            let top = s.request.logprobs.unwrap_or(0);
            row.prompt_logprobs = Some((at + 1, Logprobs::of(&logits.slice(0, 0, scored), chosen, top)));
        }
        if samples {
            let last = logits.slice(0, logits.dim(0) - 1, logits.dim(0));
            let token = s.sampler.sample(&last.reshape(&[-1]), s.computed);
            row.logprobs = s.request.logprobs.map(|top| Logprobs::of(&last, token.clone(), top));
            row.sum = Some(last.sum(-1, false));
            s.last = Some(token.clone());
            s.unread += 1;
            row.token = Some(token);
        }
        row
    }

    fn read(self) -> mlx::Result<ReadRow> {
        let prompt = |(at, logprobs): (usize, Logprobs)| Ok::<_, mlx::Error>((at, logprobs.read()?));
        Ok(ReadRow {
            sequence: self.sequence,
            token: self.token.map(|token| token.to_vec::<u32>()).transpose()?.map(|ids| ids[0]),
            finite: match self.sum {
                Some(sum) => sum.to_vec::<f32>()?[0].is_finite(),
                None => true,
            },
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
    token: Option<u32>,
    finite: bool,
    logprobs: Option<TokenLogprobs>,
    prompt_logprobs: Option<(usize, Vec<TokenLogprobs>)>,
    logits: Option<(usize, i32, Vec<f32>)>,
}

impl ReadRow {
    fn deliver(self, s: &mut Sequence, info: &ModelInfo) -> Result<Option<FinishReason>, RequestError> {
        if let Some((at, vocab_size, values)) = self.logits {
            s.logits(at, &values, vocab_size as usize);
        }
        if let Some((at, logprobs)) = self.prompt_logprobs {
            s.prompt_logprobs(at, logprobs);
        }
        let Some(token) = self.token else { return Ok(None) };
        if !self.finite {
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
