//! Mixtures of experts.

use lanner_nn::{
    Activation, Experts, Linear, MixtureOfExperts, Mlp, Residual, Router, SharedExpert, StackedLinear,
};
use mlx::Array;

use super::support::{array, bits, check, has_device, is_gpu, linear, norm, quantized, quantized_floats};

/// Stacked layers of random weights.
fn stack(seed: u64, size: [i32; 3], bits: i32) -> StackedLinear {
    StackedLinear::prepacked(quantized(seed, &size, [bits, 64])).unwrap()
}

/// The same of 4-bit floats, with biases.
fn float_stack(seed: u64, [experts, outputs, inputs]: [i32; 3]) -> StackedLinear {
    let weight = quantized_floats(seed, &[experts, outputs, inputs]);
    StackedLinear::prepacked(weight).unwrap().with_bias(array(seed + 20, &[experts, outputs]))
}

/// A router's product, in float32.
fn router(seed: u64, experts: i32, inputs: i32, bias: bool) -> Linear {
    let bias = bias.then(|| array(seed + 1, &[experts]));
    Linear::unrounded(quantized(seed, &[experts, inputs], [8, 64]), bias).unwrap()
}

/// Rows `tokens` with different experts each, `[tokens, n]`.
fn experts_of(tokens: i32, n: i32, experts: i32) -> Array {
    let expert = |i: i32| ((i / n * 7 + i % n * 3 + i / n / 5) % experts) as u32;
    let all: Vec<u32> = (0..tokens * n).map(expert).collect();
    Array::from_slice(&all, &[tokens, n])
}

fn token_counts() -> Vec<i32> {
    if is_gpu() { vec![1, 2, 8, 16, 17, 33, 100, 129, 600] } else { vec![1, 3, 40] }
}

#[test]
fn products_of_experts_match_the_cpu_with_and_without_warpgroups() {
    if !has_device() {
        return;
    }
    for warpgroups in [true, false] {
        lanner_nn::allow_warpgroups(warpgroups);
        for tokens in token_counts() {
            // 0 stands for floats.
            for (width, inputs) in [(4, 576), (8, 64), (4, 1088), (0, 576)] {
                check(&format!("{tokens} rows of {inputs}, {width} bits, warpgroups: {warpgroups}"), || {
                    let size = [7, 128, inputs];
                    let layers = if width == 0 { float_stack(3, size) } else { stack(3, size, width) };
                    let indices = experts_of(tokens, 2, 7);
                    let shared = layers.forward(&array(1, &[tokens, 1, inputs]), &indices);
                    let own = layers.forward(&array(2, &[tokens, 2, inputs]), &indices);
                    [bits(&shared), bits(&own)]
                });
            }
        }
    }
    lanner_nn::allow_warpgroups(true);
}

/// More rows than tiles of 32 of each expert take, an expert without any row, and one with most.
#[test]
fn experts_of_many_tokens_match_the_cpu() {
    if !has_device() {
        return;
    }
    for (tokens, experts, floats) in [(130, 2, false), (70, 3, false), (130, 2, true)] {
        let of_floats = if floats { " of floats" } else { "" };
        check(&format!("{tokens} tokens, {experts} experts{of_floats}"), || {
            let size = [experts, 64, 192];
            let layers = if floats { float_stack(5, size) } else { stack(5, size, 4) };
            let indices: Vec<u32> = (0..tokens as u32).map(|i| if i % 9 == 0 { 1 } else { 0 }).collect();
            let indices = Array::from_slice(&indices, &[tokens, 1]);
            bits(&layers.forward(&array(1, &[tokens, 1, 192]), &indices))
        });
    }
}

#[test]
fn rows_of_many_experts_match_the_cpu() {
    if !has_device() {
        return;
    }
    for tokens in [20, 40] {
        check(&format!("{tokens} tokens, 260 experts"), || {
            let layers = stack(5, [260, 64, 64], 4);
            bits(&layers.forward(&array(1, &[tokens, 1, 64]), &experts_of(tokens, 4, 260)))
        });
    }
}

