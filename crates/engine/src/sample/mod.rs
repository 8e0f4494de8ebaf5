//! From logits to a token: a pure function of the logits, the tokens so far, the parameters and the position.
//!
//! A sampled token is `argmax(logits / temperature + gumbel(seed, position))` after the filters, which draws from
//! the softmax (Gumbel-max trick). Noise is keyed by token id: the same seed and position give the same noise, whatever
//! the other parameters are.

pub mod logprobs;

use std::{ops::Range, sync::Arc};

use kernels::SampleError;
use mlx::{Array, Dtype, OutputSpec};

use crate::api::{Sampling, TokenSet};

/// Tokens on the device, and for each whether it is one.
#[derive(Clone)]
pub struct Chosen {
    /// Uint32 `[n]`, each below the vocabulary's size, whatever the numbers were.
    pub tokens: Array,
    /// Float32 `[n]`, read by [`unchosen`].
    pub faults: Array,
}

impl Chosen {
    /// One behind the other.
    pub fn concatenate(parts: Vec<Chosen>) -> Chosen {
        let join = |arrays: Vec<&Array>| match &arrays[..] {
            [one] => (*one).clone(),
            all => Array::concatenate(all.iter().copied(), 0),
        };
        Chosen {
            tokens: join(parts.iter().map(|part| &part.tokens).collect()),
            faults: join(parts.iter().map(|part| &part.faults).collect()),
        }
    }
}

/// How each row's fault travels in a float32 array.
const FAULTS: [(f32, Option<SampleError>); 3] =
    [(0.0, None), (1.0, Some(SampleError::NonFinite)), (2.0, Some(SampleError::NoCandidate))];

/// Why a row whose fault is this number has no token; `None` if it has one.
pub fn unchosen(fault: f32) -> Option<SampleError> {
    let known = FAULTS.iter().find(|(number, _)| *number == fault);
    known.map_or(Some(SampleError::NonFinite), |(_, unchosen)| *unchosen)
}

fn fault(unchosen: Option<SampleError>) -> f32 {
    FAULTS.iter().find(|(_, known)| *known == unchosen).map_or(f32::NAN, |(number, _)| *number)
}

/// Where float32 `x` is finite, as bool: infinities and NaN times 0 are NaN.
fn is_finite(x: &Array) -> Array {
    let zero = Array::scalar(0.0, Dtype::Float32);
    (x * &zero).greater_equal(&zero)
}

/// One sequence's sampler: its parameters, and what penalties need to know of its past.
pub struct Sampler {
    sampling: Arc<Sampling>,
    /// `logit_bias` as indices and values, and as pairs.
    bias: Option<(Array, Array)>,
    pairs: Arc<[(u32, f32)]>,
    past: Past,
    /// What the past was at each position of a draft that nobody has judged yet.
    tried: Vec<Past>,
}

/// What penalties know of the tokens so far.
#[derive(Clone)]
struct Past {
    /// Float32 `[vocab_size]`: 1 for tokens of prompt or output. Only with a repetition penalty.
    seen: Option<Array>,
    /// Float32 `[vocab_size]`: how often each token was generated. Only with presence or frequency penalty.
    counts: Option<Array>,
}

impl Past {
    fn is_needed(&self) -> bool {
        self.seen.is_some() || self.counts.is_some()
    }

    /// With one more token, uint32 `[1]`.
    fn push(&mut self, token: &Array) {
        let one = Array::full(&[1], 1.0, Dtype::Float32);
        if let Some(seen) = &mut self.seen {
            *seen = seen.put_along_axis(token, &one, 0);
        }
        if let Some(counts) = &mut self.counts {
            *counts = counts.scatter_add(token, &one, 0);
        }
    }
}

