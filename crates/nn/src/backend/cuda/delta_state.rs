//! The delta rule's parameters, inputs of its tokens, and moves of its state, on the device.

use kernels::cuda::{ConvSpan, ConvSpans, DeltaSizes, DeltaStep, DeltaSteps, delta_shared};
use mlx::{Array, cuda::Arguments};

use super::launch::{empty, into_resident, launch, resident, resident_f32};
use crate::RmsNorm;

/// Heads of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceHeads {
    pub key_heads: i32,
    pub value_heads: i32,
    pub dim: i32,
}

/// Parameters on the device.
pub(crate) struct DeviceDeltaNet {
    /// `[width, channels]`.
    pub taps: Array,
    pub neg_exp_a: Array,
    pub dt_bias: Array,
    pub sizes: DeltaSizes,
}

/// Inputs of draft tokens, on the device.
pub(crate) struct DeviceDraft {
    pub heads: DeviceHeads,
    /// Inputs of the convolution, `[tokens, channels]`.
    pub x: Array,
    pub(super) inputs: DeviceTokens,
}

/// Inputs of the delta rule of consecutive tokens.
pub(super) struct DeviceTokens {
    pub keys: Array,
    pub values: Array,
    pub gates: Array,
    pub tokens: i32,
}

impl DeviceTokens {
    #[track_caller]
    pub(super) fn new(heads: DeviceHeads, tokens: i32) -> DeviceTokens {
        DeviceTokens {
            keys: empty(&[heads.key_heads, tokens, 2, heads.dim]),
            values: empty(&[heads.value_heads, tokens, heads.dim]),
            gates: empty(&[heads.value_heads, (tokens + 1) / 2 * 2, 2]),
            tokens,
        }
    }

    /// The first `tokens` from one state to another.
    pub(super) fn step(&self, tokens: i32, [before, after]: [&Array; 2], out: u64) -> DeltaStep {
        DeltaStep {
            keys: self.keys.device_address(),
            values: self.values.device_address(),
            gates: self.gates.device_address(),
            before: before.device_address(),
            after: after.device_address(),
            out,
            tokens,
            stride: self.tokens,
        }
    }
}

#[track_caller]
pub(super) fn run_delta(heads: DeviceHeads, steps: &[DeltaStep]) {
    let dim = heads.dim as usize;
    let name = if dim == 64 { "delta_64" } else { "delta_128" };
    for steps in steps.chunks(16) {
        let mut list: DeltaSteps = [DeltaStep::default(); 16];
        list[..steps.len()].copy_from_slice(steps);
        let arguments = Arguments::new().with(list).with(heads.key_heads).with(heads.value_heads);
        // Four warps of eight rows of a head's state each.
        let grid = [heads.value_heads as usize * dim / 32, steps.len(), 1];
        launch(name, grid, 128, delta_shared(dim), arguments);
    }
}

/// The last inputs of `past` and the first `tokens` of `x`.
pub(super) struct Move {
    pub past: Array,
    pub x: Array,
    pub tokens: i32,
}

#[track_caller]
pub(super) fn shift(sizes: DeltaSizes, moves: &[Move]) -> Vec<Array> {
    let mut all = vec![];
    for moves in moves.chunks(32) {
        let next: Vec<Array> = moves.iter().map(|own| empty(own.past.shape())).collect();
        let mut list: ConvSpans = [ConvSpan::default(); 32];
        for ((to, own), next) in list.iter_mut().zip(moves).zip(&next) {
            *to = ConvSpan {
                past: own.past.device_address(),
                x: own.x.device_address(),
                next: next.device_address(),
                tokens: own.tokens,
                padding: 0,
            };
        }
        let arguments = Arguments::new().with(list).with(sizes.channels).with(sizes.width);
        launch("conv_state", [(sizes.channels as usize).div_ceil(256), moves.len(), 1], 256, 0, arguments);
        all.extend(next);
    }
    all
}

/// The last inputs of the convolution and the state after the first `tokens` of a draft.
#[track_caller]
pub(crate) fn commit(conv: &Array, state: &Array, tokens: i32, draft: &DeviceDraft) -> [Array; 2] {
    let (conv, state) = (resident(conv).into_owned(), resident(state));
    let sizes = DeltaSizes { channels: conv.dim(1), width: conv.dim(0) + 1, ..NO_SIZES };
    let next = shift(sizes, &[Move { past: conv, x: draft.x.clone(), tokens }]).remove(0);
    let after = empty(state.shape());
    run_delta(draft.heads, &[draft.inputs.step(tokens, [&state, &after], 0)]);
    [next, after]
}

const NO_SIZES: DeltaSizes = DeltaSizes {
    key_heads: 0,
    value_heads: 0,
    channels: 0,
    width: 0,
    key_eps: 0.0,
    query_eps: 0.0,
    key_weight: 0.0,
    query_weight: 0.0,
};

impl DeviceDeltaNet {
    /// Of a convolution `[channels, width]`, `-exp(A_log)`, `dt_bias` and norms of queries and
    /// keys.
    #[track_caller]
    pub(crate) fn new(
        heads: DeviceHeads,
        [conv1d, neg_exp_a, dt_bias]: [&Array; 3],
        [query_norm, key_norm]: &[RmsNorm; 2],
    ) -> DeviceDeltaNet {
        let (channels, width) = (conv1d.dim(0), conv1d.dim(1));
        let values: Vec<f32> = conv1d.to_f32().unwrap_or_else(|e| panic!("{e}"));
        let taps = kernels::conv_taps(&values, channels as usize);
        let first = |norm: &RmsNorm| {
            let values = norm.weight.to_f32().unwrap_or_else(|e| panic!("{e}"));
            assert!(values.iter().all(|value| *value == values[0]), "norms of one weight");
            values[0]
        };
        DeviceDeltaNet {
            taps: into_resident(Array::from_slice(&taps, &[width, channels])),
            neg_exp_a: resident_f32(neg_exp_a).into_owned(),
            dt_bias: resident_f32(dt_bias).into_owned(),
            sizes: DeltaSizes {
                key_heads: heads.key_heads,
                value_heads: heads.value_heads,
                channels,
                width,
                key_eps: key_norm.eps,
                query_eps: query_norm.eps,
                key_weight: first(key_norm),
                query_weight: first(query_norm),
            },
        }
    }
}
