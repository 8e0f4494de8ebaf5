//! Runs a piece of work compiled for the widest vectors this processor has.
//!
//! Most kernels are written once, over arrays of 16 lanes with explicit fused multiply-adds, and inlined into one
//! function per instruction set. No float operation may be reordered by the compiler, so there the instruction set
//! changes speed only. What uses instructions of its own (see [`linear`](crate::linear)) asks for [`vectors`].

use std::sync::OnceLock;

/// A piece of work. `run` must be `#[inline(always)]` to be compiled for the chosen instruction set, and so must all
/// it calls. A closure cannot be: left out of line, it runs without vectors and 50 times slower. So inner loops
/// are written with `for`.
pub trait Work {
    fn run(self);
}

/// Families of vector instructions; each has what the ones before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SimdLevel {
    /// What the target has at least: SSE2 on x86-64, NEON on ARM.
    Portable,
    Avx2,
    Avx512,
    /// AVX-512 with dot products of bytes.
    Avx512Vnni,
    /// With those of bfloat16 too.
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
    /// If none has this name.
    fn named(name: &str) -> SimdLevel {
        let found = SimdLevel::ALL.iter().find(|(known, _)| *known == name);
        let names = SimdLevel::ALL.map(|(name, _)| name).join(", ");
        found.unwrap_or_else(|| panic!("LANNER_VECTORS is {name}; it may be {names}")).1
    }
}

/// The best family this processor has, or less if the environment says so: `LANNER_VECTORS` names the most that may be
/// used, for tests and for tracking down faults of a processor.
pub fn simd_level() -> SimdLevel {
    static VECTORS: OnceLock<SimdLevel> = OnceLock::new();
    *VECTORS.get_or_init(|| detect().min(limit().unwrap_or(SimdLevel::Amx)))
}

/// What the environment names.
pub(crate) fn limit() -> Option<SimdLevel> {
    std::env::var("LANNER_VECTORS").ok().map(|name| SimdLevel::named(&name))
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> SimdLevel {
    SimdLevel::Portable
}

#[cfg(target_arch = "x86_64")]
fn detect() -> SimdLevel {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq");
    let vnni = is_x86_feature_detected!("avx512vnni");
    let bf16 = is_x86_feature_detected!("avx512bf16");
    match () {
        () if !avx2 => SimdLevel::Portable,
        () if !avx512 => SimdLevel::Avx2,
        () if !vnni => SimdLevel::Avx512,
        () if !bf16 => SimdLevel::Avx512Vnni,
        () if !crate::linear::tiles_allowed() => SimdLevel::Avx512Bf16,
        () => SimdLevel::Amx,
    }
}

/// Runs `work` with the best instruction set at hand.
pub fn vectorize(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    match simd_level() {
        SimdLevel::Portable => {}
        // SAFETY: the processor has the features of the family.
        SimdLevel::Avx2 => return unsafe { avx2(work) },
        // SAFETY: all others have those of AVX-512.
        _ => return unsafe { avx512(work) },
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
