//! Numbers with a limit, element by element.

use crate::{
    lanes::tanh,
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// Elements of a task.
const TASK_ELEMENTS: usize = 1024;

/// `out = cap * tanh(x / cap)` in float32, rounded once.
pub fn softcap<T: Scalar>(x: &[T], out: &mut [T], cap: f32) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    // A number costs about 20 multiply-adds.
    for_each_chunk(out, TASK_ELEMENTS, 20 * x.len(), |i, out| {
        dispatch(CapElements { x: &x[i * TASK_ELEMENTS..][..out.len()], out, cap });
    });
}

struct CapElements<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    cap: f32,
}

impl<T: Scalar> WithSimd for CapElements<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (out, x) in self.out.iter_mut().zip(self.x) {
            *out = T::from_f32(self.cap * tanh(x.to_f32() / self.cap));
        }
    }
}
