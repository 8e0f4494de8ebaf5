//! Layers whose weights are floats on the device: routers of experts, and checkpoints that are not
//! quantised.

use kernels::cuda::FloatProduct;
use mlx::{Array, Dtype, Result, cuda::Arguments};

use super::{
    super::cpu,
    launch::{device, empty, launch, resident, resident_f32},
};
use crate::{Linear, Matrix, Precision, precision, storage::WeightStorage};

/// See [`WeightStorage::unrounded`]: as the numbers that products in float32 multiply.
pub(crate) fn place_unrounded(matrix: Matrix) -> Result<WeightStorage> {
    let (outputs, inputs) = (matrix.outputs(), matrix.inputs());
    let weight = cpu::PreparedWeight::new(&WeightStorage::Plain(matrix));
    let mut values = vec![0.0; (outputs * inputs) as usize];
    kernels::float32_values(weight.view(), &mut values, inputs as usize);
    place(&Array::from_slice(&values, &[outputs, inputs]))
}

/// A matrix of floats, which products multiply as they are or rounded to bfloat16; `None` if there
/// is no kernel.
pub(super) fn place_dense(values: &Array) -> Result<Option<WeightStorage>> {
    let rounded = values.dtype() == Dtype::Bfloat16 && precision() != Precision::Float32;
    match values.dtype() {
        _ if values.ndim() != 2 || values.size() == 0 => Ok(None),
        // Pairs of inputs are read together.
        _ if rounded && values.dim(1) % 2 == 0 => place(values).map(Some),
        _ if rounded => Ok(None),
        _ => place(&values.astype(Dtype::Float32)).map(Some),
    }
}

fn place(values: &Array) -> Result<WeightStorage> {
    Ok(WeightStorage::DeviceFloats(device().resident(values)?.into_owned()))
}

/// Rows from which several outputs of several rows are computed together.
const MANY_ROWS: i32 = 16;

/// The product of `x` `[.., inputs]` and a layer's `weights`, in float32, added to `stream` if
/// there is one.
#[track_caller]
pub(super) fn float_product(x: &Array, linear: &Linear, weights: &Array, stream: Option<&Array>) -> Array {
    let (outputs, inputs) = (weights.dim(0), weights.dim(1));
    let out = empty(&output_shape(x, linear));
    let (rows, from) = (x.size() as i32 / inputs, resident_f32(x));
    // The arrays live until the launch.
    let stream = stream.map(resident);
    let product = FloatProduct {
        x: from.device_address(),
        weights: weights.device_address(),
        bias: linear.device_bias(),
        stream: stream.as_ref().map_or(0, |stream| stream.device_address()),
        out: out.device_address(),
        rows,
        outputs,
        inputs,
        padding: 0,
    };
    let (few, many) = match weights.dtype() {
        Dtype::Bfloat16 => ("bfloat16_product_few", "bfloat16_product_many"),
        _ => ("float_product_few", "float_product_many"),
    };
    let [m, n] = [rows as usize, outputs as usize];
    let arguments = Arguments::new().with(product);
    match rows < MANY_ROWS {
        true => launch(few, [n.div_ceil(4), m, 1], 64, 0, arguments),
        false => launch(many, [n.div_ceil(64), m.div_ceil(4), 1], 256, 0, arguments),
    }
    out
}

/// Rows `indices` of a matrix of floats, in float32.
#[track_caller]
pub(super) fn gather(weights: &Array, indices: &Array) -> Array {
    let (count, inputs) = (indices.dim(0), weights.dim(1));
    let out = empty(&[count, inputs]);
    let ids = resident(indices);
    let arguments = Arguments::new()
        .with(weights.device_address())
        .with(ids.device_address())
        .with(out.device_address())
        .with(inputs);
    let name = if weights.dtype() == Dtype::Bfloat16 { "gather_bfloat16" } else { "gather_float32" };
    launch(name, [count as usize, 1, 1], 256, 0, arguments);
    out
}

/// The shape of a layer's outputs.
#[track_caller]
pub(super) fn output_shape(x: &Array, linear: &Linear) -> Vec<i32> {
    let (inputs, outputs) = (linear.weight.inputs(), linear.weight.outputs());
    assert_eq!(x.dim(-1), inputs, "x {:?} does not fit a weight of {inputs} inputs", x.shape());
    [&x.shape()[..x.ndim() - 1], &[outputs]].concat()
}
