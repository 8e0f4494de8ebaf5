//! The delta rule over steps, with drafts that are rewound.

use lanner_nn::{DeltaHeads, DeltaNet, DeltaRow, DeltaWeights, Recurrence, RmsNorm};
use mlx::Array;

use super::support::{array, bits, check, has_device, is_gpu, numbers};

/// What a sequence does in a step: tokens, of which drafts, of which rewound afterwards.
type Step = (i32, i32, i32);

fn net(dim: i32, width: i32, key_heads: i32, value_heads: i32) -> DeltaNet {
    let heads = DeltaHeads { key_heads, value_heads, key_dim: dim, value_dim: dim };
    let channels = (2 * key_heads + value_heads) * dim;
    let rates: Vec<f32> = numbers(3, value_heads as usize).iter().map(|v| -v.abs()).collect();
    let weights = DeltaWeights {
        conv1d: array(1, &[channels, width]),
        neg_exp_a: Array::from_slice(&rates, &[value_heads]),
        dt_bias: array(2, &[value_heads]),
        norms: [(dim as f32).powf(-0.5), 1.0].map(|scale| RmsNorm::l2(dim, 1e-6, scale)),
    };
    DeltaNet::new(heads, weights)
}

/// The outputs of all steps, and the states at their end.
fn run(dim: i32, steps: &[&[Step]]) -> Vec<Vec<u32>> {
    run_with(dim, 4, steps, numbers)
}

/// The same with a convolution of `width`, and inputs by `numbers_of`, which takes a seed.
fn run_with(
    dim: i32,
    width: i32,
    steps: &[&[Step]],
    numbers_of: impl Fn(u64, usize) -> Vec<f32>,
) -> Vec<Vec<u32>> {
    let (key_heads, value_heads) = (2, 4);
    let net = net(dim, width, key_heads, value_heads);
    let channels = (2 * key_heads + value_heads) * dim;
    let mut states: Vec<Recurrence> = vec![Recurrence::default(); steps[0].len()];
    let mut outs = vec![];
    for (i, rows) in steps.iter().enumerate() {
        let tokens: i32 = rows.iter().map(|row| row.0).sum();
        let inputs = numbers_of(100 + i as u64, (tokens * channels) as usize);
        let qkv = Array::from_slice(&inputs, &[tokens, channels]);
        let [b, a] = [200, 300].map(|seed| array(seed + i as u64, &[tokens, value_heads]));
        // A clone shares the state, which must not change it.
        let kept = states[0].clone();
        let before = kept.arrays().map(|array| array.map(bits));
        let mut active: Vec<DeltaRow> = rows
            .iter()
            .zip(&mut states)
            .filter(|(row, _)| row.0 > 0)
            .map(|(row, state)| DeltaRow { tokens: row.0, num_draft: row.1, state })
            .collect();
        outs.push(bits(&net.forward(&qkv, &b, &a, &mut active)));
        assert_eq!(kept.arrays().map(|array| array.map(bits)), before);
        states.iter_mut().zip(*rows).for_each(|(state, row)| state.rewind(row.2));
    }
    for state in &states {
        outs.extend(state.committed().arrays().into_iter().flatten().map(bits));
    }
    outs
}

#[test]
fn delta_net_over_steps_and_drafts_matches_the_cpu() {
    if !has_device() {
        return;
    }
    for dim in [64, 128] {
        check(&format!("heads of {dim}"), || {
            let steps: [&[Step]; 8] = [
                &[(37, 0, 0), (2, 0, 0)],
                &[(1, 0, 0), (1, 0, 0)],
                &[(4, 3, 1), (0, 0, 0)],
                &[(5, 4, 0), (3, 0, 0)],
                &[(1, 0, 0), (6, 5, 5)],
                &[(2, 1, 0), (20, 2, 1)],
                &[(1, 0, 0), (1, 0, 0)],
                &[(3, 2, 2), (3, 2, 0)],
            ];
            run(dim, &steps)
        });
    }
    if is_gpu() {
        check("a long prompt", || run(128, &[&[(2000, 0, 0), (77, 0, 0)], &[(1, 0, 0), (500, 0, 0)]]));
    }
}

/// An infinite input of a query must change the outputs of `width` tokens, and of no other.
#[test]
fn delta_net_of_convolutions_of_other_widths_matches_the_cpu() {
    if !has_device() {
        return;
    }
    let (dim, tokens) = (64, 45);
    for width in [2, 3, 6] {
        check(&format!("convolutions of {width}"), || {
            let channels = 8 * dim as usize;
            let with_infinities = |seed, size| {
                let mut inputs = numbers(seed, size);
                for token in [8, 21] {
                    inputs[token * channels + token] = f32::INFINITY;
                }
                inputs
            };
            let mut outs = run_with(dim, width, &[&[(tokens - 5, 0, 0), (5, 0, 0)]], with_infinities);
            let is_finite =
                |token: usize| outs[0][token * 256..][..64].iter().all(|bits| bits >> 23 & 255 < 255);
            let unlike = (0..tokens as usize).filter(|token| !is_finite(*token)).count();
            assert_eq!(unlike, 2 * width as usize, "tokens with an infinite input");
            // Signs of what is not a number differ.
            outs.iter_mut()
                .flatten()
                .filter(|bits| f32::from_bits(**bits).is_nan())
                .for_each(|bits| *bits = 1);
            outs
        });
    }
}

#[test]
fn delta_net_of_single_tokens_matches_the_cpu() {
    if !has_device() {
        return;
    }
    for dim in [64, 128] {
        check(&format!("heads of {dim}, from the first token on"), || {
            let step: &[Step] = &[(1, 0, 0), (1, 0, 0), (1, 0, 0)];
            run(dim, &[step, step, step, step, step])
        });
    }
    check("more sequences than a launch takes", || {
        let step: Vec<Step> = vec![(1, 0, 0); 66];
        run(64, &[&step, &step])
    });
}

/// Steps with drafts of which some are dropped.
#[test]
fn convolutions_of_steps_and_drafts_match_the_cpu() {
    if !has_device() {
        return;
    }
    for (channels, width, silu) in [(300, 3, false), (64, 4, true), (8, 2, false)] {
        check(&format!("a convolution of {width} inputs, {channels} channels"), || {
            let (weight, mut state, mut outs) = (array(1, &[channels, width]), Recurrence::default(), vec![]);
            for (i, (tokens, drafted, dropped)) in
                [(5, 0, 0), (1, 0, 0), (4, 3, 2), (1, 0, 0), (40, 3, 3), (2, 1, 0), (3, 0, 0)]
                    .into_iter()
                    .enumerate()
            {
                let x = array(2 + i as u64, &[tokens, channels]);
                outs.push(bits(&state.causal_conv(&x, drafted, &weight, silu)));
                state.rewind(dropped);
            }
            outs.push(bits(state.committed().arrays()[0].unwrap()));
            outs
        });
    }
}
