//! Rows of a state with AVX2, four at a time.

use std::arch::x86_64::*;

use super::Token;
use crate::lanes::LANES;

/// Rows that share loads and the work of summing up.
const ROWS: usize = 4;

/// As many rows as are whole fours through a token, to the bits of [`Token::row`]; how many they are.
///
/// # Safety
/// The processor must have the features, and rows be whole vectors.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(super) unsafe fn step<const OUT: bool, const KEEP: bool>(
    token: &Token,
    state: &mut [f32],
    values: &mut [f32],
) -> usize {
    let (values, key_dim) = (values.as_chunks_mut::<ROWS>().0, token.k.len());
    // First all rows are read, then all are written: no row waits for the sums of the one before.
    for (state, values) in state.chunks_exact(ROWS * key_dim).zip(&mut *values) {
        // SAFETY: the caller's; so many rows.
        unsafe { read(token, state, values) };
    }
    for (state, values) in state.chunks_exact_mut(ROWS * key_dim).zip(&mut *values) {
        // SAFETY: as above.
        unsafe { write::<OUT, KEEP>(token, state, values) };
    }
    ROWS * values.len()
}

/// The first half: `values` become deltas.
///
/// # Safety
/// As [`step`].
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn read(token: &Token, state: &[f32], values: &mut [f32; ROWS]) {
    let key_dim = token.decayed.len();
    assert!(state.len() == ROWS * key_dim);
    // SAFETY: all reads end at key_dim, of rows key_dim apart.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        for at in (0..key_dim).step_by(LANES) {
            for half in 0..2 {
                let at = at + 8 * half;
                let k = _mm256_loadu_ps(token.decayed.as_ptr().add(at));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let s = _mm256_loadu_ps(state.as_ptr().add(r * key_dim + at));
                    sums[half] = _mm256_fmadd_ps(s, k, sums[half]);
                }
            }
        }
        let v = _mm_sub_ps(_mm_loadu_ps(values.as_ptr()), reduce_all(&sums));
        _mm_storeu_ps(values.as_mut_ptr(), _mm_mul_ps(v, _mm_set1_ps(token.beta)));
    }
}

/// The second half: deltas become outputs.
///
/// # Safety
/// As [`step`].
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn write<const OUT: bool, const KEEP: bool>(
    token: &Token,
    state: &mut [f32],
    values: &mut [f32; ROWS],
) {
    let key_dim = token.k.len();
    assert!(state.len() == ROWS * key_dim && token.q.len() == key_dim && token.decay.len() == key_dim);
    let state = state.as_mut_ptr();
    // SAFETY: all reads and writes end at key_dim, of rows key_dim apart.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        for at in (0..key_dim).step_by(LANES) {
            for half in 0..2 {
                let at = at + 8 * half;
                let k = _mm256_loadu_ps(token.k.as_ptr().add(at));
                let q = _mm256_loadu_ps(token.q.as_ptr().add(at));
                let decay = _mm256_loadu_ps(token.decay.as_ptr().add(at));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let s = _mm256_mul_ps(_mm256_loadu_ps(state.add(r * key_dim + at)), decay);
                    let s = _mm256_fmadd_ps(_mm256_set1_ps(values[r]), k, s);
                    if KEEP {
                        _mm256_storeu_ps(state.add(r * key_dim + at), s);
                    }
                    if OUT {
                        sums[half] = _mm256_fmadd_ps(s, q, sums[half]);
                    }
                }
            }
        }
        if OUT {
            _mm_storeu_ps(values.as_mut_ptr(), reduce_all(&sums));
        }
    }
}

/// [`reduce`](crate::lanes::reduce) of each sixteen lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn reduce_all(sums: &[[__m256; 2]; ROWS]) -> __m128 {
    // Lanes 8 apart, then 4.
    let mut fours = [_mm_setzero_ps(); ROWS];
    for r in 0..ROWS {
        let eights = _mm256_add_ps(sums[r][0], sums[r][1]);
        fours[r] = _mm_add_ps(_mm256_castps256_ps128(eights), _mm256_extractf128_ps::<1>(eights));
    }
    // 2 apart; each half is a row.
    let [a, b, c, d] = fours;
    let first = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    let second = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    _mm_add_ps(_mm_shuffle_ps::<0x88>(first, second), _mm_shuffle_ps::<0xdd>(first, second))
}
