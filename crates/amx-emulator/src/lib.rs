//! Executes AMX instructions on Linux machines that have AVX-512 but no AMX, so that code for AMX
//! is tested there. Only for tests: each instruction takes microseconds.
//!
//! A processor without AMX raises SIGILL at its instructions. The signal handler decodes the
//! instruction, applies it to the thread's emulated registers and continues after it. It knows
//! LDTILECFG, STTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPBF16PS,
//! TDPBSSD, TDPBSUD, TDPBUSD and TDPBUUD, in 64-bit mode and without segment or address-size
//! prefixes. All other SIGILLs, and tile instructions that AMX would refuse, go to the previous
//! handler or end the process.
//!
//! Source: "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2: the pages of
//! these instructions and the chapter "Instruction Format". Two faults differ: an invalid
//! configuration raises SIGILL, not SIGSEGV, and inaccessible memory faults in the handler, which
//! ends the process.
//!
//! ```
//! # #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
//! if lanner_amx_emulator::install() {
//!     println!("AMX instructions run in this process, if only emulated");
//! }
//! ```

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::needless_range_loop, reason = "closures do not get the instruction set of their callers")]

mod instruction;
mod registers;
#[cfg(test)]
mod tests;

use std::{
    arch::x86_64::__cpuid_count,
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    mem::{transmute, zeroed},
    ptr,
    sync::{Once, OnceLock},
};

use libc::{siginfo_t, ucontext_t};

use registers::Registers;

/// The handler of SIGILL before ours.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

thread_local! {
    // Initialised without allocating, which a signal handler must not do.
    static REGISTERS: UnsafeCell<Registers> = const { UnsafeCell::new(Registers::RELEASED) };
}

/// Makes AMX instructions run in this process: those of the processor if it has AMX and the system
/// permits it, emulated ones if it has AVX-512 alone. Returns whether they run.
pub fn install() -> bool {
    if !is_x86_feature_detected!("avx512f") {
        return false;
    }
    // LDTILECFG raises no SIGILL there, so nothing can be emulated.
    if has_amx() {
        return is_permitted();
    }
    install_handler();
    true
}

/// Whether the processor has AMX-TILE.
fn has_amx() -> bool {
    // Not unsafe since Rust 1.94.
    #[allow(unused_unsafe)]
    // SAFETY: each processor with AVX-512 has this leaf.
    let leaf = unsafe { __cpuid_count(7, 0) };
    leaf.edx >> 24 & 1 == 1
}

/// Asks the system for the use of the tile registers.
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and sets a permission of the process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    // SAFETY: both actions are initialised, and the handler is async-signal-safe.
    INSTALLED.call_once(|| unsafe {
        let mut action: libc::sigaction = zeroed();
        check(libc::sigaction(libc::SIGILL, ptr::null(), &mut action));
        PREVIOUS.get_or_init(|| action);
        action.sa_sigaction = handle as *const () as usize;
        // On the thread's own stack, with SIGILL blocked: a fault in the handler ends the process.
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut action.sa_mask);
        check(libc::sigaction(libc::SIGILL, &action, ptr::null_mut()));
    });
}

fn check(result: c_int) {
    assert_eq!(result, 0, "sigaction: {}", std::io::Error::last_os_error());
}

/// General registers in the order of their encoding.
const GENERAL: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// A panic in here aborts the process: it cannot leave an `extern "C"` function.
unsafe extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes valid pointers; the refused instruction is readable, and it
    // accesses the memory that its own code may access. No other borrow of the thread's registers
    // is alive: only this handler uses them, and it does not interrupt itself.
    unsafe {
        let saved = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        let general = GENERAL.map(|register| saved[register as usize] as usize);
        if let Some((instruction, next)) =
            instruction::decode(saved[libc::REG_RIP as usize] as usize, &general)
            && REGISTERS.with(|registers| (*registers.get()).execute(instruction)).is_some()
        {
            saved[libc::REG_RIP as usize] = next as i64;
        } else if let Some(previous) = PREVIOUS.get() {
            pass_on(previous, signal, info, context);
        }
    }
}

/// # Safety
/// The system must have returned the action, and passed the other arguments.
unsafe fn pass_on(previous: &libc::sigaction, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: an address other than the two constants is a function, of the type that the flag
    // names.
    unsafe {
        match previous.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // Takes effect when this handler returns and the signal is unblocked.
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
            handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)(
                    signal, info, context,
                )
            }
            handler => transmute::<usize, extern "C" fn(c_int)>(handler)(signal),
        }
    }
}
