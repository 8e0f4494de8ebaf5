//! Gated DeltaNet of a batch: convolution, norms and gates of all rows in one launch, then the
//! delta rule.

use std::rc::Rc;

use kernels::cuda::{
    DeltaSizes, DeltaSpan, DeltaSpans, DeltaStep, DeltaToken, DeltaTokenList, MAX_DELTA_RUN, OperationKind,
};
use mlx::{Array, cuda::Arguments};

use super::{
    super::cpu,
    delta_state::{DeviceDeltaNet, DeviceDraft, DeviceTokens, Move, run_delta, shift},
    launch::{device, empty, fall_back, into_resident, is_f32, launch, resident},
    persistent::{self, queue},
};
use crate::{
    DeltaHeads, DeltaNet, DeltaRow,
    recurrence::{DraftInputs, StateIn, StateOut},
};

/// From this many draft tokens on, the state after them is kept: most such drafts are accepted as a
/// whole.
const LONG_DRAFT: i32 = 3;

/// See [`DeltaNet::forward`].
#[track_caller]
pub(crate) fn delta_net(net: &DeltaNet, qkv: &Array, [b, a]: [&Array; 2], rows: &mut [DeltaRow]) -> Array {
    if let Some(why) = unsupported(net, qkv) {
        fall_back(why);
        return cpu::delta_net(net, qkv, [b, a], rows);
    }
    let device = net.on_device();
    let inputs = [qkv, b, a].map(resident);
    let [qkv, b, a] = inputs.each_ref().map(|array| &**array);
    let out = empty(&[qkv.dim(0), net.heads.value_width()]);
    let mut states: Vec<RowState> = vec![];
    let mut start = 0;
    for row in rows.iter_mut() {
        states.push(RowState::take(net, qkv, start, row));
        start += row.tokens;
    }
    let single = states.iter().all(RowState::is_single);
    states.iter_mut().for_each(|state| state.allocate(net.heads, qkv, single));
    single_tokens(device, net.heads, [qkv, b, a], &states, &out);
    commit_conv(device.sizes, &mut states);
    let spans: Vec<DeltaSpan> = states.iter().flat_map(|state| state.spans(net.heads)).collect();
    for spans in spans.chunks(32) {
        inputs_of(device, net.heads, [qkv, b, a], spans);
    }
    let steps = |step: fn(&RowState, DeltaHeads, &Array) -> Option<DeltaStep>| {
        let steps: Vec<DeltaStep> = states.iter().filter_map(|state| step(state, net.heads, &out)).collect();
        run_delta(net.heads.on_device(), &steps);
    };
    steps(RowState::uncommitted_step);
    steps(RowState::committed_step);
    steps(RowState::draft_step);
    let next = next_conv(device.sizes, &states);
    for ((row, state), conv) in rows.iter_mut().zip(states).zip(next) {
        row.state.put(state.finish(net.heads, conv));
    }
    out
}

fn unsupported(net: &DeltaNet, qkv: &Array) -> Option<&'static str> {
    let DeltaHeads { key_dim, value_dim, .. } = net.heads;
    if !is_f32(qkv) || qkv.size() == 0 {
        return Some("a delta rule in other types than float32");
    }
    let known = key_dim == value_dim && [64, 128].contains(&key_dim);
    (!known).then_some("a delta rule with heads of other sizes than 64 and 128")
}

/// A row between its state before and after a step.
struct RowState {
    /// Its first token, and tokens that are committed at once and that may be rewound.
    start: i32,
    committed: i32,
    draft: i32,
    /// The step's inputs of the convolution, `[tokens, channels]`, unless one kernel computes a
    /// single token.
    x: Option<Array>,
    conv: Array,
    before: Array,
    /// The state's memory after the step; `before` if nothing else shares it.
    after: Array,
    /// Tokens of an earlier step to commit first.
    uncommitted: Option<(i32, Rc<DeviceDraft>)>,
    is_after_draft: bool,
    /// The inputs of the convolution after the step, of a single token that one kernel computes.
    next: Option<Array>,
    committed_inputs: Option<DeviceTokens>,
    draft_inputs: Option<DeviceTokens>,
    /// The state after the draft.
    draft_state: Option<Array>,
}

