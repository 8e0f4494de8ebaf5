//! Sampling: penalties, filters and the draw, without sorting tokens that cannot be chosen.

use std::iter;

use crate::{
    gumbel::{gumbel, gumbel_64},
    lanes::{LANES, exp, load_scalar, reduce},
    memory::with_scratch,
    simd::{WithSimd, dispatch},
    top_k::descending_key,
};

/// Sampling parameters of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sampling<'a> {
    /// 0 means greedy.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 means all.
    pub top_k: usize,
    /// Keep the smallest set of likeliest tokens whose probabilities reach `top_p`; 1 means all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the likeliest; 0 means none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of all tokens of `past`; 1 means off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token of `past` that was generated.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it was generated.
    pub frequency_penalty: f32,
    /// Bit mask of the tokens that may be chosen, at least one: bit `id % 32` of word `id / 32`.
    /// Tokens past the last word may not. `None`: all.
    pub allowed: Option<&'a [u32]>,
    /// Added to logits before anything else: token ids, each at most once, and values.
    pub bias: &'a [(u32, f32)],
    /// Tokens of prompt and output, each once.
    pub past: &'a [PastToken],
    pub seed: u64,
}

impl Sampling<'_> {
    /// Greedy, with every filter and penalty off.
    pub const GREEDY: Sampling<'static> = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        allowed: None,
        bias: &[],
        past: &[],
        seed: 0,
    };
}

/// A token of the prompt or output.
#[derive(Clone, Copy, Debug)]
pub struct PastToken {
    pub id: u32,
    /// How often it was generated.
    pub generated: u32,
}

/// Why no token was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleError {
    /// A logit is not a finite number.
    NonFinite,
    /// No token has a finite logit once bias, penalties and `allowed` have been applied.
    NoCandidate,
}

/// Tokens per block, whose largest logit is stored. Small enough for the usual `top_k` to be below
/// the number of blocks.
const LOGIT_BLOCK: usize = 128;
/// Tokens whose probabilities are summed in float32.
const SUM_BLOCK: usize = 256;
/// Up to this many sorted candidates are added one after the other, as GPUs do.
const ADDED_IN_ORDER: usize = 64;
/// Candidates examined first where only `top_p` limits them.
const FIRST_CANDIDATES: usize = 64;

/// The token at `position` of prompt plus output: in the vocabulary, allowed, with a finite logit.
///
/// In this order: bias and penalties; removal of tokens that are not allowed or whose logit became
/// infinite; subtraction of the largest logit, division by the temperature; `min_p`, `top_k`,
/// `top_p` (probabilities renormalised after the filters before it; the lower id first among
/// equals; the likeliest token always stays). Then the token with the largest sum of scaled logit
/// and [`gumbel`] noise is chosen, which draws from the softmax of the candidates; the lowest id
/// among equals. The noise of a token does not depend on the filters.
///
/// # Errors
/// A logit is not finite, or no candidate is left.
pub fn sample(logits: &[f32], sampling: &Sampling, position: u64) -> Result<u32, SampleError> {
    assert!(!logits.is_empty() && u32::try_from(logits.len()).is_ok(), "{} logits", logits.len());
    let blocks = logits.len().div_ceil(LOGIT_BLOCK);
    with_scratch(blocks, |largest| {
        let mut finite = true;
        dispatch(Largest { logits, largest, finite: &mut finite });
        if !finite {
            return Err(SampleError::NonFinite);
        }
        if !sampling.changes_logits() {
            return choose(logits, largest, sampling, position);
        }
        with_scratch(logits.len(), |adjusted| {
            adjusted.copy_from_slice(logits);
            sampling.adjust(adjusted);
            dispatch(Largest { logits: adjusted, largest, finite: &mut finite });
            choose(adjusted, largest, sampling, position)
        })
    })
}

/// The softmax probability of token `id`.
///
/// # Panics
/// If the token does not exist.
pub fn probability(logits: &[f32], id: u32) -> f32 {
    with_total(logits, |scaled, total| (exp(scaled.score(logits[id as usize])) as f64 / total) as f32)
}

/// The logarithm of the sum of `exp(logit)`: a logit minus this is a log-probability. Logits are
/// finite or minus infinity.
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    with_total(logits, |scaled, total| (scaled.max as f64 + total.ln()) as f32)
}

