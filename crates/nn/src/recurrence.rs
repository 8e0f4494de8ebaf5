//! The state that a recurrent layer carries from token to token, and the draft tokens after it that
//! may be rewound.

use std::{
    rc::Rc,
    sync::{Arc, OnceLock},
};

use mlx::{Array, Dtype};

use crate::{
    backend::{
        cpu::{self, PreparedDeltaNet},
        cuda::{self, DeviceDraft},
        zeros,
    },
    conv::causal_conv,
    delta_net::gated_delta,
};

/// The state of a recurrent layer; empty until the first tokens come, whose past is zeros.
///
/// The draft tokens of a step leave the state as it was before them. Those that are not
/// [rewound](Recurrence::rewind) are committed by the next step, so that neither accepting nor
/// rejecting them costs a copy of the state.
#[derive(Clone, Default)]
pub struct Recurrence {
    /// The last inputs of the convolution, `[width - 1, channels]`.
    conv: Option<Array>,
    /// The state of a delta rule, float32 `[1, value_heads, value_dim, key_dim]`. Written in place,
    /// unless a clone shares it.
    state: Option<Rc<Array>>,
    /// Tokens that `conv` lacks.
    conv_uncommitted: Option<Uncommitted<Array>>,
    /// Tokens that `state` lacks: `k`, `v`, decay and `beta` as [`gated_delta`] takes them.
    state_uncommitted: Option<Uncommitted<[Array; 4]>>,
    /// Tokens that both lack, where one operation computes both.
    uncommitted: Option<Uncommitted<DraftInputs>>,
    /// The state after all uncommitted tokens, if an operation wrote it and none was rewound.
    state_after_draft: Option<Rc<Array>>,
}

/// The first `tokens` of `inputs`.
#[derive(Clone)]
struct Uncommitted<T> {
    tokens: i32,
    inputs: T,
}

/// Tokens of a step that are committed at once, for `tokens` of which the last `num_draft` are
/// draft tokens. A few before a draft stay uncommitted with it: computing their state separately
/// would cost more than computing it later.
fn committed_at_once(tokens: i32, num_draft: i32) -> i32 {
    const FEW: i32 = 16;
    if num_draft > 0 && tokens - num_draft > FEW { tokens - num_draft } else { 0 }
}

/// Inputs of draft tokens.
#[derive(Clone)]
pub(crate) enum DraftInputs {
    /// The operation that computes the tokens records them.
    Host { net: Arc<PreparedDeltaNet>, values: Arc<OnceLock<TokenInputs>> },
    /// On a GPU.
    Device(Rc<DeviceDraft>),
}

/// Inputs of consecutive tokens.
pub(crate) struct TokenInputs {
    /// Inputs of the convolution, `channels` per token.
    pub x: Vec<f32>,
    /// Inputs of the delta rule, see [`DeltaTokens`](kernels::DeltaTokens).
    pub qkv: Vec<f32>,
    pub g: Vec<f32>,
    pub beta: Vec<f32>,
}

/// Input of an operation that computes convolution and delta rule of a row.
pub(crate) struct StateIn {
    pub conv: Array,
    pub state: Array,
    /// Whether the operation may write the state's memory: nothing else shares it.
    pub in_place: bool,
    /// Tokens to commit first, with their inputs.
    pub uncommitted: Option<(i32, DraftInputs)>,
    /// Whether `state` includes those tokens already.
    pub is_after_draft: bool,
}

/// Output of such an operation.
pub(crate) struct StateOut {
    pub conv: Array,
    pub state: Array,
    /// Draft tokens that both lack, with their inputs.
    pub uncommitted: Option<(i32, DraftInputs)>,
    pub state_after_draft: Option<Array>,
}

impl Recurrence {
    /// The last inputs of the convolution `[width - 1, channels]` and the state
    /// `[1, value_heads, value_dim, key_dim]`, to be evaluated with a step; they lack draft tokens
    /// until these are [committed](Recurrence::committed).
    pub fn arrays(&self) -> [Option<&Array>; 2] {
        [self.conv.as_ref(), self.state.as_deref()]
    }