impl Sampler {
    /// `prompt` and `generated` are the tokens before the first one to be sampled.
    pub fn new(sampling: &Sampling, vocab_size: usize, prompt: &[u32], generated: &[u32]) -> Sampler {
        let vector = |tokens: &mut dyn Iterator<Item = &u32>, add: fn(&mut f32)| {
            let mut values = vec![0.0f32; vocab_size];
            tokens.for_each(|&id| add(&mut values[id as usize]));
            Array::from_slice(&values, &[vocab_size as i32])
        };
        let penalised = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        let bias = (!sampling.logit_bias.is_empty()).then(|| {
            let (ids, values): (Vec<u32>, Vec<f32>) = sampling.logit_bias.iter().unzip();
            let n = ids.len() as i32;
            (Array::from_slice(&ids, &[n]), Array::from_slice(&values, &[n]))
        });
        let past = Past {
            seen: (sampling.repetition_penalty != 1.0)
                .then(|| vector(&mut prompt.iter().chain(generated), |v| *v = 1.0)),
            counts: penalised.then(|| vector(&mut generated.iter(), |v| *v += 1.0)),
        };
        let pairs = sampling.logit_bias.iter().map(|(id, value)| (*id, *value)).collect();
        Sampler { bias, pairs, past, tried: vec![], sampling: Arc::new(sampling.clone()) }
    }

    /// Whether every token is the likeliest one, whatever came before.
    pub fn is_argmax(&self) -> bool {
        self.bias.is_none() && !self.past.is_needed() && self.sampling.temperature == 0.0
    }

    /// Tokens `[1 + draft]` at `position` of prompt plus output and behind each token of a draft that begins
    /// there, from float32 logits `[1 + draft, vocab_size]`. Each is the token that would be chosen if what the draft has
    /// before it were the output. `allowed` is empty, or says for each which tokens may be chosen.
    ///
    /// Behind a draft [`judged`](Sampler::judged) is to be called.
    pub fn sample(&mut self, logits: &Array, position: usize, draft: &[u32], allowed: &[TokenSet]) -> Chosen {
        if let Some(choices) = self.choices(position, 1 + draft.len(), allowed) {
            return choose(logits, choices);
        }
        let mut all = vec![];
        self.tried.clear();
        for (i, row) in (0..).zip(0..=draft.len()) {
            let logits = logits.slice(0, i, i + 1).reshape(&[-1]);
            let chosen = self.sample_in_steps(&logits, position + row, allowed.get(row));
            match draft.get(row) {
                Some(&drafted) => {
                    self.tried.push(self.past.clone());
                    self.past.push(&Array::from_slice(&[drafted], &[1]));
                }
                None if draft.is_empty() => self.past.push(&chosen.tokens),
                None => self.tried.push(self.past.clone()),
            }
            all.push(chosen);
        }
        Chosen::concatenate(all)
    }

    /// Told how many tokens of the draft stay, and the token behind those.
    pub fn judged(&mut self, accepted: usize, next: u32) {
        if self.past.is_needed() {
            self.past = self.tried.swap_remove(accepted);
            self.past.push(&Array::from_slice(&[next], &[1]));
            self.tried.clear();
        }
    }

    /// What [`choose`] needs to know for the tokens of [`sample`](Sampler::sample), of which there are `rows`; `None` if they
    /// cannot be chosen in one operation: on a GPU, or where penalties depend on tokens before them.
    pub fn choices(&self, position: usize, rows: usize, allowed: &[TokenSet]) -> Option<Vec<Choice>> {
        if self.past.is_needed() || mlx::on_gpu() {
            return None;
        }
        let choice = |row| Choice {
            sampling: self.sampling.clone(),
            bias: self.pairs.clone(),
            allowed: allowed.get(row).cloned(),
            position: (position + row) as u64,
        };
        Some((0..rows).map(choice).collect())
    }

    /// The token `[1]` at `position` from logits `[vocab_size]`.
    fn sample_in_steps(&self, logits: &Array, position: usize, allowed: Option<&TokenSet>) -> Chosen {
        let minus_infinity = Array::scalar(f32::NEG_INFINITY, Dtype::Float32);
        let mut adjusted = self.adjusted(logits);
        // What bias and penalties have made infinite is not to be chosen.
        adjusted = is_finite(&adjusted).select(&adjusted, &minus_infinity);
        if let Some(allowed) = allowed.and_then(|allowed| allowed.array(adjusted.dim(0))) {
            adjusted = allowed.select(&adjusted, &minus_infinity);
        }
        let token = match self.sampling.temperature {
            0.0 => adjusted.argmax(-1).reshape(&[1]),
            // The largest becomes 0 first: dividing by a tiny temperature must not make several of them infinite.
            temperature => self.draw(&((&adjusted - adjusted.max(-1, true)) / temperature), position),
        };
        let last = Array::from_slice(&[logits.dim(0) as u32 - 1], &[1]);
        let token = token.minimum(&last);
        let faults = [None, Some(SampleError::NoCandidate), Some(SampleError::NonFinite)];
        let [none, nothing, odd] = faults.map(|unchosen| Array::scalar(fault(unchosen), Dtype::Float32));
        let faults = is_finite(&adjusted.take(&token, 0)).select(&none, &nothing);
        let faults = is_finite(&logits.sum(-1, true)).select(&faults, &odd);
        Chosen { tokens: token, faults }
    }

