//! Keys and values stored in bfloat16 while activations are float32.

use lanner_engine::*;

use crate::support::{
    disk_model::{DiskModel, MODELS, ask},
    requests::{Random, answer, request, submit},
};

fn stored_as(dtype: Dtype, options: Options) -> Options {
    Options { kv_cache_dtype: Some(dtype), ..options }
}

#[test]
fn bfloat16_keys_and_values_take_half_the_memory() {
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let memory = |options| model.start(options).info().memory.clone();
        let (own, half) =
            (memory(Options::default()), memory(stored_as(Dtype::Bfloat16, Options::default())));
        assert_eq!(half.token * 2, own.token, "{golden}");
        let windows = |memory: &Memory| memory.windows.iter().map(|(token, _)| *token).sum::<usize>();
        assert_eq!(windows(&half) * 2, windows(&own), "{golden}");
        // Recurrences stay as they are.
        assert_eq!(half.sequence, own.sequence, "{golden}");
    }
}

/// The answer does not depend on chunks, batch neighbours, drafts, the cache or a restart, as with
/// float32 keys and values.
#[test]
fn answers_with_bfloat16_keys_depend_on_the_request_alone() {
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let prompt = Random(8).tokens(700);
        let options = |options: Options| stored_as(Dtype::Bfloat16, options);
        let plain = Options { speculate: Speculate::Off, prefix_cache_bytes: 0, ..Options::default() };
        let expected = ask(&model.start(options(plain.clone())), &prompt).tokens;
        let chunked = model.start(options(Options { prefill_chunk: 37, ..plain }));
        let others: Vec<_> = (0..3).map(|i| submit(&chunked, request(Random(i).tokens(200), 30))).collect();
        assert_eq!(ask(&chunked, &prompt).tokens, expected, "{golden}: in chunks beside others");
        others.into_iter().for_each(|other| drop(answer(other)));
        for restart in 0..2 {
            let engine = model.start(options(model.with_disk(1 << 30)));
            for _ in 0..2 {
                let again = ask(&engine, &prompt);
                assert_eq!(again.tokens, expected, "{golden}: after {restart} restarts");
            }
            assert_eq!(ask(&engine, &prompt).usage.cached_tokens, 699, "{golden}");
        }
    }
}

#[test]
fn load_with_unsupported_type_of_keys_and_values_fails() {
    let model = DiskModel::new("qwen3-a");
    let load = |options| {
        let checkpoint = Checkpoint::Folder(model.folder.path().into());
        start(checkpoint, Options { device: Some(Device::Cpu), ..options }, |_| {}).err()
    };
    let error = load(stored_as(Dtype::Float16, Options::default())).expect("not supported");
    assert!(error.to_string().contains("cannot be stored as float16"), "{error}");
    let half = Options { dtype: Some(Dtype::Float16), ..Options::default() };
    let error = load(stored_as(Dtype::Bfloat16, half.clone())).expect("not supported");
    assert!(error.to_string().contains("cannot be stored as bfloat16"), "{error}");
    assert!(load(stored_as(Dtype::Float16, half)).is_none(), "the activations' own type");
}
