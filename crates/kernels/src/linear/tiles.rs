//! Intel's AMX: whether it may be used, and what shapes its registers have.

use std::{
    arch::{asm, x86_64::*},
    sync::OnceLock,
};

/// Whether the processor has tiles and the system lets this process use them; asks it to.
pub(crate) fn allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let leaf = __cpuid_count(7, 0);
        // Tiles, and products of bfloat16 and of bytes.
        let all = [24, 22, 25].iter().all(|bit| leaf.edx >> bit & 1 == 1);
        let allowed = all && __cpuid(0).eax >= 7 && permitted();
        #[cfg(all(feature = "emulated-tiles", target_os = "linux"))]
        let allowed = allowed || crate::emulated_tiles::stand_in();
        allowed
    })
}

#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the system call takes two numbers and touches no memory of ours; it sets a permission of the process.
    unsafe {
        asm!(
            "syscall", inout("rax") result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _, out("r11") _, options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Rows and bytes per row of each tile register.
#[repr(C, align(64))]
pub(super) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Of the eight registers.
    pub fn new(registers: [(u8, u16); 8]) -> Shapes {
        let mut shapes =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        for (i, (rows, bytes)) in registers.into_iter().enumerate() {
            (shapes.rows[i], shapes.bytes[i]) = (rows, bytes);
        }
        shapes
    }

    /// Gives this thread's registers these shapes and fills them with zeros.
    ///
    /// # Safety
    /// [`allowed`] must have said yes.
    pub unsafe fn configure(&self) {
        // SAFETY: the shapes are 64 bytes that the instruction reads.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) };
    }
}