    /// Logits after bias and penalties.
    fn adjusted(&self, logits: &Array) -> Array {
        let mut logits = logits.clone();
        if let Some((ids, values)) = &self.bias {
            logits = logits.scatter_add(ids, values, 0);
        }
        if let Some(seen) = &self.past.seen {
            let penalty = self.sampling.repetition_penalty;
            let zero = Array::scalar(0.0, Dtype::Float32);
            let penalised = logits.greater(&zero).select(&(&logits / penalty), &(&logits * penalty));
            logits = seen.greater(&zero).select(&penalised, &logits);
        }
        if let Some(counts) = &self.past.counts {
            let present = counts.greater(&Array::scalar(0.0, Dtype::Float32)).astype(Dtype::Float32);
            logits =
                logits - counts * self.sampling.frequency_penalty - present * self.sampling.presence_penalty;
        }
        logits
    }

    fn draw(&self, logits: &Array, position: usize) -> Array {
        let Sampling { top_k, top_p, min_p, seed, .. } = *self.sampling;
        let vocab_size = logits.dim(0);
        let noise = noise(vocab_size, seed, position);
        let minus_infinity = Array::scalar(f32::NEG_INFINITY, Dtype::Float32);
        let mut logits = logits.clone();
        if min_p > 0.0 {
            let floor = logits.max(-1, true) + min_p.ln();
            logits = logits.greater_equal(&floor).select(&logits, &minus_infinity);
        }
        let top_k = if top_k == 0 { vocab_size } else { vocab_size.min(top_k.min(i32::MAX as usize) as i32) };
        if top_k == vocab_size && top_p >= 1.0 {
            return (logits + noise).argmax(-1).reshape(&[1]);
        }
        // Likeliest first; of equals, the lower id.
        let order = (-&logits).argsort(-1).slice(0, 0, top_k);
        let mut sorted = logits.take(&order, 0);
        if top_p < 1.0 {
            let probabilities = sorted.softmax(-1);
            let before = probabilities.cumsum(-1) - &probabilities;
            let kept = before.less(&Array::scalar(top_p, Dtype::Float32));
            sorted = kept.select(&sorted, &minus_infinity);
        }
        let choice = (sorted + noise.take(&order, 0)).argmax(-1).reshape(&[1]);
        order.take(&choice, 0)
    }
}

/// How one token is to be chosen.
#[derive(Clone)]
pub struct Choice {
    sampling: Arc<Sampling>,
    bias: Arc<[(u32, f32)]>,
    allowed: Option<TokenSet>,
    position: u64,
}

impl Choice {
    fn token(&self, logits: &[f32]) -> Result<u32, SampleError> {
        let sampling = kernels::Sampling {
            temperature: self.sampling.temperature,
            top_k: self.sampling.top_k,
            top_p: self.sampling.top_p,
            min_p: self.sampling.min_p,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            allowed: self.allowed.as_ref().and_then(TokenSet::words),
            bias: &self.bias,
            past: &[],
            seed: self.sampling.seed,
        };
        kernels::sample(logits, &sampling, self.position)
    }
}