    /// The inverse of [`arrays`](Recurrence::arrays) for a committed state.
    pub fn from_arrays([conv, state]: [Option<Array>; 2]) -> Recurrence {
        Recurrence { conv, state: state.map(Rc::new), ..Recurrence::default() }
    }

    /// Drops the last `tokens`, all of which were draft tokens of the last step.
    ///
    /// # Panics
    /// If they were not: a bug of ours.
    #[track_caller]
    pub fn rewind(&mut self, tokens: i32) {
        fn drop_last<T>(uncommitted: &mut Option<Uncommitted<T>>, tokens: i32) {
            if let Some(uncommitted) = uncommitted {
                assert!(tokens <= uncommitted.tokens, "{tokens} of {} draft tokens", uncommitted.tokens);
                uncommitted.tokens -= tokens;
            }
        }
        let has_draft =
            self.conv_uncommitted.is_some() || self.state_uncommitted.is_some() || self.uncommitted.is_some();
        assert!(tokens == 0 || has_draft, "{tokens} draft tokens where there are none");
        drop_last(&mut self.conv_uncommitted, tokens);
        drop_last(&mut self.state_uncommitted, tokens);
        drop_last(&mut self.uncommitted, tokens);
        if tokens > 0 {
            self.state_after_draft = None;
        }
    }

    /// A copy with all tokens committed: its arrays are those of a sequence that never drafted.
    #[track_caller]
    pub fn committed(&self) -> Recurrence {
        let mut committed = self.clone();
        committed.commit_conv();
        committed.commit_state();
        committed.state_after_draft = None;
        if let (Some(Uncommitted { tokens: tokens @ 1.., inputs }), Some(conv), Some(state)) =
            (committed.uncommitted.take(), &self.conv, &self.state)
        {
            let [conv, state] = match inputs {
                DraftInputs::Host { net, values } => cpu::commit(conv, state, tokens, net, values),
                DraftInputs::Device(draft) => cuda::commit(conv, state, tokens, &draft),
            };
            (committed.conv, committed.state) = (Some(conv), Some(Rc::new(state)));
        }
        committed
    }

    /// Causal depthwise convolution of `x` `[tokens, channels]` with `weight` `[channels, width]`;
    /// the last `num_draft` tokens may be rewound.
    #[track_caller]
    pub fn causal_conv(&mut self, x: &Array, num_draft: i32, weight: &Array, silu: bool) -> Array {
        self.with_past_inputs(x, num_draft, weight.dim(1), |past| causal_conv(x, weight, past, silu))
    }

    /// What `compute` makes of `x` and the inputs before it, `[width - 1, channels]`; it also
    /// returns the inputs after `x`, of the same number.
    #[track_caller]
    pub(crate) fn with_past_inputs<R>(
        &mut self,
        x: &Array,
        num_draft: i32,
        width: i32,
        compute: impl FnOnce(&Array) -> (R, Array),
    ) -> R {
        self.commit_conv();
        let past = self.conv.take();
        let past = past.unwrap_or_else(|| Array::zeros(&[width - 1, x.dim(1)], x.dtype()));
        let (out, next) = compute(&past);
        if num_draft == 0 {
            self.conv = Some(next);
            return out;
        }
        let (tokens, width) = (x.dim(0), past.dim(0));
        let first = committed_at_once(tokens, num_draft);
        let inputs = if first > 0 { x.slice(0, first, tokens).contiguous() } else { x.clone() };
        self.conv_uncommitted = Some(Uncommitted { tokens: tokens - first, inputs });
        self.conv = Some(match first {
            0 => past,
            _ => Array::concatenate([&past, x], 0).slice(0, first, first + width).contiguous(),
        });
        out
    }

