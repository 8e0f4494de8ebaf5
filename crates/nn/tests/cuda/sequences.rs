//! The delta rule over steps, with drafts that are rewound.

use lanner_nn::{DeltaHeads, DeltaNet, DeltaRow, DeltaWeights, Recurrence, RmsNorm};
use mlx::Array;

use super::support::{array, bits, check, has_device, is_gpu, numbers};

/// What a sequence does in a step: tokens, of which drafts, of which rewound afterwards.
type Step = (i32, i32, i32);

fn net(dim: i32, key_heads: i32, value_heads: i32) -> DeltaNet {
    let heads = DeltaHeads { key_heads, value_heads, key_dim: dim, value_dim: dim };
    let channels = (2 * key_heads + value_heads) * dim;
    let rates: Vec<f32> = numbers(3, value_heads as usize).iter().map(|v| -v.abs()).collect();
    let weights = DeltaWeights {
        conv1d: array(1, &[channels, 4]),
        neg_exp_a: Array::from_slice(&rates, &[value_heads]),
        dt_bias: array(2, &[value_heads]),
        norms: [(dim as f32).powf(-0.5), 1.0].map(|scale| RmsNorm::l2(dim, 1e-6, scale)),
    };
    DeltaNet::new(heads, weights)
}

/// The outputs of all steps, and the states at their end.
fn run(dim: i32, steps: &[&[Step]]) -> Vec<Vec<u32>> {
    let (key_heads, value_heads) = (2, 4);
    let net = net(dim, key_heads, value_heads);
    let mut states: Vec<Recurrence> = vec![Recurrence::default(); steps[0].len()];
    let mut outs = vec![];
    for (i, rows) in steps.iter().enumerate() {
        let tokens: i32 = rows.iter().map(|row| row.0).sum();
        let qkv = array(100 + i as u64, &[tokens, (2 * key_heads + value_heads) * dim]);
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