/// A token for each row of float32 logits `[n, vocab_size]`, as one operation on the CPU.
pub fn choose(logits: &Array, choices: Vec<Choice>) -> Chosen {
    let (rows, vocab_size) = (logits.dim(0), logits.dim(1) as usize);
    assert_eq!(rows as usize, choices.len(), "a choice for each row of logits");
    let specs = [Dtype::Uint32, Dtype::Float32].map(|dtype| OutputSpec { shape: vec![rows], dtype });
    let [tokens, faults] = mlx::apply("choose", &[logits], specs, move |inputs, outputs| {
        let logits: &[f32] = inputs[0].values();
        let mut chosen = vec![Ok(0); choices.len()];
        // Of each logit about as much work as so many multiplications: noise is made for it.
        kernels::for_each_chunk(&mut chosen, 1, 16 * logits.len(), |i, chosen| {
            chosen[0] = choices[i].token(&logits[i * vocab_size..][..vocab_size]);
        });
        let [tokens, faults] = outputs else { unreachable!("two outputs") };
        for (to, token) in tokens.values::<u32>().iter_mut().zip(&chosen) {
            *to = token.unwrap_or(0);
        }
        for (to, token) in faults.values::<f32>().iter_mut().zip(&chosen) {
            *to = fault(token.err());
        }
    });
    Chosen { tokens, faults }
}

/// The likeliest token of each row of float32 logits `[n, vocab_size]`, by MLX's own operations.
pub fn likeliest(logits: &Array) -> Chosen {
    let faults = [None, Some(SampleError::NonFinite)];
    let [none, odd] = faults.map(|unchosen| Array::scalar(fault(unchosen), Dtype::Float32));
    let faults = is_finite(&logits.sum(-1, false)).select(&none, &odd);
    Chosen { tokens: logits.argmax(-1), faults }
}

/// A token, uint32 `[n]`, for each row of float32 logits `[n, vocab_size]`: what these sequences' samplers would choose at
/// these positions, one behind the other.
pub fn guess<'a>(
    logits: &Array,
    samplers: impl IntoIterator<Item = (&'a mut Sampler, Range<usize>)>,
) -> Array {
    let mut samplers: Vec<(&mut Sampler, Range<usize>)> = samplers.into_iter().collect();
    let choices = samplers.iter().map(|(sampler, at)| sampler.choices(at.start, at.len(), &[]));
    if let Some(choices) = choices.collect::<Option<Vec<_>>>() {
        return choose(logits, choices.concat()).tokens;
    }
    if samplers.iter().all(|(sampler, _)| sampler.is_argmax()) {
        return logits.argmax(-1);
    }
    let mut tokens = vec![];
    for (sampler, at) in &mut samplers {
        for position in at {
            let row = tokens.len() as i32;
            tokens.push(sampler.sample(&logits.slice(0, row, row + 1), position, &[], &[]).tokens);
        }
    }
    Array::concatenate(&tokens, 0)
}

/// Of the tokens `chosen` `[n]` by float32 logits `[n, vocab_size]`, float32 `[n]`.
pub fn probabilities(logits: &Array, chosen: &Array) -> Array {
    let (n, vocab_size) = (logits.dim(0), logits.dim(1) as usize);
    if mlx::on_gpu() {
        let own = logits.take_along_axis(&chosen.reshape(&[n, 1]), 1).reshape(&[n]);
        return (own - logits.logsumexp(-1).reshape(&[n])).exp();
    }
    let spec = OutputSpec { shape: vec![n], dtype: Dtype::Float32 };
    let [likely] = mlx::apply("probabilities", &[logits, chosen], [spec], move |inputs, outputs| {
        let rows = inputs[0].values::<f32>().chunks_exact(vocab_size).zip(inputs[1].values::<u32>());
        for (to, (logits, id)) in outputs[0].values::<f32>().iter_mut().zip(rows) {
            *to = kernels::probability(logits, *id);
        }
    });
    likely
}

/// Each token's noise at `position`, float32 `[vocab_size]`: on the CPU the same as in [`choose`], on a
/// GPU MLX's.
fn noise(vocab_size: i32, seed: u64, position: usize) -> Array {
    if mlx::on_gpu() {
        return Array::gumbel(&[vocab_size], mix(seed, position as u64));
    }
    let spec = OutputSpec { shape: vec![vocab_size], dtype: Dtype::Float32 };
    let [noise] = mlx::apply("noise", &[], [spec], move |_, outputs| {
        kernels::fill_gumbel(seed, position as u64, outputs[0].values());
    });
    noise
}

