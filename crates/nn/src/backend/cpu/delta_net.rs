//! Gated DeltaNet of a batch as one operation for each group of rows.

use std::{
    slice,
    sync::{Arc, OnceLock},
};

use kernels::{ConvActivation, DeltaShape, DeltaTokens, with_scratch};
use mlx::{Array, Dtype, Input, Output, OutputSpec, apply, apply_many};

use super::{
    batch::{for_each_row, in_groups},
    norm::PreparedNorm,
    values::{dispatch, like, weight_values, widened, write_rounded},
};
use crate::{
    DeltaHeads, DeltaNet, DeltaRow,
    recurrence::{DraftInputs, StateIn, StateOut, TokenInputs},
};

/// A [`DeltaNet`] as kernels take it.
pub(crate) struct PreparedDeltaNet {
    heads: DeltaHeads,
    /// `[width, channels]`.
    taps: Vec<f32>,
    neg_exp_a: Vec<f32>,
    dt_bias: Vec<f32>,
    norms: [Arc<PreparedNorm>; 2],
}

/// A row's tokens, and what its state needs.
struct RowSpan {
    /// The first token, among those of all rows.
    start: usize,
    tokens: usize,
    /// Whether the state's output takes over its input's memory.
    in_place: bool,
    /// Tokens of an earlier step to commit first; the state has them if `is_after_draft`.
    uncommitted: Option<(usize, Arc<OnceLock<TokenInputs>>)>,
    is_after_draft: bool,
    /// The last tokens, which the state will lack; their inputs are recorded here.
    draft: Option<(usize, Arc<OnceLock<TokenInputs>>)>,
    /// Whether the state after the draft is an output too.
    writes_state_after_draft: bool,
}

/// From this many draft tokens on, the state after them is written: most drafts of that length are
/// accepted as a whole, and computing all their tokens again would cost more than writing a state.
const LONG_DRAFT: i32 = 3;

/// Inputs; convolution and state of each row follow.
const QKV: usize = 0;
const B: usize = 1;
const A: usize = 2;
const STATES: usize = 3;

/// See [`DeltaNet::forward`].
#[track_caller]
pub(crate) fn delta_net(net: &DeltaNet, qkv: &Array, [b, a]: [&Array; 2], rows: &mut [DeltaRow]) -> Array {
    let heads = net.heads;
    let tokens: i32 = rows.iter().map(|row| row.tokens).sum();
    let channels = 2 * heads.key_width() + heads.value_width();
    assert_eq!(qkv.shape(), [tokens, channels], "queries, keys and values");
    let gates = [tokens, heads.value_heads];
    assert_eq!((b.shape(), a.shape()), (&gates[..], &gates[..]), "gates");
    in_groups(qkv, rows, |row| row.tokens, |start, rows| group(net, [qkv, b, a], start, rows))
}

/// The states of a group of rows, as inputs and outputs of its operation.
#[derive(Default)]
struct GroupStates {
    spans: Vec<RowSpan>,
    /// Convolution and state of each row.
    inputs: Vec<Array>,
    outputs: Vec<OutputSpec>,
    /// Outputs, counted from the first of these, and the inputs whose memory they take over.
    shared: Vec<(usize, usize)>,
    /// Draft inputs of each row, recorded when the operation runs.
    drafts: Vec<Option<(i32, DraftInputs)>>,
}

impl GroupStates {
    /// Takes the states out of `rows`, whose tokens begin at `start`.
    #[track_caller]
    fn take(net: &DeltaNet, qkv: &Array, start: i32, rows: &mut [DeltaRow]) -> GroupStates {
        let (heads, width) = (net.heads, net.weights.conv1d.dim(1));
        let conv_shape = [width - 1, qkv.dim(1)];
        let state_shape = [1, heads.value_heads, heads.value_dim, heads.key_dim];
        let mut states = GroupStates::default();
        let mut start = start as usize;
        for row in rows {
            let StateIn { conv, state, in_place, uncommitted, is_after_draft } =
                row.state.take(&conv_shape, qkv.dtype(), &state_shape);
            states.outputs.extend([&conv, &state].map(|array| like(array, array.shape())));
            if in_place {
                states.shared.push((states.outputs.len() - 1, states.inputs.len() + 1));
            }
            let writes_state_after_draft = row.num_draft >= LONG_DRAFT;
            if writes_state_after_draft {
                states.outputs.push(like(&state, &state_shape));
            }
            states.inputs.extend([conv, state]);
            let values = Arc::<OnceLock<TokenInputs>>::default();
            let drafts = row.num_draft > 0;
            let net = net.prepared();
            states
                .drafts
                .push(drafts.then(|| (row.num_draft, DraftInputs::Host { net, values: values.clone() })));
            states.spans.push(RowSpan {
                start,
                tokens: row.tokens as usize,
                in_place,
                uncommitted: uncommitted.map(|(tokens, inputs)| (tokens as usize, recorded(inputs))),
                is_after_draft,
                draft: drafts.then_some((row.num_draft as usize, values)),
                writes_state_after_draft,
            });
            start += row.tokens as usize;
        }
        states
    }
}

