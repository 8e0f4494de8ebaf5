//! Each instruction as an assembler writes it, against what the manual says one number at a time. Where the processor has
//! tiles these tests are about the processor.

use std::{
    arch::asm,
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use super::*;
use instruction::{Instruction, Memory};

use crate::simd::vectors;

/// Whether there are tiles, of either kind.
fn tiles() -> bool {
    if crate::linear::tiles_allowed() {
        return true;
    }
    let possible = is_x86_feature_detected!("avx512f");
    if possible {
        install();
    }
    possible
}

/// What LDTILECFG reads.
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

    /// Registers from 0 on with these rows and bytes per row.
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

/// Registers 0 of `[5, 11]`, 1 of `[5, 7]` and 2 of `[7, 11]` numbers of 32 bits: sums and factors that fill none.
const PARTIAL: [(u8, u16); 3] = [(M as u8, 4 * N as u16), (M as u8, 4 * K as u16), (K as u8, 4 * N as u16)];
const M: usize = 5;
const K: usize = 7;
const N: usize = 11;

/// Loads register T from rows that follow each other without gaps; it must be configured so.
fn load<const T: usize>(values: &[u32]) {
    let config = Config::stored();
    assert_eq!(values.len() * 4, config.rows[T] as usize * config.bytes[T] as usize);
    // SAFETY: reads as much as there is.
    unsafe {
        asm!("tileloadd tmm{t}, [{at} + {bytes}*1]", t = const T, at = in(reg) values.as_ptr(),
            bytes = in(reg) config.bytes[T] as usize, options(nostack, readonly));
    }
}

/// What register T holds.
fn stored<const T: usize>() -> Vec<u32> {
    let config = Config::stored();
    let mut values = vec![0; config.rows[T] as usize * config.bytes[T] as usize / 4];
    // SAFETY: writes as much as there is room for.
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

/// Tests through tiles would pass without any.
#[test]
fn what_the_environment_asks_for_is_used() {
    if limit() == Some(Vectors::Amx) && is_x86_feature_detected!("avx512bf16") {
        assert_eq!(vectors(), Vectors::Amx);
    }
}

#[test]
fn ldtilecfg_sttilecfg_and_tilerelease() {
    if !tiles() {
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
fn configuring_zeroes_registers() {
    if !tiles() {
        return;
    }
    let config = Config::of(&[(2, 8)]);
    config.load();
    load::<0>(&[1, 2, 3, 4]);
    config.load();
    assert_eq!(stored::<0>(), [0; 4]);
}

#[test]
fn tilezero() {
    if !tiles() {
        return;
    }
    Config::of(&[(2, 8), (2, 8)]).load();
    load::<0>(&[1, 2, 3, 4]);
    load::<1>(&[5, 6, 7, 8]);
    // SAFETY: touches no memory.
    unsafe { asm!("tilezero tmm1", options(nomem, nostack)) };
    assert_eq!((stored::<0>(), stored::<1>()), (vec![1, 2, 3, 4], vec![0; 4]));
}

/// Rows `0, 1, 2, ..` of 64 bytes.
#[repr(C, align(64))]
struct Rows([[u8; 64]; 64]);

impl Rows {
    fn numbered() -> Rows {
        Rows(std::array::from_fn(|r| std::array::from_fn(|c| (r + 64 * (c % 4)) as u8)))
    }

    /// The numbers in `count` rows' first eight bytes, `step` rows apart.
    fn first(&self, start: usize, step: usize, count: usize) -> Vec<u32> {
        let word = |r: usize, c: usize| u32::from_le_bytes(self.0[r][4 * c..][..4].try_into().unwrap());
        (0..count).flat_map(|i| [0, 1].map(|c| word(start + i * step, c))).collect()
    }
}

/// Every way to name memory, for a register 3 of 6 rows of 8 bytes.
macro_rules! loaded_from {
    ($($asm:expr),+ ; $($operands:tt)*) => {{
        Config::of(&[(0, 0), (0, 0), (0, 0), (6, 8)]).load();
        // SAFETY: reads from the rows that the operands point to.
        unsafe { asm!($($asm),+, $($operands)*) };
        stored::<3>()
    }};
}

#[test]
fn tileloadd_from_every_kind_of_address() {
    if !tiles() {
        return;
    }
    let rows = Rows::numbered();
    let (at, end) = (rows.0.as_ptr(), rows.0.as_ptr_range().end);
    let expected = |start, step| rows.first(start, step, 6);
    // Scales.
    let got = loaded_from!("tileloadd tmm3, [{} + {}*1]"; in(reg) at, in(reg) 64usize);
    assert_eq!(got, expected(0, 1));
    let got = loaded_from!("tileloadd tmm3, [{} + {}*2]"; in(reg) at, in(reg) 64usize);
    assert_eq!(got, expected(0, 2));
    let got = loaded_from!("tileloadd tmm3, [{} + {}*4]"; in(reg) at, in(reg) 64usize);
    assert_eq!(got, expected(0, 4));
    let got = loaded_from!("tileloadd tmm3, [{} + {}*8]"; in(reg) at, in(reg) 64usize);
    assert_eq!(got, expected(0, 8));
    // Displacements of 8 and 32 bits, and backwards.
    let got = loaded_from!("tileloadd tmm3, [{} + {}*1 + 64]"; in(reg) at, in(reg) 64usize);
    assert_eq!(got, expected(1, 1));
    let got = loaded_from!("tileloadd tmm3, [{} + {}*1 - 128]"; in(reg) end, in(reg) -64isize);
    let backwards: Vec<u32> = (0..6).flat_map(|i| rows.first(62 - i, 1, 1)).collect();
    assert_eq!(got, backwards);
    let got = loaded_from!("tileloadd tmm3, [{} + {}*2 + 640]"; in(reg) at, in(reg) 64usize);
    assert_eq!(got, expected(10, 2));
    let got = loaded_from!("tileloadd tmm3, [{} + {}*1 - 640]"; in(reg) end, in(reg) 64usize);
    assert_eq!(got, expected(54, 1));
    // Without an index, one row again and again.
    let got = loaded_from!("tileloadd tmm3, [{} + 192]"; in(reg) at);
    assert_eq!(got, expected(3, 0));
    let got = loaded_from!("tileloaddt1 tmm3, [{} + {}*4 + 64]"; in(reg) at, in(reg) 64usize);
    assert_eq!(got, expected(1, 4));
}

/// Some registers' numbers mean something else in some places.
#[test]
fn tileloadd_with_every_register() {
    if !tiles() {
        return;
    }
    let rows = Rows::numbered();
    let (at, step) = (rows.0.as_ptr(), 128usize);
    let expected = rows.first(0, 2, 6);
    macro_rules! based_on {
        ($($base:tt $index:tt),+) => {$(
            let got = loaded_from!(concat!("tileloadd tmm3, [", $base, " + ", $index, "*1]");
                in($base) at, in($index) step);
            assert_eq!(got, expected, "{} {}", $base, $index);
        )+};
    }
    based_on!("rax" "rcx", "rcx" "rdx", "rdx" "rsi", "rsi" "rdi", "rdi" "rax", "r8" "r9", "r9" "r10", "r10" "r11",
        "r11" "r12", "r12" "r13", "r13" "r14", "r14" "r15", "r15" "r8", "r12" "rax", "r13" "rax", "rax" "r12");
    // The compiler keeps these to itself.
    let got = loaded_from!("push rbx", "mov rbx, rax", "tileloadd tmm3, [rbx + rcx*1]", "mov rbx, rcx",
        "tileloadd tmm3, [rax + rbx*1]", "pop rbx"; in("rax") at, in("rcx") step);
    assert_eq!(got, expected);
    let got = loaded_from!("push rbp", "mov rbp, rax", "tileloadd tmm3, [rbp + rcx*1]", "pop rbp";
        in("rax") at, in("rcx") step);
    assert_eq!(got, expected);
    let got = loaded_from!("push rbp", "mov rbp, rcx", "tileloadd tmm3, [rax + rbp*1]", "pop rbp";
        in("rax") at, in("rcx") step);
    assert_eq!(got, expected);
    // On the stack, where the rows must be copied first.
    let got = loaded_from!("sub rsp, 4096", "mov rdi, rsp", "mov rcx, 4096", "rep movsb",
        "tileloadd tmm3, [rsp + rax*1]", "add rsp, 4096";
        inout("rsi") at => _, in("rax") step, out("rcx") _, out("rdi") _);
    assert_eq!(got, expected);
}

/// Nothing can be loaded from there: an address without a base has 32 bits, and no memory of a test lies so low.
#[test]
fn addresses_without_a_base() {
    let general: [usize; 16] = std::array::from_fn(|i| 1000 + i);
    let decoded = |code: &[u8]| {
        // SAFETY: these are whole instructions.
        let (instruction, next) = unsafe { instruction::decode(code.as_ptr() as usize, &general) }.unwrap();
        assert_eq!(next, code.as_ptr_range().end as usize);
        instruction
    };
    // tileloadd tmm3, [r9*4 - 2]
    assert_eq!(
        decoded(&[0xc4, 0xa2, 0x7b, 0x4b, 0x1c, 0x8d, 0xfe, 0xff, 0xff, 0xff]),
        Instruction::Load { tile: 3, memory: Memory { start: usize::MAX - 1, index: 4 * 1009 } }
    );
    // ldtilecfg [rip + 16]
    let code = [0xc4, 0xe2, 0x78, 0x49, 0x05, 0x10, 0x00, 0x00, 0x00];
    assert_eq!(decoded(&code), Instruction::LoadConfig(code.as_ptr_range().end as usize + 16));
    // ldtilecfg [r12 + 2*rcx + 5]
    assert_eq!(
        decoded(&[0xc4, 0xc2, 0x78, 0x49, 0x44, 0x4c, 0x05]),
        Instruction::LoadConfig(1012 + 2 * 1001 + 5)
    );
}

/// Loads and stores go on with the row that the configuration says.
#[test]
fn a_first_row() {
    if !tiles() {
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
fn tilestored_writes_its_rows_alone() {
    if !tiles() {
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

/// `sums + a · b` as the manual writes it, `dot` being about two numbers of 32 bits.
fn product(sums: &[u32], a: &[u32], b: &[u32], mut dot: impl FnMut(u32, u32, u32) -> u32) -> Vec<u32> {
    let mut sums = sums.to_vec();
    for m in 0..M {
        for n in 0..N {
            for k in 0..K {
                sums[m * N + n] = dot(sums[m * N + n], a[m * K + k], b[k * N + n]);
            }
        }
    }
    sums
}

macro_rules! bytes_multiply {
    ($($name:ident $a:ty, $b:ty;)+) => {$(
        #[test]
        fn $name() {
            if !tiles() {
                return;
            }
            let (sums, a, b) = (words(3, M * N), words(4, M * K), words(5, K * N));
            Config::of(&PARTIAL).load();
            load::<0>(&sums);
            load::<1>(&a);
            load::<2>(&b);
            // SAFETY: touches no memory.
            unsafe { asm!(concat!(stringify!($name), " tmm0, tmm1, tmm2"), options(nomem, nostack)) };
            let expected = product(&sums, &a, &b, |sum, a, b| {
                let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
                products.fold(sum, |sum, (a, b)| sum.wrapping_add((a as $a as i32 * b as $b as i32) as u32))
            });
            assert_eq!(stored::<0>(), expected);
        }
    )+};
}

bytes_multiply! {
    tdpbssd i8, i8;
    tdpbsud i8, u8;
    tdpbusd u8, i8;
    tdpbuud u8, u8;
}

/// Each with 24 bits of both kinds in every fraction, so that a rounding too many shows.
#[test]
fn tdpbf16ps() {
    if !tiles() {
        return;
    }
    // Numbers in about 2^-4 to 2^4, of both signs.
    let pairs = |seed, count| words(seed, count).into_iter().map(|w| w & 0x83ff_83ff | 0x3e00_3e00).collect();
    let (a, b): (Vec<u32>, Vec<u32>) = (pairs(7, M * K), pairs(8, K * N));
    let sums: Vec<u32> = words(6, M * N).into_iter().map(|w| w & 0x83ff_ffff | 0x3e00_0000).collect();
    assert_eq!(multiplied(&sums, &a, &b), in_bfloat16(&sums, &a, &b));
}

/// Sums and products of every size, with many below the normal range.
#[test]
fn tdpbf16ps_takes_small_numbers_for_zero() {
    if !tiles() {
        return;
    }
    // Numbers of 2^-126 and less, and their products with numbers about 1, and such that multiply to either.
    for exponents in [(0x0000, 0x3f80), (0x0000, 0x7e80), (0x2000, 0x1f80), (0x0080, 0x3f00)] {
        let pairs = |seed, count, exponent: u32| -> Vec<u32> {
            words(seed, count).into_iter().map(|w| w & 0x807f_807f | exponent << 16 | exponent).collect()
        };
        let (a, b) = (pairs(9, M * K, exponents.0), pairs(10, K * N, exponents.1));
        let sums: Vec<u32> = words(11, M * N).into_iter().map(|w| w & 0x80ff_ffff).collect();
        assert_eq!(multiplied(&sums, &a, &b), in_bfloat16(&sums, &a, &b), "{exponents:x?}");
    }
    let (one, tiny) = (0x3f80_3f80, 0x007f_007f);
    assert_eq!(multiplied(&[1; M * N], &[tiny; M * K], &[one; K * N]), [0; M * N]);
}

/// What is no number stays in its row and column, and the zeros outside the shapes make none.
#[test]
fn tdpbf16ps_with_infinities() {
    if !tiles() {
        return;
    }
    let (mut a, b) = (vec![0x3f80_3f80; M * K], vec![0x3f80_3f80; K * N]);
    a[2 * K + 3] = 0x7f80_0000;
    let got = multiplied(&[0; M * N], &a, &b);
    for (m, row) in got.chunks(N).enumerate() {
        let expected = if m == 2 { f32::INFINITY } else { 2.0 * K as f32 };
        assert!(row.iter().all(|v| f32::from_bits(*v) == expected), "{row:x?}");
    }
    // The largest shapes, of which the first is a part.
    Config::of(&[(1, 4), (1, 64), (16, 4)]).load();
    load::<1>(&[0x7f80_7f80; 16]);
    load::<2>(&[0x3f80_3f80; 16]);
    // SAFETY: touches no memory.
    unsafe { asm!("tdpbf16ps tmm0, tmm1, tmm2", options(nomem, nostack)) };
    assert_eq!(stored::<0>(), [f32::INFINITY.to_bits()]);
}

fn multiplied(sums: &[u32], a: &[u32], b: &[u32]) -> Vec<u32> {
    Config::of(&PARTIAL).load();
    load::<0>(sums);
    load::<1>(a);
    load::<2>(b);
    // SAFETY: touches no memory.
    unsafe { asm!("tdpbf16ps tmm0, tmm1, tmm2", options(nomem, nostack)) };
    stored::<0>()
}

fn in_bfloat16(sums: &[u32], a: &[u32], b: &[u32]) -> Vec<u32> {
    let flushed = |v: f32| if v.is_subnormal() { 0.0f32.copysign(v) } else { v };
    let value = |pair: u32, half: usize| flushed(f32::from_bits((pair >> (16 * half)) << 16));
    let half = |i: usize| {
        product(&[0; M * N], a, b, |sum, a, b| {
            flushed(value(a, i).mul_add(value(b, i), f32::from_bits(sum))).to_bits()
        })
    };
    let sum = |a: u32, b: u32| flushed(flushed(f32::from_bits(a)) + f32::from_bits(b)).to_bits();
    let halves = half(0).into_iter().zip(half(1)).map(|(even, odd)| sum(even, odd));
    sums.iter().zip(halves).map(|(old, new)| sum(*old, new)).collect()
}

#[test]
fn threads_have_registers_of_their_own() {
    if !tiles() {
        return;
    }
    let config = Config::of(&[(1, 8)]);
    config.load();
    load::<0>(&[1, 2]);
    let other = thread::spawn(move || {
        let before = Config::stored();
        config.load();
        load::<0>(&[3, 4]);
        (before, stored::<0>())
    });
    assert_eq!(other.join().unwrap(), (Config::EMPTY, vec![3, 4]));
    assert_eq!(stored::<0>(), [1, 2]);
}

/// The signal that ends a process which does this.
fn end_of(body: impl FnOnce()) -> c_int {
    let mut status = 0;
    // SAFETY: the child makes no call that another thread's lock could hold up, and ends here.
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
fn what_is_refused_ends_the_process() {
    if !tiles() {
        return;
    }
    // SAFETY: none of these comes to touching memory.
    unsafe {
        assert_eq!(end_of(|| Config::of(&PARTIAL).load()), 0);
        assert_eq!(end_of(|| asm!("ud2")), libc::SIGILL);
        // Sent, while nothing is wrong with the instruction.
        assert_eq!(end_of(|| _ = libc::raise(libc::SIGILL)), libc::SIGILL);
        // Nothing is configured, or not this one.
        release();
        assert_eq!(end_of(|| asm!("tilezero tmm0")), libc::SIGILL);
        Config::of(&PARTIAL).load();
        assert_eq!(end_of(|| asm!("tilezero tmm3")), libc::SIGILL);
        // Shapes that do not fit: [5, 7] · [5, 11], and one register twice.
        assert_eq!(end_of(|| asm!("tdpbuud tmm0, tmm2, tmm1")), libc::SIGILL);
        Config::of(&[(8, 32), (8, 32)]).load();
        // tdpbuud tmm0, tmm1, tmm0, which no assembler writes.
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
        // A processor with tiles ends this with another signal.
        assert!([libc::SIGILL, libc::SIGSEGV].contains(&end_of(|| config.load())), "{config:?}");
    }
}

#[test]
fn an_earlier_handler_is_called() {
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn short(_: c_int) {
        CALLED.fetch_add(1, Relaxed);
    }
    extern "C" fn long(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
        CALLED.fetch_add(context as usize, Relaxed);
    }
    // SAFETY: all zeros is an action, to which functions of the flagged kind are added.
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
