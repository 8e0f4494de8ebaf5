//! Decodes one AMX instruction; `registers` executes it.

/// An instruction with its addresses computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Instruction {
    /// LDTILECFG, from this address.
    LoadConfig(usize),
    /// STTILECFG, to this address.
    StoreConfig(usize),
    /// TILERELEASE.
    Release,
    /// TILEZERO.
    Zero(usize),
    /// TILELOADD and TILELOADDT1.
    Load { tile: usize, memory: Memory },
    /// TILESTORED.
    Store { tile: usize, memory: Memory },
    /// The TDP family: adds the product of tiles `a` and `b` to tile `sums`.
    Multiply { sums: usize, a: usize, b: usize, factors: Factors },
}

/// Element types of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Factors {
    /// Pairs of bfloat16.
    Bfloat16,
    /// Groups of four bytes; which operand is signed.
    Bytes { a_signed: bool, b_signed: bool },
}

/// An operand in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Memory {
    /// Base and displacement.
    pub start: usize,
    /// The scaled index register: bytes between the rows of a tile.
    pub index: usize,
}

/// The legacy prefix that a VEX prefix encodes.
const NONE: u8 = 0;
const P66: u8 = 1;
const F3: u8 = 2;
const F2: u8 = 3;

/// The instruction at address `ip` and the address of the next; `None` if it is not an AMX
/// instruction. `general` are the general registers in the order of their encoding.
///
/// # Safety
/// There must be an instruction at `ip`.
pub(super) unsafe fn decode(ip: usize, general: &[usize; 16]) -> Option<(Instruction, usize)> {
    let mut code = Code { next: ip };
    // SAFETY: the bytes read so far show that the next one belongs to the instruction.
    unsafe {
        if code.byte() != 0xc4 {
            return None;
        }
        // A VEX prefix holds register extensions and `vvvv` inverted.
        let (first, second, opcode) = (!code.byte(), !code.byte(), code.byte());
        let (r, x, b, map) = (first >> 7, first >> 6 & 1, first >> 5 & 1, !first & 0x1f);
        let (w, vvvv, l, prefix) = (!second >> 7, second >> 3 & 0xf, !second >> 2 & 1, !second & 3);
        // AMX has eight registers, and no 64-bit form or vector length.
        if r != 0 || map != 2 || w != 0 || l != 0 || !matches!(opcode, 0x49 | 0x4b | 0x5c | 0x5e) {
            return None;
        }
        let modrm = code.byte();
        let (in_memory, reg, rm) = (modrm >> 6 != 3, modrm >> 3 & 7, modrm & 7);
        let tile = reg as usize;
        let instruction = match (opcode, prefix, in_memory) {
            (0x49, NONE | P66, true) if reg == 0 && vvvv == 0 => {
                let memory = code.memory(modrm, x, b, general);
                let at = memory.start.wrapping_add(memory.index);
                if prefix == NONE { Instruction::LoadConfig(at) } else { Instruction::StoreConfig(at) }
            }
            (0x49, NONE, false) if reg == 0 && rm == 0 && vvvv == 0 => Instruction::Release,
            (0x49, F2, false) if rm == 0 && vvvv == 0 => Instruction::Zero(tile),
            (0x4b, F2 | P66, true) if rm == 4 && vvvv == 0 => {
                Instruction::Load { tile, memory: code.memory(modrm, x, b, general) }
            }
            (0x4b, F3, true) if rm == 4 && vvvv == 0 => {
                Instruction::Store { tile, memory: code.memory(modrm, x, b, general) }
            }
            (0x5c, F3, false) | (0x5e, _, false) if b == 0 && vvvv < 8 => {
                let factors = match (opcode, prefix) {
                    (0x5c, _) => Factors::Bfloat16,
                    (_, prefix) => Factors::Bytes {
                        a_signed: matches!(prefix, F2 | F3),
                        b_signed: matches!(prefix, F2 | P66),
                    },
                };
                Instruction::Multiply { sums: tile, a: rm as usize, b: vvvv as usize, factors }
            }
            _ => return None,
        };
        Some((instruction, code.next))
    }
}

/// Reads the bytes of an instruction in order.
struct Code {
    next: usize,
}

impl Code {
    /// # Safety
    /// The next byte must belong to the instruction.
    unsafe fn byte(&mut self) -> u8 {
        // SAFETY: the caller ensures it.
        let byte = unsafe { *(self.next as *const u8) };
        self.next += 1;
        byte
    }

    /// A 32-bit displacement.
    ///
    /// # Safety
    /// The next four bytes must belong to the instruction.
    unsafe fn long(&mut self) -> usize {
        // SAFETY: the caller ensures it.
        let bytes = [0; 4].map(|_| unsafe { self.byte() });
        i32::from_le_bytes(bytes) as usize
    }

    /// The operand after a ModRM byte that names memory; `x` and `b` extend the index and the base.
    ///
    /// # Safety
    /// The ModRM byte must be the last byte read.
    unsafe fn memory(&mut self, modrm: u8, x: u8, b: u8, general: &[usize; 16]) -> Memory {
        let register = |low: u8, extension: u8| general[(extension << 3 | low & 7) as usize];
        let (mode, rm) = (modrm >> 6, modrm & 7);
        // SAFETY: the caller ensures it.
        unsafe {
            let (base, index) = if rm == 4 {
                let sib = self.byte();
                // RSP's number means that there is no index.
                let none = sib >> 3 & 7 == 4 && x == 0;
                (sib & 7, if none { 0 } else { register(sib >> 3, x) << (sib >> 6) })
            } else {
                (rm, 0)
            };
            let start = match (mode, base) {
                // The number of RBP and R13: without a SIB byte, relative to the next instruction;
                // with one, absolute. AMX instructions end with their displacement.
                (0, 5) if rm == 5 => self.long().wrapping_add(self.next),
                (0, 5) => self.long(),
                (0, _) => register(base, b),
                (1, _) => register(base, b).wrapping_add(self.byte() as i8 as usize),
                _ => register(base, b).wrapping_add(self.long()),
            };
            Memory { start, index }
        }
    }
}
