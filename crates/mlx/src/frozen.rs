//! Evaluated arrays that kernels read on MLX's stream thread without being graph inputs.

use std::slice;

use crate::{
    Array, Dtype, Element,
    array::built,
    bridge::{self, RawArray},
    eval,
};

/// An evaluated, row-major array that never changes: a weight.
pub struct FrozenArray {
    dtype: Dtype,
    data: *const u8,
    bytes: usize,
    /// Keeps the contents alive.
    _array: cxx::UniquePtr<RawArray>,
}

// SAFETY: the contents are never written, and of the array itself only the destructor is used: MLX
// counts references atomically and may free a buffer on any thread, as its own streams do.
#[allow(unsafe_code, reason = "raw pointers and MLX's arrays are not marked as safe to share")]
unsafe impl Send for FrozenArray {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "raw pointers and MLX's arrays are not marked as safe to share")]
unsafe impl Sync for FrozenArray {}

impl FrozenArray {
    /// # Panics
    /// If the array cannot be evaluated; weights have been.
    #[track_caller]
    pub fn of(array: &Array) -> FrozenArray {
        // MLX's `contiguous` copies an array whose buffer is much larger than its contents, and
        // prepacked weights must not move.
        let array = if array.is_ready() && !array.on_device() {
            array.clone()
        } else {
            built(bridge::contiguous(&array.host()))
        };
        eval([&array]).unwrap_or_else(|e| panic!("{e}"));
        let bytes = bridge::bytes_of(&array.0).unwrap_or_else(|e| panic!("{e}"));
        let (data, bytes) = (bytes.as_ptr(), bytes.len());
        FrozenArray { dtype: array.dtype(), data, bytes, _array: array.0 }
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// # Panics
    /// If its type is not `T`: a bug in the kernel's caller.
    #[allow(unsafe_code, reason = "kernels read the contents without calling MLX")]
    pub fn values<T: Element>(&self) -> &[T] {
        assert_eq!(self.dtype, T::DTYPE, "a frozen array has another type");
        // SAFETY: the pointer and length are those of a slice that `_array` keeps alive and in
        // place.
        bytemuck::cast_slice(unsafe { slice::from_raw_parts(self.data, self.bytes) })
    }
}
