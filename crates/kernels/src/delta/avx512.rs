//! Rows of a state with AVX-512, sixteen at a time.

use std::arch::x86_64::*;

use super::Token;
use crate::lanes::LANES;

/// Rows that share loads and the work of summing up.
const ROWS: usize = LANES;

/// As many rows as are whole sixteens through a token, to the bits of [`Token::row`]; how many they are.
///
/// # Safety
/// The processor must have the features, and rows be whole vectors.
#[target_feature(enable = "avx512f")]
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
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn read(token: &Token, state: &[f32], values: &mut [f32; ROWS]) {
    let key_dim = token.decayed.len();
    assert!(state.len() == ROWS * key_dim);
    // SAFETY: all reads end at key_dim, of rows key_dim apart.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); ROWS];
        for at in (0..key_dim).step_by(LANES) {
            let k = _mm512_loadu_ps(token.decayed.as_ptr().add(at));
            for (r, sum) in sums.iter_mut().enumerate() {
                let s = _mm512_loadu_ps(state.as_ptr().add(r * key_dim + at));
                *sum = _mm512_fmadd_ps(s, k, *sum);
            }
        }
        let v = _mm512_sub_ps(_mm512_loadu_ps(values.as_ptr()), reduce_all(&sums));
        _mm512_storeu_ps(values.as_mut_ptr(), _mm512_mul_ps(v, _mm512_set1_ps(token.beta)));
    }
}

/// The second half: deltas become outputs.
///
/// # Safety
/// As [`step`].
#[target_feature(enable = "avx512f")]
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
        let mut sums = [_mm512_setzero_ps(); ROWS];
        for at in (0..key_dim).step_by(LANES) {
            let k = _mm512_loadu_ps(token.k.as_ptr().add(at));
            let q = _mm512_loadu_ps(token.q.as_ptr().add(at));
            let decay = _mm512_loadu_ps(token.decay.as_ptr().add(at));
            for r in 0..ROWS {
                let s = _mm512_mul_ps(_mm512_loadu_ps(state.add(r * key_dim + at)), decay);
                let s = _mm512_fmadd_ps(_mm512_set1_ps(values[r]), k, s);
                if KEEP {
                    _mm512_storeu_ps(state.add(r * key_dim + at), s);
                }
                if OUT {
                    sums[r] = _mm512_fmadd_ps(s, q, sums[r]);
                }
            }
        }
        if OUT {
            _mm512_storeu_ps(values.as_mut_ptr(), reduce_all(&sums));
        }
    }
}

/// [`reduce`](crate::lanes::reduce) of each vector. Two that are half as wide become one, whose sums go on together.
#[target_feature(enable = "avx512f")]
#[inline]
fn reduce_all(sums: &[__m512; ROWS]) -> __m512 {
    // Lanes 8 apart; each half is a row.
    let halves = |a: __m512, b: __m512| {
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
    };
    // 4 apart; each quarter is a row.
    let quarters = |r: usize| {
        let (a, b) = (halves(sums[r], sums[r + 1]), halves(sums[r + 2], sums[r + 3]));
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
    };
    // 2 apart; each quarter is of rows 4 apart.
    let pairs = |r: usize| {
        let (a, b) = (_mm512_castps_pd(quarters(r)), _mm512_castps_pd(quarters(r + 4)));
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    };
    let (a, b) = (pairs(0), pairs(8));
    let turned = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
    let rows = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(rows, turned)
}
