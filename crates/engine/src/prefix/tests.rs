use mlx::{Array, Dtype};
use nn::Softmax;

use super::*;

const TOKENS: i32 = 600;

/// Caches of two full-attention layers, a window and a recurrence, after `TOKENS` tokens.
fn caches() -> Vec<Cache> {
    let noise = |shape: &[i32], seed| Array::gumbel(shape, seed).astype(Dtype::Float32);
    let mut caches = vec![Cache::kv(), Cache::window(40), Cache::recurrent(), Cache::kv()];
    for (seed, cache) in (0..).zip(&mut caches) {
        match cache {
            Cache::Kv(kv) => {
                let [q, k, v] = [1, 2, 3].map(|i| noise(&[TOKENS, 2, 8], 10 * seed + i));
                let out = kv.attend(&q, [&k, &v], &Softmax::scaled(0.3));
                mlx::eval([&out]).expect("runs");
            }
            Cache::Recurrent(recurrent) => {
                let [x, weight] = [noise(&[TOKENS, 6], 90), noise(&[6, 4], 91)];
                mlx::eval([&recurrent.causal_conv(&x, 0, &weight, true)]).expect("runs");
            }
        }
    }
    caches
}

/// The values in the caches restored for `tokens`, and the number of slices that took.
fn restored_values(
    prefix: &mut PrefixCache,
    caches: &[Cache],
    tokens: &[u32],
    slice: usize,
) -> (Vec<Vec<f32>>, usize) {
    let request = Request::new(tokens.to_vec(), 1);
    let mut resumed: Vec<Cache> = caches
        .iter()
        .map(|cache| match cache {
            Cache::Kv(kv) => kv.window().map_or_else(Cache::kv, Cache::window),
            Cache::Recurrent(_) => Cache::recurrent(),
        })
        .collect();
    let mut matched = prefix.attach(&request, tokens, &resumed);
    assert_eq!(matched.position, TOKENS as usize);
    let restore = matched.restore.as_mut().expect("a match");
    let mut slices = 1;
    while !restore.advance(&mut resumed, &mut { slice }).expect("runs") {
        slices += 1;
    }
    let numbers = |array: &Array| match array.ndim() {
        3 => nn::copy_tokens(array, 0, array.dim(1).min(TOKENS)).to_f32().expect("runs"),
        _ => array.to_f32().expect("runs"),
    };
    (resumed.iter().flat_map(|cache| cache.arrays().map(numbers).collect::<Vec<_>>()).collect(), slices)
}

#[test]
fn state_copied_in_slices_equals_state_copied_at_once() {
    let caches = caches();
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    let longer = [&tokens[..], &[7, 7]].concat();
    let new = || PrefixCache::new(&Options::default(), &caches, None, None);
    let mut at_once = new();
    let source = CopySource {
        key: PrefixKey { salt: None, tokens: &tokens },
        caches: &caches,
        ahead: 0,
        lossy: false,
    };
    let copy = at_once.start_copy(&source, CopyProgress::default()).expect("new state");
    let copied = copy.at_once(&caches);
    mlx::eval(copied.arrays()).expect("runs");
    at_once.store(&tokens, copied);

    let mut sliced = new();
    let mut copy = sliced.start_copy(&source, CopyProgress::default()).expect("new state");
    let mut slices = 1;
    while !copy.advance(&caches, &mut 1).expect("runs") {
        slices += 1;
    }
    assert!(slices >= 2, "a layer at a time: {slices}");
    sliced.store(&tokens, copy.into_state());

    let (expected, _) = restored_values(&mut at_once, &caches, &longer, usize::MAX);
    let (got, slices) = restored_values(&mut sliced, &caches, &longer, 1);
    assert!(expected == got && !got.is_empty());
    assert!(slices >= 2 * TOKENS as usize, "a token of a layer at a time: {slices}");
}

#[test]
fn span_ranges_end_at_multiples_of_span() {
    let check = |from, to, expected: &[[usize; 2]]| assert_eq!(span_ranges(from, to), expected);
    check(5, 5, &[]);
    check(0, SPAN, &[[0, SPAN]]);
    check(10, SPAN + 1, &[[10, SPAN], [SPAN, SPAN + 1]]);
    check(SPAN, 3 * SPAN, &[[SPAN, 2 * SPAN], [2 * SPAN, 3 * SPAN]]);
}
