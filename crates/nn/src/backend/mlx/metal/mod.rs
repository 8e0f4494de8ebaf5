//! Our kernels on Metal, each in place of several of MLX's operations.
//!
//! A kernel of some sizes is used once it has computed the bits of the CPU's kernels, for random
//! numbers on this GPU. Where it does not, or where there is no Metal, MLX's operations compute.

mod delta;
mod gates;
mod heads;
mod product;

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use half::{bf16, f16};
use mlx::{
    Array, Dtype, OutputSpec, Result,
    metal::{Kernel, Launch, TemplateArg, is_available},
};

pub(crate) use self::{
    delta::{DeltaInputs, delta_inputs, gated_delta, has_delta_inputs},
    gates::{gated, gated_norm, sigmoid_gated},
    heads::rotated,
    product::{FEW_ROWS, ProductInput, has_product, has_product_of_many, product},
};

/// A kernel as it is compiled: with its template, and for the types of its inputs.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Variant {
    kernel: &'static str,
    template: Vec<(&'static str, TemplateArg)>,
    inputs: Vec<Dtype>,
}

/// The verdict on each variant that was tried, and whether [`take_report`] has returned it.
static TRIED: Mutex<Option<HashMap<Variant, (Verdict, bool)>>> = Mutex::new(None);

enum Verdict {
    HasBits,
    HasOtherBits,
    /// What Metal's compiler or the GPU said.
    Failed(String),
}

/// A kernel with all but its inputs.
struct Prepared<'a> {
    kernel: &'static Kernel,
    template: &'a [(&'static str, TemplateArg)],
    outputs: &'a [OutputSpec],
    grid: [i32; 3],
    threadgroup: [i32; 3],
}

impl Prepared<'_> {
    #[track_caller]
    fn run<const N: usize>(&self, inputs: &[&Array]) -> [Array; N] {
        let Prepared { kernel, template, outputs, grid, threadgroup } = *self;
        kernel.launch(&Launch { inputs, outputs, template, grid, threadgroup })
    }
}

/// Whether a kernel is to be used: `check` computes random numbers with it and on the CPU, and
/// returns whether all bits agree. Called once for each variant.
fn is_trusted(
    kernel: &'static Kernel,
    template: &[(&'static str, TemplateArg)],
    inputs: &[&Array],
    check: impl FnOnce() -> Result<bool>,
) -> bool {
    let inputs = inputs.iter().map(|input| input.dtype()).collect();
    let variant = Variant { kernel: kernel.name, template: template.to_vec(), inputs };
    let lock = || TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((verdict, _)) = lock().get_or_insert_default().get(&variant) {
        return matches!(verdict, Verdict::HasBits);
    }
    let verdict = match check() {
        Ok(true) => Verdict::HasBits,
        Ok(false) => Verdict::HasOtherBits,
        Err(error) => Verdict::Failed(error.to_string()),
    };
    let is_trusted = matches!(verdict, Verdict::HasBits);
    lock().get_or_insert_default().insert(variant, (verdict, false));
    is_trusted
}

/// A sentence for each variant that was tried since the last call.
pub(crate) fn take_report() -> Vec<String> {
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    let new = tried.iter_mut().flatten().filter(|(_, (_, reported))| !*reported);
    let mut sentences: Vec<String> = new
        .map(|(variant, (verdict, reported))| {
            *reported = true;
            match verdict {
                Verdict::HasBits => format!("{variant} has the CPU's bits"),
                Verdict::HasOtherBits => format!("{variant} is not used: it has other bits"),
                Verdict::Failed(error) => format!("{variant} is not used: {error}"),
            }
        })
        .collect();
    sentences.sort();
    sentences
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "our kernel {}", self.kernel)?;
        for (i, (name, arg)) in self.template.iter().enumerate() {
            write!(f, "{}{name} ", if i == 0 { " (" } else { ", " })?;
            match arg {
                TemplateArg::Int(value) => write!(f, "{value}")?,
                TemplateArg::Bool(value) => write!(f, "{value}")?,
                TemplateArg::Type(dtype) => write!(f, "{}", dtype.name())?,
            }
        }
        write!(f, ")")
    }
}

/// A number that is not whole as a template argument: its bits.
///
/// # Panics
/// If it is negative: MLX makes a name of it.
fn bits_of(number: f32) -> TemplateArg {
    assert!(number >= 0.0, "a negative template argument {number}");
    TemplateArg::Int(number.to_bits() as i32)
}

fn spec(shape: &[i32], dtype: Dtype) -> OutputSpec {
    OutputSpec { shape: shape.to_vec(), dtype }
}

/// Random numbers of mostly magnitude 1.
fn random(seed: u64, shape: &[i32], dtype: Dtype) -> Array {
    let centred = Array::gumbel(shape, seed) - 0.577;
    centred.astype(dtype)
}

/// Float32 numbers rounded to a type, as float32: what a kernel of this type writes.
fn rounded(values: Vec<f32>, dtype: Dtype) -> Vec<f32> {
    let round = |value: f32| match dtype {
        Dtype::Float16 => f16::from_f32(value).to_f32(),
        Dtype::Bfloat16 => bf16::from_f32(value).to_f32(),
        _ => value,
    };
    values.into_iter().map(round).collect()
}

/// Whether an array has the bits of the CPU's numbers, rounded to its type. Any NaN is like any
/// other.
fn has_bits(got: &Array, expected: Vec<f32>) -> Result<bool> {
    let bits = |value: &f32| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
    let (got, expected) = (got.to_f32()?, rounded(expected, got.dtype()));
    Ok(got.iter().map(bits).eq(expected.iter().map(bits)))
}
