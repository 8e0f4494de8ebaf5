//! Gumbel noise for sampling: a stateless function of seed, position and token id.

use crate::{
    lanes::{LANES, ln},
    simd::{WithSimd, dispatch},
};

/// Writes [`gumbel`] noise for all tokens at `position`.
pub fn fill_gumbel(seed: u64, position: u64, noise: &mut [f32]) {
    dispatch(FillGumbel { seed, position, noise });
}

struct FillGumbel<'a> {
    seed: u64,
    position: u64,
    noise: &'a mut [f32],
}

impl WithSimd for FillGumbel<'_> {
    #[inline(always)]
    fn run(self) {
        for (at, noise) in self.noise.chunks_mut(4 * LANES).enumerate() {
            let made = gumbel_64(self.seed, self.position, (at * 4 * LANES) as u32);
            for (id, noise) in noise.iter_mut().enumerate() {
                *noise = made[id % 4][id / 4];
            }
        }
    }
}

/// Standard Gumbel noise of token `id` at `position`: `-ln(-ln(1 - u))`, where `u` comes from word
/// `id % 4` of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
/// with key `seed` and counter `[id / 4, 0, position]`, low words first. Bit-identical on every
/// processor.
pub fn gumbel(seed: u64, position: u64, id: u32) -> f32 {
    let words = philox::<1>([id / 4], seed, position);
    from_word(words[id as usize % 4][0])
}

/// Noise of 64 tokens from `first`, a multiple of 4; token `first + 4 i + j` at `[j][i]`.
#[inline(always)]
pub(crate) fn gumbel_64(seed: u64, position: u64, first: u32) -> [[f32; LANES]; 4] {
    let mut counters = [0; LANES];
    for (i, counter) in counters.iter_mut().enumerate() {
        *counter = first / 4 + i as u32;
    }
    let words = philox(counters, seed, position);
    let mut noise = [[0.0; LANES]; 4];
    for j in 0..4 {
        for i in 0..LANES {
            noise[j][i] = from_word(words[j][i]);
        }
    }
    noise
}

/// `u` is in `(0, 1)`, finest near 0, where the noise is largest (up to 22.9, one draw in 2³²).
#[inline(always)]
fn from_word(word: u32) -> f32 {
    const LARGEST: f32 = 1.0 - f32::EPSILON / 2.0;
    let u = (word as f32 + 0.5) * (1.0 / 4_294_967_296.0);
    let u = if u < LARGEST { u } else { LARGEST };
    // ln(1 - u), corrected for the rounding of 1 - u.
    let complement = 1.0 - u;
    let lost = (1.0 - complement) - u;
    -ln(-(ln(complement) + lost / complement))
}

/// The four words of each counter `[c, 0, position]`.
#[inline(always)]
fn philox<const N: usize>(counters: [u32; N], seed: u64, position: u64) -> [[u32; N]; 4] {
    let [mut a, mut b, mut c, mut d] = [counters, [0; N], [position as u32; N], [(position >> 32) as u32; N]];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        for i in 0..N {
            let first = a[i] as u64 * 0xD251_1F53;
            let second = c[i] as u64 * 0xCD9E_8D57;
            (a[i], c[i]) = ((second >> 32) as u32 ^ b[i] ^ key[0], (first >> 32) as u32 ^ d[i] ^ key[1]);
            (b[i], d[i]) = (second as u32, first as u32);
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_test_vector() {
        assert_eq!(philox([0], 0, 0).concat(), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
    }

    #[test]
    fn gumbel_64_matches_gumbel() {
        for (seed, position, first) in
            [(0, 0, 0), (7 | 1 << 60, 3, 4096), (u64::MAX, u64::MAX, u32::MAX - 63)]
        {
            let many = gumbel_64(seed, position, first);
            for id in 0..64 {
                let one = gumbel(seed, position, first + id);
                assert_eq!(one.to_bits(), many[id as usize % 4][id as usize / 4].to_bits());
            }
        }
    }

    #[test]
    fn fill_gumbel_matches_gumbel() {
        for n in [1, 63, 64, 65, 700] {
            let mut noise = vec![0.0; n];
            fill_gumbel(5 | 1 << 50, 9, &mut noise);
            let same = |(id, noise): (u32, &f32)| noise.to_bits() == gumbel(5 | 1 << 50, 9, id).to_bits();
            assert!((0..).zip(&noise).all(same), "{n} tokens");
        }
    }

    #[test]
    fn from_word_matches_the_exact_noise() {
        for word in (0..=u32::MAX).step_by(65_537).chain([0, 1, 2, u32::MAX - 1, u32::MAX]) {
            let u = ((word as f64 + 0.5) / 4_294_967_296.0).min(1.0 - f64::from(f32::EPSILON) / 2.0);
            let exact = -(-(-u).ln_1p()).ln();
            let got = from_word(word) as f64;
            // The largest words round to a few floats.
            let bound = if word < 1 << 31 { 1e-6 * exact.abs().max(1.0) } else { 0.05 };
            assert!((got - exact).abs() < bound, "{word:x}: {got} for {exact}");
        }
    }

    #[test]
    fn gumbel_has_the_mean_and_variance_of_its_distribution() {
        let n = 200_000;
        let draws: Vec<f64> = (0..n).map(|i| gumbel(3, i as u64 / 1000, i % 1000) as f64).collect();
        let mean = draws.iter().sum::<f64>() / n as f64;
        let variance = draws.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n as f64;
        assert!((mean - 0.577_216).abs() < 0.012, "mean {mean}");
        assert!((variance - 1.644_934).abs() < 0.04, "variance {variance}");
    }
}
