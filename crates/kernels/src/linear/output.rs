//! The part of an output that a task writes.

use crate::disjoint::DisjointMut;

/// Columns from `column` of the rows `targets` of an output `[.., n]`, which one task writes.
pub(crate) struct TaskOutput<'a> {
    pub out: &'a DisjointMut<'a, f32>,
    pub targets: &'a [u32],
    pub n: usize,
    pub column: usize,
}

impl TaskOutput<'_> {
    /// `count` columns from column `offset` of the task's row `index`.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "tasks write disjoint columns")]
    pub(crate) fn part(&self, index: usize, offset: usize, count: usize) -> &mut [f32] {
        debug_assert!(self.column + offset + count <= self.n);
        let at = self.targets[index] as usize * self.n + self.column + offset;
        // SAFETY: tasks write disjoint columns, and a task uses one part at a time.
        unsafe { self.out.part(at, count) }
    }

    /// Writes the first `count` values to the task's row `index`, from column `offset`.
    #[inline(always)]
    pub(crate) fn write<const N: usize>(&self, index: usize, offset: usize, values: &[f32; N], count: usize) {
        let to = self.part(index, offset, count);
        match to.first_chunk_mut() {
            // A few stores; a copy of variable length is a call.
            Some(to) => *to = *values,
            None => to.copy_from_slice(&values[..count]),
        }
    }
}
