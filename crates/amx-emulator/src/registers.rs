//! The tile registers of a thread, and the effect of each instruction on them.

use std::ops::Range;

use super::instruction::{Factors, Instruction, Memory};

/// Palette 1: eight registers of up to 16 rows of up to 64 bytes.
const TILES: usize = 8;
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;

/// A row of a register.
type Row = [u32; ROW_BYTES / 4];

const ZERO: [Row; ROWS] = [[0; ROW_BYTES / 4]; ROWS];

/// Elements outside a register's configured shape are computed too, but no instruction reads them,
/// and a new configuration zeroes them.
pub(super) struct Registers {
    /// Byte 0: the palette, 0 if nothing is configured. Byte 1: the row at which loads and stores
    /// start. From byte 16: bytes per row of each register, as `u16`. From byte 48: rows of each
    /// register.
    config: [u8; 64],
    tiles: [[Row; ROWS]; TILES],
}

/// Rows, and bytes per row.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    bytes: usize,
}

impl Registers {
    pub(crate) const RELEASED: Registers = Registers { config: [0; 64], tiles: [ZERO; TILES] };

    /// `None`, without effect, if AMX would refuse the instruction.
    ///
    /// # Safety
    /// The instruction's memory must be valid to read or write, and the processor must have
    /// AVX-512.
    pub(crate) unsafe fn execute(&mut self, instruction: Instruction) -> Option<()> {
        // SAFETY: the caller ensures it.
        unsafe {
            match instruction {
                Instruction::LoadConfig(at) => {
                    return self.configure((at as *const [u8; 64]).read_unaligned());
                }
                Instruction::StoreConfig(at) => {
                    (at as *mut [u8; 64]).write_unaligned(self.config);
                    return Some(());
                }
                Instruction::Release => *self = Registers::RELEASED,
                Instruction::Zero(tile) if self.named(tile).rows > 0 => self.tiles[tile] = ZERO,
                Instruction::Zero(_) => return None,
                Instruction::Load { tile, memory } => self.load(tile, memory)?,
                Instruction::Store { tile, memory } => self.store(tile, memory)?,
                Instruction::Multiply { sums, a, b, factors } => self.multiply([sums, a, b], factors)?,
            }
        }
        self.config[1] = 0;
        Some(())
    }

    fn configure(&mut self, config: [u8; 64]) -> Option<()> {
        let configured = Registers { config, ..Registers::RELEASED };
        *self = match config[0] {
            0 => Registers::RELEASED,
            1 if configured.is_valid() => configured,
            _ => return None,
        };
        Some(())
    }

    fn is_valid(&self) -> bool {
        let reserved = [2..16, 16 + 2 * TILES..48, 48 + TILES..64];
        let fits = |shape: Shape| shape.rows <= ROWS && shape.bytes <= ROW_BYTES;
        reserved.into_iter().all(|range| self.config[range].iter().all(|byte| *byte == 0))
            && (0..TILES).map(|tile| self.named(tile)).all(|s| fits(s) && (s.rows == 0) == (s.bytes == 0))
    }

    /// The configured shape of a register, zeros if it is unused.
    fn named(&self, tile: usize) -> Shape {
        let bytes = [self.config[16 + 2 * tile], self.config[17 + 2 * tile]];
        Shape { rows: self.config[48 + tile] as usize, bytes: u16::from_le_bytes(bytes) as usize }
    }

    /// The shape of a register that is used and whose rows are whole 32-bit elements.
    fn shape(&self, tile: usize) -> Option<Shape> {
        Some(self.named(tile)).filter(|shape| shape.rows > 0 && shape.bytes.is_multiple_of(4))
    }

    /// The rows that a load or store moves.
    fn rows(&self, shape: Shape) -> Option<Range<usize>> {
        Some(self.config[1] as usize..shape.rows).filter(|rows| !rows.is_empty())
    }

