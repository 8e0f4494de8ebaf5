//! The update of rows of a delta state, generic over the vector type.

use crate::{delta::token::Token, lanes::LANES};

/// A vector of `16 / PARTS` floats; `ROWS` rows of a state are updated together.
///
/// # Safety
/// All methods require a processor with the vector's instruction set; pointers must be valid for a
/// vector.
pub(super) trait RowVector<const ROWS: usize, const PARTS: usize>: Copy {
    unsafe fn zero() -> Self;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// `values[r] = (values[r] - s) * beta`, `s` the sum of row `r`'s lanes.
    unsafe fn store_deltas(sums: &[[Self; PARTS]; ROWS], values: &mut [f32; ROWS], beta: f32);
    /// Each row's lanes, summed in the order of [`reduce`](crate::lanes::reduce).
    unsafe fn store_sums(sums: &[[Self; PARTS]; ROWS], values: &mut [f32; ROWS]);
}

/// Updates as many rows as are whole groups of `ROWS`, bit-identical to [`Token::update_row`];
/// returns how many.
///
/// # Safety
/// The processor must have the instruction set, and rows be whole lanes.
#[inline(always)]
pub(super) unsafe fn update_groups<
    V: RowVector<ROWS, PARTS>,
    const ROWS: usize,
    const PARTS: usize,
    const OUT: bool,
    const KEEP: bool,
>(
    token: &Token,
    state: &mut [f32],
    values: &mut [f32],
) -> usize {
    let (values, key_dim) = (values.as_chunks_mut::<ROWS>().0, token.k.len());
    // All rows are read before any is written: no row waits for the sums of the previous one.
    for (state, values) in state.chunks_exact(ROWS * key_dim).zip(&mut *values) {
        // SAFETY: the caller ensures it; the state has this many rows.
        unsafe { compute_deltas::<V, ROWS, PARTS>(token, state, values) };
    }
    for (state, values) in state.chunks_exact_mut(ROWS * key_dim).zip(&mut *values) {
        // SAFETY: as above.
        unsafe { apply_deltas::<V, ROWS, PARTS, OUT, KEEP>(token, state, values) };
    }
    ROWS * values.len()
}

/// `values` become deltas.
#[inline(always)]
unsafe fn compute_deltas<V: RowVector<ROWS, PARTS>, const ROWS: usize, const PARTS: usize>(
    token: &Token,
    state: &[f32],
    values: &mut [f32; ROWS],
) {
    let key_dim = token.decayed.len();
    assert!(state.len() == ROWS * key_dim);
    // SAFETY: all reads end at key_dim, of rows key_dim apart.
    unsafe {
        let mut sums = [[V::zero(); PARTS]; ROWS];
        for at in (0..key_dim).step_by(LANES) {
            for part in 0..PARTS {
                let at = at + LANES / PARTS * part;
                let k = V::load(token.decayed.as_ptr().add(at));
                for r in 0..ROWS {
                    let s = V::load(state.as_ptr().add(r * key_dim + at));
                    sums[r][part] = s.mul_add(k, sums[r][part]);
                }
            }
        }
        V::store_deltas(&sums, values, token.beta);
    }
}

/// With `OUT`, deltas become outputs; with `KEEP`, the state is written.
#[inline(always)]
unsafe fn apply_deltas<
    V: RowVector<ROWS, PARTS>,
    const ROWS: usize,
    const PARTS: usize,
    const OUT: bool,
    const KEEP: bool,
>(
    token: &Token,
    state: &mut [f32],
    values: &mut [f32; ROWS],
) {
    let key_dim = token.k.len();
    assert!(state.len() == ROWS * key_dim && token.q.len() == key_dim && token.decay.len() == key_dim);
    let state = state.as_mut_ptr();
    // SAFETY: all reads and writes end at key_dim, of rows key_dim apart.
    unsafe {
        let mut sums = [[V::zero(); PARTS]; ROWS];
        for at in (0..key_dim).step_by(LANES) {
            for part in 0..PARTS {
                let at = at + LANES / PARTS * part;
                let k = V::load(token.k.as_ptr().add(at));
                let q = V::load(token.q.as_ptr().add(at));
                let decay = V::load(token.decay.as_ptr().add(at));
                for r in 0..ROWS {
                    let s = V::load(state.add(r * key_dim + at)).mul(decay);
                    let s = V::splat(values[r]).mul_add(k, s);
                    if KEEP {
                        s.store(state.add(r * key_dim + at));
                    }
                    if OUT {
                        sums[r][part] = s.mul_add(q, sums[r][part]);
                    }
                }
            }
        }
        if OUT {
            V::store_sums(&sums, values);
        }
    }
}
