use mlx::{Array, Dtype};
use nn::Softmax;

use super::*;

const WINDOW: i32 = 40;

fn noise(shape: &[i32], seed: u64) -> Array {
    Array::gumbel(shape, seed).astype(Dtype::Float32)
}

/// Queries, keys and values of `tokens` tokens.
fn inputs(tokens: i32) -> [Array; 3] {
    [noise(&[tokens, 4, 8], 1), noise(&[tokens, 2, 8], 2), noise(&[tokens, 2, 8], 3)]
}

/// Feeds tokens `from..to` in chunks and returns the outputs.
fn feed(cache: &mut Cache, inputs: &[Array; 3], from: i32, to: i32, chunk: i32) -> Vec<f32> {
    let softmax = Softmax::scaled(0.35);
    let mut outputs = vec![];
    let mut at = from;
    while at < to {
        let end = (at + chunk).min(to);
        let [q, k, v] = inputs.each_ref().map(|x| x.slice(0, at, end).contiguous());
        let out = cache.as_kv().attend(&q, [&k, &v], &softmax);
        outputs.extend(out.to_vec::<f32>().expect("evaluates"));
        at = end;
    }
    outputs
}

#[test]
fn window_equals_masked_full_attention() {
    let inputs = inputs(1500);
    // Reference: a cache of all tokens, and a mask.
    let [q, k, v] = &inputs;
    let (mut keys, mut values) = (nn::KvBuffer::default(), nn::KvBuffer::default());
    let whole = nn::attend(q, [k, v], &mut keys, &mut values, 0, Some(WINDOW), &Softmax::scaled(0.35));
    let whole = whole.to_vec::<f32>().expect("evaluates");
    for chunk in [1500, 300, 7, 1] {
        let mut cache = Cache::window(WINDOW);
        assert!(feed(&mut cache, &inputs, 0, 1500, chunk) == whole, "chunks of {chunk}");
        if chunk < 256 {
            let Cache::Kv(kv) = &cache else { unreachable!() };
            assert!(kv.arrays()[0].expect("filled").dim(1) <= 768, "old tokens are dropped");
        }
    }
}

/// Snapshots before and after a window first moves, restored into a buffer that soon has to move.
#[test]
fn restored_window_continues_with_same_bits() {
    let inputs = inputs(1500);
    let mut cache = Cache::window(WINDOW);
    let mut whole = feed(&mut cache, &inputs, 0, 30, 7);
    for (from, to) in [(30, 299), (299, 555), (555, 1100)] {
        let (snapshot, room) = (cache.snapshot(0).expect("a window"), from % 3);
        let continued = feed(&mut cache, &inputs, from, to, 9);
        whole.extend(&continued);
        let mut resumed = Cache::window(WINDOW);
        resumed.restore(&snapshot, room);
        let rest = feed(&mut resumed, &inputs, from, 1500, 5);
        assert!(rest[..continued.len()] == continued, "from {from}");
        let again = resumed.snapshot(0).expect("a window");
        assert!(again.arrays().all(|array| array.dim(1) < 500), "the snapshot has only the window");
    }
    let mut cold = Cache::window(WINDOW);
    assert!(feed(&mut cold, &inputs, 0, 1100, 1100) == whole);
}

#[test]
fn rewind_restores_bits_before_tokens() {
    let inputs = inputs(700);
    for (mut cache, back) in [(Cache::kv(), 400), (Cache::window(WINDOW), 20)] {
        feed(&mut cache, &inputs, 0, 600 - back, 50);
        let first = feed(&mut cache, &inputs, 600 - back, 600, 10);
        cache
            .rewind(back as usize)
            .unwrap_or_else(|WindowEvicted| panic!("{back} tokens back must be possible"));
        assert!(first == feed(&mut cache, &inputs, 600 - back, 600, 10));
    }
}

#[test]
fn rewind_past_window_fails_and_changes_nothing() {
    let inputs = inputs(1500);
    let mut cache = Cache::window(WINDOW);
    let whole = feed(&mut Cache::window(WINDOW), &inputs, 0, 1500, 10);
    feed(&mut cache, &inputs, 0, 1490, 10);
    assert_eq!(cache.rewind(1400), Err(WindowEvicted));
    let rest = feed(&mut cache, &inputs, 1490, 1500, 10);
    assert!(whole.ends_with(&rest));
}

#[test]
fn rewind_recurrence_removes_uncommitted_tokens() {
    let [x, weight] = [noise(&[30, 6], 4), noise(&[6, 4], 5)];
    let [q, k, v] = [noise(&[30, 2, 8], 1), noise(&[30, 2, 8], 2), noise(&[30, 4, 8], 3)];
    let beta = noise(&[30, 4], 6).sigmoid();
    let run = |cache: &mut Cache, from, to, ahead| -> Vec<f32> {
        let x = x.slice(0, from, to).contiguous();
        let conv =
            cache.as_recurrent().causal_conv(&x, ahead, &weight, true).to_vec::<f32>().expect("evaluates");
        let [q, k, v, beta] = [&q, &k, &v, &beta]
            .map(|a| a.slice(0, from, to).reshape(&[&[1, to - from], &a.shape()[1..]].concat()));
        let out = cache.as_recurrent().gated_delta([&q, &k, &v], ahead, &beta, &beta);
        [conv, out.to_vec::<f32>().expect("evaluates")].concat()
    };
    let mut plain = Cache::recurrent();
    run(&mut plain, 0, 11, 0);
    let expected = run(&mut plain, 11, 30, 0);
    let mut cache = Cache::recurrent();
    run(&mut cache, 0, 8, 0);
    run(&mut cache, 8, 16, 7);
    cache.rewind(5).expect("uncommitted tokens can be rewound");
    assert!(run(&mut cache, 11, 30, 0) == expected);
}
