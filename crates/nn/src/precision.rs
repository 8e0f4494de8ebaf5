//! The type that matrix products on the CPU round their factors to.

use std::cell::Cell;

pub use kernels::Precision;

thread_local! {
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::Rounded) };
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
