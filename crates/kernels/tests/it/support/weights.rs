//! Random weights in each format, and their values.

use lanner_kernels::{Affine, FloatFormat, Floats, Microscaled, Scalar, Weight};

use super::{noise, random_words};

/// An affine weight `[rows, k]` with owned parts.
pub(crate) struct AffineParts {
    pub codes: Vec<u32>,
    pub scales: Vec<f32>,
    pub biases: Vec<f32>,
    pub group_size: usize,
    pub bits: usize,
    pub k: usize,
}

impl AffineParts {
    pub(crate) fn random(
        seed: u64,
        rows: usize,
        groups: usize,
        group_size: usize,
        bits: usize,
    ) -> AffineParts {
        let k = groups * group_size;
        AffineParts {
            codes: random_words(seed, rows * k * bits / 32),
            scales: noise(seed + 1, rows * groups),
            biases: noise(seed + 2, rows * groups),
            group_size,
            bits,
            k,
        }
    }

    pub(crate) fn weight(&self) -> Weight<'_> {
        let AffineParts { codes, scales, biases, group_size, bits, .. } = self;
        let (scales, biases) = (Floats::F32(scales), Floats::F32(biases));
        Weight::Affine(Affine { codes, scales, biases, group_size: *group_size, bits: *bits })
    }

    /// Scales and biases in another type.
    pub(crate) fn floats<T: Scalar>(&self) -> [Vec<T>; 2] {
        [&self.scales, &self.biases].map(|values| values.iter().map(|v| T::from_f32(*v)).collect())
    }

    pub(crate) fn integers(&self) -> Integers {
        let values = self.scales.len() * self.group_size;
        Integers {
            codes: (0..values).map(|i| code(&self.codes, self.k, self.bits, i) as i64).collect(),
            scales: self.scales.iter().zip(&self.biases).map(|(scale, bias)| [*scale, *bias]).collect(),
            group: self.group_size,
        }
    }

    pub(crate) fn unpacked(&self) -> Vec<f32> {
        let value = |i: usize| {
            let (scale, bias) = (self.scales[i / self.group_size], self.biases[i / self.group_size]);
            (code(&self.codes, self.k, self.bits, i) as f32).mul_add(scale, bias)
        };
        (0..self.scales.len() * self.group_size).map(value).collect()
    }
}

/// A weight as integers, code * scale + bias; for 4-bit floats, twice the value times half the
/// scale.
pub(crate) struct Integers {
    pub codes: Vec<i64>,
    /// Scale and bias of each group.
    pub scales: Vec<[f32; 2]>,
    pub group: usize,
}

/// A microscaled weight `[rows, k]` with owned parts.
pub(crate) struct FloatParts {
    pub codes: Vec<u32>,
    pub scales: Vec<u8>,
    pub format: FloatFormat,
    pub k: usize,
}

impl FloatParts {
    /// Random parts without NaN scales and codes.
    pub(crate) fn random(seed: u64, rows: usize, groups: usize, format: FloatFormat) -> FloatParts {
        let (bits, group) = layout(format);
        let mut codes = random_words(seed, rows * groups * group * bits / 32);
        if bits == 8 {
            // A byte of all ones below the sign is NaN; its neighbour is not.
            codes.iter_mut().for_each(|word| {
                let bytes = word.to_le_bytes().map(|byte| if byte & 0x7f == 0x7f { byte - 1 } else { byte });
                *word = u32::from_le_bytes(bytes);
            });
        }
        let scales = random_words(seed + 1, rows * groups);
        let scale = |word: u32| match format {
            FloatFormat::Nvfp4 => (word % 0x7f) as u8,
            _ => (word % 16 + 118) as u8,
        };
        FloatParts { codes, scales: scales.into_iter().map(scale).collect(), format, k: groups * group }
    }

