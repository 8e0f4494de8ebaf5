//! Sampling on the device, for draws without filters, from all tokens or those that a short list
//! leaves.

use kernels::cuda::{CANDIDATE_BYTES, DrawList, DrawParameters, MAX_LISTED, OperationKind};
use mlx::{Array, Dtype, cuda::Arguments};

use super::{
    launch::{counters, device, empty, empty_of, launch, scratch},
    persistent::{self, queue},
};

/// A draw from all allowed tokens: the likeliest one if the temperature is 0.
#[derive(Clone, Copy, Debug)]
pub struct PlainDraw {
    pub temperature: f32,
    pub seed: u64,
    pub position: u64,
    pub allowed: AllowedTokens,
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

impl PlainDraw {
    fn parameters(&self) -> DrawParameters {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let (listed, ids) = match self.allowed {
            AllowedTokens::All => (0, [0; MAX_LISTED]),
            AllowedTokens::Only(list) => (list.count as i32, list.ids),
            AllowedTokens::AllBut(list) => (-(list.count as i32), list.ids),
        };
        let (seed, position) = (halves(self.seed), halves(self.position));
        DrawParameters { temperature: self.temperature, seed, position, listed, ids }
    }
}

/// A token, uint32 `[n]`, for each row of float32 logits `[n, vocab_size]`, and a fault, float32
/// `[n]`: 1 if a logit is not finite, else 0. `None` unless the logits are on the device.
#[track_caller]
pub fn sample_plain(logits: &Array, draws: &[PlainDraw]) -> Option<[Array; 2]> {
    if !logits.on_device() || logits.dtype() != Dtype::Float32 || draws.is_empty() {
        return None;
    }
    let size = logits.dim(1);
    let pieces: Vec<[Array; 2]> = draws
        .chunks(64)
        .enumerate()
        .map(|(i, draws)| {
            let first = i as i32 * 64;
            sample_rows(&logits.slice(0, first, first + draws.len() as i32), draws, size)
        })
        .collect();
    let join = |which: usize| Array::concatenate(pieces.iter().map(|piece| &piece[which]), 0);
    if pieces.len() == 1 { pieces.into_iter().next() } else { Some([join(0), join(1)]) }
}

#[track_caller]
fn sample_rows(logits: &Array, draws: &[PlainDraw], size: i32) -> [Array; 2] {
    let rows = draws.len();
    let most = device().multiprocessors as usize;
    let blocks = if rows == 1 { most } else { (size as usize).div_ceil(1024).min(most) };
    let candidates = || scratch(rows * blocks * CANDIDATE_BYTES);
    let (parts, best, arrived) = (candidates(), candidates(), counters(rows));
    let (tokens, faults) = (empty_of(&[rows as i32], Dtype::Uint32), empty(&[rows as i32]));
    if rows == 1 && persistent::is_allowed() {
        let arguments = || {
            Arguments::new()
                .with(draws[0].parameters())
                .with(logits.device_address())
                .with(parts.pointer())
                .with(best.pointer())
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
    let mut list: DrawList = [DrawParameters::default(); 64];
    list.iter_mut().zip(draws).for_each(|(to, draw)| *to = draw.parameters());
    let arguments =
        Arguments::new().with(list).with(logits.device_address()).with(parts.pointer()).with(size);
    launch("sample_blocks", [blocks, rows, 1], 256, 0, arguments);
    let arguments = Arguments::new()
        .with(list)
        .with(logits.device_address())
        .with(parts.pointer())
        .with(best.pointer())
        .with(arrived)
        .with(tokens.device_address())
        .with(faults.device_address())
        .with(size);
    launch("sample_finish", [blocks, rows, 1], 256, 0, arguments);
    [tokens, faults]
}
