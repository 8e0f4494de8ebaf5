//! Our CPU kernels as operations of MLX's graph. Callers go through [`fast`](crate::fast) and
//! [`quant`](crate::quant), which choose by device.

use half::{bf16, f16};
use kernels::{Affine, AttentionShape, DeltaShape, Scalar};

use crate::{
    Array, Dtype, Element, Input, Output, OutputSpec, apply, kernel::apply_in_place, quant::Quantization,
};

/// Whether our kernels run this product: floating-point operands, on the CPU.
pub(crate) fn runs(x: &Array, weight: Dtype) -> bool {
    !crate::on_gpu() && x.dtype().is_float() && weight.is_float()
}

fn like(array: &Array, shape: Vec<i32>) -> OutputSpec {
    OutputSpec { shape, dtype: array.dtype() }
}

/// Calls the generic function with the Rust type of each dtype.
macro_rules! dispatch {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            Dtype::Float32 => {
                type $type = f32;
                $body
            }
            Dtype::Float16 => {
                type $type = f16;
                $body
            }
            Dtype::Bfloat16 => {
                type $type = bf16;
                $body
            }
            other => panic!("kernels take floating-point arrays, not {}", other.name()),
        }
    };
}

#[track_caller]
pub(crate) fn linear(x: &Array, weight: &Array) -> Array {
    let (n, k) = (weight.dim(0), weight.dim(1));
    let shape = product_shape(x, k, n);
    let [out] = apply("linear", &[x, weight], [like(x, shape)], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), X => dispatch!(inputs[1].dtype(), W => {
            kernels::linear::<X, W>(
                inputs[0].values(), inputs[1].values(), outputs[0].values(), k as usize, n as usize,
            )
        }))
    });
    out
}

#[track_caller]
pub(crate) fn quantized_matmul(
    x: &Array,
    w: &Array,
    scales: &Array,
    biases: &Array,
    q: Quantization,
) -> Array {
    let (n, k) = (w.dim(0), w.dim(1) * 32 / q.bits);
    let shape = product_shape(x, k, n);
    let [out] =
        apply("quantized_matmul", &[x, w, scales, biases], [like(x, shape)], move |inputs, outputs| {
            dispatch!(inputs[0].dtype(), X => dispatch!(inputs[2].dtype(), S => {
                quantized::<X, S>(inputs, &mut outputs[0], q, k as usize, n as usize)
            }))
        });
    out
}

fn quantized<X: Scalar + Element, S: Scalar + Element>(
    inputs: &[Input],
    out: &mut Output,
    q: Quantization,
    k: usize,
    n: usize,
) {
    let weight = Affine::<S> {
        codes: inputs[1].values(),
        scales: inputs[2].values(),
        biases: inputs[3].values(),
        group_size: q.group_size as usize,
        bits: q.bits as usize,
    };
    kernels::quantized_linear::<X, S>(inputs[0].values(), weight, out.values(), k, n)
}

#[track_caller]
fn product_shape(x: &Array, k: i32, n: i32) -> Vec<i32> {
    assert_eq!(x.dim(-1), k, "x {:?} does not fit a weight of {k} inputs", x.shape());
    let mut shape = x.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    shape
}

#[track_caller]
pub(crate) fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Array {
    assert_eq!(weight.shape(), &x.shape()[x.ndim() - 1..], "norm weight for {:?}", x.shape());
    let [out] = apply("rms_norm", &[x, weight], [like(x, x.shape().to_vec())], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), X => dispatch!(inputs[1].dtype(), W => {
            kernels::rms_norm::<X, W>(inputs[0].values(), inputs[1].values(), outputs[0].values(), eps)
        }))
    });
    out
}