impl RowState {
    #[track_caller]
    fn take(net: &DeltaNet, qkv: &Array, start: i32, row: &mut DeltaRow) -> RowState {
        let (heads, width) = (net.heads, net.weights.conv1d.dim(1));
        let state_shape = [1, heads.value_heads, heads.value_dim, heads.key_dim];
        let StateIn { conv, state, in_place, uncommitted, is_after_draft } =
            row.state.take(&[width - 1, qkv.dim(1)], qkv.dtype(), &state_shape);
        let was_on_device = state.on_device();
        let before = into_resident(state);
        let after = if in_place || !was_on_device { before.clone() } else { empty(&state_shape) };
        let uncommitted = uncommitted.filter(|(tokens, _)| *tokens > 0).map(|(tokens, draft)| match draft {
            DraftInputs::Device(draft) => (tokens, draft),
            DraftInputs::Host { .. } => panic!("the state is that of a layer on another device"),
        });
        let (committed, draft) = (row.tokens - row.num_draft, row.num_draft);
        let some = |tokens: i32| (tokens > 0).then(|| DeviceTokens::new(heads.on_device(), tokens));
        RowState {
            start,
            committed,
            draft,
            x: None,
            conv: into_resident(conv),
            next: None,
            before,
            after,
            uncommitted,
            is_after_draft,
            committed_inputs: None,
            draft_inputs: some(draft),
            draft_state: (draft > 0).then(|| empty(&state_shape)),
        }
    }

    /// Whether one kernel computes all that there is to do.
    fn is_single(&self) -> bool {
        self.committed == 1
            && self.draft == 0
            && self.uncommitted.is_none()
            && (1..=3).contains(&self.conv.dim(0))
    }

    /// Memory for the committed tokens; `single` if the kernel for single tokens computes them.
    #[track_caller]
    fn allocate(&mut self, heads: DeltaHeads, qkv: &Array, single: bool) {
        if single {
            self.next = Some(empty(self.conv.shape()));
            return;
        }
        self.x = Some(qkv.slice(0, self.start, self.start + self.committed + self.draft));
        if self.committed > 0 {
            self.committed_inputs = Some(DeviceTokens::new(heads.on_device(), self.committed));
        }
    }

    /// Inputs `from..to` of the convolution.
    #[track_caller]
    fn inputs(&self, from: i32, to: i32) -> Array {
        let x = self.x.as_ref().unwrap_or_else(|| unreachable!("kept unless a single token is computed"));
        x.slice(0, from, to)
    }

    /// Tokens whose inputs are to be computed.
    fn spans(&self, _heads: DeltaHeads) -> Vec<DeltaSpan> {
        let span = |inputs: &DeviceTokens, start: i32| DeltaSpan {
            past: self.conv.device_address(),
            keys: inputs.keys.device_address(),
            values: inputs.values.device_address(),
            gates: inputs.gates.device_address(),
            row_start: self.start,
            start,
            tokens: inputs.tokens,
            padding: 0,
        };
        let committed = self.committed_inputs.as_ref().map(|inputs| span(inputs, self.start));
        let draft = self.draft_inputs.as_ref().map(|inputs| span(inputs, self.start + self.committed));
        committed.into_iter().chain(draft).collect()
    }

    /// Commits tokens of an earlier step, unless the state includes them.
    fn uncommitted_step(&self, _heads: DeltaHeads, _out: &Array) -> Option<DeltaStep> {
        let (tokens, draft) = self.uncommitted.as_ref().filter(|_| !self.is_after_draft)?;
        Some(draft.inputs.step(*tokens, [&self.before, &self.after], 0))
    }

    /// The state before this step's tokens.
    fn current(&self) -> &Array {
        let committed = self.uncommitted.is_some() && !self.is_after_draft;
        if committed { &self.after } else { &self.before }
    }

    fn committed_step(&self, heads: DeltaHeads, out: &Array) -> Option<DeltaStep> {
        let inputs = self.committed_inputs.as_ref()?;
        Some(inputs.step(inputs.tokens, [self.current(), &self.after], out_address(heads, out, self.start)))
    }

    fn draft_step(&self, heads: DeltaHeads, out: &Array) -> Option<DeltaStep> {
        let (inputs, after) = (self.draft_inputs.as_ref()?, self.draft_state.as_ref()?);
        let before = if self.committed > 0 { &self.after } else { self.current() };
        let out = out_address(heads, out, self.start + self.committed);
        Some(inputs.step(inputs.tokens, [before, after], out))
    }

    fn finish(self, heads: DeltaHeads, conv: Array) -> StateOut {
        let state = if self.committed > 0 { self.after.clone() } else { self.current().clone() };
        let x = (self.draft > 0).then(|| self.inputs(self.committed, self.committed + self.draft));
        let uncommitted = self.draft_inputs.zip(x).map(|(inputs, x)| {
            let draft = DeviceDraft { heads: heads.on_device(), x, inputs };
            (self.draft, DraftInputs::Device(Rc::new(draft)))
        });
        let state_after_draft = self.draft_state.filter(|_| self.draft >= LONG_DRAFT);
        StateOut { conv, state, uncommitted, state_after_draft }
    }
}

fn out_address(heads: DeltaHeads, out: &Array, token: i32) -> u64 {
    out.device_address() + (token * heads.value_width()) as u64 * 4
}

