//! The model drafting for itself: what it leaves behind, and what decides how far it goes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::{
    cache::Lent,
    speculate::{LAYER_PROFILE_FILE, LayerSkip},
};

/// Families in which layers can be left out.
pub fn models() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().filter(|golden| *golden != "gemma4_e-a")
}

fn ids(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[tokens.len() as i32])
}

/// Logits `[tokens, vocab_size]`, as bits, of so many tokens more, the last `ahead` of which may be forgotten.
fn go_on(model: &dyn Model, caches: &mut [Cache], past: usize, tokens: &[u32], ahead: usize) -> Vec<u32> {
    let part = Part { tokens: tokens.len(), ahead, past, caches };
    let hidden = model.forward(&ids(tokens), &mut Batch::new([part]));
    let logits = model.logits(&hidden).to_f32().expect("evaluates");
    logits.into_iter().map(f32::to_bits).collect()
}

/// A sequence that has computed `tokens` but the last, three of them as a draft of five.
fn after_a_draft(model: &dyn Model, tokens: &[u32]) -> Vec<Cache> {
    let mut caches = model.make_caches();
    let (known, drafted) = tokens[..tokens.len() - 1].split_at(tokens.len() - 5);
    go_on(model, &mut caches, 0, known, 0);
    go_on(model, &mut caches, known.len(), &[drafted, &[1, 2]].concat(), 5);
    caches.iter_mut().for_each(|cache| cache.rewind(2).expect("short"));
    caches
}

#[test]
fn a_draft_leaves_the_state_as_it_was() {
    for golden in models() {
        let model: Rc<dyn Model> = model(golden).into();
        // Windows move and buffers grow while it drafts.
        for length in [9, 60, 251, 762] {
            let tokens: Vec<u32> = (0..length).map(|t| 3 + (t * 7 + t / 11) % 240).collect();
            let sampling = Sampling { temperature: 0.9, seed: 3, ..Sampling::default() };
            let asked = |depth, sampling| DraftRequest {
                sequence: 0,
                tokens: &tokens,
                prompt: tokens.len() - 4,
                depth,
                sampling,
                constraint: None,
            };
            let computed = tokens.len() - 1;
            let mut caches = after_a_draft(&*model, &tokens);
            let before = state(&caches, computed);
            let mut layer_skip = LayerSkip::without(model.clone(), vec![1], 0.0);
            for (depth, sampling) in [(8, &Sampling::default()), (3, &sampling), (MAX_DEPTH, &sampling)] {
                let lent = vec![Lent::new(&mut caches)];
                let drafts = layer_skip.propose_on(&[asked(depth, sampling)], lent).expect("drafts");
                assert_eq!(drafts[0].tokens.len(), depth, "{golden}");
                assert!(state(&caches, computed) == before, "{golden}, behind {computed} tokens");
            }
            let mut plain = after_a_draft(&*model, &tokens);
            let next = [tokens[computed], 5, 6, 7];
            assert!(
                go_on(&*model, &mut caches, computed, &next, 3)
                    == go_on(&*model, &mut plain, computed, &next, 3),
                "{golden}: what comes behind {computed} tokens"
            );
        }
    }
}

#[test]
fn caches_that_were_lent_come_back_from_a_panic() {
    for golden in models() {
        let model = model(golden);
        let tokens: Vec<u32> = (3..40).collect();
        let mut caches = after_a_draft(&*model, &tokens);
        let before = state(&caches, tokens.len() - 1);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let mut lent = Lent::new(&mut caches);
            go_on(&*model, &mut lent, tokens.len() - 1, &[9, 8, 7], 0);
            panic!("in the middle of a draft");
        }));
        assert!(panic.is_err());
        assert!(state(&caches, tokens.len() - 1) == before, "{golden}");
    }
}

