//! Our CPU kernels as operations of MLX's graph. Callers go through [`fast`](crate::fast) and
//! [`quant`](crate::quant), which choose by device.

mod delta;
mod heads;
mod layer;
mod parts;

use kernels::{
    Activation, Affine, AttentionShape, ConvActivation, DeltaShape, FloatFormat, Floats, Microscaled,
    PackedLayout, Weight,
};

use crate::{
    Array, Dtype, Input, OutputSpec, apply,
    constant::Constant,
    fast::Rope,
    kernel::apply_in_place,
    kv::Softmax,
    precision::precision,
    quant::{Mode, Quantization, Quantized},
};

use self::parts::write_wide;
pub(crate) use self::{
    delta::{DeltaParts, delta_net, settle},
    heads::{HeadsParts, attend_heads},
    layer::{add_gated_norm, add_projected, feed_forward, project, rows},
    parts::{LinearParts, NormParts},
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
            $crate::Dtype::Float32 => {
                type $type = f32;
                $body
            }
            $crate::Dtype::Float16 => {
                type $type = half::f16;
                $body
            }
            $crate::Dtype::Bfloat16 => {
                type $type = half::bf16;
                $body
            }
            other => panic!("kernels take floating-point arrays, not {}", other.name()),
        }
    };
}
pub(crate) use dispatch;

#[track_caller]
pub(crate) fn linear(x: &Array, weight: &Array) -> Array {
    let (n, k) = (weight.dim(0), weight.dim(1));
    multiply("linear", x, &[weight], None, [k, n], |inputs| Weight::Dense(floats(&inputs[1])))
}

#[track_caller]
pub(crate) fn grouped_linear(x: &Array, weight: &Array, experts: &Array) -> Array {
    let (n, k) = (weight.dim(1), weight.dim(2));
    multiply("grouped_linear", x, &[weight], Some(experts), [k, n], |inputs| {
        Weight::Dense(floats(&inputs[1]))
    })
}

#[track_caller]
pub(crate) fn quantized_matmul(x: &Array, w: &Quantized) -> Array {
    let (shape, q) = ([w.inputs(), w.codes.dim(-2)], w.quantization);
    multiply("quantized_matmul", x, &parts(w), None, shape, move |inputs| quantized(inputs, q))
}

#[track_caller]
pub(crate) fn grouped_quantized_matmul(x: &Array, w: &Quantized, experts: &Array) -> Array {
    let (shape, q) = ([w.inputs(), w.codes.dim(-2)], w.quantization);
    multiply("grouped_quantized_matmul", x, &parts(w), Some(experts), shape, move |inputs| {
        quantized(inputs, q)
    })
}

/// `w` rearranged for our kernels, if it can be.
pub(crate) fn pack(w: &Quantized) -> crate::Result<Option<(Array, PackedLayout)>> {
    let constants: Vec<Constant> = parts(w).into_iter().map(Constant::of).collect();
    let [codes, scales, biases] = &constants[..] else { return Ok(None) };
    let affine = parts::affine(codes, scales, biases, w.quantization);
    let (rows, k) = (w.codes.dim(-2) as usize, w.inputs() as usize);
    let Some(packing) = PackedLayout::for_weight(&affine, rows) else { return Ok(None) };
    let words = packing.words(rows, k) as i32;
    let array = Array::fill_with(&[words], Dtype::Uint32, |bytes| {
        packing.pack(affine, k, bytemuck::cast_slice_mut(bytes));
        Ok(())
    })?;
    Ok(Some((array, packing)))
}