/// A seed for one position's noise (the finaliser of SplitMix64).
fn mix(seed: u64, position: u64) -> u64 {
    let mut z = seed.wrapping_add((position + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_kernel(sampler: &mut Sampler, logits: &Array, position: usize) -> Chosen {
        sampler.sample(&logits.reshape(&[1, -1]), position, &[], &[])
    }

    fn in_steps(sampler: &mut Sampler, logits: &Array, position: usize) -> Chosen {
        sampler.sample_in_steps(logits, position, None)
    }

    /// The token of a row, or why there is none.
    fn read_one(chosen: &Chosen) -> Result<u32, SampleError> {
        let token = chosen.tokens.to_vec::<u32>().expect("a token")[0];
        unchosen(chosen.faults.to_vec::<f32>().expect("a fault")[0]).map_or(Ok(token), Err)
    }

    fn draws(sampling: &Sampling, logits: &[f32], n: usize) -> Vec<u32> {
        draws_by(by_kernel, sampling, logits, n)
    }

    fn draws_by(
        sample: fn(&mut Sampler, &Array, usize) -> Chosen,
        sampling: &Sampling,
        logits: &[f32],
        n: usize,
    ) -> Vec<u32> {
        let array = Array::from_slice(logits, &[logits.len() as i32]);
        let mut sampler = Sampler::new(sampling, logits.len(), &[], &[]);
        (0..n).map(|i| read_one(&sample(&mut sampler, &array, i)).expect("a token")).collect()
    }

    fn check_frequencies(sampling: &Sampling, logits: &[f32], expected: &[f64]) {
        let n = 4000;
        for sample in [by_kernel, in_steps] {
            let mut counts = vec![0.0; logits.len()];
            draws_by(sample, sampling, logits, n).into_iter().for_each(|id| counts[id as usize] += 1.0);
            // Chi-squared with at most 5 degrees of freedom: 20.5 is exceeded once in a thousand.
            let term = |(&got, &p): (&f64, &f64)| match p * n as f64 {
                0.0 => got * 1e9,
                wanted => (got - wanted).powi(2) / wanted,
            };
            let chi2: f64 = counts.iter().zip(expected).map(term).sum();
            assert!(chi2 < 20.5, "chi2 {chi2}: {counts:?} for {expected:?}");
        }
    }

    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let exps: Vec<f64> = logits.iter().map(|&l| (l as f64 / temperature).exp()).collect();
        let total: f64 = exps.iter().sum();
        exps.into_iter().map(|e| e / total).collect()
    }

    const LOGITS: [f32; 5] = [1.0, 0.0, 2.0, -1.0, 0.5];

    fn sampled(temperature: f32) -> Sampling {
        Sampling { temperature, seed: 7, ..Sampling::default() }
    }

    /// The exact distribution after keeping the tokens `kept`.
    fn only(kept: &[usize], probabilities: Vec<f64>) -> Vec<f64> {
        let total: f64 = kept.iter().map(|&i| probabilities[i]).sum();
        (0..probabilities.len())
            .map(|i| if kept.contains(&i) { probabilities[i] / total } else { 0.0 })
            .collect()
    }

    #[test]
    fn draws_follow_the_softmax() {
        check_frequencies(&sampled(1.0), &LOGITS, &softmax(&LOGITS, 1.0));
        check_frequencies(&sampled(0.7), &LOGITS, &softmax(&LOGITS, 0.7));
    }

    #[test]
    fn filters_keep_what_they_promise() {
        let p = || softmax(&LOGITS, 1.0);
        check_frequencies(&Sampling { top_k: 2, ..sampled(1.0) }, &LOGITS, &only(&[0, 2], p()));
        // 0.55 + 0.20 reaches 0.7; the third is not needed.
        check_frequencies(&Sampling { top_p: 0.7, ..sampled(1.0) }, &LOGITS, &only(&[0, 2], p()));
        check_frequencies(&Sampling { top_p: 0.01, ..sampled(1.0) }, &LOGITS, &only(&[2], p()));
        check_frequencies(&Sampling { min_p: 0.2, ..sampled(1.0) }, &LOGITS, &only(&[0, 2, 4], p()));
        let both = Sampling { top_k: 3, top_p: 0.9, min_p: 0.1, ..sampled(1.0) };
        check_frequencies(&both, &LOGITS, &only(&[0, 2, 4], p()));
    }

    #[test]
    fn the_same_seed_and_position_give_the_same_token() {
        assert_eq!(draws(&sampled(1.0), &LOGITS, 50), draws(&sampled(1.0), &LOGITS, 50));
        assert_ne!(
            draws(&sampled(1.0), &LOGITS, 50),
            draws(&Sampling { seed: 8, ..sampled(1.0) }, &LOGITS, 50)
        );
        let big = Sampling { seed: 7 | 1 << 63, ..sampled(1.0) };
        assert_ne!(draws(&sampled(1.0), &LOGITS, 50), draws(&big, &LOGITS, 50), "all 64 bits count");
    }

    #[test]
    fn greedy_takes_the_likeliest_and_the_first_of_equals() {
        assert_eq!(draws(&Sampling::default(), &[0.0, 3.0, 3.0, 1.0], 2), [1, 1]);
    }

    #[test]
    fn a_tiny_temperature_is_greedy() {
        for temperature in [1e-5, 1e-30, 1e-38, f32::MIN_POSITIVE, 1e-45] {
            assert_eq!(draws(&sampled(temperature), &LOGITS, 3), [2, 2, 2], "{temperature}");
        }
    }

    #[test]
    fn penalties_and_bias_move_logits() {
        let frequency = Sampling { frequency_penalty: 1.0, ..Sampling::default() };
        assert_eq!(draws(&frequency, &[2.5, 2.0, 1.8], 5), [0, 1, 2, 0, 1]);
        let presence = Sampling { presence_penalty: 1.0, ..Sampling::default() };
        assert_eq!(draws(&presence, &[2.5, 2.0, 1.8], 4), [0, 1, 2, 0]);
        let repetition = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(draws(&repetition, &[2.5, 2.0, -1.0], 3), [0, 1, 0]);
        let biased = Sampling { logit_bias: [(2, 100.0)].into(), ..Sampling::default() };
        assert_eq!(draws(&biased, &[2.5, 2.0, 1.8], 1), [2]);
    }

    #[test]
    fn the_past_given_at_the_start_counts_like_the_past_sampled() {
        let sampling = Sampling { frequency_penalty: 0.6, repetition_penalty: 1.3, ..sampled(1.0) };
        let logits = Array::from_slice(&LOGITS, &[5]);
        let token = |sampler: &mut Sampler, i| read_one(&by_kernel(sampler, &logits, i)).expect("a token");
        let mut whole = Sampler::new(&sampling, 5, &[3], &[]);
        let all: Vec<u32> = (0..12).map(|i| token(&mut whole, i)).collect();
        let mut resumed = Sampler::new(&sampling, 5, &[3], &all[..6]);
        let rest: Vec<u32> = (6..12).map(|i| token(&mut resumed, i)).collect();
        assert_eq!(rest, all[6..]);
    }

    /// Whatever the draft, its tokens are those of one at a time.
    #[test]
    fn a_draft_sees_the_past_that_plain_sampling_sees() {
        let penalised = Sampling { frequency_penalty: 0.6, repetition_penalty: 1.3, ..sampled(1.0) };
        let logits: Vec<f32> = (0..12 * 5).map(|i| (i * 37 % 19) as f32 / 6.0).collect();
        let logits = Array::from_slice(&logits, &[12, 5]);
        let row = |i: i32| logits.slice(0, i, i + 1).reshape(&[-1]);
        let read = |chosen: Chosen| chosen.tokens.to_vec::<u32>().expect("tokens");
        for sampling in [penalised, sampled(1.0), Sampling { presence_penalty: 1.0, ..Sampling::default() }] {
            let mut plain = Sampler::new(&sampling, 5, &[3], &[]);
            let expected: Vec<u32> =
                (0..12).flat_map(|i| read(by_kernel(&mut plain, &row(i), i as usize))).collect();
            let mut sampler = Sampler::new(&sampling, 5, &[3], &[]);
            let mut got: Vec<u32> = vec![];
            // Tokens of a draft, and how many of them are right.
            for (drafted, right) in [(2, 1), (0, 0), (3, 3), (1, 0), (2, 0)] {
                let at = got.len();
                let draft: Vec<u32> = (0..drafted)
                    .map(|i| if i < right { expected[at + i] } else { (expected[at + i] + 1) % 5 })
                    .collect();
                let rows = logits.slice(0, at as i32, (at + drafted + 1) as i32);
                let tokens = read(sampler.sample(&rows, at, &draft, &[]));
                got.extend(&tokens[..=right]);
                if drafted > 0 {
                    sampler.judged(right, tokens[right]);
                }
            }
            assert_eq!(got, expected[..got.len()]);
            assert!(got.len() >= 9);
        }
    }

    #[test]
    fn only_what_is_allowed_is_chosen() {
        let allowed = TokenSet::of(5, [0, 3]);
        for sampling in [
            Sampling::default(),
            sampled(1.0),
            Sampling { top_p: 0.5, presence_penalty: 0.1, ..sampled(0.7) },
        ] {
            let mut sampler = Sampler::new(&sampling, 5, &[], &[]);
            let logits = Array::from_slice(&LOGITS, &[1, 5]);
            for position in 0..40 {
                let chosen = sampler.sample(&logits, position, &[], std::slice::from_ref(&allowed));
                let token = read_one(&chosen).expect("a token");
                assert!(token == 0 || token == 3, "{token}");
            }
        }
    }

    /// Penalties that change no logit, but have a token chosen in steps.
    fn penalised(sampling: Sampling) -> Sampling {
        Sampling { presence_penalty: f32::MIN_POSITIVE, ..sampling }
    }

    #[test]
    fn penalised_requests_draw_from_the_noise_of_others() {
        let logits: Vec<f32> = (0..300).map(|i| (i * 37 % 100) as f32 / 25.0).collect();
        for sampling in [
            sampled(1.0),
            Sampling { seed: u64::MAX, ..sampled(0.7) },
            Sampling { top_k: 40, top_p: 0.9, min_p: 0.02, ..sampled(1.3) },
        ] {
            let plain = draws(&sampling, &logits, 200);
            assert_eq!(draws(&penalised(sampling.clone()), &logits, 200), plain, "with a penalty");
            assert_eq!(draws_by(in_steps, &sampling, &logits, 200), plain, "in steps");
        }
    }

    #[test]
    fn a_request_without_a_candidate_has_no_token_and_an_id_of_the_vocabulary() {
        let check =
            |sampling: &Sampling, logits: &[f32], allowed: &[u32], expected: Result<u32, SampleError>| {
                let array = Array::from_slice(logits, &[1, logits.len() as i32]);
                let set = TokenSet::of(logits.len(), allowed.iter().copied());
                for sampling in [sampling.clone(), penalised(sampling.clone())] {
                    let mut sampler = Sampler::new(&sampling, logits.len(), &[1], &[]);
                    let chosen = sampler.sample(&array, 1, &[], std::slice::from_ref(&set));
                    assert_eq!(read_one(&chosen), expected, "{sampling:?} of {logits:?}");
                    let id = chosen.tokens.to_vec::<u32>().expect("a token")[0];
                    assert!((id as usize) < logits.len(), "{id}");
                }
            };
        let biased =
            |bias: f32| Sampling { logit_bias: (0..5).map(|id| (id, bias)).collect(), ..Sampling::default() };
        for temperature in [0.0, 1e-30, 1.0, 100.0] {
            for (top_k, top_p) in [(0, 1.0), (2, 1.0), (0, 0.5), (3, 0.9)] {
                let with = |sampling: Sampling| Sampling { temperature, top_k, top_p, ..sampling };
                let nothing = Err(SampleError::NoCandidate);
                check(&with(Sampling::default()), &LOGITS, &[], nothing);
                check(&with(biased(f32::NEG_INFINITY)), &LOGITS, &[0, 1, 2, 3, 4], nothing);
                check(&with(biased(f32::INFINITY)), &LOGITS, &[0, 1, 2, 3, 4], nothing);
                check(&with(Sampling::default()), &LOGITS, &[3], Ok(3));
                for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let logits = [1.0, odd, 0.0, 2.0, 3.0];
                    check(&with(Sampling::default()), &logits, &[0, 2], Err(SampleError::NonFinite));
                }
            }
        }
    }
}
