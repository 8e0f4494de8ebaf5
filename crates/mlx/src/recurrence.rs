//! What a recurrent layer carries from token to token: a state behind the last token that is there to stay, and inputs
//! of those behind it, of which some may be forgotten again. Knows nothing of whole layers.

use std::{
    rc::Rc,
    sync::{Arc, OnceLock},
};

use crate::{
    Array, Dtype, fast,
    fused::{self, DeltaParts},
};

/// Empty until the first tokens come; zeros then stand for the past.
///
/// Tokens `ahead` in a step leave the state as it was before them. Those that are not [forgotten](Recurrence::forget)
/// until the next step are taken in by that, so that neither keeping nor forgetting them costs a copy of the state.
#[derive(Clone, Default)]
pub struct Recurrence {
    /// The last inputs of the convolution, `[width - 1, channels]`.
    conv: Option<Array>,
    /// The state of a delta rule, float32 `[1, value_heads, value_dim, key_dim]`. Written in place, unless a clone still
    /// holds what it was.
    state: Option<Rc<Array>>,
    /// Tokens that `conv` lacks.
    conv_ahead: Option<Ahead<Array>>,
    /// Tokens that `state` lacks: `k`, `v`, decay and `beta` as [`fast::gated_delta`] takes them.
    state_ahead: Option<Ahead<[Array; 4]>>,
    /// Tokens that both lack, where one operation computes both.
    ahead: Option<Ahead<Noted>>,
    /// The state behind all of these, if it was kept and none of them is forgotten.
    behind: Option<Rc<Array>>,
}

/// The first `tokens` of inputs.
#[derive(Clone)]
struct Ahead<T> {
    tokens: i32,
    inputs: T,
}

/// Tokens that a recurrence takes in at once, of so many with those `ahead`. A few before a draft wait with it: computing
/// their state apart would cost more than computing it later.
fn certain(tokens: i32, ahead: i32) -> i32 {
    const FEW: i32 = 16;
    if ahead > 0 && tokens - ahead > FEW { tokens - ahead } else { 0 }
}

/// What a kernel notes of the tokens ahead while it runs.
#[derive(Clone)]
pub(crate) struct Noted {
    pub net: Arc<DeltaParts>,
    pub inputs: Arc<OnceLock<Inputs>>,
}

/// Inputs of some tokens, one behind the other.
pub(crate) struct Inputs {
    /// Of the convolution, `channels` each.
    pub x: Vec<f32>,
    /// Of the delta rule, see [`DeltaTokens`](kernels::DeltaTokens).
    pub qkv: Vec<f32>,
    pub g: Vec<f32>,
    pub beta: Vec<f32>,
}

/// What a kernel that computes a whole row takes.
pub(crate) struct Taken {
    pub conv: Array,
    pub state: Array,
    /// Whether the state's memory may be written: nobody else holds it.
    pub in_place: bool,
    /// So many tokens are to be taken in first.
    pub ahead: Option<(i32, Noted)>,
    /// Whether the state is the one behind them.
    pub has_them: bool,
}

/// What such a kernel leaves behind.
pub(crate) struct Left {
    pub conv: Array,
    pub state: Array,
    /// Tokens ahead that both lack.
    pub ahead: Option<(i32, Noted)>,
    /// The state behind them.
    pub behind: Option<Array>,
}

impl Recurrence {
    /// The last inputs of the convolution `[width - 1, channels]` and the state `[1, value_heads, value_dim, key_dim]`, to
    /// be evaluated with a step; behind tokens ahead they are not [settled](Recurrence::settled).
    pub fn arrays(&self) -> [Option<&Array>; 2] {
        [self.conv.as_ref(), self.state.as_deref()]
    }

    /// What [`arrays`](Recurrence::arrays) gave of a settled one.
    pub fn from_arrays([conv, state]: [Option<Array>; 2]) -> Recurrence {
        Recurrence { conv, state: state.map(Rc::new), ..Recurrence::default() }
    }

    /// Forgets the last `tokens`, all of which were ahead in the last step.
    ///
    /// # Panics
    /// If they were not: a bug of ours.
    #[track_caller]
    pub fn forget(&mut self, tokens: i32) {
        fn less<T>(ahead: &mut Option<Ahead<T>>, tokens: i32) {
            if let Some(ahead) = ahead {
                assert!(tokens <= ahead.tokens, "{tokens} of {} tokens ahead", ahead.tokens);
                ahead.tokens -= tokens;
            }
        }
        let ahead = self.conv_ahead.is_some() || self.state_ahead.is_some() || self.ahead.is_some();
        assert!(tokens == 0 || ahead, "{tokens} tokens of none ahead");
        less(&mut self.conv_ahead, tokens);
        less(&mut self.state_ahead, tokens);
        less(&mut self.ahead, tokens);
        if tokens > 0 {
            self.behind = None;
        }
    }