/// [`delta_net`] of a group of rows, whose tokens begin at `start`.
#[track_caller]
fn group(net: &DeltaNet, [qkv, b, a]: [&Array; 3], start: i32, rows: &mut [DeltaRow]) -> Array {
    let GroupStates { spans, inputs: states, outputs, shared, drafts } =
        GroupStates::take(net, qkv, start, rows);
    let inputs: Vec<&Array> = [qkv, b, a].into_iter().chain(&states).collect();
    let tokens: i32 = rows.iter().map(|row| row.tokens).sum();
    let out = like(qkv, &[tokens, net.heads.value_width()]);
    let outputs: Vec<OutputSpec> = [out].into_iter().chain(outputs).collect();
    let shared: Vec<_> = shared.into_iter().map(|(output, input)| (1 + output, STATES + input)).collect();
    let prepared = net.prepared();
    let long: Vec<bool> = spans.iter().map(|span| span.writes_state_after_draft).collect();
    let results = apply_many("delta_net", &inputs, &outputs, &shared, move |inputs, outputs| {
        prepared.run(&spans, inputs, outputs);
    });
    let mut results = results.into_iter();
    let mut next = || results.next().unwrap_or_else(|| unreachable!("an output"));
    let out = next();
    for ((row, uncommitted), long) in rows.iter_mut().zip(drafts).zip(long) {
        let (conv, state) = (next(), next());
        let state_after_draft = long.then(&mut next);
        row.state.put(StateOut { conv, state, uncommitted, state_after_draft });
    }
    out
}

/// # Panics
/// If a GPU computed the tokens: a bug in the choice of the back end.
fn recorded(inputs: DraftInputs) -> Arc<OnceLock<TokenInputs>> {
    match inputs {
        DraftInputs::Host { values, .. } => values,
        DraftInputs::Device(_) => panic!("the state is that of a layer on another device"),
    }
}

/// The last inputs of the convolution and the state after `tokens` more, whose inputs are `draft`.
#[track_caller]
pub(crate) fn commit(
    conv: &Array,
    state: &Array,
    tokens: i32,
    net: Arc<PreparedDeltaNet>,
    draft: Arc<OnceLock<TokenInputs>>,
) -> [Array; 2] {
    let outputs = [like(conv, conv.shape()), like(state, state.shape())];
    apply("settle", &[conv, state], outputs, move |inputs, outputs| {
        let span = RowSpan {
            start: 0,
            tokens: 0,
            in_place: false,
            uncommitted: Some((tokens as usize, draft.clone())),
            is_after_draft: false,
            draft: None,
            writes_state_after_draft: false,
        };
        let mut row = RowOutputs { span: &span, past: inputs, next: outputs, out: &mut [] };
        net.row(&mut row, [&[], &[], &[]]);
    })
}

#[track_caller]
pub(crate) fn gated_delta([q, k, v]: [&Array; 3], g: &Array, beta: &Array, state: &Array) -> (Array, Array) {
    let shape = DeltaShape {
        tokens: q.dim(1) as usize,
        key_heads: q.dim(2) as usize,
        value_heads: v.dim(2) as usize,
        key_dim: q.dim(3) as usize,
        value_dim: v.dim(3) as usize,
    };
    let (g, beta) = (g.astype(Dtype::Float32), beta.astype(Dtype::Float32));
    let outputs = [like(v, v.shape()), like(state, state.shape())];
    let [out, state] = apply("gated_delta", &[q, k, v, &g, &beta, state], outputs, move |inputs, outputs| {
        let [out, state] = outputs else { unreachable!("two outputs") };
        let state: &mut [f32] = state.values();
        state.copy_from_slice(inputs[5].values());
        dispatch!(inputs[0].dtype(), T => {
            let qkv = [inputs[0].values(), inputs[1].values(), inputs[2].values()];
            kernels::gated_delta::<T>(shape, qkv, inputs[3].values(), inputs[4].values(), state, out.values())
        })
    });
    (out, state)
}

/// A row's states, and its outputs.
struct RowOutputs<'a, 'p, 'n> {
    span: &'a RowSpan,
    /// Convolution and state.
    past: &'a [Input<'p>],
    /// Convolution and state, and the state after the draft if the row writes it.
    next: &'a mut [Output<'n>],
    out: &'a mut [f32],
}

impl PreparedDeltaNet {
    #[track_caller]
    pub(crate) fn new(net: &DeltaNet) -> PreparedDeltaNet {
        let weights = &net.weights;
        let channels = weights.conv1d.dim(0) as usize;
        PreparedDeltaNet {
            heads: net.heads,
            taps: kernels::conv_taps(&weight_values(&weights.conv1d), channels),
            neg_exp_a: weight_values(&weights.neg_exp_a),
            dt_bias: weight_values(&weights.dt_bias),
            norms: weights.norms.each_ref().map(|norm| norm.prepared()),
        }
    }

