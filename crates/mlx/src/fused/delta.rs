//! The recurrence of all rows of a batch as one operation.

use std::{
    slice,
    sync::{Arc, OnceLock},
};

use kernels::{ConvActivation, DeltaShape, DeltaTokens, with_scratch};

use super::{
    like,
    parts::{NormParts, by_parts, for_each_row, numbers, write_wide},
};
use crate::{
    Array, Input, Output,
    delta::{DeltaHeads, DeltaNet, DeltaRow},
    kernel::{apply, apply_many},
    recurrence::{Inputs, Left, Noted, Taken},
};

/// What kernels need of a [`DeltaNet`].
pub(crate) struct DeltaParts {
    heads: DeltaHeads,
    /// `[width, channels]`.
    taps: Vec<f32>,
    neg_exp_a: Vec<f32>,
    dt_bias: Vec<f32>,
    norms: [Arc<NormParts>; 2],
}

/// A row's tokens, and whether its old state comes in the memory of the new one.
struct Span {
    start: usize,
    tokens: usize,
    in_place: bool,
    /// So many tokens of an earlier step are taken in first, by the state too unless it has them.
    before: Option<(usize, Noted)>,
    has_them: bool,
    /// The last tokens, which do not get into the state; their inputs are noted here.
    ahead: Option<(usize, Arc<OnceLock<Inputs>>)>,
    /// Whether the state behind them is an output too.
    keeps_all: bool,
}

/// From so many tokens ahead on the state behind them is kept: most drafts that long are right as a whole, and taking all their
/// tokens in once more would cost more than writing a state.
const MANY_AHEAD: i32 = 3;

/// The inputs before the rows' own.
const QKV: usize = 0;
const B: usize = 1;
const A: usize = 2;
const PASTS: usize = 3;

/// See [`delta::delta_net`](crate::delta::delta_net).
#[track_caller]
pub(crate) fn delta_net(qkv: &Array, b: &Array, a: &Array, rows: &mut [DeltaRow], net: &DeltaNet) -> Array {
    let heads = net.heads;
    let tokens: i32 = rows.iter().map(|row| row.tokens).sum();
    assert_eq!(qkv.shape(), [tokens, 2 * heads.keys() + heads.values()], "queries, keys and values");
    assert_eq!((b.shape(), a.shape()), (&[tokens, heads.value_heads][..], &[tokens, heads.value_heads][..]));
    by_parts(qkv, rows, |row| row.tokens, |start, rows| some_rows([qkv, b, a], start, rows, net))
}

/// [`delta_net`] of some rows, whose tokens begin at `start`.
#[track_caller]
fn some_rows([qkv, b, a]: [&Array; 3], start: i32, rows: &mut [DeltaRow], net: &DeltaNet) -> Array {
    let (parts, heads) = (net.parts(), net.heads);
    let width = net.weights.conv1d.dim(1);
    let shape = [1, heads.value_heads, heads.value_dim, heads.key_dim];
    let (mut pasts, mut spans, mut noted) = (vec![], vec![], vec![]);
    let (mut outputs, mut shared) = (vec![], vec![]);
    let mut end = start as usize;
    for row in rows.iter_mut() {
        let Taken { conv, state, in_place, ahead: before, has_them } =
            row.past.take(&[width - 1, qkv.dim(1)], qkv.dtype(), &shape);
        outputs.extend([&conv, &state].map(|past| like(past, past.shape().to_vec())));
        if in_place {
            // Behind the operation's own output.
            shared.push((outputs.len(), PASTS + pasts.len() + 1));
        }
        let keeps_all = row.ahead >= MANY_AHEAD;
        if keeps_all {
            outputs.push(like(&state, shape.to_vec()));
        }
        pasts.extend([conv, state]);
        let before = before.map(|(tokens, noted)| (tokens as usize, noted));
        let ahead = (row.ahead > 0).then(|| (row.ahead as usize, Arc::<OnceLock<Inputs>>::default()));
        let note = ahead.clone().map(|(_, inputs)| (row.ahead, Noted { net: parts.clone(), inputs }));
        noted.push((note, keeps_all));
        let tokens = row.tokens as usize;
        spans.push(Span { start: end, tokens, in_place, before, has_them, ahead, keeps_all });
        end += row.tokens as usize;
    }
    let mut inputs = vec![qkv, b, a];
    inputs.extend(&pasts);
    outputs.insert(0, like(qkv, vec![end as i32 - start, heads.values()]));
    let results = apply_many("delta_net", &inputs, &outputs, &shared, move |inputs, outputs| {
        parts.run(&spans, inputs, outputs);
    });
    let mut results = results.into_iter();
    let out = results.next().unwrap_or_else(|| unreachable!("the first output"));
    for (row, (ahead, keeps_all)) in rows.iter_mut().zip(noted) {
        let mut next = || results.next().unwrap_or_else(|| unreachable!("of each row"));
        let (conv, state) = (next(), next());
        let behind = keeps_all.then(next);
        row.past.put(Left { conv, state, ahead, behind });
    }
    out
}