/// The product of `x` with a weight `[n, k]`, or with those that `experts` choose; `weight` makes it of the kernel's
/// inputs: `x`, then its parts.
#[track_caller]
fn multiply(
    name: &'static str,
    x: &Array,
    parts: &[&Array],
    experts: Option<&Array>,
    [k, n]: [i32; 2],
    weight: impl for<'a> Fn(&'a [Input<'a>]) -> Weight<'a> + Send + Sync + 'static,
) -> Array {
    let (shape, per_row) = match experts {
        Some(experts) => grouped_shape(x, experts, k as usize, n as usize),
        None => (product_shape(x, k, n), 1),
    };
    let (precision, k, n, grouped) = (precision(), k as usize, n as usize, experts.is_some());
    let inputs: Vec<&Array> = [x].into_iter().chain(parts.iter().copied()).chain(experts).collect();
    let [out] = apply(name, &inputs, [like(x, shape)], move |inputs, outputs| {
        let x = inputs[0].wide();
        write_wide(outputs, |outs| {
            let (weight, out) = (weight(inputs), &mut *outs[0]);
            if grouped {
                let experts = inputs[inputs.len() - 1].values();
                kernels::grouped_linear(&x, weight, experts, per_row, out, k, n, precision);
            } else {
                kernels::linear(&x, weight, out, k, n, precision);
            }
        })
    });
    out
}

fn parts(w: &Quantized) -> Vec<&Array> {
    [Some(&w.codes), Some(&w.scales), w.biases.as_ref()].into_iter().flatten().collect()
}

fn quantized<'a>(inputs: &'a [Input<'a>], q: Quantization) -> Weight<'a> {
    let codes = inputs[1].values();
    match q.mode {
        Mode::Affine => Weight::Affine(Affine {
            codes,
            scales: floats(&inputs[2]),
            biases: floats(&inputs[3]),
            group_size: q.group_size as usize,
            bits: q.bits as usize,
        }),
        mode => {
            Weight::Microscaled(Microscaled { codes, scales: inputs[2].values(), format: float_format(mode) })
        }
    }
}

fn floats<'a>(input: &'a Input) -> Floats<'a> {
    match input.dtype() {
        Dtype::Float32 => Floats::F32(input.values()),
        Dtype::Float16 => Floats::F16(input.values()),
        Dtype::Bfloat16 => Floats::Bf16(input.values()),
        other => panic!("kernels take floating-point weights, not {}", other.name()),
    }
}

fn float_format(mode: Mode) -> FloatFormat {
    match mode {
        Mode::Mxfp4 => FloatFormat::Mxfp4,
        Mode::Mxfp8 => FloatFormat::Mxfp8,
        Mode::Nvfp4 => FloatFormat::Nvfp4,
        Mode::Affine => unreachable!("affine matrices have biases"),
    }
}

/// Codes and scales of `w` in a format of floats.
#[track_caller]
pub(crate) fn pack_floats(w: &Array, q: Quantization) -> [Array; 2] {
    let with_last = |last: i32| [&w.shape()[..w.ndim() - 1], &[last]].concat();
    let inputs = w.dim(-1);
    let outputs = [
        OutputSpec { shape: with_last(inputs * q.bits / 32), dtype: Dtype::Uint32 },
        OutputSpec { shape: with_last(inputs / q.group_size), dtype: Dtype::Uint8 },
    ];
    apply("pack_floats", &[w], outputs, move |inputs, outputs| {
        let [codes, scales] = outputs else { unreachable!("codes and scales") };
        dispatch!(inputs[0].dtype(), W => {
            kernels::quantize_microscaled::<W>(inputs[0].values(), float_format(q.mode), codes.values(), scales.values())
        })
    })
}

