//! Operations of arrays that stay on the device: copies, and arithmetic that rounds as the CPU's.

use super::{Arguments, Device, device};
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

/// Element-wise operations, as the kernel `arithmetic` numbers them.
#[derive(Clone, Copy)]
pub(crate) enum Arithmetic {
    Add = 0,
    Subtract = 1,
    Multiply = 2,
    Divide = 3,
}

/// An operand as the kernel takes it: numbers that repeat, or a constant.
#[derive(Clone, Copy)]
#[repr(C)]
struct Operand {
    values: u64,
    period: i32,
    constant: f32,
}

impl Operand {
    fn constant(constant: f32) -> Operand {
        Operand { values: 0, period: 1, constant }
    }

    /// The numbers of an array on the device.
    fn numbers(array: &Array) -> Operand {
        Operand { values: array.device_address(), period: array.size() as i32, constant: 0.0 }
    }
}

/// Computes numbers of a shape.
fn compute(
    device: &Device,
    operation: Arithmetic,
    [a, b]: [Operand; 2],
    shape: &[i32],
) -> crate::Result<Array> {
    let out = device.empty(shape, Dtype::Float32)?;
    let (count, address) = (out.size() as i32, out.device_address());
    let arguments = Arguments::new().with(a).with(b).with(address).with(count).with(operation as i32);
    device.launch("arithmetic", [out.size().div_ceil(256) as u32, 1, 1], 256, 0, &arguments)?;
    Ok(out)
}

fn device_with_arithmetic() -> Option<&'static Device> {
    device().filter(|device| device.has_kernel("arithmetic"))
}

/// The result with a constant, if the array is on the device, float32 and not empty.
#[track_caller]
pub(crate) fn arithmetic_with(operation: Arithmetic, a: &Array, constant: f32) -> Option<Array> {
    let device =
        device_with_arithmetic().filter(|_| a.on_device() && a.dtype() == Dtype::Float32 && a.size() > 0)?;
    let operands = [Operand::numbers(a), Operand::constant(constant)];
    Some(compute(device, operation, operands, a.shape()).unwrap_or_else(|e| panic!("{e}")))
}

/// The result, if an operand is on the device, both are float32, and one is repeated to the other's
/// shape at most.
#[track_caller]
pub(crate) fn arithmetic(operation: Arithmetic, a: &Array, b: &Array) -> Option<Array> {
    let device = device_with_arithmetic().filter(|_| a.on_device() || b.on_device())?;
    let larger = if a.size() >= b.size() && a.ndim() >= b.ndim() { a } else { b };
    let repeats =
        |x: &Array| x.size() == 1 && x.ndim() <= larger.ndim() || larger.shape().ends_with(x.shape());
    if [a, b].iter().any(|x| x.dtype() != Dtype::Float32 || x.size() == 0 || !repeats(x)) {
        return None;
    }
    let run = || -> crate::Result<Array> {
        // The arrays live until the launch.
        let [a, b] = [device.resident(a)?, device.resident(b)?];
        compute(device, operation, [Operand::numbers(&a), Operand::numbers(&b)], larger.shape())
    };
    Some(run().unwrap_or_else(|e| panic!("{e}")))
}
