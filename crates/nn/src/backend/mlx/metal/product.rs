//! Products of few rows and affine matrices, with the CPU's integers.

use kernels::{Affine, Floats, Precision, Weight, metal};
use mlx::{
    Array, Dtype, Result,
    metal::{Kernel, TemplateArg},
    quant::{Mode, Quantization, Quantized},
};

use super::{Prepared, has_bits, is_available, is_trusted, random, spec};

static INTEGERS: Kernel = Kernel {
    name: "lanner_integers",
    inputs: "x",
    outputs: "integers steps",
    header: metal::MATH,
    body: metal::INTEGERS,
};

static PRODUCT: Kernel = Kernel {
    name: "lanner_product",
    inputs: "integers steps codes scales biases",
    outputs: "out",
    header: metal::MATH,
    body: metal::PRODUCT,
};

/// Inputs that share a step, and those of a segment.
const GROUP: i32 = 64;
const SEGMENT: i32 = 512;
/// Features of a threadgroup.
const FEATURES: i32 = 32;
/// Most SIMD-groups, and most rows, of a threadgroup.
const MOST_SIMDS: i32 = 4;
const MOST_ROWS: i32 = 4;
/// Numbers of a threadgroup's memory: of all its 32 KiB, and those that hold products of a row.
const MEMORY: i32 = 8192;
const PRODUCTS: i32 = MOST_SIMDS * FEATURES * 9;

/// Whether our kernel multiplies rows of a type by a matrix of this format, with the CPU's bits.
pub(crate) fn has_product(dtype: Dtype, weight: &Quantized) -> bool {
    let Quantization { mode, group_size, .. } = weight.quantization;
    let fits = (mode, group_size) == (Mode::Affine, GROUP) && weight.codes.ndim() == 2;
    if !is_available() || !fits || weight.codes.size() < 8 || most_rows(weight.inputs()) == 0 {
        return false;
    }
    let parts: Vec<&Array> = weight.parts().collect();
    is_trusted(&PRODUCT, &template(dtype, weight, MOST_ROWS), &parts, || check(dtype, weight))
}

/// `x · weightᵀ` of rows `[.., inputs]`, each in the CPU's arithmetic and rounded once. A row's
/// bits do not depend on other rows.
///
/// The weight is one that [`has_product`].
#[track_caller]
pub(crate) fn product(x: &Array, weight: &Quantized) -> Array {
    let (inputs, outputs) = (weight.inputs(), weight.codes.dim(0));
    let (outer, rows) = (&x.shape()[..x.ndim() - 1], x.size() as i32 / inputs);
    let [integers, steps] = integers(x, rows, inputs / GROUP);
    let together = match rows.min(most_rows(inputs)) {
        MOST_ROWS.. => MOST_ROWS,
        few => few.min(2),
    };
    let simds = simds(inputs);
    let prepared = Prepared {
        kernel: &PRODUCT,
        template: &template(x.dtype(), weight, together),
        outputs: &[spec(&[outer, &[outputs]].concat(), x.dtype())],
        grid: [32 * simds, parts_of(FEATURES, outputs), parts_of(together, rows)],
        threadgroup: [32 * simds, 1, 1],
    };
    let parts: Vec<&Array> = [&integers, &steps].into_iter().chain(weight.parts()).collect();
    let [out] = prepared.run(&parts);
    out
}

/// The rows of `x` as integers, with the steps of their groups.
#[track_caller]
fn integers(x: &Array, rows: i32, groups: i32) -> [Array; 2] {
    let prepared = Prepared {
        kernel: &INTEGERS,
        template: &[("T", TemplateArg::Type(x.dtype()))],
        outputs: &[spec(&[rows, groups * GROUP], Dtype::Float16), spec(&[rows, groups, 2], Dtype::Float32)],
        grid: [32, rows * groups, 1],
        threadgroup: [32, 4, 1],
    };
    prepared.run(&[x])
}

/// With `together` rows in a threadgroup.
fn template(dtype: Dtype, weight: &Quantized, together: i32) -> [(&'static str, TemplateArg); 5] {
    let inputs = weight.inputs();
    [
        ("T", TemplateArg::Type(dtype)),
        ("BITS", TemplateArg::Int(weight.quantization.bits)),
        ("INPUTS", TemplateArg::Int(inputs)),
        ("ROWS", TemplateArg::Int(together)),
        ("SIMDS", TemplateArg::Int(simds(inputs))),
    ]
}

fn parts_of(size: i32, whole: i32) -> i32 {
    (whole + size - 1) / size
}

fn segments(inputs: i32) -> i32 {
    parts_of(SEGMENT, inputs)
}

/// SIMD-groups of a threadgroup.
fn simds(inputs: i32) -> i32 {
    MOST_SIMDS.min(segments(inputs))
}

/// Rows of a threadgroup whose sums its memory has room for.
fn most_rows(inputs: i32) -> i32 {
    MEMORY / (PRODUCTS + segments(inputs) * FEATURES)
}

/// Random rows and a random matrix of few outputs in the format of `weight`.
fn check(dtype: Dtype, weight: &Quantized) -> Result<bool> {
    let (inputs, outputs, bits) = (weight.inputs(), 41, weight.quantization.bits);
    let words = inputs * bits / 32;
    let mut word = 1u32;
    let codes: Vec<u32> = (0..outputs * words)
        .map(|_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            word ^ word >> 15
        })
        .collect();
    let codes = Array::from_slice(&codes, &[outputs, words]);
    let [scales, biases] = [3, 4].map(|seed| random(seed, &[outputs, inputs / GROUP], weight.scales.dtype()));
    let own = Quantized { codes, scales, biases: Some(biases), quantization: weight.quantization };
    let x = random(5, &[9, inputs], dtype);
    let expected = on_cpu(&x, &own)?;
    // Numbers of rows that are computed together in all ways, the last one also with fewer.
    let mut agree = true;
    for rows in [1, 2, 3, 4, 9] {
        let got = product(&x.slice(0, 0, rows), &own);
        agree &= has_bits(&got, expected[..(rows * outputs) as usize].to_vec())?;
    }
    Ok(agree)
}

fn on_cpu(x: &Array, weight: &Quantized) -> Result<Vec<f32>> {
    let (x, codes) = (x.to_f32()?, weight.codes.to_vec::<u32>()?);
    let scales = weight.scales.to_f32()?;
    let biases = weight.biases.as_ref().map_or(Ok(vec![]), Array::to_f32)?;
    let (inputs, outputs) = (weight.inputs() as usize, weight.codes.dim(0) as usize);
    let affine = Affine {
        codes: &codes,
        scales: Floats::F32(&scales),
        biases: Floats::F32(&biases),
        group_size: GROUP as usize,
        bits: weight.quantization.bits as usize,
    };
    let mut out = vec![0.0; x.len() / inputs * outputs];
    kernels::linear(&x, Weight::Affine(affine), &mut out, inputs, outputs, Precision::Rounded);
    Ok(out)
}
