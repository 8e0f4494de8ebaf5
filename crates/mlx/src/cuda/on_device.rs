//! Copies that stay on the device.

use super::device;
use crate::{Array, Dtype};

/// The concatenated arrays, if one of them is on the device.
#[track_caller]
pub(crate) fn concatenate(arrays: &[&Array], axis: i32) -> Option<Array> {
    let first = arrays.first()?;
    let device = device().filter(|_| arrays.iter().any(|array| array.on_device()))?;
    let axis = if axis < 0 { axis + first.ndim() as i32 } else { axis } as usize;
    let alike = |array: &&Array| {
        let dims = array.shape().iter().zip(first.shape()).enumerate();
        let mut same = dims.map(|(i, (a, b))| i == axis || a == b);
        array.ndim() == first.ndim() && array.dtype() == first.dtype() && same.all(|same| same)
    };
    assert!(arrays.iter().all(alike), "arrays of several shapes or types");
    Some(device.concatenate(arrays, axis).unwrap_or_else(|e| panic!("{e}")))
}

/// Rows `indices` `[n]` of `x`, if it is on the device and the indices are integers.
///
/// # Panics
/// If an index is out of range.
#[track_caller]
pub(crate) fn rows(x: &Array, indices: &Array) -> Option<Array> {
    let device = device().filter(|_| x.on_device() && indices.ndim() == 1 && indices.size() > 0)?;
    let read = |indices: &Array| match indices.dtype() {
        Dtype::Uint32 => Some(indices.to_vec::<u32>().ok()?.into_iter().map(|i| i as i32).collect()),
        Dtype::Int32 => indices.to_vec::<i32>().ok(),
        _ => None,
    };
    let indices: Vec<i32> = read(indices)?;
    let rows: Vec<Array> = indices.iter().map(|&i| x.slice(0, i, i + 1)).collect();
    let rows: Vec<&Array> = rows.iter().collect();
    Some(device.concatenate(&rows, 0).unwrap_or_else(|e| panic!("{e}")))
}