    pub(crate) fn weight(&self) -> Weight<'_> {
        Weight::Microscaled(Microscaled { codes: &self.codes, scales: &self.scales, format: self.format })
    }

    /// The weight as integers, if codes have 4 bits.
    pub(crate) fn integers(&self) -> Option<Integers> {
        let (bits, group) = layout(self.format);
        let doubled = |i| (2.0 * small_float(code(&self.codes, self.k, bits, i), 2, 1)) as i64;
        (bits == 4).then(|| Integers {
            codes: (0..self.scales.len() * group).map(doubled).collect(),
            scales: (0..self.scales.len()).map(|g| [(self.scale(g) / 2.0) as f32, 0.0]).collect(),
            group,
        })
    }

    fn scale(&self, group: usize) -> f64 {
        match self.format {
            FloatFormat::Nvfp4 => small_float(self.scales[group] as u32, 4, 3),
            _ => 2f64.powi(self.scales[group] as i32 - 127),
        }
    }

    pub(crate) fn unpacked(&self) -> Vec<f32> {
        let (bits, group) = layout(self.format);
        let value = |i: usize| {
            let code = code(&self.codes, self.k, bits, i);
            let scale = self.scale(i / group);
            (scale * if bits == 4 { small_float(code, 2, 1) } else { small_float(code, 4, 3) }) as f32
        };
        (0..self.scales.len() * group).map(value).collect()
    }
}

/// Bits of a code and values in a group.
pub(crate) fn layout(format: FloatFormat) -> (usize, usize) {
    match format {
        FloatFormat::Mxfp4 => (4, 32),
        FloatFormat::Mxfp8 => (8, 32),
        FloatFormat::Nvfp4 => (4, 16),
    }
}

/// Code `i` of a matrix with rows of `k`, bit by bit.
fn code(codes: &[u32], k: usize, bits: usize, i: usize) -> u32 {
    let row = &codes[i / k * (k * bits / 32)..];
    let bit = |b: usize| row[(i % k * bits + b) / 32] >> ((i % k * bits + b) % 32) & 1;
    (0..bits).map(|b| bit(b) << b).sum()
}

/// A float with a sign, `exponent` bits around 2^(exponent - 1) - 1 and `mantissa` bits.
pub(crate) fn small_float(code: u32, exponent: i32, mantissa: i32) -> f64 {
    let sign = if code >> (exponent + mantissa) & 1 == 1 { -1.0 } else { 1.0 };
    let (e, m) = (code >> mantissa & ((1 << exponent) - 1), code & ((1 << mantissa) - 1));
    let fraction = m as f64 / (1 << mantissa) as f64;
    let bias = (1 << (exponent - 1)) - 1;
    sign * match e {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(e as i32 - bias),
    }
}

/// Matrix `e` of a stack, each `[n, k]`.
pub(crate) fn matrix<'a>(stack: &Weight<'a>, e: usize, n: usize, k: usize) -> Weight<'a> {
    let part = |len: usize| e * len..(e + 1) * len;
    let floats = |values: &Floats<'a>, len: usize| match values {
        Floats::F32(values) => Floats::F32(&values[part(len)]),
        Floats::F16(values) => Floats::F16(&values[part(len)]),
        Floats::Bf16(values) => Floats::Bf16(&values[part(len)]),
    };
    match stack {
        Weight::Packed(_) => unreachable!("tests cut stacks before they pack them"),
        Weight::Dense(values) => Weight::Dense(floats(values, n * k)),
        Weight::Affine(Affine { codes, scales, biases, group_size, bits }) => Weight::Affine(Affine {
            codes: &codes[part(n * k * bits / 32)],
            scales: floats(scales, n * k / group_size),
            biases: floats(biases, n * k / group_size),
            group_size: *group_size,
            bits: *bits,
        }),
        Weight::Microscaled(Microscaled { codes, scales, format }) => {
            let (bits, group) = layout(*format);
            Weight::Microscaled(Microscaled {
                codes: &codes[part(n * k * bits / 32)],
                scales: &scales[part(n * k / group)],
                format: *format,
            })
        }
    }
}