/// The last inputs of the convolution and the state, `tokens` of `noted` later.
#[track_caller]
pub(crate) fn settle(conv: &Array, state: &Array, tokens: i32, noted: Noted) -> [Array; 2] {
    let outputs = [like(conv, conv.shape().to_vec()), like(state, state.shape().to_vec())];
    apply("settle", &[conv, state], outputs, move |inputs, outputs| {
        let before = Some((tokens as usize, noted.clone()));
        let (start, tokens, ahead) = (0, 0, None);
        let span = Span { start, tokens, in_place: false, before, has_them: false, ahead, keeps_all: false };
        let mut row = Row { span: &span, past: inputs, next: outputs, out: &mut [] };
        noted.net.row(&mut row, [&[], &[], &[]]);
    })
}

/// A row on its way through the kernels.
struct Row<'a, 'p, 'n> {
    span: &'a Span,
    past: &'a [Input<'p>],
    next: &'a mut [Output<'n>],
    out: &'a mut [f32],
}

impl DeltaParts {
    #[track_caller]
    pub fn of(net: &DeltaNet) -> DeltaParts {
        let weights = &net.weights;
        DeltaParts {
            heads: net.heads,
            taps: kernels::conv_taps(&numbers(&weights.conv1d), weights.conv1d.dim(0) as usize),
            neg_exp_a: numbers(&weights.neg_exp_a),
            dt_bias: numbers(&weights.dt_bias),
            norms: weights.norms.each_ref().map(|norm| norm.parts()),
        }
    }

    fn run(&self, spans: &[Span], inputs: &[Input], outputs: &mut [Output]) {
        let [out, nexts @ ..] = outputs else { unreachable!("an output") };
        let (channels, gates) = (self.channels(), self.heads.value_heads as usize);
        let [qkv, b, a] = [QKV, B, A].map(|i| inputs[i].wide());
        write_wide(slice::from_mut(out), |out| {
            let (mut rest, mut nexts) = (&mut *out[0], nexts);
            let mut rows = vec![];
            for (span, past) in spans.iter().zip(inputs[PASTS..].chunks_exact(2)) {
                let (next, out);
                (next, nexts) = nexts.split_at_mut(2 + usize::from(span.keeps_all));
                (out, rest) = rest.split_at_mut(span.tokens * self.heads.values() as usize);
                rows.push(Row { span, past, next, out });
            }
            let tokens: usize = spans.iter().map(|span| span.tokens).sum();
            let work = tokens * (self.heads.values() * self.heads.key_dim) as usize * 4;
            for_each_row(
                &mut rows,
                |row| row.span.tokens,
                work,
                |row| {
                    let of =
                        |width: usize| row.span.start * width..(row.span.start + row.span.tokens) * width;
                    self.row(row, [&qkv[of(channels)], &b[of(gates)], &a[of(gates)]]);
                },
            );
        });
    }

