//! Unit tests of sampling: distributions, filters, penalties, masks and the two back ends.

use kernels::SampleError;
use mlx::Array;

use super::*;

fn by_kernel(sampler: &mut Sampler, logits: &Array, position: usize) -> SampleOutput {
    sample_row(sampler, &logits.reshape(&[1, -1]), position, &[], &[])
}

fn by_mlx(sampler: &mut Sampler, logits: &Array, position: usize) -> SampleOutput {
    let draws = sampler.draws(position, &[], &[]);
    let sampled = mlx_ops::sample(&logits.reshape(&[1, -1]), &draws);
    sampler.await_token(&sampled.tokens);
    sampled
}

fn sample_row(
    sampler: &mut Sampler,
    logits: &Array,
    position: usize,
    draft: &[u32],
    allowed: &[TokenSet],
) -> SampleOutput {
    sample(logits, vec![SampleRow { sampler, position, draft, allowed }])
}

/// The token of a row, or why there is none.
fn read_one(chosen: &SampleOutput) -> Result<u32, SampleError> {
    let token = chosen.tokens.to_vec::<u32>().expect("a token")[0];
    fault_of(chosen.faults.to_vec::<f32>().expect("a fault")[0]).map_or(Ok(token), Err)
}

fn draws(sampling: &Sampling, logits: &[f32], n: usize) -> Vec<u32> {
    draws_by(by_kernel, sampling, logits, n)
}

fn draws_by(
    sample: fn(&mut Sampler, &Array, usize) -> SampleOutput,
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
    for sample in [by_kernel, by_mlx] {
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
    (0..probabilities.len()).map(|i| if kept.contains(&i) { probabilities[i] / total } else { 0.0 }).collect()
}

#[test]
fn draws_without_filters_follow_the_softmax() {
    check_frequencies(&sampled(1.0), &LOGITS, &softmax(&LOGITS, 1.0));
    check_frequencies(&sampled(0.7), &LOGITS, &softmax(&LOGITS, 0.7));
}

#[test]
fn filtered_draws_follow_the_softmax_of_the_kept_tokens() {
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
fn draws_with_one_seed_repeat_and_with_another_differ() {
    assert_eq!(draws(&sampled(1.0), &LOGITS, 50), draws(&sampled(1.0), &LOGITS, 50));
    assert_ne!(draws(&sampled(1.0), &LOGITS, 50), draws(&Sampling { seed: 8, ..sampled(1.0) }, &LOGITS, 50));
    let big = Sampling { seed: 7 | 1 << 63, ..sampled(1.0) };
    assert_ne!(draws(&sampled(1.0), &LOGITS, 50), draws(&big, &LOGITS, 50), "all 64 bits count");
}

#[test]
fn greedy_sampling_takes_the_first_of_the_likeliest() {
    assert_eq!(draws(&Sampling::default(), &[0.0, 3.0, 3.0, 1.0], 2), [1, 1]);
}

#[test]
fn tiny_temperature_samples_greedily() {
    for temperature in [1e-5, 1e-30, 1e-38, f32::MIN_POSITIVE, 1e-45] {
        assert_eq!(draws(&sampled(temperature), &LOGITS, 3), [2, 2, 2], "{temperature}");
    }
}

#[test]
fn penalties_and_bias_change_the_chosen_tokens() {
    let frequency = Sampling { frequency_penalty: 1.0, ..Sampling::default() };
    assert_eq!(draws(&frequency, &[2.5, 2.0, 1.8], 5), [0, 1, 2, 0, 1]);
    let presence = Sampling { presence_penalty: 1.0, ..Sampling::default() };
    assert_eq!(draws(&presence, &[2.5, 2.0, 1.8], 4), [0, 1, 2, 0]);
    let repetition = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
    assert_eq!(draws(&repetition, &[2.5, 2.0, -1.0], 3), [0, 1, 0]);
    let biased = Sampling { logit_bias: [(2, 100.0)].into(), ..Sampling::default() };
    assert_eq!(draws(&biased, &[2.5, 2.0, 1.8], 1), [2]);
}

/// Tokens may be read back one step late, as the engine does, or at once.
#[test]
fn penalised_tokens_read_back_late_are_the_same_on_both_back_ends() {
    let logits: Vec<f32> = (0..40).map(|i| (i * 37 % 19) as f32 / 6.0).collect();
    let logits = Array::from_slice(&logits, &[40]);
    for sampling in [
        Sampling { frequency_penalty: 0.6, repetition_penalty: 1.3, ..sampled(1.0) },
        Sampling { presence_penalty: 0.9, logit_bias: [(3, 2.0)].into(), ..sampled(0.8) },
        Sampling { repetition_penalty: 1.5, ..Sampling::default() },
    ] {
        let tokens = |step: fn(&mut Sampler, &Array, usize) -> SampleOutput, late: usize| {
            let mut sampler = Sampler::new(&sampling, 40, &[3, 3, 7], &[5]);
            let mut tokens: Vec<u32> = vec![];
            for position in 4..34 {
                let token = read_one(&step(&mut sampler, &logits, position)).expect("a token");
                tokens.push(token);
                if let Some(at) = tokens.len().checked_sub(1 + late) {
                    sampler.push(tokens[at]);
                }
            }
            tokens
        };
        let expected = tokens(by_kernel, 0);
        assert_eq!(tokens(by_kernel, 1), expected);
        assert_eq!(tokens(by_kernel, 40), expected, "never read back");
        assert_eq!(tokens(by_mlx, 0), expected);
        assert_eq!(tokens(by_mlx, 2), expected);
    }
}

#[test]
fn history_given_at_the_start_counts_like_sampled_tokens() {
    let sampling = Sampling { frequency_penalty: 0.6, repetition_penalty: 1.3, ..sampled(1.0) };
    let logits = Array::from_slice(&LOGITS, &[5]);
    let token = |sampler: &mut Sampler, i| read_one(&by_kernel(sampler, &logits, i)).expect("a token");
    let mut whole = Sampler::new(&sampling, 5, &[3], &[]);
    let all: Vec<u32> = (0..12).map(|i| token(&mut whole, i)).collect();
    let mut resumed = Sampler::new(&sampling, 5, &[3], &all[..6]);
    let rest: Vec<u32> = (6..12).map(|i| token(&mut resumed, i)).collect();
    assert_eq!(rest, all[6..]);
}

/// With any draft, the tokens are those of one at a time.
#[test]
fn draws_of_a_draft_equal_those_of_plain_sampling() {
    let penalised = Sampling { frequency_penalty: 0.6, repetition_penalty: 1.3, ..sampled(1.0) };
    let logits: Vec<f32> = (0..12 * 5).map(|i| (i * 37 % 19) as f32 / 6.0).collect();
    let logits = Array::from_slice(&logits, &[12, 5]);
    let row = |i: i32| logits.slice(0, i, i + 1).reshape(&[-1]);
    let read = |chosen: SampleOutput| chosen.tokens.to_vec::<u32>().expect("tokens");
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
            let tokens = read(sample_row(&mut sampler, &rows, at, &draft, &[]));
            tokens[..=right].iter().for_each(|&token| sampler.push(token));
            got.extend(&tokens[..=right]);
        }
        assert_eq!(got, expected[..got.len()]);
        assert!(got.len() >= 9);
    }
}