/// Everything for rows of a single token.
#[track_caller]
fn single_tokens(
    net: &DeviceDeltaNet,
    heads: DeltaHeads,
    [qkv, b, a]: [&Array; 3],
    states: &[RowState],
    out: &Array,
) {
    let token = |state: &RowState| {
        let next = state.next.as_ref()?.device_address();
        let [past, before, after] = [&state.conv, &state.before, &state.after].map(Array::device_address);
        Some(DeltaToken { past, next, before, after, token: state.start, padding: 0 })
    };
    let tokens: Vec<DeltaToken> = states.iter().filter_map(token).collect();
    let arguments = |arguments: Arguments| {
        arguments
            .with(net.sizes)
            .with(qkv.device_address())
            .with(net.taps.device_address())
            .with(b.device_address())
            .with(a.device_address())
            .with(net.neg_exp_a.device_address())
            .with(net.dt_bias.device_address())
            .with(out.device_address())
    };
    if let [token] = tokens[..]
        && qkv.dim(0) == 1
        && persistent::is_allowed()
    {
        let (kind, name) = match heads.key_dim {
            64 => (OperationKind::DeltaToken64, "delta_token_64"),
            _ => (OperationKind::DeltaToken128, "delta_token_128"),
        };
        return queue(name, kind, arguments(Arguments::new()).with(token));
    }
    let name = if heads.key_dim == 64 { "delta_token_64" } else { "delta_token_128" };
    for tokens in tokens.chunks(64) {
        let mut list: DeltaTokenList = [DeltaToken::default(); 64];
        list[..tokens.len()].copy_from_slice(tokens);
        let arguments = arguments(Arguments::new().with(list));
        // 32 rows of a head's state each.
        launch(name, [heads.value_width() as usize / 32, tokens.len(), 1], 128, 0, arguments);
    }
}

#[track_caller]
fn inputs_of(net: &DeviceDeltaNet, heads: DeltaHeads, [qkv, b, a]: [&Array; 3], spans: &[DeltaSpan]) {
    let Some(first) = spans.first().map(|span| span.start) else { return };
    let tokens: i32 = spans.iter().map(|span| span.tokens).sum();
    let mut list = DeltaSpans { spans: [DeltaSpan::default(); 32], count: spans.len() as i32, padding: 0 };
    for (to, span) in list.spans.iter_mut().zip(spans) {
        // Counted from the first token of this launch.
        *to = DeltaSpan { row_start: span.row_start - first, start: span.start - first, ..*span };
    }
    let from = |x: &Array| x.device_address() + first as u64 * x.dim(1) as u64 * 4;
    // A block computes two heads of values, and several tokens when there are many.
    let parts = heads.key_heads + (heads.value_heads + 1) / 2;
    let run = (tokens * parts / (8 * device().multiprocessors as i32)).clamp(1, MAX_DELTA_RUN);
    let arguments = Arguments::new()
        .with(list)
        .with(net.sizes)
        .with(from(qkv))
        .with(net.taps.device_address())
        .with(from(b))
        .with(from(a))
        .with(net.neg_exp_a.device_address())
        .with(net.dt_bias.device_address())
        .with(run);
    let name = if heads.key_dim == 64 { "delta_inputs_64" } else { "delta_inputs_128" };
    let grid = [(tokens as usize).div_ceil(run as usize), parts as usize, 1];
    launch(name, grid, heads.key_dim as u32, 0, arguments);
}

/// Includes uncommitted tokens in the inputs of convolutions.
#[track_caller]
fn commit_conv(sizes: DeltaSizes, states: &mut [RowState]) {
    let late: Vec<&mut RowState> = states.iter_mut().filter(|state| state.uncommitted.is_some()).collect();
    let moves: Vec<Move> = late
        .iter()
        .filter_map(|state| {
            let (tokens, draft) = state.uncommitted.as_ref()?;
            Some(Move { past: state.conv.clone(), x: draft.x.clone(), tokens: *tokens })
        })
        .collect();
    for (state, conv) in late.into_iter().zip(shift(sizes, &moves)) {
        state.conv = conv;
    }
}

/// The inputs of each row's convolution after its committed tokens.
#[track_caller]
fn next_conv(sizes: DeltaSizes, states: &[RowState]) -> Vec<Array> {
    let moved = states.iter().filter(|state| state.committed > 0 && state.next.is_none());
    let moves: Vec<Move> = moved
        .map(|s| Move { past: s.conv.clone(), x: s.inputs(0, s.committed), tokens: s.committed })
        .collect();
    let mut next = shift(sizes, &moves).into_iter();
    let conv = |state: &RowState| match (&state.next, state.committed) {
        (Some(next), _) => next.clone(),
        (None, 0) => state.conv.clone(),
        (None, _) => next.next().unwrap_or_else(|| unreachable!("one for each")),
    };
    states.iter().map(conv).collect()
}
