//! Addresses of loads.

use std::arch::asm;

use super::{Config, stored};
use crate::{
    install,
    instruction::{self, Instruction, Memory},
};

/// Numbered rows of 64 bytes.
#[repr(C, align(64))]
struct Rows([[u8; 64]; 64]);

impl Rows {
    fn numbered() -> Rows {
        Rows(std::array::from_fn(|r| std::array::from_fn(|c| (r + 64 * (c % 4)) as u8)))
    }

    /// The words in the first eight bytes of `count` rows, `step` rows apart.
    fn first(&self, start: usize, step: usize, count: usize) -> Vec<u32> {
        let word = |r: usize, c: usize| u32::from_le_bytes(self.0[r][4 * c..][..4].try_into().unwrap());
        (0..count).flat_map(|i| [0, 1].map(|c| word(start + i * step, c))).collect()
    }
}

/// Register 3, of 6 rows of 8 bytes, loaded by `$asm`.
macro_rules! loaded_from {
    ($($asm:expr),+ ; $($operands:tt)*) => {{
        Config::of(&[(0, 0), (0, 0), (0, 0), (6, 8)]).load();
        // SAFETY: reads from the rows that the operands point to.
        unsafe { asm!($($asm),+, $($operands)*) };
        stored::<3>()
    }};
}

#[test]
fn tileloadd_supports_every_addressing_mode() {
    if !install() {
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
    // Without an index, one row repeated.
    let got = loaded_from!("tileloadd tmm3, [{} + 192]"; in(reg) at);
    assert_eq!(got, expected(3, 0));
    let got = loaded_from!("tileloaddt1 tmm3, [{} + {}*4 + 64]"; in(reg) at, in(reg) 64usize);
    assert_eq!(got, expected(1, 4));
}

/// Some register numbers have another meaning as base or index.
#[test]
fn tileloadd_supports_every_base_and_index_register() {
    if !install() {
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
    // `asm!` does not accept these as operands.
    let got = loaded_from!("push rbx", "mov rbx, rax", "tileloadd tmm3, [rbx + rcx*1]", "pop rbx";
        in("rax") at, in("rcx") step);
    assert_eq!(got, expected);
    let got = loaded_from!("push rbx", "mov rbx, rcx", "tileloadd tmm3, [rax + rbx*1]", "pop rbx";
        in("rax") at, in("rcx") step);
    assert_eq!(got, expected);
    let got = loaded_from!("push rbp", "mov rbp, rax", "tileloadd tmm3, [rbp + rcx*1]", "pop rbp";
        in("rax") at, in("rcx") step);
    assert_eq!(got, expected);
    let got = loaded_from!("push rbp", "mov rbp, rcx", "tileloadd tmm3, [rax + rbp*1]", "pop rbp";
        in("rax") at, in("rcx") step);
    assert_eq!(got, expected);
    // RSP: the rows are copied to the stack first.
    let got = loaded_from!("sub rsp, 4096", "mov rdi, rsp", "mov rcx, 4096", "rep movsb",
        "tileloadd tmm3, [rsp + rax*1]", "add rsp, 4096";
        inout("rsi") at => _, in("rax") step, out("rcx") _, out("rdi") _);
    assert_eq!(got, expected);
}

/// Decoded only: an address without a base has 32 bits, where tests have no memory.
#[test]
fn decode_computes_addresses_without_a_base() {
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