    /// The same with nothing ahead: the arrays are those of a sequence that never looked ahead.
    #[track_caller]
    pub fn settled(&self) -> Recurrence {
        let mut settled = self.clone();
        settled.settle_conv();
        settled.settle_state();
        settled.behind = None;
        if let (Some(Ahead { tokens: tokens @ 1.., inputs }), Some(conv), Some(state)) =
            (settled.ahead.take(), &self.conv, &self.state)
        {
            let [conv, state] = fused::settle(conv, state, tokens, inputs);
            (settled.conv, settled.state) = (Some(conv), Some(Rc::new(state)));
        }
        settled
    }

    /// Causal depthwise convolution of `x` `[tokens, channels]` with `weight` `[channels, width]`; the last `ahead` tokens
    /// may be forgotten again.
    #[track_caller]
    pub fn causal_conv(&mut self, x: &Array, ahead: i32, weight: &Array, silu: bool) -> Array {
        self.settle_conv();
        let past = self.conv.take();
        let past = past.unwrap_or_else(|| Array::zeros(&[weight.dim(1) - 1, x.dim(1)], x.dtype()));
        let (out, next) = fast::causal_conv(x, weight, &past, silu);
        let certain = certain(x.dim(0), ahead);
        self.conv_ahead = (ahead > 0).then(|| Ahead {
            tokens: x.dim(0) - certain,
            inputs: if certain > 0 { x.slice(0, certain, x.dim(0)).contiguous() } else { x.clone() },
        });
        self.conv = Some(match ahead > 0 {
            true if certain > 0 => {
                let kept = past.dim(0);
                Array::concatenate([&past, x], 0).slice(0, certain, certain + kept).contiguous()
            }
            true => past,
            false => next,
        });
        out
    }

    /// Gated delta rule; shapes as in [`fast::gated_delta`]. The last `ahead` tokens may be forgotten again.
    #[track_caller]
    pub fn gated_delta(&mut self, [q, k, v]: [&Array; 3], ahead: i32, g: &Array, beta: &Array) -> Array {
        self.settle_state();
        let past = self
            .state
            .take()
            .unwrap_or_else(|| Rc::new(Array::zeros(&[1, v.dim(2), v.dim(3), k.dim(3)], Dtype::Float32)));
        let certain = certain(k.dim(1), ahead);
        if certain > 0 {
            // The state is to be that before the tokens ahead; each token's own arithmetic is the same in two parts.
            let part = |from, to| [q, k, v, g, beta].map(|x| x.slice(1, from, to).contiguous());
            let [q, k, v, g, beta] = part(0, certain);
            let (first, before) = fast::gated_delta([&q, &k, &v], &g, &beta, &past);
            let [q, k, v, g, beta] = part(certain, k.dim(1) + ahead);
            let (last, _) = fast::gated_delta([&q, &k, &v], &g, &beta, &before);
            self.state_ahead = Some(Ahead { tokens: ahead, inputs: [k, v, g, beta] });
            self.state = Some(Rc::new(before));
            return Array::concatenate([&first, &last], 1);
        }
        let (out, next) = fast::gated_delta([q, k, v], g, beta, &past);
        if ahead > 0 {
            let inputs = [k, v, g, beta].map(Array::clone);
            self.state_ahead = Some(Ahead { tokens: k.dim(1), inputs });
        }
        self.state = Some(if ahead > 0 { past } else { Rc::new(next) });
        out
    }

    /// What the kernel of a whole row goes on from.
    #[track_caller]
    pub(crate) fn take(&mut self, conv: &[i32], dtype: Dtype, state: &[i32]) -> Taken {
        assert!(self.conv_ahead.is_none() && self.state_ahead.is_none(), "a layer of another kind");
        let behind = self.behind.take();
        let has_them = behind.is_some();
        let (state, in_place) = match behind.or(self.state.take()).map(Rc::try_unwrap) {
            Some(Ok(state)) => (state, true),
            Some(Err(shared)) => ((*shared).clone(), false),
            None => (Array::zeros(state, Dtype::Float32), true),
        };
        Taken {
            conv: self.conv.take().unwrap_or_else(|| Array::zeros(conv, dtype)),
            state,
            in_place,
            ahead: self.ahead.take().map(|Ahead { tokens, inputs }| (tokens, inputs)),
            has_them,
        }
    }

    pub(crate) fn put(&mut self, Left { conv, state, ahead, behind }: Left) {
        (self.conv, self.state) = (Some(conv), Some(Rc::new(state)));
        self.ahead = ahead.map(|(tokens, inputs)| Ahead { tokens, inputs });
        self.behind = behind.map(Rc::new);
    }

    #[track_caller]
    fn settle_conv(&mut self) {
        if let (Some(Ahead { tokens, inputs }), Some(conv)) = (self.conv_ahead.take(), &mut self.conv) {
            let kept = conv.dim(0);
            *conv = Array::concatenate([&*conv, &inputs], 0).slice(0, tokens, tokens + kept).contiguous();
        }
    }

    #[track_caller]
    fn settle_state(&mut self) {
        if let (Some(Ahead { tokens: tokens @ 1.., inputs }), Some(state)) =
            (self.state_ahead.take(), &mut self.state)
        {
            let [k, v, g, beta] = inputs.map(|x| x.slice(1, 0, tokens));
            *state = Rc::new(fast::gated_delta([&k, &k, &v], &g, &beta, state).1);
        }
    }
}
