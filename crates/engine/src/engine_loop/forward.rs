//! The model's forward pass over the rows of a step.

use std::{ops::Range, rc::Rc};

use mlx::Array;

use super::{progress::PendingToken, schedule::Scheduled, sequence::Sequence};
use crate::{
    api::Image,
    batch::{Batch, BatchRow},
    models::Model,
    speculate::HiddenCapture,
};

/// The model's output for all rows, one after the other.
pub(super) struct Forward {
    /// `[tokens, hidden_size]`.
    pub hidden: Array,
    /// Captured layers of the rows that skip none; those come first.
    pub layers: Vec<(usize, Array)>,
    /// Arrays of the caches, if they are to be evaluated with the step.
    pub cache_arrays: Vec<Array>,
}

impl Forward {
    /// Rows that skip the same layers are computed together: in nearly every step all of them.
    pub(super) fn of(
        model: &dyn Model,
        chosen: &mut [&mut Sequence],
        counts: &[usize],
        hidden_capture: &HiddenCapture,
        with_caches: bool,
    ) -> Forward {
        let tokens = inputs(chosen, counts);
        let (mut hidden, mut layers, mut cache_arrays, mut start) = (vec![], vec![], vec![], 0);
        let mut rows: Vec<(&mut Sequence, usize)> =
            chosen.iter_mut().map(|s| &mut **s).zip(counts.iter().copied()).collect();
        for rows in rows.chunk_by_mut(|(a, _), (b, _)| a.skipped_layers() == b.skipped_layers()) {
            let skipped = rows[0].0.skipped_layers().to_vec();
            let end = start + rows.iter().map(|(_, n)| *n as i32).sum::<i32>();
            let images = StepImages::of(rows);
            let mut batch = Batch::new(rows.iter_mut().map(|(s, tokens)| BatchRow {
                num_tokens: *tokens,
                num_draft: s.num_rewindable(*tokens),
                num_computed: s.progress.num_computed_tokens,
                caches: &mut s.caches,
            }));
            images.place(&mut batch);
            match skipped.is_empty() {
                true => batch.capture(&hidden_capture.layers),
                false => batch.skip_layers(&skipped),
            }
            let all = end - start == tokens.dim(0);
            let own = if all { tokens.clone() } else { tokens.slice(0, start, end) };
            hidden.push(model.forward(&own, &mut batch));
            layers.extend(batch.take_captured());
            cache_arrays.extend(batch.cache_arrays().filter(|_| with_caches).cloned());
            start = end;
        }
        let hidden = if hidden.len() == 1 { hidden.remove(0) } else { Array::concatenate(&hidden, 0) };
        Forward { hidden, layers, cache_arrays }
    }
}

/// Places of images in a step, in its order.
#[derive(Default)]
struct StepImages {
    /// Those of all tokens, if a row has images.
    positions: Option<Vec<[i32; 3]>>,
    features: Vec<(i32, Array)>,
    /// Spans of the images in each row, counted from its first token.
    spans: Vec<Vec<Range<i32>>>,
}

impl StepImages {
    fn of(rows: &[(&mut Sequence, usize)]) -> StepImages {
        if rows.iter().all(|(s, _)| s.request.images.is_empty()) {
            return StepImages::default();
        }
        let (mut positions, mut features, mut spans, mut start) = (vec![], vec![], vec![], 0);
        let mut has_axes = false;
        for (s, n) in rows {
            let computed = s.progress.num_computed_tokens;
            let range = computed..computed + n;
            let own = s.images.features(&s.request.images, range.clone()).into_iter();
            features.extend(own.map(|(at, own)| (start + (at - range.start) as i32, own)));
            start += *n as i32;
            let within = s.request.images.iter().map(Image::span).filter(|span| range.contains(&span.start));
            let from_first = |at: usize| (at - range.start) as i32;
            spans.push(within.map(|span| from_first(span.start)..from_first(span.end)).collect());
            let own = s.images.positions(range.clone());
            has_axes |= own.is_some();
            positions.extend(own.unwrap_or_else(|| range.map(|index| [index as i32; 3]).collect()));
        }
        StepImages { positions: has_axes.then_some(positions), features, spans }
    }

    fn place(self, batch: &mut Batch) {
        batch.set_images(self.spans);
        self.positions.iter().for_each(|positions| batch.set_positions(positions));
        self.features.into_iter().for_each(|(at, features)| batch.place_features(at, features));
    }
}

/// The token ids to compute, uint32 `[tokens]`: known ones and drafts, or those just sampled.
fn inputs(sequences: &[&mut Sequence], counts: &[usize]) -> Array {
    if let Some(tokens) = last_sampled(sequences) {
        return tokens;
    }
    let inputs: Vec<Array> = sequences.iter().zip(counts).map(|(s, &n)| input(s, n)).collect();
    if inputs.len() == 1 { inputs[0].clone() } else { Array::concatenate(&inputs, 0) }
}

/// The last step's sampled tokens, if they are exactly what these sequences compute next.
fn last_sampled(sequences: &[&mut Sequence]) -> Option<Array> {
    let first = &sequences.first()?.progress.pending.as_ref()?.tokens;
    let same = |(i, s): (usize, &&mut Sequence)| match &s.progress.pending {
        Some(last) => {
            let is_next = s.progress.num_computed_tokens >= s.tokens.len();
            is_next && Rc::ptr_eq(&last.tokens, first) && last.index == i as i32
        }
        None => false,
    };
    let all = first.dim(0) as usize == sequences.len() && sequences.iter().enumerate().all(same);
    all.then(|| (**first).clone())
}

fn input(s: &Sequence, tokens: usize) -> Array {
    let known = &s.tokens[s.progress.num_computed_tokens.min(s.tokens.len())..];
    match &s.progress.pending {
        Some(PendingToken { tokens, index }) if known.is_empty() => tokens.slice(0, *index, index + 1),
        _ if s.draft.tokens.is_empty() => Array::from_slice(&known[..tokens], &[tokens as i32]),
        _ => Array::from_slice(&[known, &s.draft.tokens].concat(), &[tokens as i32]),
    }
}

/// The scheduled sequences and their tokens, in ascending order; those that skip layers come last.
pub(super) fn select<'a>(
    sequences: &'a mut [Sequence],
    scheduled: &[Scheduled],
) -> (Vec<&'a mut Sequence>, Vec<usize>) {
    let num_tokens = |i: usize| scheduled.iter().find(|own| own.sequence == i).map(|own| own.num_tokens);
    let chosen = sequences.iter_mut().enumerate().filter_map(|(i, s)| Some((s, num_tokens(i)?)));
    let mut chosen: Vec<(&mut Sequence, usize)> = chosen.collect();
    chosen.sort_by(|(a, _), (b, _)| a.skipped_layers().cmp(b.skipped_layers()));
    chosen.into_iter().unzip()
}