    fn run(&self, spans: &[RowSpan], inputs: &[Input], outputs: &mut [Output]) {
        let [out, nexts @ ..] = outputs else { unreachable!("an output") };
        let (channels, gates) = (self.channels(), self.heads.value_heads as usize);
        let [qkv, b, a] = [QKV, B, A].map(|i| widened(&inputs[i]));
        write_rounded(slice::from_mut(out), |out| {
            let (mut rest, mut nexts) = (&mut *out[0], nexts);
            let mut rows = vec![];
            for (span, past) in spans.iter().zip(inputs[STATES..].chunks_exact(2)) {
                let (next, out);
                (next, nexts) = nexts.split_at_mut(2 + usize::from(span.writes_state_after_draft));
                (out, rest) = rest.split_at_mut(span.tokens * self.heads.value_width() as usize);
                rows.push(RowOutputs { span, past, next, out });
            }
            let tokens: usize = spans.iter().map(|span| span.tokens).sum();
            let work = tokens * (self.heads.value_width() * self.heads.key_dim) as usize * 4;
            let step = |row: &mut RowOutputs| {
                let of = |width: usize| row.span.start * width..(row.span.start + row.span.tokens) * width;
                self.row(row, [&qkv[of(channels)], &b[of(gates)], &a[of(gates)]]);
            };
            for_each_row(&mut rows, |row| row.span.tokens, work, step);
        });
    }

    fn channels(&self) -> usize {
        (2 * self.heads.key_width() + self.heads.value_width()) as usize
    }

    /// A row's inputs through convolution, norms, gates and delta rule.
    fn row(&self, row: &mut RowOutputs, [x, b, a]: [&[f32]; 3]) {
        let RowSpan { tokens, in_place, is_after_draft, .. } = *row.span;
        let [conv, state, after_draft @ ..] = &mut *row.next else { unreachable!("two outputs of a row") };
        let state: &mut [f32] = state.values();
        let after_draft = after_draft.first_mut().map(|state| state.values());
        if !in_place {
            state.copy_from_slice(row.past[1].values());
        }
        let uncommitted = row.span.uncommitted.as_ref().map(|(tokens, draft)| {
            let inputs = draft.get();
            (*tokens, inputs.unwrap_or_else(|| panic!("draft tokens were never computed")))
        });
        let num_draft = row.span.draft.as_ref().map_or(0, |(num_draft, _)| *num_draft);
        let committed = tokens - num_draft;
        with_scratch(x.len(), |qkv| {
            self.convolve(x, committed, &row.past[0], uncommitted, conv, qkv);
            let keys = self.heads.key_width() as usize;
            for (norm, from) in self.norms.iter().zip([0, keys]) {
                norm.apply(qkv, self.channels(), from..from + keys);
            }
            let (mut g, mut beta) = (vec![0.0; a.len()], vec![0.0; b.len()]);
            kernels::delta_gates([a, b], &self.neg_exp_a, &self.dt_bias, &mut g, &mut beta);
            let before = uncommitted.filter(|_| !is_after_draft);
            let before = before.map_or_else(DeltaTokens::default, |(tokens, inputs)| DeltaTokens {
                qkv: &inputs.qkv[..tokens * self.channels()],
                g: &inputs.g[..tokens * self.heads.value_heads as usize],
                beta: &inputs.beta[..tokens * self.heads.value_heads as usize],
            });
            let now = DeltaTokens { qkv, g: &g, beta: &beta };
            let shape = self.shape(tokens);
            kernels::gated_delta_speculative(shape, committed, [before, now], state, after_draft, row.out);
            if let Some((_, draft)) = &row.span.draft {
                let last = |values: &[f32]| values[values.len() / tokens * committed..].to_vec();
                let inputs = TokenInputs { x: last(x), qkv: last(qkv), g: last(&g), beta: last(&beta) };
                assert!(draft.set(inputs).is_ok(), "an operation runs once");
            }
        });
    }

    /// A row's inputs after convolution and SiLU, into `mixed`; `next` receives the last inputs up
    /// to the first `committed` tokens.
    fn convolve(
        &self,
        x: &[f32],
        committed: usize,
        past: &Input,
        uncommitted: Option<(usize, &TokenInputs)>,
        next: &mut Output,
        mixed: &mut [f32],
    ) {
        let (channels, silu) = (self.channels(), ConvActivation::Silu);
        let mut past = widened(past);
        if let Some((tokens, inputs)) = uncommitted {
            // The last inputs of both, of the same number.
            let new = &inputs.x[..tokens * channels];
            let new = &new[new.len().saturating_sub(past.len())..];
            past = [&past[new.len()..], new].concat().into();
        }
        write_rounded(slice::from_mut(next), |next| {
            kernels::causal_conv(x, &self.taps, &past, mixed, next[0], channels, silu);
            let committed = &x[..committed * channels];
            if committed.len() < x.len() {
                let kept = past.len().saturating_sub(committed.len());
                next[0][..kept].copy_from_slice(&past[past.len() - kept..]);
                next[0][kept..].copy_from_slice(&committed[committed.len() - (past.len() - kept)..]);
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
