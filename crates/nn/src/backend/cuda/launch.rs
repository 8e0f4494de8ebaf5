//! What all operations share: the device, its arrays, and the report of what it cannot do.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    sync::{Mutex, OnceLock, PoisonError},
};

use kernels::{Activation, cuda::GateActivation};
use mlx::{
    Array, Dtype,
    cuda::{Arguments, Buffer, Device},
};

/// # Panics
/// If no device is open: a bug in the choice of the back end.
#[track_caller]
pub(super) fn device() -> &'static Device {
    mlx::cuda::device().unwrap_or_else(|| panic!("the CUDA back end without a device"))
}

/// The array on the device.
#[track_caller]
pub(super) fn resident(array: &Array) -> Cow<'_, Array> {
    device().resident(array).unwrap_or_else(|e| panic!("{e}"))
}

/// The array itself, if it is on the device, or a copy there.
#[track_caller]
pub(super) fn into_resident(array: Array) -> Array {
    if array.on_device() { array } else { resident(&array).into_owned() }
}

/// The array on the device as float32.
#[track_caller]
pub(super) fn resident_f32(array: &Array) -> Cow<'_, Array> {
    match array.dtype() {
        Dtype::Float32 => resident(array),
        _ => Cow::Owned(resident(&array.astype(Dtype::Float32)).into_owned()),
    }
}

/// See [`placed`](crate::placed).
#[track_caller]
pub(crate) fn placed(array: Array) -> Array {
    resident_f32(&array).into_owned()
}

/// Uninitialised memory on the device that operations queued before its end may use.
#[track_caller]
pub(super) fn scratch(bytes: usize) -> Buffer {
    Buffer::new(device(), bytes).unwrap_or_else(|e| panic!("{e}"))
}

/// Scratch memory for float32 numbers.
#[track_caller]
pub(super) fn scratch_f32(shape: [i32; 4]) -> Buffer {
    scratch(shape.iter().map(|&dim| dim as usize).product::<usize>() * size_of::<f32>())
}

/// An uninitialised float32 array on the device.
#[track_caller]
pub(super) fn empty(shape: &[i32]) -> Array {
    empty_of(shape, Dtype::Float32)
}

#[track_caller]
pub(super) fn empty_of(shape: &[i32], dtype: Dtype) -> Array {
    device().empty(shape, dtype).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
pub(crate) fn zeros(shape: &[i32], dtype: Dtype) -> Array {
    if shape.contains(&0) {
        return Array::zeros(shape, dtype);
    }
    device().zeros(shape, dtype).unwrap_or_else(|e| panic!("{e}"))
}

/// The address of `count` counters that are zero: kernels leave them so.
#[track_caller]
pub(super) fn counters(count: usize) -> u64 {
    const MOST: usize = 1 << 14;
    static COUNTERS: OnceLock<Buffer> = OnceLock::new();
    assert!(count <= MOST, "{count} counters");
    let make = || {
        let buffer = Buffer::new(device(), 4 * MOST).unwrap_or_else(|e| panic!("{e}"));
        device().clear(buffer.pointer(), 4 * MOST).unwrap_or_else(|e| panic!("{e}"));
        buffer
    };
    COUNTERS.get_or_init(make).pointer()
}

#[track_caller]
pub(super) fn launch(
    name: &'static str,
    grid: [usize; 3],
    threads: u32,
    shared: usize,
    arguments: Arguments,
) {
    let grid = grid.map(|size| size as u32);
    device().launch(name, grid, threads, shared, &arguments).unwrap_or_else(|e| panic!("{e}"));
}

/// Whether kernels take arrays of this type.
pub(super) fn is_f32(x: &Array) -> bool {
    x.dtype() == Dtype::Float32
}

static FALLBACKS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
static REPORTED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Remembers that the CPU did something, and why.
pub(super) fn fall_back(why: &'static str) {
    FALLBACKS.lock().unwrap_or_else(PoisonError::into_inner).insert(why);
}

/// What the CPU had to do and was not told before.
pub(crate) fn take_fallbacks() -> Vec<&'static str> {
    let all = FALLBACKS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    let new: Vec<_> = all.difference(&reported).copied().collect();
    reported.extend(&new);
    new
}

/// An activation as kernels take it.
pub(super) fn gate_activation(activation: Activation) -> GateActivation {
    let (kind, limit) = match activation {
        Activation::Silu => (0, 0.0),
        Activation::GeluTanh => (1, 0.0),
        Activation::ClampedSwish { limit } => (2, limit),
    };
    GateActivation { kind, limit }
}
