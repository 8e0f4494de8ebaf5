//! Selects the update of rows of a state for the instruction set.

use super::token::Token;
#[cfg(target_arch = "x86_64")]
use crate::x86::{avx2, avx512};
use crate::{lanes::LANES, simd::SimdLevel};

/// Updates rows of the state with a token; with `OUT`, `values` become outputs, otherwise
/// unspecified. Without `KEEP`, the state is left unchanged, which requires whole groups of rows of
/// whole lanes.
#[inline(always)]
pub(super) fn update_rows<const OUT: bool, const KEEP: bool>(
    token: &Token,
    state: &mut [f32],
    values: &mut [f32],
    level: SimdLevel,
) {
    let key_dim = token.k.len();
    let done = match level {
        _ if !key_dim.is_multiple_of(LANES) => 0,
        SimdLevel::Portable => 0,
        // SAFETY: the processor has AVX2, and rows are whole lanes.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { avx2::delta::update::<OUT, KEEP>(token, state, values) },
        // SAFETY: all higher levels have AVX-512; rows are whole lanes.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { avx512::delta::update::<OUT, KEEP>(token, state, values) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => 0,
    };
    // `Iterator::skip` would not be inlined; see `WithSimd`.
    for (row, value) in state[done * key_dim..].chunks_exact_mut(key_dim).zip(&mut values[done..]) {
        *value = match key_dim.is_multiple_of(LANES) {
            true => token.update_row::<OUT>(row, *value),
            false => token.update_ragged_row::<OUT>(row, *value),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::simd_level;

    #[test]
    fn update_rows_matches_the_portable_update() {
        let number = |i: usize| (i * i * 31 % 1009) as f32 / 1009.0 - 0.5;
        let numbers = |seed: usize, n: usize| -> Vec<f32> { (seed..seed + n).map(number).collect() };
        let (q, k, decay, state) = (numbers(1, 48), numbers(60, 48), numbers(120, 48), numbers(200, 39 * 48));
        let decayed: Vec<f32> = decay.iter().zip(&k).map(|(g, k)| g * k).collect();
        let token = Token { q: &q, k: &k, decay: &decay, decayed: &decayed, beta: 0.7 };
        let run = |level: SimdLevel| {
            let (mut state, mut values) = (state.clone(), numbers(900, 39));
            update_rows::<true, true>(&token, &mut state, &mut values, level);
            (state, values)
        };
        assert_eq!(run(simd_level()), run(SimdLevel::Portable));
    }
}
