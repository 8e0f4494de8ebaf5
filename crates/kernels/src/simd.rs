//! Selects the widest SIMD instruction set of this processor and runs kernels compiled for it.
//!
//! Most kernels are written once, over arrays of 16 lanes with explicit fused multiply-adds, and
//! inlined into one function per instruction set: see [`WithSimd`]. The compiler may not reorder
//! float operations, so the instruction set changes the speed of these kernels and never their
//! bits. Kernels with intrinsics are in `x86/`, one folder per instruction set; the table that
//! selects among them is next to the portable version (`linear/integer/kernels.rs`,
//! `linear/bfloat16/kernels.rs`, `delta/update.rs`, `transpose.rs`).
//!
//! ARM runs the portable kernels, which the compiler vectorises with NEON, part of every AArch64
//! target. Kernels with NEON intrinsics would go to `arm/neon/`, with a [`SimdLevel`] of their own
//! and an entry in each of these tables.

use std::sync::OnceLock;

/// A kernel to be compiled for each instruction set.
///
/// `run` and everything it calls must be `#[inline(always)]` to be compiled with the selected
/// instructions. Closures cannot be: left out of line, they run without SIMD, 50 times slower.
/// Inner loops are therefore `for` loops.
pub(crate) trait WithSimd {
    fn run(self);
}

/// SIMD instruction sets, each a superset of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SimdLevel {
    /// The target's baseline: SSE2 on x86-64, NEON on AArch64.
    Portable,
    Avx2,
    Avx512,
    /// AVX-512 with dot products of bytes.
    Avx512Vnni,
    /// AVX-512 with dot products of bytes and of bfloat16.
    Avx512Bf16,
    /// Intel's matrix tiles.
    Amx,
}

impl SimdLevel {
    const ALL: [(&str, SimdLevel); 6] = [
        ("portable", SimdLevel::Portable),
        ("avx2", SimdLevel::Avx2),
        ("avx512", SimdLevel::Avx512),
        ("avx512vnni", SimdLevel::Avx512Vnni),
        ("avx512bf16", SimdLevel::Avx512Bf16),
        ("amx", SimdLevel::Amx),
    ];

    pub fn name(self) -> &'static str {
        SimdLevel::ALL[self as usize].0
    }

    /// # Panics
    /// If no level has this name.
    fn named(name: &str) -> SimdLevel {
        let found = SimdLevel::ALL.iter().find(|(known, _)| *known == name);
        let names = SimdLevel::ALL.map(|(name, _)| name).join(", ");
        found.unwrap_or_else(|| panic!("LANNER_VECTORS is {name}; it may be {names}")).1
    }
}

/// The level that kernels use: the processor's, or `LANNER_VECTORS` if that is lower. The variable
/// is for tests and for tracking down processor faults.
pub fn simd_level() -> SimdLevel {
    static LEVEL: OnceLock<SimdLevel> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let limit = std::env::var("LANNER_VECTORS").ok().map(|name| SimdLevel::named(&name));
        detect(limit).min(limit.unwrap_or(SimdLevel::Amx))
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn detect(_limit: Option<SimdLevel>) -> SimdLevel {
    SimdLevel::Portable
}

#[cfg(target_arch = "x86_64")]
fn detect(limit: Option<SimdLevel>) -> SimdLevel {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq");
    let vnni = is_x86_feature_detected!("avx512vnni");
    let bf16 = is_x86_feature_detected!("avx512bf16");
    let amx = || crate::x86::amx::is_available(limit == Some(SimdLevel::Amx));
    match () {
        () if !avx2 => SimdLevel::Portable,
        () if !avx512 => SimdLevel::Avx2,
        () if !vnni => SimdLevel::Avx512,
        () if !bf16 => SimdLevel::Avx512Vnni,
        () if !amx() => SimdLevel::Avx512Bf16,
        () => SimdLevel::Amx,
    }
}

/// Runs `kernel` compiled for [`simd_level`].
pub(crate) fn dispatch(kernel: impl WithSimd) {
    #[cfg(target_arch = "x86_64")]
    match simd_level() {
        SimdLevel::Portable => {}
        // SAFETY: the processor has the features of its level.
        SimdLevel::Avx2 => return unsafe { avx2(kernel) },
        // SAFETY: all higher levels have AVX-512.
        _ => return unsafe { avx512(kernel) },
    }
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn avx512(kernel: impl WithSimd) {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2(kernel: impl WithSimd) {
    kernel.run()
}

#[cfg(all(test, feature = "emulated-tiles", target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;

    /// Without it, tests of AMX kernels would pass on other kernels.
    #[test]
    fn simd_level_is_amx_where_the_environment_asks_for_emulation() {
        let asked = std::env::var("LANNER_VECTORS").is_ok_and(|name| name == "amx");
        if asked && is_x86_feature_detected!("avx512bf16") {
            assert_eq!(simd_level(), SimdLevel::Amx);
        }
    }
}
