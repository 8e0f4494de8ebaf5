//! Sampling on the device, for draws without filters.

use kernels::cuda::{CANDIDATE_BYTES, DrawList, DrawParameters};
use mlx::{Array, Dtype, cuda::Arguments};

use super::launch::{counters, device, empty, empty_of, launch};

/// A draw from all tokens: the likeliest one if the temperature is 0.
#[derive(Clone, Copy, Debug)]
pub struct PlainDraw {
    pub temperature: f32,
    pub seed: u64,
    pub position: u64,
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
    let blocks = (size as usize).div_ceil(1024).min(device().multiprocessors as usize);
    let candidates = || empty_of(&[(rows * blocks * CANDIDATE_BYTES) as i32], Dtype::Uint8);
    let (parts, best, arrived) = (candidates(), candidates(), counters(rows));
    let (tokens, faults) = (empty_of(&[rows as i32], Dtype::Uint32), empty(&[rows as i32]));
    let arguments = Arguments::new().with(logits.device_address()).with(parts.device_address()).with(size);
    launch("sample_blocks", [blocks, rows, 1], 256, 0, arguments);
    let mut list: DrawList = [DrawParameters::default(); 64];
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    for (to, draw) in list.iter_mut().zip(draws) {
        let PlainDraw { temperature, seed, position } = *draw;
        *to = DrawParameters { temperature, seed: halves(seed), position: halves(position) };
    }
    let arguments = Arguments::new()
        .with(list)
        .with(logits.device_address())
        .with(parts.device_address())
        .with(best.device_address())
        .with(arrived)
        .with(tokens.device_address())
        .with(faults.device_address())
        .with(size);
    launch("sample_finish", [blocks, rows, 1], 256, 0, arguments);
    [tokens, faults]
}
