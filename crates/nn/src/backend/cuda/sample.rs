//! Sampling on the device, from all tokens or those that a short list leaves, and of these from the
//! likeliest.

use kernels::cuda::{
    CANDIDATE_BYTES, DrawParameters, MAX_DRAWS, MAX_KEPT, MAX_LISTED, MAX_SAMPLING_BLOCKS, OperationKind,
    SampleMemory,
};
use mlx::{Array, Dtype, cuda::Arguments};

use super::{
    launch::{counters, device, empty, empty_of, launch, scratch},
    persistent::{self, queue},
};

/// A draw from the allowed tokens that the filters leave: the likeliest one if the temperature is
/// 0.
#[derive(Clone, Copy, Debug)]
pub struct TokenDraw {
    pub temperature: f32,
    pub seed: u64,
    pub position: u64,
    pub allowed: AllowedTokens,
    /// Keeps this many of the likeliest, at most [`TokenDraw::MOST_KEPT`]; 0 keeps all.
    pub top_k: usize,
    /// Keeps the likeliest of those that reach this probability together; below 1 only with
    /// `top_k`.
    pub top_p: f32,
    /// Keeps tokens that are at least this likely, as a part of the likeliest one's probability.
    pub min_p: f32,
}

/// The tokens that a draw may choose, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedTokens {
    All,
    Only(TokenList),
    AllBut(TokenList),
}

/// A short list of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenList {
    count: usize,
    ids: [u32; MAX_LISTED],
}

impl TokenList {
    /// Most tokens of a list.
    pub const MOST: usize = MAX_LISTED;

    /// `None` if they are too many.
    pub fn new(tokens: &[u32]) -> Option<TokenList> {
        let mut ids = [0; MAX_LISTED];
        ids.get_mut(..tokens.len())?.copy_from_slice(tokens);
        Some(TokenList { count: tokens.len(), ids })
    }

    pub fn contains(&self, token: u32) -> bool {
        self.ids[..self.count].contains(&token)
    }
}

impl TokenDraw {
    /// Most tokens that `top_k` may keep.
    pub const MOST_KEPT: usize = MAX_KEPT;

    /// The likeliest token.
    pub const GREEDY: TokenDraw = TokenDraw {
        temperature: 0.0,
        seed: 0,
        position: 0,
        allowed: AllowedTokens::All,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
    };

    fn parameters(&self) -> DrawParameters {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let (listed, ids) = match self.allowed {
            AllowedTokens::All => (0, [0; MAX_LISTED]),
            AllowedTokens::Only(list) => (list.count as i32, list.ids),
            AllowedTokens::AllBut(list) => (-(list.count as i32), list.ids),
        };
        let (seed, position) = (halves(self.seed), halves(self.position));
        let (temperature, top_k, top_p) = (self.temperature, self.top_k as i32, self.top_p);
        let floor = kernels::score_floor(self.min_p);
        DrawParameters { temperature, seed, position, listed, ids, floor, top_k, top_p }
    }
}

/// A token, uint32 `[n]`, for each row of float32 logits `[n, vocab_size]`, and a fault, float32
/// `[n]`: 1 if a logit is not finite, else 0. `None` unless the logits are on the device.
#[track_caller]
pub fn sample_tokens(logits: &Array, draws: &[TokenDraw]) -> Option<[Array; 2]> {
    if !logits.on_device() || logits.dtype() != Dtype::Float32 || draws.is_empty() {
        return None;
    }
    let size = logits.dim(1);
    let pieces: Vec<[Array; 2]> = draws
        .chunks(MAX_DRAWS)
        .enumerate()
        .map(|(i, draws)| {
            let first = (i * MAX_DRAWS) as i32;
            sample_rows(&logits.slice(0, first, first + draws.len() as i32), draws, size)
        })
        .collect();
    let join = |which: usize| Array::concatenate(pieces.iter().map(|piece| &piece[which]), 0);
    if pieces.len() == 1 { pieces.into_iter().next() } else { Some([join(0), join(1)]) }
}

#[track_caller]
fn sample_rows(logits: &Array, draws: &[TokenDraw], size: i32) -> [Array; 2] {
    let rows = draws.len();
    let multiprocessors = device().multiprocessors as usize;
    let most = multiprocessors.min(MAX_SAMPLING_BLOCKS);
    let blocks = if rows == 1 { most } else { (size as usize).div_ceil(1024).min(most) };
    let candidates = || scratch(rows * blocks * CANDIDATE_BYTES);
    let (parts, best, arrived) = (candidates(), candidates(), counters(rows));
    let kept = draws.iter().any(|draw| draw.top_k > 0).then(|| scratch(rows * blocks * MAX_KEPT * 8));
    let kept = kept.as_ref().map_or(0, |kept| kept.pointer());
    let memory = SampleMemory { parts: parts.pointer(), best: best.pointer(), kept };
    let (tokens, faults) = (empty_of(&[rows as i32], Dtype::Uint32), empty(&[rows as i32]));
    // The persistent kernel has a block for each multiprocessor.
    if rows == 1 && most == multiprocessors && persistent::is_allowed() {
        let arguments = || {
            Arguments::new()
                .with(draws[0].parameters())
                .with(logits.device_address())
                .with(memory)
                .with(arrived)
                .with(tokens.device_address())
                .with(faults.device_address())
                .with(size)
        };
        queue("sample_parts", OperationKind::SampleParts, arguments());
        queue("sample_row", OperationKind::SampleRow, arguments());
        // A step ends here; the device starts while the host prepares the next one.
        persistent::launch_queued();
        return [tokens, faults];
    }
    let mut list = [DrawParameters::default(); MAX_DRAWS];
    list.iter_mut().zip(draws).for_each(|(to, draw)| *to = draw.parameters());
    let arguments =
        Arguments::new().with(list).with(logits.device_address()).with(parts.pointer()).with(size);
    launch("sample_blocks", [blocks, rows, 1], 256, 0, arguments);
    let arguments = Arguments::new()
        .with(list)
        .with(logits.device_address())
        .with(memory)
        .with(arrived)
        .with(tokens.device_address())
        .with(faults.device_address())
        .with(size);
    launch("sample_finish", [blocks, rows, 1], 256, 0, arguments);
    [tokens, faults]
}
