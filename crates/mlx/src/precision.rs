//! What matrix products on the CPU round their factors to.

use std::cell::Cell;

pub use kernels::Precision;

thread_local! {
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::Rounded) };
}

/// Products that this thread builds from now on are computed in this precision on the CPU, as MLX's default device
/// is the thread's that sets it. [`Precision::Rounded`] until it is set.
pub fn set_precision(precision: Precision) {
    PRECISION.set(precision);
}

/// The precision of products that this thread builds.
pub fn precision() -> Precision {
    PRECISION.get()
}
