//! Rows of a batch, divided among nodes of the graph and among threads.

use mlx::Array;

/// Most rows of a batch in one node of MLX's graph. MLX ties all outputs of a node to each other,
/// at a cost that grows with the square of their number.
const ROWS_PER_NODE: usize = 8;

/// Tokens of a short row.
const SHORT: usize = 8;

/// Calls `step` with the first token and the rows of each group, and concatenates the outputs.
/// There is one group if operations on `x` run at once, without the graph.
#[track_caller]
pub(super) fn in_groups<R>(
    x: &Array,
    rows: &mut [R],
    tokens: impl Fn(&R) -> i32,
    step: impl Fn(i32, &mut [R]) -> Array,
) -> Array {
    let (mut start, mut outs) = (0, vec![]);
    let size = if x.is_ready() { rows.len().max(1) } else { ROWS_PER_NODE };
    for group in rows.chunks_mut(size) {
        let end = start + group.iter().map(&tokens).sum::<i32>();
        outs.push(step(start, group));
        start = end;
    }
    if outs.len() == 1 { outs.remove(0) } else { Array::concatenate(&outs, 0) }
}

/// Runs `f` on each row of a batch: in parallel if all are short, else one after another, since
/// kernels use all threads for a long row. `work` is the multiply-adds of all rows.
pub(super) fn for_each_row<R: Send>(
    rows: &mut [R],
    tokens: impl Fn(&R) -> usize,
    work: usize,
    f: impl Fn(&mut R) + Sync,
) {
    if rows.iter().all(|row| tokens(row) <= SHORT) {
        kernels::for_each_chunk(rows, 1, work, |_, row| row.iter_mut().for_each(&f));
    } else {
        rows.iter_mut().for_each(f);
    }
}
