//! The documented orders of summation of products in bfloat16, one number at a time.

use half::bf16;
use kernels::{Vectors, vectors};

/// Where the numbers of a block of 64 stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Natural,
    Fourths,
}

/// One row of `x` with every row of `weight` `[n, k]`, in the order of this processor's instructions.
pub fn products(x: &[f32], weight: &[f32], k: usize, order: Order) -> Vec<f32> {
    let x = blocks(x, order);
    let dot = if vectors() == Vectors::Amx { tiles } else { lanes };
    weight.chunks(k).map(|row| dot(&blocks(row, order), &x)).collect()
}

/// Rounded, in lines of 32 numbers.
fn blocks(row: &[f32], order: Order) -> Vec<[f32; 32]> {
    let mut lines = vec![];
    for block in row.chunks(64) {
        let value = |i: usize| block.get(i).map_or(0.0, |v| bf16::from_f32(*v).to_f32());
        for line in 0..2 {
            lines.push(std::array::from_fn(|i| match order {
                Order::Natural => value(32 * line + i),
                // 0, 4, 8 .. 60, then from 2 on; the other line from 1 on and from 3 on.
                Order::Fourths => value(4 * (i % 16) + 2 * (i / 16) + line),
            }));
        }
    }
    lines
}

fn lanes(w: &[[f32; 32]], x: &[[f32; 32]]) -> f32 {
    let mut sums = [0.0f32; 16];
    for (w, x) in w.iter().zip(x) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = w[2 * i + 1].mul_add(x[2 * i + 1], *sum);
            *sum = w[2 * i].mul_add(x[2 * i], *sum);
        }
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    sums[0]
}

fn tiles(w: &[[f32; 32]], x: &[[f32; 32]]) -> f32 {
    let mut sum = 0.0f32;
    for (w, x) in w.iter().zip(x) {
        let mut halves = [0.0f32; 2];
        for i in 0..32 {
            halves[i % 2] = w[i].mul_add(x[i], halves[i % 2]);
        }
        sum += halves[0] + halves[1];
    }
    sum
}
