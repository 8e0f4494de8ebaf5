//! Copies as kernels: with evaluated inputs on the CPU they run at once, without the graph.

use crate::{Array, Dtype, OutputSpec, apply::apply_many};

/// The concatenated arrays, or `None` if MLX has to do it.
#[track_caller]
pub(crate) fn concatenate(arrays: &[&Array], axis: i32) -> Option<Array> {
    let first = arrays.first()?;
    let axis = if axis < 0 { axis + first.ndim() as i32 } else { axis } as usize;
    let fits = |array: &&Array| {
        let mut dims = array.shape().iter().zip(first.shape()).enumerate();
        let same = |(i, (a, b)): (usize, (&i32, &i32))| i == axis || a == b;
        array.ndim() == first.ndim() && dims.all(same) && array.dtype() == first.dtype()
    };
    if !arrays.iter().all(|array| array.is_ready()) || !arrays.iter().all(fits) {
        return None;
    }
    let mut shape = first.shape().to_vec();
    shape[axis] = arrays.iter().map(|array| array.shape()[axis]).sum();
    let outer: usize = shape[..axis].iter().map(|&dim| dim as usize).product();
    let spec = OutputSpec { shape, dtype: first.dtype() };
    let mut out = apply_many("concatenate", arrays, &[spec], &[], move |inputs, outputs| {
        let mut to = outputs[0].bytes();
        for i in 0..outer {
            for input in inputs {
                let size = input.bytes().len() / outer;
                let part;
                (part, to) = to.split_at_mut(size);
                part.copy_from_slice(&input.bytes()[i * size..][..size]);
            }
        }
    });
    out.pop()
}

/// Rows `indices`, uint32 or int32 `[n]`, of `x` `[rows, ..]`, or `None` if MLX has to do it.
///
/// # Panics
/// When it runs, if an index is out of range.
#[track_caller]
pub(crate) fn rows(x: &Array, indices: &Array) -> Option<Array> {
    let integers = matches!(indices.dtype(), Dtype::Uint32 | Dtype::Int32);
    if !x.is_ready()
        || !indices.is_ready()
        || indices.ndim() != 1
        || x.ndim() == 0
        || x.size() == 0
        || !integers
    {
        return None;
    }
    let spec = OutputSpec { shape: [indices.shape(), &x.shape()[1..]].concat(), dtype: x.dtype() };
    let size = x.nbytes() / x.dim(0) as usize;
    let mut out = apply_many("take", &[x, indices], &[spec], &[], move |inputs, outputs| {
        let (rows, indices) = (inputs[0].bytes(), inputs[1].bytes().as_chunks::<4>().0);
        for (index, row) in indices.iter().zip(outputs[0].bytes().chunks_exact_mut(size)) {
            row.copy_from_slice(&rows[u32::from_ne_bytes(*index) as usize * size..][..size]);
        }
    });
    out.pop()
}
