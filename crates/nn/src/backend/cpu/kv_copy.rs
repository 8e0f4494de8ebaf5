//! Copies into buffers of keys, values or latents, part by part.

use mlx::{Array, Dtype, OutputSpec, apply, apply_in_place};

use super::values::{dispatch, like};

/// Memory for an array, in which every value must be written before it is read.
#[track_caller]
pub(crate) fn unwritten(shape: &[i32], dtype: Dtype) -> Array {
    let [array] = apply("unwritten", &[], [OutputSpec { shape: shape.to_vec(), dtype }], |_, _| {});
    array
}

/// `buffer` `[kv_heads, capacity, dim]`, updated in place: its tokens `from..to` are those from a
/// position on of a part `[kv_heads, tokens, dim]`, or zeros.
#[track_caller]
pub(crate) fn write_tokens(buffer: &Array, from: i32, to: i32, part: Option<(&Array, i32)>) -> Array {
    let (dim, start) = (buffer.dim(2) as usize, part.map_or(0, |(_, start)| start as usize));
    let (capacity, from, to) = (buffer.dim(1) as usize, from as usize, to as usize);
    let part_tokens = part.map_or(0, |(part, _)| part.dim(1) as usize);
    let inputs: Vec<&Array> = [buffer].into_iter().chain(part.map(|(part, _)| part)).collect();
    let output = like(buffer, buffer.shape());
    let [buffer] = apply_in_place("write_tokens", &inputs, [output], &[(0, 0)], move |inputs, outputs| {
        dispatch!(outputs[0].dtype(), T => {
            for (head, tokens) in outputs[0].values::<T>().chunks_exact_mut(capacity * dim).enumerate() {
                let target = &mut tokens[from * dim..to * dim];
                match inputs.get(1) {
                    Some(part) => {
                        let first = (head * part_tokens + start) * dim;
                        target.copy_from_slice(&part.values::<T>()[first..][..target.len()]);
                    }
                    None => target.fill(T::default()),
                }
            }
        })
    });
    buffer
}
