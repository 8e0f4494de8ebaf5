//! Each instruction as the assembler encodes it, against the manual's definition computed element
//! by element.

mod addresses;
mod products;

use std::{
    arch::asm,
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use super::*;
use products::PARTIAL;

/// The operand of LDTILECFG.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    const EMPTY: Config =
        Config { palette: 0, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };

    /// Rows, and bytes per row, of the registers from 0.
    fn of(shapes: &[(u8, u16)]) -> Config {
        let mut config = Config { palette: 1, ..Config::EMPTY };
        for (i, (rows, bytes)) in shapes.iter().enumerate() {
            (config.rows[i], config.bytes[i]) = (*rows, *bytes);
        }
        config
    }

    fn load(&self) {
        // SAFETY: reads these 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) };
    }

    fn stored() -> Config {
        let mut config = Config { palette: 7, ..Config::EMPTY };
        // SAFETY: writes these 64 bytes.
        unsafe { asm!("sttilecfg [{}]", in(reg) &mut config, options(nostack)) };
        config
    }
}

/// Loads register T, which must be configured for this many values, from contiguous rows.
fn load<const T: usize>(values: &[u32]) {
    let config = Config::stored();
    assert_eq!(values.len() * 4, config.rows[T] as usize * config.bytes[T] as usize);
    // SAFETY: reads these values.
    unsafe {
        asm!("tileloadd tmm{t}, [{at} + {bytes}*1]", t = const T, at = in(reg) values.as_ptr(),
            bytes = in(reg) config.bytes[T] as usize, options(nostack, readonly));
    }
}

/// The contents of register T.
fn stored<const T: usize>() -> Vec<u32> {
    let config = Config::stored();
    let mut values = vec![0; config.rows[T] as usize * config.bytes[T] as usize / 4];
    // SAFETY: writes these values.
    unsafe {
        asm!("tilestored [{at} + {bytes}*1], tmm{t}", t = const T, at = in(reg) values.as_mut_ptr(),
            bytes = in(reg) config.bytes[T] as usize, options(nostack));
    }
    values
}

fn release() {
    // SAFETY: touches no memory.
    unsafe { asm!("tilerelease", options(nomem, nostack)) };
}

fn words(seed: u32, count: usize) -> Vec<u32> {
    let mix = |i: u32| {
        (i ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B9).rotate_left(13).wrapping_mul(0x85EB_CA6B)
    };
    (1..=count as u32).map(|i| mix(i) ^ mix(i) >> 15).collect()
}

#[test]
fn sttilecfg_after_ldtilecfg_and_tilerelease_stores_the_configuration() {
    if !install() {
        return;
    }
    release();
    assert_eq!(Config::stored(), Config::EMPTY);
    let config = Config { start_row: 2, ..Config::of(&[(3, 12), (0, 0), (16, 64), (1, 4)]) };
    config.load();
    assert_eq!(Config::stored(), config);
    release();
    assert_eq!(Config::stored(), Config::EMPTY);
    config.load();
    Config::EMPTY.load();
    assert_eq!(Config::stored(), Config::EMPTY);
}

#[test]
fn ldtilecfg_zeroes_registers() {
    if !install() {
        return;
    }
    let config = Config::of(&[(2, 8)]);
    config.load();
    load::<0>(&[1, 2, 3, 4]);
    config.load();
    assert_eq!(stored::<0>(), [0; 4]);
}

#[test]
fn tilezero_zeroes_one_register() {
    if !install() {
        return;
    }
    Config::of(&[(2, 8), (2, 8)]).load();
    load::<0>(&[1, 2, 3, 4]);
    load::<1>(&[5, 6, 7, 8]);
    // SAFETY: touches no memory.
    unsafe { asm!("tilezero tmm1", options(nomem, nostack)) };
    assert_eq!((stored::<0>(), stored::<1>()), (vec![1, 2, 3, 4], vec![0; 4]));
}

#[test]
fn tileloadd_and_tilestored_start_at_the_configured_row() {
    if !install() {
        return;
    }
    let values = words(1, 8);
    let mut config = Config::of(&[(4, 8)]);
    config.start_row = 3;
    config.load();
    load::<0>(&values);
    assert_eq!(Config::stored().start_row, 0);
    assert_eq!(stored::<0>(), [[0; 6].as_slice(), &values[6..]].concat());
}

