//! Drafts by layer skipping: the state afterwards, the length of drafts, and the profile.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    drafter::{Calibrated, LayerSelection},
    *,
};
use crate::{cache::CacheGuard, prefix::LAYER_PROFILE_FILE};

/// Families in which layers can be skipped.
pub(super) fn models() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().filter(|golden| *golden != "gemma4_e-a")
}

fn ids(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[tokens.len() as i32])
}

/// Logits `[tokens, vocab_size]`, as bits, of further `tokens`, the last `ahead` of which may be
/// rewound.
fn extend(model: &dyn Model, caches: &mut [Cache], past: usize, tokens: &[u32], ahead: usize) -> Vec<u32> {
    let row = BatchRow { num_tokens: tokens.len(), num_draft: ahead, num_computed: past, caches };
    let hidden = model.forward(&ids(tokens), &mut Batch::new([row]));
    let logits = model.logits(&hidden).to_f32().expect("evaluates");
    logits.into_iter().map(f32::to_bits).collect()
}

/// Caches of a sequence that has computed `tokens` but the last, three of them as a draft of five.
fn after_a_draft(model: &dyn Model, tokens: &[u32]) -> Vec<Cache> {
    let mut caches = model.make_caches();
    let (known, drafted) = tokens[..tokens.len() - 1].split_at(tokens.len() - 5);
    extend(model, &mut caches, 0, known, 0);
    extend(model, &mut caches, known.len(), &[drafted, &[1, 2]].concat(), 5);
    caches.iter_mut().for_each(|cache| cache.rewind(2).expect("short"));
    caches
}

/// A draft after `tokens`, all but the last of which are in `caches`.
fn propose(
    layer_skip: &mut LayerSkip,
    tokens: &[u32],
    depth: usize,
    sampling: &Sampling,
    caches: &mut [Cache],
) -> Draft {
    let mut state = DrafterState::default();
    let request = DraftRequest::new(tokens, tokens.len() - 4, depth, sampling, &mut state);
    let request = DraftRequest { target_cache: Some(CacheGuard::new(caches)), ..request };
    layer_skip.propose(&mut [request]).expect("drafts").remove(0)
}

#[test]
fn layer_skip_draft_restores_the_state() {
    for golden in models() {
        let model: Rc<dyn Model> = model(golden).into();
        // Windows move and buffers grow during the drafts.
        for length in [9, 60, 251, 762] {
            let tokens: Vec<u32> = (0..length).map(|t| 3 + (t * 7 + t / 11) % 240).collect();
            let sampling = Sampling { temperature: 0.9, seed: 3, ..Sampling::default() };
            let computed = tokens.len() - 1;
            let mut caches = after_a_draft(&*model, &tokens);
            let before = state(&caches, computed);
            let mut layer_skip = LayerSkip::without(model.clone(), vec![1], 0.0);
            for (depth, sampling) in [(8, &Sampling::default()), (3, &sampling), (MAX_DEPTH, &sampling)] {
                let draft = propose(&mut layer_skip, &tokens, depth, sampling, &mut caches);
                assert_eq!(draft.tokens.len(), depth, "{golden}");
                assert!(state(&caches, computed) == before, "{golden}, after {computed} tokens");
            }
            let mut plain = after_a_draft(&*model, &tokens);
            let next = [tokens[computed], 5, 6, 7];
            assert!(
                extend(&*model, &mut caches, computed, &next, 3)
                    == extend(&*model, &mut plain, computed, &next, 3),
                "{golden}: the logits after {computed} tokens"
            );
        }
    }
}

#[test]
fn borrowed_caches_are_restored_after_a_panic() {
    for golden in models() {
        let model = model(golden);
        let tokens: Vec<u32> = (3..40).collect();
        let mut caches = after_a_draft(&*model, &tokens);
        let before = state(&caches, tokens.len() - 1);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let mut lent = CacheGuard::new(&mut caches);
            extend(&*model, &mut lent, tokens.len() - 1, &[9, 8, 7], 0);
            panic!("in the middle of a draft");
        }));
        assert!(panic.is_err());
        assert!(state(&caches, tokens.len() - 1) == before, "{golden}");
    }
}

#[test]
fn state_after_each_step_of_layer_skip_equals_a_fresh_prefill() {
    for golden in models() {
        let expected = answers(golden, 3);
        for skipped in [vec![], vec![1]] {
            let layer_skip = LayerSkip::without(model(golden).into(), skipped.clone(), 0.0);
            let mut bench = Bench::with(golden, Box::new(layer_skip));
            let drafters = ["self", "self", "off"];
            let requests = (0..3).zip(drafters).map(|(i, drafter)| request(i, drafter, 4));
            let running: Vec<_> = requests.map(|request| bench.submit(request)).collect();
            let compared = bench.compare_states(&format!("{golden} without {skipped:?}"));
            assert!(compared > 10, "{golden}: {compared}");
            for ((_handle, events), (_, expected)) in running.into_iter().zip(&expected) {
                let events: Vec<Event> = events.try_iter().collect();
                if skipped.is_empty() {
                    assert!(all_accepted(&events), "{golden}: the whole model drafts what it picks");
                }
                assert_eq!(picked(events), *expected, "{golden} without {skipped:?}");
            }
        }
    }
}

