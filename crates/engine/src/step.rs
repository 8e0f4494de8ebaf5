//! One step: rows of several sequences through the model, and what each row asked to have read back.

use std::rc::Rc;

use kernels::SampleError;
use mlx::{Array, Dtype};

use crate::{
    batch::{Batch, Part},
    logprobs::Logprobs,
    models::Model,
    prefix::{CopiedState, PrefixCache},
    request::ModelInfo,
    row::{HiddenRow, Row},
    sample::{Chosen, choose, likeliest, unchosen},
    sequence::{End, Sequence},
    speculate::HiddenCapture,
};

/// A step that was launched; its results are read with [`Step::collect`].
pub struct Step {
    rows: Vec<Row>,
    /// Whether all its rows decode: no part of a prompt is in it.
    decodes: bool,
    /// Whether layers were left out for any of its rows.
    lossy: bool,
    sampled: Option<Sampled>,
}

/// What the rows that reached the end of what is known got, in their order; those with a draft one more than it has.
struct Sampled {
    /// The new tokens, uint32 `[n]`.
    tokens: Rc<Array>,
    /// For each whether it is one, float32 `[n]`: see [`unchosen`].
    faults: Array,
    vocab_size: usize,
}

/// A token that was sampled and may not be read back yet.
#[derive(Clone)]
pub struct Last {
    /// Uint32 `[n]`.
    tokens: Rc<Array>,
    index: i32,
}

/// What there is to compute in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Whether all its rows decode: no part of a prompt is in it.
    pub decodes: bool,
    pub rows: usize,
    /// Tokens of all rows.
    pub width: usize,
    /// Whether any of those are drafted.
    pub drafted: bool,
    /// Whether layers were left out for any of them.
    pub lossy: bool,
}

/// What a step that was read leaves behind.
#[derive(Default)]
pub struct Collected {
    /// Sequences that end with it, and how; they are to be told.
    pub ended: Vec<(Sequence, End)>,
    /// What drafters are to see of sequences that go on.
    pub hidden: Vec<(u64, HiddenRow)>,
    /// State to store: the tokens that it stands behind, and copies.
    pub copied: Vec<(Vec<u32>, CopiedState)>,
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
        prefix: &PrefixCache,
        capture: &HiddenCapture,
    ) -> mlx::Result<Step> {
        let (mut chosen, counts) = select(sequences, plan);
        let lossy = chosen.iter().any(|s| !s.left_out().is_empty());
        let decodes = chosen.iter().all(|s| s.generated() + s.unread > 0 && s.computed + 1 >= s.tokens.len());
        // What a sampled token is computed from is computed with it; anything else has to be asked for.
        let all_sample = chosen.iter().zip(&counts).all(|(s, n)| s.computed + n >= s.tokens.len());
        let Forward { hidden, layers, cache_arrays } =
            Forward::of(model, &mut chosen, &counts, capture, !all_sample);
        let (mut rows, mut ends) = (vec![], vec![]);
        let (mut start, mut room) = (0, prefix.budget_bytes());
        for (sequence, &n) in chosen.iter_mut().zip(&counts) {
            let mut row = Row::build(model, sequence, &hidden, start, n);
            start += n as i32;
            if prefix.is_enabled() {
                room -= row.keep(sequence, &hidden.slice(0, start - 1, start), prefix, room);
            }
            row.show(sequence, capture.last.then_some(&hidden), &layers, start);
            ends.extend(start - row.sampled() as i32..start);
            rows.push(row);
        }
        let sampled = (!ends.is_empty()).then(|| {
            let logits = model.logits(&pick(&hidden, &ends)).astype(Dtype::Float32);
            let sampling = chosen.into_iter().zip(&mut rows).filter(|(_, row)| row.samples);
            Sampled::of(&logits, sampling.collect())
        });
        let step = Step { rows, decodes, lossy, sampled };
        mlx::async_eval(step.arrays().chain(&cache_arrays))?;
        Ok(step)
    }

    /// Whether the next step cannot be built before this one is read: how far a sequence got depends on its draft.
    pub fn has_drafts(&self) -> bool {
        self.rows.iter().any(|row| !row.draft.is_empty())
    }

    /// What there was to compute.
    pub fn load(&self) -> Load {
        Load {
            decodes: self.decodes,
            rows: self.rows.len(),
            width: self.rows.iter().map(|row| row.tokens).sum(),
            drafted: self.has_drafts(),
            lossy: self.lossy,
        }
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
            let own = sampled.by_ref().take(row.sampled()).collect();
            row.read(own)
        };
        let read = self.rows.into_iter().map(read).collect::<mlx::Result<Vec<_>>>()?;
        let mut collected = Collected::default();
        for mut row in read {
            let running = sequences.iter().position(|s| s.id == row.sequence);
            let ended = before.iter_mut().find(|s| s.id == row.sequence);
            let Some(sequence) = running.map(|at| &mut sequences[at]).or(ended) else { continue };
            collected.copied.extend(row.take_copied(sequence));
            let Some(at) = running else {
                row.drop_draft(sequence);
                continue;
            };
            let hidden = row.hidden();
            match row.deliver(sequence, info) {
                Ok(None) => {
                    sequence.tell();
                    collected.hidden.extend(hidden.map(|hidden| (sequence.id, hidden)));
                }
                Ok(Some(reason)) => collected.ended.push((sequences.remove(at), End::Finished(reason))),
                Err(error) => collected.ended.push((sequences.remove(at), End::Failed(error))),
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
        let sampled = self.sampled.iter().flat_map(|sampled| [&*sampled.tokens, &sampled.faults]);
        sampled.chain(self.rows.iter().flat_map(Row::arrays))
    }
}

