//! Products of tiles.

use std::arch::asm;

use super::{Config, load, stored, words};
use crate::install;

/// Registers 0 `[5, 11]`, 1 `[5, 7]` and 2 `[7, 11]` of 32-bit elements: partial sums and factors.
pub(super) const PARTIAL: [(u8, u16); 3] =
    [(M as u8, 4 * N as u16), (M as u8, 4 * K as u16), (K as u8, 4 * N as u16)];
const M: usize = 5;
const K: usize = 7;
const N: usize = 11;

/// `sums + a · b` as the manual defines it, `dot` adding one pair of 32-bit elements.
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
            if !install() {
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

#[test]
fn tdpbf16ps_matches_the_manual() {
    if !install() {
        return;
    }
    // Magnitudes of about 2^-4 to 2^4, both signs.
    let pairs = |seed, count| words(seed, count).into_iter().map(|w| w & 0x83ff_83ff | 0x3e00_3e00).collect();
    let (a, b): (Vec<u32>, Vec<u32>) = (pairs(7, M * K), pairs(8, K * N));
    let sums: Vec<u32> = words(6, M * N).into_iter().map(|w| w & 0x83ff_ffff | 0x3e00_0000).collect();
    assert_eq!(multiplied(&sums, &a, &b), in_bfloat16(&sums, &a, &b));
}

#[test]
fn tdpbf16ps_flushes_subnormals_to_zero() {
    if !install() {
        return;
    }
    // Factors, or products of factors, of 2^-126 and less.
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

#[test]
fn tdpbf16ps_keeps_infinities_in_their_row() {
    if !install() {
        return;
    }
    let (mut a, b) = (vec![0x3f80_3f80; M * K], vec![0x3f80_3f80; K * N]);
    a[2 * K + 3] = 0x7f80_0000;
    let got = multiplied(&[0; M * N], &a, &b);
    for (m, row) in got.chunks(N).enumerate() {
        let expected = if m == 2 { f32::INFINITY } else { 2.0 * K as f32 };
        assert!(row.iter().all(|v| f32::from_bits(*v) == expected), "{row:x?}");
    }
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
