//! The rows of a product, grouped by the matrix they are multiplied with.

use std::borrow::Cow;

/// Rows of `x` and of the output of a product with matrices `[n, k]`, sorted by matrix.
pub(crate) struct RowGroups<'a> {
    pub k: usize,
    pub n: usize,
    /// For each output row, its row of `x`.
    pub sources: Cow<'a, [u32]>,
    /// For each entry of `sources`, its output row.
    pub targets: Cow<'a, [u32]>,
    /// Matrix `e` is multiplied with `sources[starts[e]..starts[e + 1]]`.
    pub starts: Cow<'a, [usize]>,
}

/// The rows of `x` in order.
pub(super) struct AllRows {
    rows: Vec<u32>,
    starts: [usize; 2],
}

impl AllRows {
    pub(super) fn new(m: usize) -> AllRows {
        AllRows { rows: (0..m as u32).collect(), starts: [0, m] }
    }
}

impl<'a> RowGroups<'a> {
    /// All rows of `x`, with one matrix.
    pub(super) fn one_matrix(all: &'a AllRows, k: usize, n: usize) -> RowGroups<'a> {
        let rows = || Cow::Borrowed(&all.rows[..]);
        RowGroups { k, n, sources: rows(), targets: rows(), starts: Cow::Borrowed(&all.starts) }
    }

    /// Output row `r` belongs to matrix `matrices[r]` of `count` and row `r / per_row` of `x`.
    pub(super) fn by_matrix(
        matrices: &[u32],
        per_row: usize,
        count: usize,
        k: usize,
        n: usize,
    ) -> RowGroups<'a> {
        assert!(per_row > 0 && matrices.len().is_multiple_of(per_row), "{per_row} outputs per row of x");
        let mut starts = vec![0; count + 1];
        for &matrix in matrices {
            assert!((matrix as usize) < count, "expert {matrix} of {count} does not exist");
            starts[matrix as usize + 1] += 1;
        }
        for e in 0..count {
            starts[e + 1] += starts[e];
        }
        let (mut sources, mut targets) = (vec![0; matrices.len()], vec![0; matrices.len()]);
        let mut next = starts.clone();
        for (r, &matrix) in matrices.iter().enumerate() {
            let at = &mut next[matrix as usize];
            (sources[*at], targets[*at]) = ((r / per_row) as u32, r as u32);
            *at += 1;
        }
        RowGroups { k, n, sources: sources.into(), targets: targets.into(), starts: starts.into() }
    }

    /// Matrices with any rows, and the range of their rows in `sources` and `targets`.
    pub(super) fn matrices(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let bounds = self.starts.windows(2).enumerate();
        bounds.filter(|(_, b)| b[0] < b[1]).map(|(e, b)| (e, b[0]..b[1]))
    }

    /// One more than the last row of `x` in use.
    pub(super) fn num_inputs(&self) -> usize {
        self.sources.iter().max().map_or(0, |last| *last as usize + 1)
    }
}