/// What the model makes of all rows, one behind the other.
struct Forward {
    /// `[tokens, hidden_size]`.
    hidden: Array,
    /// What is watched of the rows for which no layers are left out; those come first.
    layers: Vec<(usize, Array)>,
    /// What the caches hold behind it, if that is to be evaluated too.
    cache_arrays: Vec<Array>,
}

impl Forward {
    /// Rows that go without the same layers are computed together: in nearly every step all of them.
    fn of(
        model: &dyn Model,
        chosen: &mut [&mut Sequence],
        counts: &[usize],
        capture: &HiddenCapture,
        with_caches: bool,
    ) -> Forward {
        let tokens = inputs(chosen, counts);
        let (mut hidden, mut layers, mut cache_arrays, mut start) = (vec![], vec![], vec![], 0);
        let mut rows: Vec<(&mut Sequence, usize)> =
            chosen.iter_mut().map(|s| &mut **s).zip(counts.iter().copied()).collect();
        for rows in rows.chunk_by_mut(|(a, _), (b, _)| a.left_out() == b.left_out()) {
            let left_out = rows[0].0.left_out().to_vec();
            let end = start + rows.iter().map(|(_, n)| *n as i32).sum::<i32>();
            let mut batch = Batch::new(rows.iter_mut().map(|(s, tokens)| Part {
                tokens: *tokens,
                ahead: s.ahead(*tokens),
                past: s.computed,
                caches: &mut s.caches,
            }));
            match left_out.is_empty() {
                true => batch.watch(&capture.layers),
                false => batch.leave_out(&left_out),
            }
            let all = end - start == tokens.dim(0);
            let own = if all { tokens.clone() } else { tokens.slice(0, start, end) };
            hidden.push(model.forward(&own, &mut batch));
            layers.extend(batch.seen());
            cache_arrays.extend(batch.cache_arrays().filter(|_| with_caches).cloned());
            start = end;
        }
        let hidden = if hidden.len() == 1 { hidden.remove(0) } else { Array::concatenate(&hidden, 0) };
        Forward { hidden, layers, cache_arrays }
    }
}