    fn channels(&self) -> usize {
        (2 * self.heads.keys() + self.heads.values()) as usize
    }

    /// A row's inputs through convolution, norms, gates and delta rule.
    fn row(&self, row: &mut Row, [x, b, a]: [&[f32]; 3]) {
        let Span { tokens, in_place, has_them, .. } = *row.span;
        let [conv, state, behind @ ..] = &mut *row.next else { unreachable!("two of a row") };
        let state: &mut [f32] = state.values();
        let behind = behind.first_mut().map(|behind| behind.values());
        if !in_place {
            state.copy_from_slice(row.past[1].values());
        }
        let before = row.span.before.as_ref().map(|(tokens, noted)| {
            (*tokens, noted.inputs.get().unwrap_or_else(|| panic!("tokens ahead that nobody has computed")))
        });
        let ahead = row.span.ahead.as_ref().map_or(0, |(ahead, _)| *ahead);
        let certain = tokens - ahead;
        with_scratch(x.len(), |qkv| {
            self.convolve(x, certain, &row.past[0], before, conv, qkv);
            let keys = self.heads.keys() as usize;
            for (norm, from) in self.norms.iter().zip([0, keys]) {
                norm.apply(qkv, self.channels(), from..from + keys);
            }
            let (mut g, mut beta) = (vec![0.0; a.len()], vec![0.0; b.len()]);
            kernels::delta_gates([a, b], &self.neg_exp_a, &self.dt_bias, &mut g, &mut beta);
            let before = before.filter(|_| !has_them);
            let before = before.map_or_else(DeltaTokens::default, |(tokens, inputs)| DeltaTokens {
                qkv: &inputs.qkv[..tokens * self.channels()],
                g: &inputs.g[..tokens * self.heads.value_heads as usize],
                beta: &inputs.beta[..tokens * self.heads.value_heads as usize],
            });
            let now = DeltaTokens { qkv, g: &g, beta: &beta };
            kernels::gated_delta_speculative(
                self.shape(tokens),
                certain,
                [before, now],
                state,
                behind,
                row.out,
            );
            if let Some((_, noted)) = &row.span.ahead {
                let last = |values: &[f32]| values[values.len() / tokens * certain..].to_vec();
                let inputs = Inputs { x: last(x), qkv: last(qkv), g: last(&g), beta: last(&beta) };
                assert!(noted.set(inputs).is_ok(), "an operation runs once");
            }
        });
    }

    /// A row's inputs after convolution and SiLU; `next` receives the last before and of the first `certain` tokens.
    fn convolve(
        &self,
        x: &[f32],
        certain: usize,
        past: &Input,
        before: Option<(usize, &Inputs)>,
        next: &mut Output,
        mixed: &mut [f32],
    ) {
        let (channels, silu) = (self.channels(), ConvActivation::Silu);
        let mut past = past.wide();
        if let Some((tokens, inputs)) = before {
            // The last of both, as many as before.
            let taken = &inputs.x[..tokens * channels];
            let taken = &taken[taken.len().saturating_sub(past.len())..];
            past = [&past[taken.len()..], taken].concat().into();
        }
        write_wide(slice::from_mut(next), |next| {
            kernels::causal_conv(x, &self.taps, &past, mixed, next[0], channels, silu);
            let certain = &x[..certain * channels];
            if certain.len() < x.len() {
                let kept = past.len().saturating_sub(certain.len());
                next[0][..kept].copy_from_slice(&past[past.len() - kept..]);
                next[0][kept..].copy_from_slice(&certain[certain.len() - (past.len() - kept)..]);
            }
        });
    }

    fn shape(&self, tokens: usize) -> DeltaShape {
        DeltaShape {
            tokens,
            key_heads: self.heads.key_heads as usize,
            value_heads: self.heads.value_heads as usize,
            key_dim: self.heads.key_dim as usize,
            value_dim: self.heads.value_dim as usize,
        }
    }
}