#[test]
fn the_state_behind_its_rounds_is_that_of_a_fresh_prefill() {
    for golden in models() {
        let expected = answers(golden, 3);
        for skipped in [vec![], vec![1]] {
            let layer_skip = LayerSkip::without(model(golden).into(), skipped.clone(), 0.0);
            let mut bench = Bench::with(golden, Box::new(layer_skip));
            let drafters = ["self", "self", "off"];
            let asked = (0..3).zip(drafters).map(|(i, drafter)| request(i, drafter, 4));
            let running: Vec<_> = asked.map(|asked| bench.submit(asked)).collect();
            let compared = bench.compare_states(&format!("{golden} without {skipped:?}"));
            assert!(compared > 10, "{golden}: {compared}");
            for ((_ticket, events), (_, expected)) in running.into_iter().zip(&expected) {
                let events: Vec<Event> = events.try_iter().collect();
                if skipped.is_empty() {
                    assert!(all_accepted(&events), "{golden}: the whole model drafts what it picks");
                }
                assert_eq!(picked(events), *expected, "{golden} without {skipped:?}");
            }
        }
    }
}

/// Dies on the caches that it was lent.
struct Dying(Rc<dyn Model>);

impl Drafter for Dying {
    fn name(&self) -> &'static str {
        "dying"
    }

    fn uses_target_cache(&self) -> bool {
        true
    }

    fn propose(&mut self, _: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        panic!("never asked without caches")
    }

    fn propose_on(&mut self, asked: &[DraftRequest], mut caches: Vec<Lent>) -> mlx::Result<Vec<Draft>> {
        go_on(&*self.0, &mut caches[0], asked[0].tokens.len() - 1, &[9, 8, 7], 0);
        panic!("in the middle of a draft")
    }
}

#[test]
fn a_drafter_that_dies_costs_time_alone() {
    for golden in ["qwen3_5-text-sharded", "gemma3_text-a"] {
        let expected = answers(golden, 3);
        let mut bench = Bench::with(golden, Box::new(Dying(model(golden).into())));
        let running = [0, 1, 2].map(|i| bench.submit(request(i, if i < 2 { "dying" } else { "off" }, 4)));
        let mut restarted = 0;
        bench.run(|runner| {
            assert!(runner.running.iter().all(|s| !s.lent));
            restarted += runner.running.iter().filter(|s| s.suspect).count();
        });
        assert!(restarted > 0, "what it held is uncertain");
        for ((_ticket, events), (_, expected)) in running.into_iter().zip(&expected) {
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
fn an_unlikely_draft_ends_early_and_says_so() {
    let model: Rc<dyn Model> = model("qwen3_5-text-sharded").into();
    let tokens: Vec<u32> = (3..40).collect();
    let draft = |least: f64, sampling: &Sampling| {
        let mut caches = model.make_caches();
        go_on(&*model, &mut caches, 0, &tokens[..tokens.len() - 1], 0);
        let asked =
            DraftRequest { sequence: 0, tokens: &tokens, prompt: 30, depth: 6, sampling, constraint: None };
        let mut layer_skip = LayerSkip::without(model.clone(), vec![1], least);
        layer_skip.propose_on(&[asked], vec![Lent::new(&mut caches)]).expect("drafts").remove(0)
    };
    let greedy = Sampling::default();
    // Nearly every token of a model with random weights is as likely as any other.
    let long = draft(0.0, &greedy);
    assert_eq!((long.tokens.len(), long.grade), (6, 0));
    let short = draft(0.6, &greedy);
    assert_eq!(short.tokens, long.tokens[..1]);
}

#[test]
fn a_profile_is_measured_once_and_again_where_it_is_broken() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(LAYER_PROFILE_FILE);
    let model: Rc<dyn Model> = model("qwen3_5-text-sharded").into();
    let layers = model.layers();
    let text: Vec<u32> = (0..50).map(|t| 3 + (t * t) % 240).collect();
    let open = || LayerSkip::new(model.clone(), Some(file.clone())).expect("layers to spare");
    let read = |text: &[u32]| {
        let mut layer_skip = open();
        layer_skip.read(text);
        layer_skip.skippable_layers();
        while layer_skip.is_measuring() {
            layer_skip.measure().expect("measures");
        }
        layer_skip
    };
    assert!(!open().is_ready());
    let first = read(&text);
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
    read(&text);
    assert_eq!(std::fs::read(&file).expect("was saved"), saved);
    // Whoever knows does not measure again, whatever the text.
    read(&text[..7]);
    assert_eq!(std::fs::read(&file).expect("is there"), saved);
}

#[test]
fn families_that_walk_their_layers_themselves_have_none() {
    let model: Rc<dyn Model> = model("gemma4_e-a").into();
    assert!(LayerSkip::new(model, None).is_none());
}
