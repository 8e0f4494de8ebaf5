//! Rows of a batch.

use mlx::Array;

/// Calls `step` with each row and its part of the inputs, and concatenates the outputs.
#[track_caller]
pub(super) fn for_each_row<R, const N: usize>(
    rows: &mut [R],
    tokens: impl Fn(&R) -> i32,
    inputs: [&Array; N],
    mut step: impl FnMut(&mut R, [Array; N]) -> Array,
) -> Array {
    let mut start = 0;
    let mut outs = vec![];
    for row in rows {
        let end = start + tokens(row);
        outs.push(step(row, inputs.map(|x| x.slice(0, start, end))));
        start = end;
    }
    Array::concatenate(&outs, 0)
}
