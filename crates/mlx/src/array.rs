//! The array handle: a value, cheap to clone, lazily evaluated, bound to its thread.

use std::fmt;

use cxx::UniquePtr;

use crate::{
    Error, Result,
    bridge::{self, RawArray},
    cuda,
    dtype::{Dtype, Element},
    eval::eval,
    profile,
};

/// An n-dimensional array of one [`Dtype`]; a node of MLX's lazy graph until it is evaluated.
///
/// Handles are values: a clone is a second name for the same contents, not a copy. Not `Send`: one
/// thread owns MLX.
pub struct Array(pub(crate) UniquePtr<RawArray>);

impl Clone for Array {
    fn clone(&self) -> Array {
        Array(bridge::clone_array(&self.0))
    }
}

impl Array {
    /// Copies `values` into a new array.
    ///
    /// # Panics
    /// If the number of values is not the product of `shape`, or memory is exhausted.
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: &[i32]) -> Array {
        let mut raw = built(bridge::empty(shape, T::DTYPE)).0;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let target = bridge::bytes_mut(raw.pin_mut()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(target.len(), bytes.len(), "{} values do not fill shape {shape:?}", values.len());
        target.copy_from_slice(bytes);
        Array(raw)
    }

    /// A new array filled by `fill`, which gets its row-major, uninitialised bytes.
    ///
    /// # Errors
    /// Memory is exhausted, or whatever `fill` returns.
    pub fn fill_with(
        shape: &[i32],
        dtype: Dtype,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Array> {
        profile::count_node();
        let mut raw = bridge::empty(shape, dtype)?;
        fill(bridge::bytes_mut(raw.pin_mut())?)?;
        Ok(Array(raw))
    }

    /// A 0-dimensional array.
    #[track_caller]
    pub fn scalar(value: f32, dtype: Dtype) -> Array {
        built(bridge::scalar(value, dtype))
    }

    pub fn shape(&self) -> &[i32] {
        bridge::shape_of(&self.0)
    }

    /// Size along `axis`; negative counts from the end.
    ///
    /// # Panics
    /// If there is no such axis.
    #[track_caller]
    pub fn dim(&self, axis: i32) -> i32 {
        let shape = self.shape();
        let index = if axis < 0 { axis + shape.len() as i32 } else { axis };
        match usize::try_from(index).ok().and_then(|i| shape.get(i)) {
            Some(&dim) => dim,
            None => panic!("no axis {axis} in shape {shape:?}"),
        }
    }

    pub fn ndim(&self) -> usize {
        self.shape().len()
    }

    /// Number of elements.
    pub fn size(&self) -> usize {
        self.shape().iter().map(|&d| d as usize).product()
    }

    /// Bytes of all elements.
    #[track_caller]
    pub fn nbytes(&self) -> usize {
        self.size() * self.dtype().size()
    }

    #[track_caller]
    pub fn dtype(&self) -> Dtype {
        bridge::dtype_of(&self.0).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Whether the contents are computed, on the CPU and row-major: kernels that take the array may
    /// run at once.
    pub fn is_ready(&self) -> bool {
        bridge::is_ready(&self.0)
    }

    /// Evaluates the array and copies its values out, row-major.
    ///
    /// # Errors
    /// Evaluation failed, or the array's type is not `T`.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::WrongType { asked: std::any::type_name::<T>(), dtype: self.dtype().name() });
        }
        if self.on_device() {
            return Ok(bytemuck::pod_collect_to_vec(&self.to_bytes()?));
        }
        Ok(bytemuck::pod_collect_to_vec(bridge::bytes_of(&self.evaluated()?.0)?))
    }

    /// Evaluates the array and copies its row-major bytes out, whatever its type.
    ///
    /// # Errors
    /// Evaluation failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if let Some(device) = cuda::device().filter(|_| self.on_device()) {
            return Ok(device.read(self)?);
        }
        Ok(bridge::bytes_of(&self.evaluated()?.0)?.to_vec())
    }

    /// The same values, computed and row-major.
    fn evaluated(&self) -> Result<Array> {
        eval([self])?;
        if bridge::bytes_of(&self.0).is_ok() {
            return Ok(self.clone());
        }
        profile::count_node();
        let contiguous = Array(bridge::contiguous(&self.0)?);
        eval([&contiguous])?;
        Ok(contiguous)
    }

    /// [`to_vec`](Array::to_vec) after conversion to float32.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        self.astype(Dtype::Float32).to_vec()
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({}, {:?})", self.dtype().name(), self.shape())
    }
}

/// The array of an operation; panics at the caller's line if it could not be built.
#[track_caller]
pub(crate) fn built(result: std::result::Result<UniquePtr<RawArray>, cxx::Exception>) -> Array {
    profile::count_node();
    match result {
        Ok(raw) => Array(raw),
        Err(error) => panic!("{error}"),
    }
}
