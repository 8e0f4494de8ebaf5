//! Sampling, against a reference that sorts everything, and its draws against the softmax.

use crate::support::*;
use lanner_kernels::*;
use proptest::prelude::*;

const PLAIN: Sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };

fn filters() -> impl Strategy<Value = (f32, usize, f32, f32)> {
    (
        prop::sample::select(vec![0.0f32, 1e-30, 0.3, 1.0, 2.5]),
        prop_oneof![Just(0usize), 1usize..40, Just(5000)],
        prop::sample::select(vec![0.0f32, 0.1, 0.5, 0.95, 1.0]),
        prop::sample::select(vec![0.0f32, 0.01, 0.3, 1.0]),
    )
}

fn penalties() -> impl Strategy<Value = (f32, f32, f32)> {
    prop::sample::select(vec![(1.0f32, 0.0f32, 0.0f32), (1.3, 0.0, 0.0), (1.0, 0.5, 0.25), (0.8, -0.5, 1.0)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn sample_matches_a_full_sort(
        vocabulary in prop_oneof![1usize..80, 200usize..3000], filters in filters(), penalties in penalties(),
        steps in prop::sample::select(vec![0u32, 3, 40]), spread in prop::sample::select(vec![0.5f32, 4.0, 20.0]),
        seed in 0u64..1000, masked in prop::option::of(1u32..40),
    ) {
        let mut logits: Vec<f32> = noise(seed, vocabulary);
        for logit in &mut logits {
            // Few distinct values make ties.
            let step = if steps == 0 { *logit } else { (*logit * steps as f32).round() / steps as f32 };
            *logit = step * spread;
        }
        let id = |word: u32| word % vocabulary as u32;
        let mut past: Vec<PastToken> = random_words(seed + 1, 20)
            .into_iter()
            .map(|word| PastToken { id: id(word), generated: word >> 30 })
            .collect();
        past.sort_by_key(|token| token.id);
        past.dedup_by_key(|token| token.id);
        // About one token in `masked`, at least one.
        let allowed = masked.map(|every| {
            let mut words = vec![0u32; vocabulary.div_ceil(32)];
            let random = random_words(seed + 2, vocabulary);
            let chosen = (0..vocabulary).filter(|&i| i == seed as usize % vocabulary || random[i].is_multiple_of(every));
            chosen.for_each(|i| words[i / 32] |= 1 << (i % 32));
            words
        });
        let (temperature, top_k, top_p, min_p) = filters;
        let (repetition_penalty, presence_penalty, frequency_penalty) = penalties;
        let sampling = Sampling {
            temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
            allowed: allowed.as_deref(), bias: &[(id(seed as u32), 1.5)], past: &past, seed: seed << 40 | seed,
        };
        // Whether a token is needed to reach `top_p` may depend on the rounding of a sum.
        let least = Sampling { top_p: top_p - 1e-6, ..sampling };
        let most = Sampling { top_p: if top_p < 1.0 { top_p + 1e-6 } else { top_p }, ..sampling };
        for position in 0..8 {
            let expected = [&least, &sampling, &most].map(|sampling| Ok(reference(&logits, sampling, position)));
            let got = sample(&logits, &sampling, position);
            prop_assert!(expected.contains(&got), "{got:?} for {expected:?}");
        }
    }
}

fn reference(logits: &[f32], s: &Sampling, position: u64) -> u32 {
    let mut logits = logits.to_vec();
    s.bias.iter().for_each(|(id, value)| logits[*id as usize] += value);
    for token in s.past {
        let x = logits[token.id as usize];
        let x = if x > 0.0 { x / s.repetition_penalty } else { x * s.repetition_penalty };
        let present = if token.generated > 0 { s.presence_penalty } else { 0.0 };
        logits[token.id as usize] = x - token.generated as f32 * s.frequency_penalty - present;
    }
    if let Some(allowed) = s.allowed {
        let refused = (0..logits.len()).filter(|i| allowed[i / 32] >> (i % 32) & 1 == 0);
        refused.for_each(|i| logits[i] = f32::NEG_INFINITY);
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    if s.temperature == 0.0 {
        return order.into_iter().find(|&i| logits[i] == max).expect("a largest") as u32;
    }
    logits.iter_mut().for_each(|x| *x = (*x - max) / s.temperature);
    if s.min_p > 0.0 {
        order.retain(|&i| logits[i] >= s.min_p.ln());
    }
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("numbers"));
    if s.top_k > 0 {
        order.truncate(s.top_k);
    }
    if s.top_p < 1.0 {
        let probability = |i: usize| (logits[i] as f64).exp();
        let total: f64 = order.iter().map(|&i| probability(i)).sum();
        let mut before = 0.0;
        let likeliest = order[0];
        order.retain(|&i| {
            let kept = before / total < s.top_p as f64;
            before += probability(i);
            kept || i == likeliest
        });
    }
    let sum = |i: usize| logits[i] + gumbel(s.seed, position, i as u32);
    order
        .into_iter()
        .min_by(|&a, &b| sum(b).partial_cmp(&sum(a)).expect("numbers").then(a.cmp(&b)))
        .expect("one") as u32
}

/// Draws of 4000 positions against their probabilities.
fn check_frequencies(sampling: &Sampling, logits: &[f32], kept: &[usize]) {
    let n = 4000;
    let mut counts = vec![0.0; logits.len()];
    (0..n).for_each(|i| counts[sample(logits, sampling, i).expect("finite") as usize] += 1.0);
    let weight = |i: usize| (logits[i] as f64 / sampling.temperature as f64).exp();
    let total: f64 = kept.iter().map(|&i| weight(i)).sum();
    let expected = |i: usize| if kept.contains(&i) { weight(i) / total * n as f64 } else { 0.0 };
    let term = |i: usize| {
        if expected(i) == 0.0 { counts[i] * 1e9 } else { (counts[i] - expected(i)).powi(2) / expected(i) }
    };
    let chi2: f64 = (0..logits.len()).map(term).sum();
    // Mean plus four standard deviations of the chi-squared distribution.
    let freedom = (kept.len() - 1) as f64;
    assert!(chi2 < freedom + 4.0 * (2.0 * freedom).sqrt() + 4.0, "chi2 {chi2}: {counts:?}");
}

#[test]
fn draws_follow_the_softmax_of_the_candidates() {
    let logits = [1.0, 0.0, 2.0, -1.0, 0.5];
    let all = [0, 1, 2, 3, 4];
    check_frequencies(&PLAIN, &logits, &all);
    check_frequencies(&Sampling { temperature: 0.7, ..PLAIN }, &logits, &all);
    check_frequencies(&Sampling { top_k: 2, ..PLAIN }, &logits, &[0, 2]);
    // 0.55 + 0.20 reaches 0.7; the third is not needed.
    check_frequencies(&Sampling { top_p: 0.7, ..PLAIN }, &logits, &[0, 2]);
    check_frequencies(&Sampling { top_p: 0.01, ..PLAIN }, &logits, &[2]);
    check_frequencies(&Sampling { min_p: 0.2, ..PLAIN }, &logits, &[0, 2, 4]);
    check_frequencies(&Sampling { top_k: 3, top_p: 0.9, min_p: 0.1, ..PLAIN }, &logits, &[0, 2, 4]);
    let wide: Vec<f32> = (0..300).map(|i| (i * 37 % 100) as f32 / 50.0).collect();
    check_frequencies(&PLAIN, &wide, &(0..300).collect::<Vec<_>>());
}

#[test]
fn filters_that_drop_nothing_do_not_change_draws() {
    let logits: Vec<f32> = noise::<f32>(5, 1000).iter().map(|x| 6.0 * x).collect();
    for position in 0..200 {
        let plain = sample(&logits, &PLAIN, position);
        assert_eq!(sample(&logits, &Sampling { top_k: 999, ..PLAIN }, position), plain);
        assert_eq!(sample(&logits, &Sampling { top_p: 0.999_999_9, ..PLAIN }, position), plain);
        assert_eq!(sample(&logits, &Sampling { min_p: 1e-9, ..PLAIN }, position), plain);
    }
}

#[test]
fn seeds_and_positions_draw_independently() {
    let logits = [0.0f32; 50];
    let draws = |seed: u64| -> Vec<u32> {
        (0..50).map(|i| sample(&logits, &Sampling { seed, ..PLAIN }, i).expect("finite")).collect()
    };
    assert_eq!(draws(7), draws(7));
    assert_ne!(draws(7), draws(8));
    assert_ne!(draws(7), draws(7 | 1 << 63), "all 64 bits count");
}

#[test]
fn non_finite_logit_at_any_position_is_an_error() {
    for n in [1, 15, 300, 1000] {
        for at in (0..n).step_by(7) {
            for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut logits = vec![0.0; n];
                logits[at] = odd;
                assert_eq!(
                    sample(&logits, &Sampling { temperature: 0.0, ..PLAIN }, 0),
                    Err(SampleError::NonFinite),
                    "{odd} at {at} of {n}"
                );
            }
        }
        assert!(sample(&vec![f32::MAX; n], &PLAIN, 0).is_ok());
    }
}

/// Greedy, draws from all tokens, and draws from filtered tokens.
const METHODS: [Sampling; 6] = [
    Sampling { temperature: 0.0, ..PLAIN },
    PLAIN,
    Sampling { temperature: 1e-45, ..PLAIN },
    Sampling { top_k: 3, ..PLAIN },
    Sampling { top_p: 0.9, ..PLAIN },
    Sampling { top_k: 40, top_p: 0.9, min_p: 0.1, ..PLAIN },
];

#[test]
fn token_whose_adjusted_logit_is_infinite_is_never_chosen() {
    let logits: Vec<f32> = noise::<f32>(3, 500).iter().map(|x| 4.0 * x).collect();
    let every = |id: u32| PastToken { id, generated: 3 };
    let all: Vec<PastToken> = (0..500).filter(|id| *id != 77).map(every).collect();
    for method in METHODS {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            for position in 0..20 {
                let chosen = sample(&logits, &Sampling { bias: &[(5, value)], ..method }, position);
                assert!(chosen.is_ok_and(|id| id != 5 && id < 500), "{value}: {chosen:?}");
            }
        }
        // Positive logits overflow with the first, negative ones with the second.
        for repetition_penalty in [1e-45, f32::INFINITY] {
            let chosen = sample(&logits, &Sampling { repetition_penalty, past: &all, ..method }, 0);
            let overflows = |id: u32| (logits[id as usize] > 0.0) == (repetition_penalty < 1.0);
            assert!(chosen.is_ok_and(|id| id == 77 || !overflows(id)), "{chosen:?}");
        }
        // The penalties of all tokens but one overflow.
        for sampling in [
            Sampling { frequency_penalty: f32::MAX, past: &all, ..method },
            Sampling { presence_penalty: f32::NEG_INFINITY, past: &all, ..method },
        ] {
            assert_eq!(sample(&logits, &sampling, 0), Ok(77), "{sampling:?}");
        }
    }
}