/// Shape of a grouped product, and how many of its rows share a row of `x` `[tokens, 1 or per, k]`.
#[track_caller]
fn grouped_shape(x: &Array, experts: &Array, k: usize, n: usize) -> (Vec<i32>, usize) {
    let (tokens, per) = (experts.dim(0), experts.dim(1));
    assert!(
        x.ndim() == 3 && x.dim(0) == tokens && [1, per].contains(&x.dim(1)) && x.dim(2) as usize == k,
        "x {:?} does not fit {:?} experts of {k} inputs",
        x.shape(),
        experts.shape()
    );
    (vec![tokens, per, n as i32], (per / x.dim(1)) as usize)
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
pub(crate) fn gated_delta([q, k, v]: [&Array; 3], g: &Array, beta: &Array, state: &Array) -> (Array, Array) {
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
pub(crate) fn causal_conv(x: &Array, weight: &Array, state: &Array, silu: bool) -> (Array, Array) {
    let channels = x.dim(1) as usize;
    let activation = if silu { ConvActivation::Silu } else { ConvActivation::None };
    let outputs = [like(x, x.shape().to_vec()), like(x, state.shape().to_vec())];
    let [out, state] = apply("causal_conv", &[x, weight, state], outputs, move |inputs, outputs| {
        let [out, state] = outputs else { unreachable!("two outputs") };
        let (x, weight, past) = (&inputs[0], &inputs[1], &inputs[2]);
        dispatch!(x.dtype(), T => {
            let taps = kernels::conv_taps::<T>(weight.values(), channels);
            kernels::causal_conv::<T>(
                x.values(), &taps, past.values(), out.values(), state.values(), channels, activation,
            )
        })
    });
    (out, state)
}

/// Appends `k` and `v` `[tokens, kv_heads, dim]` to the buffers `[kv_heads, capacity, dim]` at `past`, in place, and
/// attends with `q` `[tokens, heads, head_dim]`. Returns the output and the buffers' new handles.
///
/// The buffers given must not be used again: they share memory with the ones returned.
#[track_caller]
pub(crate) fn attend(
    q: &Array,
    [k, v]: [&Array; 2],
    [keys, values]: [&Array; 2],
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> [Array; 3] {
    let shape = attention_shape(q, keys, values.dim(2), past + q.dim(0), window);
    let outputs = [
        like(q, vec![q.dim(0), q.dim(1), values.dim(2)]),
        like(keys, keys.shape().to_vec()),
        like(values, values.shape().to_vec()),
    ];
    let (run, past, kv_heads) = (softmax.kernel(), past as usize, shape.kv_heads);
    let inputs = softmax.with_sinks(&[keys, values, q, k, v]);
    // Outputs 1 and 2 are inputs 0 and 1, updated in place.
    apply_in_place("attend", &inputs, outputs, &[(1, 0), (2, 1)], move |inputs, outputs| {
        let [out, keys, values] = outputs else { unreachable!("three outputs") };
        dispatch!(inputs[2].dtype(), T => {
            kernels::append_kv::<T>(keys.values(), inputs[3].values(), past, kv_heads, shape.head_dim);
            kernels::append_kv::<T>(values.values(), inputs[4].values(), past, kv_heads, shape.value_dim);
            let softmax = run.with(inputs.get(5));
            kernels::attention::<T>(
                shape, inputs[2].values(), keys.values(), values.values(), softmax, out.values(),
            )
        })
    })
}

/// Appends `k` and `v` `[tokens, kv_heads, dim]` to the buffers `[kv_heads, capacity, dim]` at `past`, in place. Returns
/// the buffers' new handles; those given must not be used again.
#[track_caller]
pub(crate) fn append([k, v]: [&Array; 2], [keys, values]: [&Array; 2], past: i32) -> [Array; 2] {
    let outputs = [like(keys, keys.shape().to_vec()), like(values, values.shape().to_vec())];
    let (past, kv_heads) = (past as usize, k.dim(1) as usize);
    let [key_dim, value_dim] = [k, v].map(|x| x.dim(2) as usize);
    apply_in_place("append", &[keys, values, k, v], outputs, &[(0, 0), (1, 1)], move |inputs, outputs| {
        let [keys, values] = outputs else { unreachable!("two outputs") };
        dispatch!(inputs[2].dtype(), T => {
            kernels::append_kv::<T>(keys.values(), inputs[2].values(), past, kv_heads, key_dim);
            kernels::append_kv::<T>(values.values(), inputs[3].values(), past, kv_heads, value_dim);
        })
    })
}

/// [`attend`] over `length` keys that are in the buffers already.
#[track_caller]
pub(crate) fn attend_over(
    q: &Array,
    [keys, values]: [&Array; 2],
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    let shape = attention_shape(q, keys, values.dim(2), length, window);
    let output = like(q, vec![q.dim(0), q.dim(1), values.dim(2)]);
    let run = softmax.kernel();
    let inputs = softmax.with_sinks(&[keys, values, q]);
    let [out] = apply("attend_over", &inputs, [output], move |inputs, outputs| {
        dispatch!(inputs[2].dtype(), T => kernels::attention::<T>(
            shape, inputs[2].values(), inputs[0].values(), inputs[1].values(), run.with(inputs.get(3)),
            outputs[0].values(),
        ))
    });
    out
}

/// As [`attend`] where one buffer `[1, capacity, head_dim]` holds keys, and values as their first `value_dim` numbers.
#[track_caller]
pub(crate) fn attend_latent(
    q: &Array,
    latent: &Array,
    buffer: &Array,
    value_dim: i32,
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> [Array; 2] {
    let shape = attention_shape(q, buffer, value_dim, past + q.dim(0), window);
    let outputs = [like(q, vec![q.dim(0), q.dim(1), value_dim]), like(buffer, buffer.shape().to_vec())];
    let (run, past) = (softmax.kernel(), past as usize);
    let inputs = softmax.with_sinks(&[buffer, q, latent]);
    apply_in_place("attend_latent", &inputs, outputs, &[(1, 0)], move |inputs, outputs| {
        let [out, buffer] = outputs else { unreachable!("two outputs") };
        dispatch!(inputs[1].dtype(), T => {
            kernels::append_kv::<T>(buffer.values(), inputs[2].values(), past, shape.kv_heads, shape.head_dim);
            let softmax = run.with(inputs.get(3));
            kernels::latent_attention::<T>(shape, inputs[1].values(), buffer.values(), softmax, out.values())
        })
    })
}

#[track_caller]
fn attention_shape(
    q: &Array,
    keys: &Array,
    value_dim: i32,
    length: i32,
    window: Option<i32>,
) -> AttentionShape {
    AttentionShape {
        tokens: q.dim(0) as usize,
        heads: q.dim(1) as usize,
        kv_heads: keys.dim(0) as usize,
        head_dim: q.dim(2) as usize,
        value_dim: value_dim as usize,
        length: length as usize,
        capacity: keys.dim(1) as usize,
        window: window.map_or(usize::MAX, |window| window as usize),
    }
}

/// The numbers of a [`Softmax`], for a kernel; its sinks come as an input.
#[derive(Clone, Copy)]
struct KernelSoftmax {
    scale: f32,
    softcap: Option<f32>,
}

impl KernelSoftmax {
    fn with<'a>(&self, sinks: Option<&'a Input>) -> kernels::Softmax<'a> {
        kernels::Softmax {
            scale: self.scale,
            softcap: self.softcap,
            sinks: sinks.map(|sinks| sinks.values()),
        }
    }
}

impl Softmax {
    fn kernel(&self) -> KernelSoftmax {
        KernelSoftmax { scale: self.scale, softcap: self.softcap }
    }

    fn with_sinks<'a>(&'a self, inputs: &[&'a Array]) -> Vec<&'a Array> {
        inputs.iter().copied().chain(&self.sinks).collect()
    }
}

#[track_caller]
pub(crate) fn rope(x: &Array, positions: &Array, rope: &Rope) -> Array {
    let (heads, head_dim) = (x.dim(1) as usize, x.dim(2) as usize);
    let Rope { frequencies, pairs, scale } = rope.clone();
    let [out] = apply("rope", &[x, positions], [like(x, x.shape().to_vec())], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), T => kernels::rope::<T, T>(
            inputs[0].values(), inputs[1].values(), &frequencies, pairs, scale, outputs[0].values(), heads, head_dim,
        ))
    });
    out
}

#[track_caller]
pub(crate) fn top_k(scores: &Array, k: i32) -> Array {
    let (rows, columns) = (scores.dim(0), scores.dim(1) as usize);
    let output = OutputSpec { shape: vec![rows, k], dtype: Dtype::Uint32 };
    let [out] = apply("top_k", &[scores], [output], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), T => {
            kernels::top_k::<T>(inputs[0].values(), columns, k as usize, outputs[0].values())
        })
    });
    out
}

#[track_caller]
pub(crate) fn gated(gate: &Array, up: &Array, activation: Activation) -> Array {
    assert_eq!(gate.shape(), up.shape(), "a gate for each value");
    let [out] = apply("gated", &[gate, up], [like(gate, gate.shape().to_vec())], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), T => {
            kernels::gated::<T>(inputs[0].values(), inputs[1].values(), outputs[0].values(), activation)
        })
    });
    out
}
