//! One token of the delta rule, and its portable update of a row of the state.

use crate::lanes::{LANES, dot, reduce};

/// The inputs of one token that the rows of a head share, `[key_dim]` each.
#[derive(Clone, Copy)]
pub(crate) struct Token<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub decay: &'a [f32],
    /// `decay * k`
    pub decayed: &'a [f32],
    pub beta: f32,
}

impl Token<'_> {
    /// Updates a row of whole lanes with value `v`. Returns the row's output, or an unspecified
    /// number if `OUT` is false.
    #[inline(always)]
    pub(crate) fn update_row<const OUT: bool>(&self, row: &mut [f32], v: f32) -> f32 {
        let delta = (v - dot(row, self.decayed)) * self.beta;
        for ((s, k), g) in row.iter_mut().zip(self.k).zip(self.decay) {
            *s = delta.mul_add(*k, *s * g);
        }
        if OUT { dot(row, self.q) } else { delta }
    }

    /// [`update_row`](Token::update_row) for any length.
    #[inline(always)]
    pub(crate) fn update_ragged_row<const OUT: bool>(&self, row: &mut [f32], v: f32) -> f32 {
        let mut sums = [0.0; LANES];
        for (j, s) in row.iter().enumerate() {
            sums[j % LANES] = s.mul_add(self.decayed[j], sums[j % LANES]);
        }
        let delta = (v - reduce(&sums)) * self.beta;
        let mut sums = [0.0; LANES];
        for (j, s) in row.iter_mut().enumerate() {
            *s = delta.mul_add(self.k[j], *s * self.decay[j]);
            if OUT {
                sums[j % LANES] = s.mul_add(self.q[j], sums[j % LANES]);
            }
        }
        reduce(&sums)
    }
}