#[test]
fn draws_with_a_mask_choose_allowed_tokens_only() {
    let allowed = TokenSet::of(5, [0, 3]);
    for sampling in
        [Sampling::default(), sampled(1.0), Sampling { top_p: 0.5, presence_penalty: 0.1, ..sampled(0.7) }]
    {
        let mut sampler = Sampler::new(&sampling, 5, &[], &[]);
        let logits = Array::from_slice(&LOGITS, &[1, 5]);
        for position in 0..40 {
            let chosen = sample_row(&mut sampler, &logits, position, &[], std::slice::from_ref(&allowed));
            let token = read_one(&chosen).expect("a token");
            assert!(token == 0 || token == 3, "{token}");
        }
    }
}

/// Penalties that change no logit, but need the history.
fn penalised(sampling: Sampling) -> Sampling {
    Sampling { presence_penalty: f32::MIN_POSITIVE, ..sampling }
}

#[test]
fn penalised_draws_use_the_noise_of_plain_ones() {
    let logits: Vec<f32> = (0..300).map(|i| (i * 37 % 100) as f32 / 25.0).collect();
    for sampling in [
        sampled(1.0),
        Sampling { seed: u64::MAX, ..sampled(0.7) },
        Sampling { top_k: 40, top_p: 0.9, min_p: 0.02, ..sampled(1.3) },
    ] {
        let plain = draws(&sampling, &logits, 200);
        assert_eq!(draws(&penalised(sampling.clone()), &logits, 200), plain, "with a penalty");
        assert_eq!(draws_by(by_mlx, &sampling, &logits, 200), plain, "by MLX");
    }
}

#[test]
fn draw_without_a_candidate_is_an_error_with_an_id_of_the_vocabulary() {
    let check = |sampling: &Sampling, logits: &[f32], allowed: &[u32], expected: Result<u32, SampleError>| {
        let array = Array::from_slice(logits, &[1, logits.len() as i32]);
        let set = TokenSet::of(logits.len(), allowed.iter().copied());
        for sampling in [sampling.clone(), penalised(sampling.clone())] {
            let mut sampler = Sampler::new(&sampling, logits.len(), &[1], &[]);
            let chosen = sample_row(&mut sampler, &array, 1, &[], std::slice::from_ref(&set));
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
