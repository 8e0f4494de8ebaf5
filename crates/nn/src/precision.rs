//! Types to which operations on the CPU round: factors of matrix products, stored keys and values.

use std::cell::Cell;

pub use kernels::Precision;
use mlx::Dtype;

thread_local! {
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::Rounded) };
    static KV_CACHE_DTYPE: Cell<Option<Dtype>> = const { Cell::new(None) };
}

/// Sets the precision of the CPU products that this thread builds from now on;
/// [`Precision::Rounded`] until then. It belongs to the thread, as MLX's default device does.
pub fn set_precision(precision: Precision) {
    PRECISION.set(precision);
}

/// The precision of the CPU products that this thread builds.
pub fn precision() -> Precision {
    PRECISION.get()
}

/// Sets the type in which this thread's attention on the CPU stores keys and values from now on:
/// their own (`None`), or bfloat16 for float32 ones.
pub fn set_kv_cache_dtype(dtype: Option<Dtype>) {
    KV_CACHE_DTYPE.set(dtype);
}

/// The type in which keys and values of `dtype` are stored.
pub(crate) fn kv_cache_dtype(dtype: Dtype) -> Dtype {
    KV_CACHE_DTYPE.get().unwrap_or(dtype)
}
