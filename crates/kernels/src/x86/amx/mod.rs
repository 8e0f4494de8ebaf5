//! Kernels for Intel's AMX: availability, and the configuration of the eight tile registers.

pub(crate) mod bfloat16;
pub(crate) mod integer;

use std::arch::{asm, x86_64::*};

/// Whether the processor has AMX and the system lets this process use it; asks for that permission.
///
/// With the feature `emulated-tiles` and `emulate`, AVX-512 with bfloat16 is enough: tile
/// instructions are emulated from then on.
pub(crate) fn is_available(emulate: bool) -> bool {
    // Not unsafe since Rust 1.94.
    #[allow(unused_unsafe)]
    // SAFETY: x86-64 processors have this instruction, and the first leaf names the last one.
    let (last, leaf) = unsafe { (__cpuid(0).eax, __cpuid_count(7, 0)) };
    // AMX-TILE, AMX-BF16 and AMX-INT8.
    let all = [24, 22, 25].iter().all(|bit| leaf.edx >> bit & 1 == 1);
    all && last >= 7 && is_permitted() || emulate && emulator_installed()
}

#[cfg(all(feature = "emulated-tiles", target_os = "linux"))]
fn emulator_installed() -> bool {
    is_x86_feature_detected!("avx512bf16") && amx_emulator::install()
}

#[cfg(not(all(feature = "emulated-tiles", target_os = "linux")))]
fn emulator_installed() -> bool {
    false
}

#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the system call takes two numbers and sets a permission of the process; it touches no
    // memory of ours.
    unsafe {
        asm!(
            "syscall", inout("rax") result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _, out("r11") _, options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The operand of `ldtilecfg`: rows, and bytes per row, of each tile register.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    /// Rows, and bytes per row, of the eight registers.
    fn new(registers: [(u8, u16); 8]) -> TileConfig {
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        for (i, (rows, bytes)) in registers.into_iter().enumerate() {
            (config.rows[i], config.bytes[i]) = (rows, bytes);
        }
        config
    }

    /// Configures this thread's registers and fills them with zeros.
    ///
    /// # Safety
    /// AMX must be available.
    unsafe fn load(&self) {
        // SAFETY: the instruction reads these 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) };
    }
}