#[test]
fn tilestored_writes_only_its_rows() {
    if !install() {
        return;
    }
    Config::of(&[(3, 12)]).load();
    let values = words(2, 9);
    load::<0>(&values);
    let mut memory = vec![7u32; 40];
    // SAFETY: writes three rows of 12 bytes, 40 bytes apart, from the fifth number on.
    unsafe {
        asm!("tilestored [{} + {}*2 + 16], tmm0", in(reg) memory.as_mut_ptr(), in(reg) 20usize, options(nostack));
    }
    let mut expected = vec![7u32; 40];
    for row in 0..3 {
        expected[4 + 10 * row..][..3].copy_from_slice(&values[3 * row..][..3]);
    }
    assert_eq!(memory, expected);
}

#[test]
fn each_thread_has_its_own_registers() {
    if !install() {
        return;
    }
    let config = Config::of(&[(1, 8)]);
    config.load();
    load::<0>(&[1, 2]);
    let other = thread::spawn(move || {
        // With AMX in the processor, Linux gives a thread its creator's tile configuration.
        let before = if has_amx() { Config::EMPTY } else { Config::stored() };
        config.load();
        load::<0>(&[3, 4]);
        (before, stored::<0>())
    });
    assert_eq!(other.join().unwrap(), (Config::EMPTY, vec![3, 4]));
    assert_eq!(stored::<0>(), [1, 2]);
}

/// The signal that ends a forked process that runs `body`, 0 if none does.
fn end_of(body: impl FnOnce()) -> c_int {
    let mut status = 0;
    // SAFETY: the child makes no call that takes a lock, and ends here.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &limit);
            body();
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
    if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
}

#[test]
fn refused_instructions_and_other_sigills_end_the_process() {
    if !install() {
        return;
    }
    // SAFETY: none of these accesses memory.
    unsafe {
        assert_eq!(end_of(|| Config::of(&PARTIAL).load()), 0);
        assert_eq!(end_of(|| asm!("ud2")), libc::SIGILL);
        // Sent by a process, at a valid instruction.
        assert_eq!(end_of(|| _ = libc::raise(libc::SIGILL)), libc::SIGILL);
        // No register is configured, or not this one.
        release();
        assert_eq!(end_of(|| asm!("tilezero tmm0")), libc::SIGILL);
        Config::of(&PARTIAL).load();
        assert_eq!(end_of(|| asm!("tilezero tmm3")), libc::SIGILL);
        // Mismatched shapes [5, 7] · [5, 11], and one register twice.
        assert_eq!(end_of(|| asm!("tdpbuud tmm0, tmm2, tmm1")), libc::SIGILL);
        Config::of(&[(8, 32), (8, 32)]).load();
        // tdpbuud tmm0, tmm1, tmm0, which assemblers reject.
        assert_eq!(end_of(|| asm!(".byte 0xc4, 0xe2, 0x78, 0x5e, 0xc1")), libc::SIGILL);
    }
    let good = Config::of(&PARTIAL);
    let mut wrong = [good; 7];
    wrong[0].palette = 2;
    wrong[1].reserved[13] = 1;
    wrong[2].rows[1] = 17;
    wrong[3].bytes[1] = 65;
    wrong[4].rows[1] = 0;
    wrong[5].bytes[8] = 4;
    wrong[6].rows[8] = 1;
    for config in wrong {
        // AMX raises SIGSEGV here.
        assert!([libc::SIGILL, libc::SIGSEGV].contains(&end_of(|| config.load())), "{config:?}");
    }
}

#[test]
fn pass_on_calls_the_previous_handler() {
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn short(_: c_int) {
        CALLED.fetch_add(1, Relaxed);
    }
    extern "C" fn long(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
        CALLED.fetch_add(context as usize, Relaxed);
    }
    // SAFETY: zeros are a valid action; each function has the type that the flag names.
    unsafe {
        let mut previous: libc::sigaction = zeroed();
        previous.sa_sigaction = short as *const () as usize;
        pass_on(&previous, libc::SIGILL, ptr::null_mut(), ptr::null_mut());
        assert_eq!(CALLED.load(Relaxed), 1);
        (previous.sa_sigaction, previous.sa_flags) = (long as *const () as usize, libc::SA_SIGINFO);
        pass_on(&previous, libc::SIGILL, ptr::null_mut(), ptr::without_provenance_mut(10));
        assert_eq!(CALLED.load(Relaxed), 11);
    }
}
