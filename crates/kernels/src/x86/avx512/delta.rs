//! The update of rows of a delta state with AVX-512, sixteen rows at a time.

use std::arch::x86_64::*;

use crate::{
    delta::token::Token,
    x86::delta::{RowVector, update_groups},
};

/// Rows that share loads and reductions.
const ROWS: usize = 16;

/// See [`update_groups`].
///
/// # Safety
/// The processor must have the features, and rows be whole lanes.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) unsafe fn update<const OUT: bool, const KEEP: bool>(
    token: &Token,
    state: &mut [f32],
    values: &mut [f32],
) -> usize {
    // SAFETY: the features are enabled; the caller ensures the rest.
    unsafe { update_groups::<__m512, ROWS, 1, OUT, KEEP>(token, state, values) }
}

impl RowVector<ROWS, 1> for __m512 {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller ensures it.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm512_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm512_fmadd_ps(self, b, c) }
    }

    #[inline(always)]
    unsafe fn store_deltas(sums: &[[Self; 1]; ROWS], values: &mut [f32; ROWS], beta: f32) {
        // SAFETY: the caller ensures it; there are `ROWS` values.
        unsafe {
            let v = _mm512_sub_ps(_mm512_loadu_ps(values.as_ptr()), reduce_rows(sums));
            _mm512_storeu_ps(values.as_mut_ptr(), _mm512_mul_ps(v, _mm512_set1_ps(beta)));
        }
    }

    #[inline(always)]
    unsafe fn store_sums(sums: &[[Self; 1]; ROWS], values: &mut [f32; ROWS]) {
        // SAFETY: the caller ensures it; there are `ROWS` values.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), reduce_rows(sums)) }
    }
}

/// Sums each row's lanes in the order of [`reduce`](crate::lanes::reduce). Each step packs the
/// half-width sums of two vectors into one.
#[target_feature(enable = "avx512f")]
#[inline]
fn reduce_rows(sums: &[[__m512; 1]; ROWS]) -> __m512 {
    // Lanes 8 apart; each half is a row.
    let halves = |a: __m512, b: __m512| {
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
    };
    // 4 apart; each quarter is a row.
    let quarters = |r: usize| {
        let (a, b) = (halves(sums[r][0], sums[r + 1][0]), halves(sums[r + 2][0], sums[r + 3][0]));
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
    };
    // 2 apart; each quarter is of rows 4 apart.
    let pairs = |r: usize| {
        let (a, b) = (_mm512_castps_pd(quarters(r)), _mm512_castps_pd(quarters(r + 4)));
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    };
    let (a, b) = (pairs(0), pairs(8));
    let transposed = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
    let rows = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(rows, transposed)
}