/// Panics on the caches that it borrowed.
struct Panicking(Rc<dyn Model>);

impl Drafter for Panicking {
    fn info(&self) -> DrafterInfo {
        DrafterInfo { uses_target_cache: true, ..DrafterInfo::new("panicking") }
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let tokens = requests[0].tokens;
        let caches = requests[0].target_cache.as_mut().expect("borrowed caches");
        extend(&*self.0, caches, tokens.len() - 1, &[9, 8, 7], 0);
        panic!("in the middle of a draft")
    }
}

#[test]
fn panicking_drafter_changes_no_answer() {
    for golden in ["qwen3_5-text-sharded", "gemma3_text-a"] {
        let expected = answers(golden, 3);
        let mut bench = Bench::with(golden, Box::new(Panicking(model(golden).into())));
        let running = [0, 1, 2].map(|i| bench.submit(request(i, if i < 2 { "panicking" } else { "off" }, 4)));
        let mut restarted = 0;
        bench.run(|engine_loop| {
            assert!(engine_loop.running.iter().all(|s| !s.speculation.caches_in_use()));
            restarted += engine_loop.running.iter().filter(|s| s.quarantined).count();
        });
        assert!(restarted > 0, "the contents of its caches are uncertain");
        for ((_handle, events), (_, expected)) in running.into_iter().zip(&expected) {
            assert_eq!(tokens(events), *expected, "{golden}");
        }
    }
}

fn all_accepted(events: &[Event]) -> bool {
    events.iter().all(|event| match event {
        Event::Finished { usage, .. } => usage.speculation.iter().all(|by| by.accepted == by.drafted),
        _ => true,
    })
}

fn picked(events: Vec<Event>) -> Vec<u32> {
    let (sender, receiver) = mpsc::channel();
    events.into_iter().for_each(|event| sender.send(event).expect("held"));
    tokens(receiver)
}

#[test]
fn improbable_draft_ends_early_with_low_confidence() {
    let model: Rc<dyn Model> = model("qwen3_5-text-sharded").into();
    let tokens: Vec<u32> = (3..40).collect();
    let draft = |min_probability: f64, sampling: &Sampling| {
        let mut caches = model.make_caches();
        extend(&*model, &mut caches, 0, &tokens[..tokens.len() - 1], 0);
        let mut layer_skip = LayerSkip::without(model.clone(), vec![1], min_probability);
        propose(&mut layer_skip, &tokens, 6, sampling, &mut caches)
    };
    let greedy = Sampling::default();
    // To a model with random weights nearly all tokens are equally probable.
    let long = draft(0.0, &greedy);
    assert_eq!((long.tokens.len(), long.confidence_bin), (6, 0));
    let short = draft(0.6, &greedy);
    assert_eq!(short.tokens, long.tokens[..1]);
}

#[test]
fn layer_profile_is_measured_once_and_again_if_its_file_is_broken() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(LAYER_PROFILE_FILE);
    let model: Rc<dyn Model> = model("qwen3_5-text-sharded").into();
    let layers = model.layers();
    let text: Vec<u32> = (0..50).map(|t| 3 + (t * t) % 240).collect();
    let open = || LayerSkip::new(model.clone(), Some(file.clone())).expect("layers to spare");
    let profiled = |text: &[u32]| {
        let mut layer_skip = open();
        layer_skip.set_calibration_text(text);
        layer_skip.skippable_layers();
        while layer_skip.is_measuring() {
            layer_skip.measure().expect("measures");
        }
        layer_skip
    };
    assert!(!open().is_ready());
    let first = profiled(&text);
    assert!(first.is_ready() && open().is_ready());
    let saved = std::fs::read(&file).expect("was saved");
    let skipped = first.skipped().to_vec();
    assert!(
        !skipped.is_empty() && skipped.iter().all(|layer| (1..layers - 1).contains(layer)),
        "{skipped:?}"
    );
    assert_eq!(open().skipped(), skipped, "as it was measured");
    std::fs::write(&file, &saved[..saved.len() / 2]).expect("is written");
    assert!(!open().is_ready());
    profiled(&text);
    assert_eq!(std::fs::read(&file).expect("was saved"), saved);
    // A known profile is not measured again, whatever the text.
    profiled(&text[..7]);
    assert_eq!(std::fs::read(&file).expect("is there"), saved);
}

#[test]
fn family_without_skippable_layers_has_no_layer_skip() {
    let model: Rc<dyn Model> = model("gemma4_e-a").into();
    assert!(LayerSkip::new(model, None).is_none());
}
