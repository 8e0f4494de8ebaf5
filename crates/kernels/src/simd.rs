//! Runs a piece of work compiled for the widest vectors this processor has; the results are the same bits.
//!
//! Kernels are written once, over arrays of 16 lanes with explicit fused multiply-adds, and inlined into one
//! function per instruction set. No float operation may be reordered by the compiler, so the instruction set
//! changes speed only.

/// A piece of work. `run` must be `#[inline(always)]` to be compiled for the chosen instruction set, and so must all
/// it calls. A closure cannot be: left out of line, it runs without vectors and 50 times slower. So inner loops
/// are written with `for`.
pub trait Work {
    fn run(self);
}

/// Runs `work` with the best instruction set at hand.
#[allow(unsafe_code, reason = "entering a function compiled for features that were just detected")]
pub fn vectorize(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("f16c")
        {
            // SAFETY: the processor has the features, checked just above.
            return unsafe { avx512(work) };
        }
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            // SAFETY: the processor has the features, checked just above.
            return unsafe { avx2(work) };
        }
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn avx512(work: impl Work) {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2(work: impl Work) {
    work.run()
}
