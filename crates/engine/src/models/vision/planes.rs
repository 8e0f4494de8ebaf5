//! Images that preprocessing leaves as planes of pixels.

use mlx::Array;

use crate::api::{Image, ImageTensor};

/// Planes `[channels, rows, columns]` as patches `[patches, channels * side * side]`, row by row.
pub(super) fn patches(tensor: &ImageTensor, channels: i32, side: i32) -> Array {
    let (patch, width) = (side as usize, tensor.columns);
    let (rows, columns) = (tensor.rows / patch, width / patch);
    let mut values = Vec::with_capacity(tensor.values.len());
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        for plane in tensor.values.chunks_exact(tensor.rows * width) {
            for y in row * patch..(row + 1) * patch {
                values.extend_from_slice(&plane[y * width + column * patch..][..patch]);
            }
        }
    }
    Array::from_slice(&values, &[(rows * columns) as i32, channels * side * side])
}

/// The only tensor of an image.
///
/// # Errors
/// It has several, or the tensor is not of planes with sides that are multiples of `side`.
pub(super) fn single(image: &Image, channels: i32, side: usize) -> Result<&ImageTensor, String> {
    let [tensor] = &image.tensors[..] else {
        return Err(format!("it has {} tensors, and the model takes one", image.tensors.len()));
    };
    let ImageTensor { rows, columns, .. } = *tensor;
    let values = rows.checked_mul(columns).and_then(|pixels| pixels.checked_mul(channels as usize));
    let whole = rows > 0 && columns > 0 && rows.is_multiple_of(side) && columns.is_multiple_of(side);
    if whole && values == Some(tensor.values.len()) {
        return Ok(tensor);
    }
    Err(format!(
        "its tensor has {} values for {rows} x {columns} pixels; the model takes {channels} for each, and sides that are \
         multiples of {side}",
        tensor.values.len()
    ))
}
