//! The update of rows of a delta state with AVX2, four rows at a time.

use std::arch::x86_64::*;

use crate::{
    delta::token::Token,
    x86::delta::{RowVector, update_groups},
};

/// Rows that share loads and reductions.
const ROWS: usize = 4;

/// See [`update_groups`].
///
/// # Safety
/// The processor must have the features, and rows be whole lanes.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) unsafe fn update<const OUT: bool, const KEEP: bool>(
    token: &Token,
    state: &mut [f32],
    values: &mut [f32],
) -> usize {
    // SAFETY: the features are enabled; the caller ensures the rest.
    unsafe { update_groups::<__m256, ROWS, 2, OUT, KEEP>(token, state, values) }
}

impl RowVector<ROWS, 2> for __m256 {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller ensures it.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm256_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller ensures it.
        unsafe { _mm256_fmadd_ps(self, b, c) }
    }

    #[inline(always)]
    unsafe fn store_deltas(sums: &[[Self; 2]; ROWS], values: &mut [f32; ROWS], beta: f32) {
        // SAFETY: the caller ensures it; there are `ROWS` values.
        unsafe {
            let v = _mm_sub_ps(_mm_loadu_ps(values.as_ptr()), reduce_rows(sums));
            _mm_storeu_ps(values.as_mut_ptr(), _mm_mul_ps(v, _mm_set1_ps(beta)));
        }
    }

    #[inline(always)]
    unsafe fn store_sums(sums: &[[Self; 2]; ROWS], values: &mut [f32; ROWS]) {
        // SAFETY: the caller ensures it; there are `ROWS` values.
        unsafe { _mm_storeu_ps(values.as_mut_ptr(), reduce_rows(sums)) }
    }
}

/// Sums each row's lanes in the order of [`reduce`](crate::lanes::reduce).
#[target_feature(enable = "avx2")]
#[inline]
fn reduce_rows(sums: &[[__m256; 2]; ROWS]) -> __m128 {
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