    unsafe fn load(&mut self, tile: usize, memory: Memory) -> Option<()> {
        let shape = self.shape(tile)?;
        for row in self.rows(shape)? {
            let to = self.tiles[tile][row].as_mut_ptr().cast::<u8>();
            // SAFETY: a row holds its shape's bytes; the caller ensures that the memory is valid.
            unsafe { memory.row(row).copy_to(to, shape.bytes) };
        }
        Some(())
    }

    unsafe fn store(&self, tile: usize, memory: Memory) -> Option<()> {
        let shape = self.shape(tile)?;
        for row in self.rows(shape)? {
            let from = self.tiles[tile][row].as_ptr().cast::<u8>();
            // SAFETY: as in `load`.
            unsafe { memory.row(row).copy_from(from, shape.bytes) };
        }
        Some(())
    }

    /// `sums[m, n] += a[m, k] · b[k, n]`, each `k` a pair or four elements.
    #[target_feature(enable = "avx512f")]
    fn multiply(&mut self, tiles: [usize; 3], factors: Factors) -> Option<()> {
        let [sums, a, b] = tiles.map(|tile| self.shape(tile));
        let (sums, a, b) = (sums?, a?, b?);
        if sums.rows != a.rows || sums.bytes != b.bytes || a.bytes != 4 * b.rows {
            return None;
        }
        let (m, k) = (sums.rows, b.rows);
        // Fails if two operands are the same register, as AMX does.
        let [sums, a, b] = self.tiles.get_disjoint_mut(tiles).ok()?;
        for (sums, a) in sums.iter_mut().zip(a).take(m) {
            match factors {
                Factors::Bfloat16 => add_bfloat16(sums, &a[..k], b),
                Factors::Bytes { a_signed, b_signed } => add_bytes(sums, &a[..k], a_signed, b, b_signed),
            }
        }
        Some(())
    }
}

impl Memory {
    fn row(self, row: usize) -> *mut u8 {
        self.start.wrapping_add(self.index.wrapping_mul(row)) as *mut u8
    }
}

/// Even and odd elements have separate sums. Subnormal numbers count as zero everywhere; a value
/// that rounds up to the smallest normal number is kept here, while a processor may flush it before
/// rounding.
#[target_feature(enable = "avx512f")]
fn add_bfloat16(sums: &mut Row, a: &[u32], b: &[Row; ROWS]) {
    let mut halves = [[0.0f32; ROW_BYTES / 4]; 2];
    for (a, b) in a.iter().zip(b) {
        for half in 0..2 {
            let x = number(*a, half);
            for n in 0..b.len() {
                halves[half][n] = normal(x.mul_add(number(b[n], half), halves[half][n]));
            }
        }
    }
    for n in 0..sums.len() {
        let sum = normal(f32::from_bits(sums[n]));
        sums[n] = normal(sum + normal(halves[0][n] + halves[1][n])).to_bits();
    }
}

/// The even or odd element of a pair.
#[inline(always)]
fn number(pair: u32, half: usize) -> f32 {
    normal(f32::from_bits(if half == 0 { pair << 16 } else { pair & 0xffff_0000 }))
}

#[inline(always)]
fn normal(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(value) } else { value }
}

#[target_feature(enable = "avx512f")]
fn add_bytes(sums: &mut Row, a: &[u32], a_signed: bool, b: &[Row; ROWS], b_signed: bool) {
    for (a, b) in a.iter().zip(b) {
        for i in 0..4 {
            let x = byte(*a, i, a_signed);
            for n in 0..b.len() {
                sums[n] = sums[n].wrapping_add((x * byte(b[n], i, b_signed)) as u32);
            }
        }
    }
}

/// Byte `i` of four.
#[inline(always)]
fn byte(four: u32, i: usize, signed: bool) -> i32 {
    let byte = four.to_le_bytes()[i];
    if signed { byte as i8 as i32 } else { byte as i32 }
}
