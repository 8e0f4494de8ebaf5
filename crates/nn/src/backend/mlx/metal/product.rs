//! Products with affine matrices in the CPU's integers.

use std::cell::OnceCell;

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

static PRODUCT_MANY: Kernel = Kernel {
    name: "lanner_product_many",
    inputs: "integers steps codes scales biases",
    outputs: "out",
    header: metal::MATH,
    body: metal::PRODUCT_MANY,
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

/// More rows are many.
pub(crate) const FEW_ROWS: i32 = 128;
/// Rows and features of a SIMD-group where rows are many.
const MANY_ROWS: i32 = 32;
const MANY_FEATURES: i32 = 16;

/// Rows `[.., inputs]` that products share, as integers once a kernel of ours needs these.
pub(crate) struct ProductInput {
    pub(crate) x: Array,
    integers: OnceCell<[Array; 2]>,
}

impl ProductInput {
    pub(crate) fn new(x: Array) -> ProductInput {
        ProductInput { x, integers: OnceCell::new() }
    }

    /// Rows of `inputs` numbers.
    pub(crate) fn rows(&self) -> i32 {
        let inputs = self.x.dim(-1);
        if inputs == 0 { 0 } else { self.x.size() as i32 / inputs }
    }

    /// Whether the kernel for many rows multiplies them.
    fn is_many(&self) -> bool {
        self.rows() > FEW_ROWS
    }

    /// The rows as integers, many padded to whole SIMD-groups, and the steps of their groups.
    #[track_caller]
    fn integers(&self) -> &[Array; 2] {
        self.integers.get_or_init(|| {
            let (rows, inputs) = (self.rows(), self.x.dim(-1));
            let padded = if self.is_many() { parts_of(MANY_ROWS, rows) * MANY_ROWS } else { rows };
            let prepared = Prepared {
                kernel: &INTEGERS,
                template: &[("T", TemplateArg::Type(self.x.dtype()))],
                outputs: &[
                    spec(&[padded, inputs], Dtype::Float16),
                    spec(&[rows, inputs / GROUP, 2], Dtype::Float32),
                ],
                grid: [32, inputs / GROUP, padded],
                threadgroup: [32, 4, 1],
            };
            prepared.run(&[&self.x.reshape(&[rows, inputs])])
        })
    }
}

/// Whether our kernels multiply few rows of a type by a matrix of this format, with the CPU's bits.
pub(crate) fn has_product(dtype: Dtype, weight: &Quantized) -> bool {
    let parts: Vec<&Array> = weight.parts().collect();
    let template = template(dtype, weight, MOST_ROWS);
    // Numbers of rows that are computed together in all ways, the last one also with fewer.
    let check = || check(dtype, weight, &[1, 2, 3, 4, 9]);
    fits(weight) && most_rows(weight.inputs()) > 0 && is_trusted(&PRODUCT, &template, &parts, check)
}

/// Likewise many rows.
pub(crate) fn has_product_of_many(dtype: Dtype, weight: &Quantized) -> bool {
    let parts: Vec<&Array> = weight.parts().collect();
    let template = template_of_many(dtype, weight);
    let check = || check(dtype, weight, &[FEW_ROWS + 3]);
    fits(weight) && is_trusted(&PRODUCT_MANY, &template, &parts, check)
}

fn fits(weight: &Quantized) -> bool {
    let Quantization { mode, group_size, .. } = weight.quantization;
    let format = (mode, group_size) == (Mode::Affine, GROUP);
    // MLX passes fewer numbers in another way, which is not tried.
    let is_large = weight.scales.size() >= 8;
    is_available() && format && weight.codes.ndim() == 2 && is_large
}

/// `x · weightᵀ`, each row in the CPU's arithmetic and rounded once. A row's bits do not depend on
/// other rows.
///
/// The weight is one that [`has_product`], or with many rows [`has_product_of_many`].
#[track_caller]
pub(crate) fn product(input: &ProductInput, weight: &Quantized) -> Array {
    let (x, rows) = (&input.x, input.rows());
    let (inputs, outputs) = (weight.inputs(), weight.codes.dim(0));
    let output = [spec(&[&x.shape()[..x.ndim() - 1], &[outputs]].concat(), x.dtype())];
    let [integers, steps] = input.integers();
    let parts: Vec<&Array> = [integers, steps].into_iter().chain(weight.parts()).collect();
    let simds = simds(inputs);
    let together = match rows.min(most_rows(inputs)) {
        MOST_ROWS.. => MOST_ROWS,
        few => few.min(2),
    };
    let [out] = match input.is_many() {
        true => Prepared {
            kernel: &PRODUCT_MANY,
            template: &template_of_many(x.dtype(), weight),
            outputs: &output,
            grid: [32, parts_of(MANY_FEATURES, outputs), parts_of(MANY_ROWS, rows)],
            threadgroup: [32, 4, 1],
        }
        .run(&parts),
        false => Prepared {
            kernel: &PRODUCT,
            template: &template(x.dtype(), weight, together),
            outputs: &output,
            grid: [32 * simds, parts_of(FEATURES, outputs), parts_of(together, rows)],
            threadgroup: [32 * simds, 1, 1],
        }
        .run(&parts),
    };
    out
}

fn template_of_many(dtype: Dtype, weight: &Quantized) -> [(&'static str, TemplateArg); 3] {
    [
        ("T", TemplateArg::Type(dtype)),
        ("BITS", TemplateArg::Int(weight.quantization.bits)),
        ("INPUTS", TemplateArg::Int(weight.inputs())),
    ]
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

/// Random rows, in these numbers, and a random matrix of few outputs in the format of `weight`.
fn check(dtype: Dtype, weight: &Quantized, numbers: &[i32]) -> Result<bool> {
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
    let most = numbers.iter().fold(0, |most, &rows| rows.max(most));
    let x = random(5, &[most, inputs], dtype);
    let expected = on_cpu(&x, &own)?;
    let mut agree = true;
    for &rows in numbers {
        let got = product(&ProductInput::new(x.slice(0, 0, rows)), &own);
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