#[test]
fn routers_match_the_cpu() {
    if !has_device() {
        return;
    }
    let bias = || Some(array(9, &[64]));
    let routers = [
        ("softmax", 64, Router::softmax(8, true)),
        ("softmax without norm", 40, Router::softmax(3, false)),
        ("sigmoid", 64, Router::sigmoid(6, true, 1e-20, 2.5).with_bias(bias())),
        ("groups", 64, Router::sigmoid(4, false, 0.0, 1.0).with_bias(bias()).with_groups(8, 3)),
        ("groups of one", 64, Router::sigmoid(4, true, 0.0, 1.0).with_groups(64, 9)),
        ("all", 5, Router::softmax(5, true)),
        ("softmax of many", 300, Router::softmax(10, true)),
        ("groups of many", 1024, Router::sigmoid(32, true, 0.0, 1.0).with_groups(32, 8)),
    ];
    for (name, experts, router) in routers {
        for tokens in [1, 7, 3] {
            check(&format!("{name}, {tokens} tokens"), || {
                // Every third logit is that of its neighbour.
                let logits = array(tokens as u64, &[tokens, experts]).to_vec::<f32>().unwrap();
                let equal = |i: usize| if i % 3 == 1 { logits[i - 1] } else { logits[i] };
                let mut logits: Vec<f32> = (0..logits.len()).map(equal).collect();
                // Softmax makes a row of them.
                if tokens == 3 {
                    logits[2] = f32::NAN;
                }
                let routing = router.route(&Array::from_slice(&logits, &[tokens, experts]));
                let weights = routing.weights.to_vec::<f32>().unwrap();
                let weights = weights.into_iter().map(|w| if w.is_nan() { 1 } else { w.to_bits() });
                [routing.experts.to_vec::<u32>().unwrap(), weights.collect()]
            });
        }
    }
}

#[test]
fn products_of_routers_match_the_cpu() {
    if !has_device() {
        return;
    }
    for tokens in [1, 5, 16, 37] {
        for (experts, inputs) in [(64, 448), (5, 64), (130, 1088)] {
            check(&format!("{tokens} tokens, {experts} experts of {inputs}"), || {
                let layer = router(2, experts, inputs, experts == 5);
                bits(&layer.forward(&array(1, &[tokens, inputs])))
            });
        }
    }
}

/// gpt-oss: 4-bit floats, biases everywhere, gates and values with limits.
#[test]
fn mixtures_of_biased_experts_of_floats_match_the_cpu() {
    if !has_device() {
        return;
    }
    for tokens in token_counts() {
        check(&format!("{tokens} tokens"), || {
            let (hidden, inner, experts) = (192, 64, 6);
            let layers = [[1, inner, hidden], [2, inner, hidden], [3, hidden, inner]]
                .map(|[seed, outputs, inputs]| float_stack(seed as u64, [experts, outputs, inputs]));
            let block = MixtureOfExperts::new(
                router(8, experts, hidden, true),
                Router::softmax(4, true),
                Experts::new(layers, Activation::ClampedSwish { limit: 1.5 }),
                None,
            );
            bits(&block.add_to(&Residual::new(&array(9, &[tokens, hidden]), &norm(10, hidden))))
        });
    }
}

#[test]
fn mixtures_of_experts_match_the_cpu() {
    if !has_device() {
        return;
    }
    for tokens in token_counts() {
        // A shared expert like the others is computed with them if tokens are few.
        let kinds = [
            (0, Activation::Silu, 3),
            (1, Activation::GeluTanh, 3),
            (1, Activation::Silu, 1),
            (1, Activation::Silu, 3),
            (2, Activation::Silu, 3),
        ];
        for (shared, activation, per_token) in kinds {
            check(&format!("{tokens} tokens, {per_token} of each, shared: {shared}, {activation:?}"), || {
                let (hidden, inner, experts) = (128, 64, 8);
                let layers = [
                    stack(1, [experts, inner, hidden], 4),
                    stack(2, [experts, inner, hidden], 4),
                    stack(3, [experts, hidden, inner], if shared == 2 { 8 } else { 4 }),
                ];
                let small = |seed, size| linear(seed, size, 4, false);
                let mlp = || {
                    let layers =
                        [small(4, [inner, hidden]), small(5, [inner, hidden]), small(6, [hidden, inner])];
                    Mlp::new(layers, Activation::Silu)
                };
                let shared = match shared {
                    0 => None,
                    1 => Some(SharedExpert { mlp: mlp(), gate: None }),
                    _ => Some(SharedExpert { mlp: mlp(), gate: Some(linear(7, [1, hidden], 8, false)) }),
                };
                let block = MixtureOfExperts::new(
                    router(8, experts, hidden, false),
                    Router::softmax(per_token, true),
                    Experts::new(layers, activation),
                    shared,
                );
                let (x, pre, post) = (array(9, &[tokens, hidden]), norm(10, hidden), norm(11, hidden));
                let plain = block.add_to(&Residual::new(&x, &pre));
                let sandwich = block.add_to(&Residual::new(&x, &pre).with_post_norm(&post));
                [bits(&plain), bits(&sandwich)]
            });
        }
    }
}
