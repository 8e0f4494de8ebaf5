//! Where products go.

use crate::shared::Parts;

/// Where a task writes: the columns from `column` on of the rows `targets` of an output `[.., n]`.
pub(super) struct Output<'a> {
    pub out: &'a Parts<'a, f32>,
    pub targets: &'a [u32],
    pub n: usize,
    pub column: usize,
}

impl Output<'_> {
    /// `count` columns of the task's row `index`, from its column `offset` on.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "no two tasks share columns of a row")]
    pub fn part(&self, index: usize, offset: usize, count: usize) -> &mut [f32] {
        debug_assert!(self.column + offset + count <= self.n);
        let at = self.targets[index] as usize * self.n + self.column + offset;
        // SAFETY: no two tasks share columns of a row, and a task uses one part at a time.
        unsafe { self.out.part(at, count) }
    }

    /// Row `index` of the task's, from its column `offset` on: the first `count` of the values.
    #[inline(always)]
    pub fn write<const N: usize>(&self, index: usize, offset: usize, values: &[f32; N], count: usize) {
        let to = self.part(index, offset, count);
        match to.first_chunk_mut() {
            // A few vectors, where a copy of any length is a call.
            Some(to) => *to = *values,
            None => to.copy_from_slice(&values[..count]),
        }
    }
}