#[track_caller]
pub(crate) fn gated_delta(
    q: &Array,
    k: &Array,
    v: &Array,
    g: &Array,
    beta: &Array,
    state: &Array,
) -> (Array, Array) {
    let shape = DeltaShape {
        tokens: q.dim(1) as usize,
        key_heads: q.dim(2) as usize,
        value_heads: v.dim(2) as usize,
        key_dim: q.dim(3) as usize,
        value_dim: v.dim(3) as usize,
    };
    let (g, beta) = (g.astype(Dtype::Float32), beta.astype(Dtype::Float32));
    let outputs = [like(v, v.shape().to_vec()), like(state, state.shape().to_vec())];
    let [out, state] = apply("gated_delta", &[q, k, v, &g, &beta, state], outputs, move |inputs, outputs| {
        let [out, state] = outputs else { unreachable!("two outputs") };
        let state: &mut [f32] = state.values();
        state.copy_from_slice(inputs[5].values());
        dispatch!(inputs[0].dtype(), T => {
            let qkv = [inputs[0].values(), inputs[1].values(), inputs[2].values()];
            kernels::gated_delta::<T>(shape, qkv, inputs[3].values(), inputs[4].values(), state, out.values())
        })
    });
    (out, state)
}

#[track_caller]
pub(crate) fn causal_conv_silu(x: &Array, weight: &Array, state: &Array) -> (Array, Array) {
    let channels = x.dim(1) as usize;
    let outputs = [like(x, x.shape().to_vec()), like(x, state.shape().to_vec())];
    let [out, state] = apply("causal_conv", &[x, weight, state], outputs, move |inputs, outputs| {
        let [out, state] = outputs else { unreachable!("two outputs") };
        dispatch!(inputs[0].dtype(), T => kernels::causal_conv_silu::<T>(
            inputs[0].values(), inputs[1].values(), inputs[2].values(), out.values(), state.values(), channels,
        ))
    });
    (out, state)
}

/// Appends `k` and `v` `[tokens, kv_heads, head_dim]` to the buffers `[kv_heads, capacity, head_dim]` at `past`, in
/// place, and attends with `q` `[tokens, heads, head_dim]`. Returns the output and the buffers' new handles.
///
/// The buffers given must not be used again: they share memory with the ones returned.
#[track_caller]
pub(crate) fn attend(
    q: &Array,
    k: &Array,
    v: &Array,
    [keys, values]: [&Array; 2],
    past: i32,
    scale: f32,
) -> [Array; 3] {
    let shape = AttentionShape {
        tokens: q.dim(0) as usize,
        heads: q.dim(1) as usize,
        kv_heads: k.dim(1) as usize,
        head_dim: q.dim(2) as usize,
        length: (past + q.dim(0)) as usize,
        capacity: keys.dim(1) as usize,
    };
    let outputs = [
        like(q, q.shape().to_vec()),
        like(keys, keys.shape().to_vec()),
        like(values, values.shape().to_vec()),
    ];
    // Outputs 1 and 2 are inputs 0 and 1, updated in place.
    apply_in_place("attend", &[keys, values, q, k, v], outputs, &[(1, 0), (2, 1)], move |inputs, outputs| {
        let [out, keys, values] = outputs else { unreachable!("three outputs") };
        dispatch!(inputs[2].dtype(), T => {
            for (buffer, new) in [(&mut *keys, &inputs[3]), (&mut *values, &inputs[4])] {
                kernels::append_kv::<T>(
                    buffer.values(), new.values(), past as usize, shape.kv_heads, shape.head_dim,
                );
            }
            kernels::attention::<T>(
                shape, inputs[2].values(), keys.values(), values.values(), scale, out.values(),
            )
        })
    })
}

#[track_caller]
pub(crate) fn rope(x: &Array, positions: &Array, frequencies: &[f32]) -> Array {
    let (heads, head_dim) = (x.dim(1) as usize, x.dim(2) as usize);
    let frequencies = frequencies.to_vec();
    let [out] = apply("rope", &[x, positions], [like(x, x.shape().to_vec())], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), T => kernels::rope::<T>(
            inputs[0].values(), inputs[1].values(), &frequencies, outputs[0].values(), heads, head_dim,
        ))
    });
    out
}