/// Calls `with` with the logits as scores, and the sum of `exp(score)`.
fn with_total<R>(logits: &[f32], with: impl FnOnce(&ScaledLogits, f64) -> R) -> R {
    with_scratch(logits.len().div_ceil(LOGIT_BLOCK), |largest| {
        let (mut finite, mut total) = (true, 0.0);
        dispatch(Largest { logits, largest, finite: &mut finite });
        let max = max_of(largest);
        let scaled = ScaledLogits { logits, largest, max, temperature: 1.0, floor: f32::NEG_INFINITY };
        dispatch(TotalProbability { scaled, total: &mut total });
        with(&scaled, total)
    })
}

fn max_of(largest: &[f32]) -> f32 {
    largest.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

impl Sampling<'_> {
    fn changes_logits(&self) -> bool {
        let penalties =
            self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0;
        !self.bias.is_empty() || self.allowed.is_some() || (penalties && !self.past.is_empty())
    }

    /// Applies bias, penalties and mask. Afterwards, tokens that cannot be chosen have a logit of
    /// minus infinity, others a finite one.
    fn adjust(&self, logits: &mut [f32]) {
        for &(id, value) in self.bias {
            logits[id as usize] += value;
        }
        for &PastToken { id, generated } in self.past {
            let logit = &mut logits[id as usize];
            if self.repetition_penalty != 1.0 {
                *logit = if *logit > 0.0 {
                    *logit / self.repetition_penalty
                } else {
                    *logit * self.repetition_penalty
                };
            }
            if generated > 0 {
                *logit = *logit - generated as f32 * self.frequency_penalty - self.presence_penalty;
            }
        }
        let moved = self.bias.iter().map(|(id, _)| *id).chain(self.past.iter().map(|token| token.id));
        for id in moved {
            let logit = &mut logits[id as usize];
            *logit = if logit.is_finite() { *logit } else { f32::NEG_INFINITY };
        }
        let Some(allowed) = self.allowed else { return };
        for (word, logits) in allowed.iter().chain(iter::repeat(&0)).zip(logits.chunks_mut(32)) {
            let refused = logits.iter_mut().enumerate().filter(|(i, _)| word >> i & 1 == 0);
            refused.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
    }
}

/// The largest logit of each block, and whether all are finite.
struct Largest<'a> {
    logits: &'a [f32],
    largest: &'a mut [f32],
    finite: &'a mut bool,
}

impl WithSimd for Largest<'_> {
    #[inline(always)]
    fn run(self) {
        // Non-finite numbers have all exponent bits set.
        let mut bits = [0u32; LANES];
        for (largest, block) in self.largest.iter_mut().zip(self.logits.chunks(LOGIT_BLOCK)) {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            let (chunks, rest) = block.as_chunks::<LANES>();
            for chunk in chunks {
                for i in 0..LANES {
                    lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
                    let magnitude = chunk[i].to_bits() & 0x7fff_ffff;
                    bits[i] = if magnitude > bits[i] { magnitude } else { bits[i] };
                }
            }
            for (i, x) in rest.iter().enumerate() {
                lanes[i] = if *x > lanes[i] { *x } else { lanes[i] };
                bits[i] = bits[i].max(x.to_bits() & 0x7fff_ffff);
            }
            for half in [8, 4, 2, 1] {
                for i in 0..half {
                    lanes[i] = if lanes[i + half] > lanes[i] { lanes[i + half] } else { lanes[i] };
                }
            }
            *largest = lanes[0];
        }
        *self.finite = bits.iter().all(|&bits| bits < 0x7f80_0000);
    }
}

/// Chooses a token by logits that are finite, or minus infinity for tokens that cannot be chosen.
fn choose(logits: &[f32], largest: &[f32], sampling: &Sampling, position: u64) -> Result<u32, SampleError> {
    // A last check: no id outside the vocabulary or the mask is returned.
    let token = draw_token(logits, largest, sampling, position);
    match logits.get(token as usize) {
        Some(logit) if logit.is_finite() => Ok(token),
        _ => Err(SampleError::NoCandidate),
    }
}