#[test]
fn logits_without_a_candidate_are_an_error() {
    let logits: Vec<f32> = noise(3, 500);
    let banned: Vec<(u32, f32)> = (0..500).map(|id| (id, f32::NEG_INFINITY)).collect();
    let wrong: Vec<(u32, f32)> = (0..500).map(|id| (id, f32::INFINITY)).collect();
    for method in METHODS {
        for sampling in [
            Sampling { bias: &banned, ..method },
            Sampling { bias: &wrong, ..method },
            Sampling { allowed: Some(&[]), ..method },
            Sampling { allowed: Some(&[0; 16]), ..method },
            // The only allowed token is banned.
            Sampling { allowed: Some(&[1]), bias: &[(0, f32::NEG_INFINITY)], ..method },
        ] {
            assert_eq!(sample(&logits, &sampling, 0), Err(SampleError::NoCandidate), "{sampling:?}");
        }
    }
    assert_eq!(
        sample(&logits, &Sampling { temperature: f32::NAN, ..PLAIN }, 0),
        Err(SampleError::NoCandidate)
    );
}

#[test]
fn log_sum_exp_of_a_long_row_is_that_in_double_precision() {
    for length in [1, 15, 300, 5000] {
        let noise = |i: usize| gumbel(3, length as u64, i as u32);
        let logits: Vec<f32> =
            (0..length).map(|i| if i % 7 == 3 { f32::NEG_INFINITY } else { noise(i) * 9.0 - 50.0 }).collect();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let total: f64 = logits.iter().map(|&x| (x as f64 - max).exp()).sum();
        let (expected, got) = (max + total.ln(), log_sum_exp(&logits) as f64);
        assert!((got - expected).abs() < 1e-5 * expected.abs(), "{length}: {got} for {expected}");
    }
}
