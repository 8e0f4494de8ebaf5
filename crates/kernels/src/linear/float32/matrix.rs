//! Weights of each format, read 16 values at a time.

use crate::{
    lanes::{LANES, Lanes, load_scalar},
    linear::{
        Microscaled,
        codes::{doubled_e2m1, e4m3, e8m0, unpack_chunk},
    },
    scalar::Scalar,
};

/// A weight as rows to be read 16 values at a time.
pub(super) trait WeightMatrix: Copy + Send + Sync {
    type Row: WeightRow;
    fn row(self, index: usize) -> Self::Row;
}

/// One row of a weight.
pub(super) trait WeightRow: Copy {
    /// Values `16 * chunk ..` of the row, zeros past its end.
    fn lanes(&self, chunk: usize) -> Lanes;
}

/// A matrix `[rows, k]` of floats.
#[derive(Clone, Copy)]
pub(super) struct DenseMatrix<'a, W> {
    pub values: &'a [W],
    pub k: usize,
}

impl<'a, W: Scalar> WeightMatrix for DenseMatrix<'a, W> {
    type Row = &'a [W];
    #[inline(always)]
    fn row(self, index: usize) -> &'a [W] {
        &self.values[index * self.k..][..self.k]
    }
}

impl<W: Scalar> WeightRow for &[W] {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        load_scalar(self, chunk)
    }
}

/// A row already unpacked into lanes.
impl WeightRow for &[Lanes] {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        self[chunk]
    }
}

/// An affine matrix with `words` of codes and `groups` of scales per row; as its own [`WeightRow`],
/// those of one row.
#[derive(Clone, Copy)]
pub(super) struct AffineMatrix<'a, const BITS: usize> {
    pub codes: &'a [u32],
    pub scales: &'a [f32],
    pub biases: &'a [f32],
    pub words: usize,
    pub groups: usize,
    pub chunks_per_group: usize,
}

impl<const BITS: usize> WeightMatrix for AffineMatrix<'_, BITS> {
    type Row = Self;
    #[inline(always)]
    fn row(self, index: usize) -> Self {
        AffineMatrix {
            codes: &self.codes[index * self.words..][..self.words],
            scales: &self.scales[index * self.groups..][..self.groups],
            biases: &self.biases[index * self.groups..][..self.groups],
            ..self
        }
    }
}

impl<const BITS: usize> WeightRow for AffineMatrix<'_, BITS> {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        let codes = unpack_chunk::<BITS>(self.codes, chunk);
        let group = chunk / self.chunks_per_group;
        let (scale, bias) = (self.scales[group], self.biases[group]);
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = (codes[i] as f32).mul_add(scale, bias);
        }
        lanes
    }
}

/// A microscaled matrix with `words` of codes and `groups` of scales per row; as its own
/// [`WeightRow`], those of one row.
#[derive(Clone, Copy)]
pub(super) struct MicroscaledMatrix<'a, const BITS: usize, const GROUP: usize> {
    codes: &'a [u32],
    scales: &'a [u8],
    words: usize,
    groups: usize,
}

impl<'a, const BITS: usize, const GROUP: usize> MicroscaledMatrix<'a, BITS, GROUP> {
    pub(super) fn new(weight: Microscaled<'a>, k: usize) -> Self {
        let Microscaled { codes, scales, .. } = weight;
        MicroscaledMatrix { codes, scales, words: k * BITS / 32, groups: k / GROUP }
    }
}

impl<const BITS: usize, const GROUP: usize> WeightMatrix for MicroscaledMatrix<'_, BITS, GROUP> {
    type Row = Self;
    #[inline(always)]
    fn row(self, index: usize) -> Self {
        MicroscaledMatrix {
            codes: &self.codes[index * self.words..][..self.words],
            scales: &self.scales[index * self.groups..][..self.groups],
            ..self
        }
    }
}

impl<const BITS: usize, const GROUP: usize> WeightRow for MicroscaledMatrix<'_, BITS, GROUP> {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        let byte = self.scales[chunk * LANES / GROUP];
        let scale = if GROUP == 16 { e4m3(byte as u32) } else { e8m0(byte) };
        let codes = unpack_chunk::<BITS>(self.codes, chunk);
        // Exact but for overflow and subnormals: code and scale have at most 6 significant bits
        // together.
        let mut lanes = [0.0; LANES];
        if BITS == 4 {
            for i in 0..LANES {
                lanes[i] = doubled_e2m1(codes[i]) * (scale * 0.5);
            }
        } else {
            for i in 0..LANES {
                lanes[i] = e4m3(codes[i]) * scale;
            }
        }
        lanes
    }
}
