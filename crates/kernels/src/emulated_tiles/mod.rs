//! Executes AMX's instructions where the processor has none, so that the code that uses tiles is tested on any Linux
//! machine with AVX-512. It is for tests alone: each instruction takes microseconds.
//!
//! A processor without tiles refuses their instructions with a signal, SIGILL. The handler reads the instruction, does
//! what it says to the thread's emulated registers and goes on behind it. It knows LDTILECFG, STTILECFG, TILERELEASE,
//! TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPBF16PS, TDPBSSD, TDPBSUD, TDPBUSD and TDPBUUD, in 64-bit mode and
//! without prefixes for segments or short addresses. Whatever else is refused, among it what tiles would refuse, goes to
//! the handler that was there before, or ends the process.
//!
//! Source: "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2: the pages of these instructions and
//! the chapter "Instruction Format". Two faults differ: a wrong configuration ends in SIGILL, not SIGSEGV, and
//! memory that may not be touched faults in the handler, where nothing can mend it.

mod instruction;
mod registers;
#[cfg(test)]
mod tests;

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    mem::{transmute, zeroed},
    ptr,
    sync::{Once, OnceLock},
};

use libc::{siginfo_t, ucontext_t};

use crate::simd::{SimdLevel, limit};
use registers::Registers;

/// Whether tiles are emulated from now on: if the environment asks for them and the processor can pass for one that has
/// them.
pub(crate) fn stand_in() -> bool {
    let possible = limit() == Some(SimdLevel::Amx) && is_x86_feature_detected!("avx512bf16");
    if possible {
        install();
    }
    possible
}

/// What is done about SIGILL that is not ours.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

thread_local! {
    // Plain bytes, there from a thread's first moment on: a signal handler must not allocate.
    static REGISTERS: UnsafeCell<Registers> = const { UnsafeCell::new(Registers::RELEASED) };
}

/// Installs the handler, once. The processor must have AVX-512.
fn install() {
    static INSTALLED: Once = Once::new();
    // SAFETY: both actions are whole, and the handler keeps to what a signal handler may do.
    INSTALLED.call_once(|| unsafe {
        let mut action: libc::sigaction = zeroed();
        check(libc::sigaction(libc::SIGILL, ptr::null(), &mut action));
        PREVIOUS.get_or_init(|| action);
        action.sa_sigaction = handle as *const () as usize;
        // On the thread's own stack; with SIGILL held back, so that a fault in the handler ends the process.
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut action.sa_mask);
        check(libc::sigaction(libc::SIGILL, &action, ptr::null_mut()));
    });
}

fn check(result: c_int) {
    assert_eq!(result, 0, "sigaction: {}", std::io::Error::last_os_error());
}

/// In the order in which instructions number them.
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

/// A panic in here ends the process: it cannot leave an `extern "C"` function.
unsafe extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system hands over both; a refused instruction can be read where it stands, and touches the memory that
    // the code it belongs to lets it touch. No other borrow of the thread's registers is alive: only this handler
    // uses them, and it is not interrupted by itself.
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
/// The action must be one that the system accepted, and the rest what it handed over.
unsafe fn pass_on(previous: &libc::sigaction, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: an address that is neither of the two constants is a function's, of the kind that the flag says.
    unsafe {
        match previous.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // Takes effect when this handler returns and the signal is no longer held back.
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