/// `u32::MAX`, or a token that cannot be chosen, if there is no candidate.
fn draw_token(logits: &[f32], largest: &[f32], sampling: &Sampling, position: u64) -> u32 {
    let max = max_of(largest);
    if max == f32::NEG_INFINITY {
        return u32::MAX;
    }
    if sampling.temperature == 0.0 {
        let at = largest.iter().position(|&l| l == max).unwrap_or(0) * LOGIT_BLOCK;
        return (at + logits[at..].iter().position(|&l| l == max).unwrap_or(0)) as u32;
    }
    let floor = score_floor(sampling.min_p);
    let scaled = ScaledLogits { logits, largest, max, temperature: sampling.temperature, floor };
    let top_k = if sampling.top_k == 0 { logits.len() } else { sampling.top_k.min(logits.len()) };
    if top_k == logits.len() && sampling.top_p >= 1.0 && sampling.min_p <= 0.0 {
        let mut token = u32::MAX;
        dispatch(DrawFromAll { scaled, seed: sampling.seed, position, token: &mut token });
        return token;
    }
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    for key in scaled.candidates(top_k, sampling.top_p) {
        let id = key as u32;
        let sum = scaled.score(logits[id as usize]) + gumbel(sampling.seed, position, id);
        if sum > best.0 || (sum == best.0 && id < best.1) {
            best = (sum, id);
        }
    }
    best.1
}

/// The least score that `min_p` keeps.
pub fn score_floor(min_p: f32) -> f32 {
    if min_p > 0.0 { min_p.ln().min(0.0) } else { f32::NEG_INFINITY }
}

/// Scores: logits minus the largest, divided by the temperature. Tokens below `floor` are not
/// candidates.
#[derive(Clone, Copy)]
struct ScaledLogits<'a> {
    logits: &'a [f32],
    /// The largest logit of each block.
    largest: &'a [f32],
    max: f32,
    temperature: f32,
    floor: f32,
}

impl ScaledLogits<'_> {
    #[inline(always)]
    fn score(&self, logit: f32) -> f32 {
        // Subtracted first: division by a tiny temperature must not make several scores infinite.
        (logit - self.max) / self.temperature
    }

    /// A score that at least `count` tokens reach, if there are as many blocks; otherwise the
    /// floor.
    fn reached_by(&self, count: usize) -> f32 {
        if count > self.largest.len() {
            return self.floor;
        }
        let mut largest = self.largest.to_vec();
        let (_, least, _) = largest.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        self.score(*least).max(self.floor)
    }

    /// Sort keys of all tokens whose score reaches `least`, the likeliest first, then by id, which
    /// is the lower half.
    fn keys(&self, least: f32) -> Vec<u64> {
        let mut keys: Vec<u64> = vec![];
        // Few tokens reach `least`, and scores are expensive, so logits are compared first. Despite
        // rounding, no logit whose score reaches `least` is below this bound.
        let around = least * self.temperature;
        let least_logit = self.max + around - 1e-5 * (self.max.abs() - around);
        dispatch(TokensAbove {
            scaled: *self,
            least: least_logit,
            ids: &mut |id| {
                let score = self.score(self.logits[id]);
                if score >= least {
                    keys.push(descending_key(score) << 32 | id as u64);
                }
            },
        });
        keys
    }

    /// Keys of the candidates: the `count` likeliest tokens above the floor, and the likeliest of
    /// those that reach `top_p`.
    fn candidates(&self, count: usize, top_p: f32) -> Vec<u64> {
        if count == self.logits.len() && top_p < 1.0 {
            return self.nucleus(top_p);
        }
        let mut keys = self.keys(self.reached_by(count));
        if count < keys.len() {
            keys.select_nth_unstable(count);
            keys.truncate(count);
        }
        if top_p < 1.0 {
            // Sorted, so that their sum does not depend on the selection.
            keys.sort_unstable();
            let enough = top_p as f64 * self.probability(&keys);
            let needed = if keys.len() <= ADDED_IN_ORDER {
                self.needed_in_order(&keys, enough)
            } else {
                self.needed(&mut keys, enough).unwrap_or(count)
            };
            keys.truncate(needed);
        }
        keys
    }

    /// Keys of the likeliest tokens above the floor that reach `top_p`.
    fn nucleus(&self, top_p: f32) -> Vec<u64> {
        let mut total = 0.0;
        dispatch(TotalProbability { scaled: *self, total: &mut total });
        let mut count = FIRST_CANDIDATES;
        loop {
            let least = self.reached_by(count);
            let mut keys = self.keys(least);
            let needed = self.needed(&mut keys, top_p as f64 * total);
            if needed.is_some() || least <= self.floor {
                keys.truncate(needed.unwrap_or(keys.len()));
                return keys;
            }
            count *= 8;
        }
    }

    /// The sum of `exp(score)`.
    fn probability(&self, keys: &[u64]) -> f64 {
        keys.iter().map(|key| exp(self.score(self.logits[*key as u32 as usize])) as f64).sum()
    }

    /// How many of sorted keys, at least one, have a total probability of `enough`, added in their
    /// order; all if all have less.
    fn needed_in_order(&self, keys: &[u64], enough: f64) -> usize {
        let mut reached = 0.0;
        let reaches = |key: &u64| {
            reached += exp(self.score(self.logits[*key as u32 as usize])) as f64;
            reached >= enough
        };
        keys.iter().position(reaches).map_or(keys.len(), |at| at + 1)
    }

    /// How many of the smallest keys, at least one, have a total probability of `enough`; they are
    /// moved to the front. `None` if all keys have less.
    fn needed(&self, keys: &mut [u64], enough: f64) -> Option<usize> {
        // Binary search: `..from` has too little, `..to` enough.
        let (mut from, mut to, mut before) = (0, keys.len(), 0.0);
        while to - from > 1 {
            let middle = (to - from) / 2;
            keys[from..to].select_nth_unstable(middle);
            let half = self.probability(&keys[from..from + middle]);
            if before + half >= enough {
                to = from + middle;
            } else {
                before += half;
                from += middle;
            }
        }
        let all = to == keys.len();
        (!all || before + self.probability(&keys[from..to]) >= enough).then_some(to)
    }
}