/// The token ids that rows compute, uint32 `[tokens]`: known ones and drafts behind them, or those just sampled.
fn inputs(sequences: &[&mut Sequence], counts: &[usize]) -> Array {
    if let Some(tokens) = same_as_before(sequences) {
        return tokens;
    }
    let inputs: Vec<Array> = sequences.iter().zip(counts).map(|(s, &n)| input(s, n)).collect();
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
        _ if sequence.draft.is_empty() => Array::from_slice(&known[..tokens], &[tokens as i32]),
        _ => Array::from_slice(&[known, &sequence.draft].concat(), &[tokens as i32]),
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

/// The planned sequences and their tokens: in the plan's (ascending) order, but those that go without layers behind the
/// others.
fn select<'a>(sequences: &'a mut [Sequence], plan: &[(usize, usize)]) -> (Vec<&'a mut Sequence>, Vec<usize>) {
    let tokens = |i: usize| plan.iter().find(|(planned, _)| *planned == i).map(|(_, tokens)| *tokens);
    let planned = sequences.iter_mut().enumerate().filter_map(|(i, s)| Some((s, tokens(i)?)));
    let mut chosen: Vec<(&mut Sequence, usize)> = planned.collect();
    chosen.sort_by(|(a, _), (b, _)| a.left_out().cmp(b.left_out()));
    chosen.into_iter().unzip()
}

impl Sampled {
    /// Tokens for the rows from float32 logits `[n, vocab_size]`, one behind what is known and behind each of a draft.
    fn of(logits: &Array, mut rows: Vec<(&mut Sequence, &mut Row)>) -> Sampled {
        let choices = rows
            .iter()
            .map(|(s, row)| s.sampler.choices(s.computed - row.draft.len(), row.sampled(), &row.allowed));
        let Chosen { tokens, faults } = match choices.collect::<Option<Vec<_>>>() {
            Some(choices) => choose(logits, choices.concat()),
            None => sample(logits, &mut rows),
        };
        let tokens = Rc::new(tokens);
        let mut start = 0;
        for (s, row) in rows {
            let end = start + row.sampled() as i32;
            if let Some(top) = s.request.logprobs {
                let own = tokens.slice(0, start, end);
                row.logprobs = Some(Logprobs::of(&logits.slice(0, start, end), own, top));
            }
            s.last = row.draft.is_empty().then(|| Last { tokens: tokens.clone(), index: start });
            s.unread += 1;
            start = end;
        }
        Sampled { tokens, faults, vocab_size: logits.dim(1) as usize }
    }

    /// # Panics
    /// If an id is none of the vocabulary: from here on it is an index wherever it goes.
    fn read(self) -> mlx::Result<Vec<Result<u32, SampleError>>> {
        let (tokens, faults) = (self.tokens.to_vec::<u32>()?, self.faults.to_vec::<f32>()?);
        let wrong = tokens.iter().find(|&&id| id as usize >= self.vocab_size);
        assert!(wrong.is_none(), "token {wrong:?} was sampled of a vocabulary of {}", self.vocab_size);
        let read = |(token, fault)| unchosen(fault).map_or(Ok(token), Err);
        Ok(tokens.into_iter().zip(faults).map(read).collect())
    }
}

/// Each row's tokens by that row's own sampler.
fn sample(logits: &Array, rows: &mut [(&mut Sequence, &mut Row)]) -> Chosen {
    if rows.iter().all(|(s, row)| s.sampler.is_argmax() && row.allowed.is_empty()) {
        return likeliest(logits);
    }
    let mut start = 0;
    let own = |(s, row): &mut (&mut Sequence, &mut Row)| {
        let end = start + row.sampled() as i32;
        let logits = logits.slice(0, start, end);
        start = end;
        s.sampler.sample(&logits, s.computed - row.draft.len(), &row.draft, &row.allowed)
    };
    Chosen::concatenate(rows.iter_mut().map(own).collect())
}