    /// Gated delta rule; shapes as in [`gated_delta`]. The last `num_draft` tokens may be rewound.
    #[track_caller]
    pub fn gated_delta(&mut self, [q, k, v]: [&Array; 3], num_draft: i32, g: &Array, beta: &Array) -> Array {
        self.commit_state();
        let zeros = || Array::zeros(&[1, v.dim(2), v.dim(3), k.dim(3)], Dtype::Float32);
        let past = self.state.take().unwrap_or_else(|| Rc::new(zeros()));
        let tokens = k.dim(1);
        let first = committed_at_once(tokens, num_draft);
        if first > 0 {
            // The state is to be that before the draft; each token's own arithmetic is the same in
            // two parts.
            let part = |from, to| [q, k, v, g, beta].map(|x| x.slice(1, from, to).contiguous());
            let [q, k, v, g, beta] = part(0, first);
            let (first_out, before_draft) = gated_delta([&q, &k, &v], &g, &beta, &past);
            let [q, k, v, g, beta] = part(first, first + num_draft);
            let (last_out, _) = gated_delta([&q, &k, &v], &g, &beta, &before_draft);
            self.state_uncommitted = Some(Uncommitted { tokens: num_draft, inputs: [k, v, g, beta] });
            self.state = Some(Rc::new(before_draft));
            return Array::concatenate([&first_out, &last_out], 1);
        }
        let (out, next) = gated_delta([q, k, v], g, beta, &past);
        if num_draft > 0 {
            let inputs = [k, v, g, beta].map(Array::clone);
            self.state_uncommitted = Some(Uncommitted { tokens, inputs });
        }
        self.state = Some(if num_draft > 0 { past } else { Rc::new(next) });
        out
    }

    /// Takes the state out, for an operation that computes convolution and delta rule of a row; if
    /// there is none, zeros of the shapes `conv` and `state`.
    #[track_caller]
    pub(crate) fn take(&mut self, conv: &[i32], dtype: Dtype, state: &[i32]) -> StateIn {
        let other_kind = self.conv_uncommitted.is_some() || self.state_uncommitted.is_some();
        assert!(!other_kind, "the state is that of a layer of another kind");
        let after_draft = self.state_after_draft.take();
        let is_after_draft = after_draft.is_some();
        let (state, in_place) = match after_draft.or(self.state.take()).map(Rc::try_unwrap) {
            Some(Ok(state)) => (state, true),
            Some(Err(shared)) => ((*shared).clone(), false),
            None => (zeros(state, Dtype::Float32), true),
        };
        StateIn {
            conv: self.conv.take().unwrap_or_else(|| zeros(conv, dtype)),
            state,
            in_place,
            uncommitted: self.uncommitted.take().map(|Uncommitted { tokens, inputs }| (tokens, inputs)),
            is_after_draft,
        }
    }

    /// Puts the operation's outputs in.
    pub(crate) fn put(&mut self, StateOut { conv, state, uncommitted, state_after_draft }: StateOut) {
        (self.conv, self.state) = (Some(conv), Some(Rc::new(state)));
        self.uncommitted = uncommitted.map(|(tokens, inputs)| Uncommitted { tokens, inputs });
        self.state_after_draft = state_after_draft.map(Rc::new);
    }

    #[track_caller]
    fn commit_conv(&mut self) {
        if let (Some(Uncommitted { tokens, inputs }), Some(conv)) =
            (self.conv_uncommitted.take(), &mut self.conv)
        {
            let width = conv.dim(0);
            *conv = Array::concatenate([&*conv, &inputs], 0).slice(0, tokens, tokens + width).contiguous();
        }
    }

    #[track_caller]
    fn commit_state(&mut self) {
        if let (Some(Uncommitted { tokens: tokens @ 1.., inputs }), Some(state)) =
            (self.state_uncommitted.take(), &mut self.state)
        {
            let [k, v, g, beta] = inputs.map(|x| x.slice(1, 0, tokens));
            *state = Rc::new(gated_delta([&k, &k, &v], &g, &beta, state).1);
        }
    }
}