/// Calls `ids` with each token whose logit is not below `least`.
struct TokensAbove<'a, F> {
    scaled: ScaledLogits<'a>,
    least: f32,
    ids: &'a mut F,
}

impl<F: FnMut(usize)> WithSimd for TokensAbove<'_, F> {
    #[inline(always)]
    fn run(self) {
        let blocks = self.scaled.logits.chunks(LOGIT_BLOCK).zip(self.scaled.largest).enumerate();
        for (block, (logits, _)) in blocks.filter(|(_, (_, largest))| **largest >= self.least) {
            for (c, chunk) in logits.chunks(LANES).enumerate() {
                let mut found = 0;
                for (i, logit) in chunk.iter().enumerate() {
                    found |= u32::from(*logit >= self.least) << i;
                }
                while found != 0 {
                    (self.ids)(block * LOGIT_BLOCK + c * LANES + found.trailing_zeros() as usize);
                    found &= found - 1;
                }
            }
        }
    }
}

/// The sum of `exp(score)` over all tokens above the floor.
struct TotalProbability<'a> {
    scaled: ScaledLogits<'a>,
    total: &'a mut f64,
}

impl WithSimd for TotalProbability<'_> {
    #[inline(always)]
    fn run(self) {
        for block in self.scaled.logits.chunks(SUM_BLOCK) {
            let mut sums = [0.0; LANES];
            for chunk in 0..block.len().div_ceil(LANES) {
                let lanes = load_scalar(block, chunk);
                let count = (block.len() - chunk * LANES).min(LANES);
                for i in 0..LANES {
                    let score = self.scaled.score(lanes[i]);
                    let counts = score >= self.scaled.floor && i < count;
                    sums[i] += if counts { exp(score) } else { 0.0 };
                }
            }
            *self.total += reduce(&sums) as f64;
        }
    }
}

/// A draw from all tokens above the floor.
struct DrawFromAll<'a> {
    scaled: ScaledLogits<'a>,
    seed: u64,
    position: u64,
    token: &'a mut u32,
}

/// Tokens whose noise is generated together.
const NOISE_BLOCK: usize = 64;

impl WithSimd for DrawFromAll<'_> {
    #[inline(always)]
    fn run(self) {
        let scaled = self.scaled;
        let mut best = f32::NEG_INFINITY;
        for (at, logits) in scaled.logits.chunks(NOISE_BLOCK).enumerate() {
            let noise = gumbel_64(self.seed, self.position, (at * NOISE_BLOCK) as u32);
            let mut sums = [f32::NEG_INFINITY; NOISE_BLOCK];
            for (id, (sum, logit)) in sums.iter_mut().zip(logits).enumerate() {
                let score = scaled.score(*logit);
                *sum = if score >= scaled.floor { score + noise[id % 4][id / 4] } else { f32::NEG_INFINITY };
            }
            let mut lanes = [f32::NEG_INFINITY; LANES];
            for chunk in sums.as_chunks::<LANES>().0 {
                for i in 0..LANES {
                    lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
                }
            }
            let before = best;
            for lane in lanes {
                best = if lane > best { lane } else { best };
            }
            if best > before {
                let first = sums.iter().position(|sum| *sum == best).unwrap_or(0);
                *self.token = (at * NOISE_BLOCK + first) as u32;
            }
        }
    }
}
