//! Drafts compared with recorded ones for every split of the prompt; the state of target sequences;
//! failures.

use std::{cell::Cell, fs, sync::LazyLock};

use nn::Embedding;
use serde::Deserialize;

use super::*;
use crate::{
    api::Sampling,
    speculate::tests::{Bench, answers, model, request, state, tokens},
    tests::{checkpoint, load_dflash},
};

/// Recorded drafters, and the hidden size of their target models: full attention; sliding windows.
const DRAFTERS: [(&str, i32); 2] = [("qwen3-a", 64), ("qwen3_5-text-sharded", 128)];

/// Recorded by tools/goldens/blocks.py.
#[derive(Deserialize)]
struct Recorded {
    prompt_ids: Vec<u32>,
    starts: Vec<usize>,
    logits: Vec<Vec<Vec<f32>>>,
}

fn recorded(name: &str) -> Recorded {
    let path = checkpoint::recorded().join("../blocks").join(name).join("golden.json");
    serde_json::from_str(&fs::read_to_string(path).expect("golden.json")).expect("a recorded drafter")
}

fn drafter(name: &str, hidden_size: i32) -> DFlashDrafter {
    let model: Rc<dyn Model> = model(name).into();
    let block = load_dflash(name, &*model, hidden_size);
    DFlashDrafter::new(model, block)
}

/// Hidden states of tokens after each layer that a drafter observes, `[tokens, hidden_size]`.
fn hidden(drafter: &DFlashDrafter, tokens: &[u32]) -> Vec<Array> {
    let model = &drafter.model;
    let mut caches = model.make_caches();
    let mut batch = Batch::new([BatchRow {
        num_tokens: tokens.len(),
        num_draft: 0,
        num_computed: 0,
        caches: &mut caches,
    }]);
    batch.capture(&drafter.block.target_layers);
    model.forward(&Array::from_slice(tokens, &[tokens.len() as i32]), &mut batch);
    let captured = batch.take_captured();
    let after = |layer: &usize| captured.iter().find(|(at, _)| at == layer).expect("captured").1.clone();
    drafter.block.target_layers.iter().map(after).collect()
}

fn part(hidden: &[Array], from: usize, to: usize) -> Vec<Array> {
    hidden.iter().map(|x| x.slice(0, from as i32, to as i32)).collect()
}

fn observe(drafter: &mut DFlashDrafter, state: &mut DrafterState, from: usize, hidden: Vec<Array>) {
    drafter.observe(&HiddenStates { tokens: &[], from, hidden }, state);
}

static GREEDY: LazyLock<Sampling> = LazyLock::new(Sampling::default);

fn propose(drafter: &mut DFlashDrafter, state: &mut DrafterState, tokens: &[u32], depth: usize) -> Draft {
    propose_sampled(drafter, state, tokens, depth, &GREEDY)
}

fn propose_sampled(
    drafter: &mut DFlashDrafter,
    state: &mut DrafterState,
    tokens: &[u32],
    depth: usize,
    sampling: &Sampling,
) -> Draft {
    let request = DraftRequest::new(tokens, tokens.len().min(3), depth, sampling, state);
    drafter.propose(&mut [request]).expect("computes").remove(0)
}

fn context(state: &DrafterState) -> &DFlashContext {
    state.get().expect("a context")
}

fn text(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| 3 + (i * (2 * seed + 5) + i / 3 + seed) % 240).collect()
}

#[test]
fn block_logits_match_the_reference_for_every_split() {
    nn::set_precision(nn::Precision::Float32);
    for (name, hidden_size) in DRAFTERS {
        let recorded = recorded(name);
        let drafter = drafter(name, hidden_size);
        let states = hidden(&drafter, &recorded.prompt_ids);
        let mut worst = 0.0f32;
        for (&start, expected) in recorded.starts.iter().zip(&recorded.logits) {
            let logits = |chunk: usize| {
                let mut context = DFlashContext::new(&drafter.block);
                for from in (0..start).step_by(chunk) {
                    context.push(from, &part(&states, from, start.min(from + chunk)));
                    if from % 3 == 0 {
                        catch_up(&drafter.block, &mut [&mut context]);
                    }
                }
                let tokens = &recorded.prompt_ids[..=start];
                let sampler = Sampler::new(&GREEDY, drafter.model.vocab_size(), tokens, &[]);
                let mut rows = [DFlashRow { context, sampler, tokens, depth: 1 }];
                let hidden = drafter.forward(&mut rows).expect("an embedding");
                let logits = drafter.model.logits(&hidden.slice(0, 1, drafter.block.size as i32));
                logits.to_vec::<f32>().expect("evaluates")
            };
            let all = logits(1000);
            let off = all.iter().zip(expected.iter().flatten()).map(|(a, b)| (a - b).abs());
            worst = off.fold(worst, f32::max);
            assert_eq!(all.len(), expected.iter().map(Vec::len).sum::<usize>());
            assert!(logits(1) == all && logits(7) == all, "{name}, after {start} tokens");
        }
        println!("{name}: within {worst:.1e}");
        assert!(worst < 1e-4, "{name}: logits are off by {worst}");
    }
}

/// Compares a context that drafted often with one that only observed.
#[test]
fn drafts_leave_no_trace_in_the_context() {
    for (name, hidden_size) in DRAFTERS {
        let tokens = text(1, 700);
        let (mut often, mut once) = (drafter(name, hidden_size), drafter(name, hidden_size));
        let states = hidden(&often, &tokens);
        let (mut often_state, mut once_state) = <(DrafterState, DrafterState)>::default();
        let mut observed = 0;
        for known in [2, 20, 21, 24, 100, 400, 690] {
            observe(&mut often, &mut often_state, observed, part(&states, observed, known - 1));
            observed = known - 1;
            let draft = propose(&mut often, &mut often_state, &tokens[..known], 32);
            assert_eq!(draft.tokens.len(), often.block.size - 1, "{name}");
            let shorter = propose(&mut often, &mut often_state, &tokens[..known], 2);
            assert_eq!(shorter.tokens, draft.tokens[..2], "{name}: as long as requested");
        }
        assert_eq!(
            propose(&mut often, &mut often_state, &tokens[..691], 4),
            Draft::default(),
            "not observed"
        );
        observe(&mut once, &mut once_state, 0, part(&states, 0, 689));
        let drafts = [(&mut often, &mut often_state), (&mut once, &mut once_state)].map(|(drafter, own)| {
            let draft = propose(drafter, own, &tokens[..690], 8);
            (draft, state(&context(own).caches, 689))
        });
        assert!(drafts[0] == drafts[1], "{name}: {:?}, {:?}", drafts[0].0, drafts[1].0);
    }
}

#[test]
fn batched_drafts_equal_single_ones() {
    for (name, hidden_size) in DRAFTERS {
        let (mut together, mut alone) = (drafter(name, hidden_size), drafter(name, hidden_size));
        let texts: Vec<Vec<u32>> = (1..=5).map(|s| text(s, 30 * s as usize + 2)).collect();
        let sampled = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
        let samplings: Vec<Sampling> =
            (0..5).map(|i| if i % 2 == 0 { Sampling::default() } else { sampled(i) }).collect();
        let new_states = || -> Vec<DrafterState> { texts.iter().map(|_| DrafterState::default()).collect() };
        let mut states = [new_states(), new_states()];
        for (i, text) in texts.iter().enumerate() {
            let hidden = hidden(&together, text);
            for (drafter, states) in [&mut together, &mut alone].into_iter().zip(&mut states) {
                observe(drafter, &mut states[i], 0, part(&hidden, 0, text.len() - 1));
            }
        }
        let depths = [3, 0, 9, 1, 2];
        let [batched, single] = &mut states;
        let request =
            |(i, state): (usize, _)| DraftRequest::new(&texts[i], 3, depths[i], &samplings[i], state);
        let mut requests: Vec<DraftRequest> = batched.iter_mut().enumerate().map(request).collect();
        let drafts = together.propose(&mut requests).expect("computes");
        assert_eq!(drafts[1], Draft::default(), "{name}: no draft is wanted");
        for (i, state) in single.iter_mut().enumerate() {
            let draft = propose_sampled(&mut alone, state, &texts[i], depths[i], &samplings[i]);
            assert_eq!(draft, drafts[i], "{name}, row {i}");
        }
    }
}

#[test]
fn resumed_and_restarted_sequences_get_drafts() {
    for (name, hidden_size) in DRAFTERS {
        let mut drafter = drafter(name, hidden_size);
        let tokens = text(2, 60);
        let states = hidden(&drafter, &tokens);
        let ask = |drafter: &mut DFlashDrafter, state: &mut DrafterState| propose(drafter, state, &tokens, 3);
        let [mut first, mut restarted, mut resumed, mut gap] = [(); 4].map(|()| DrafterState::default());
        assert_eq!(ask(&mut drafter, &mut first), Draft::default(), "{name}: nothing was observed");
        observe(&mut drafter, &mut first, 0, part(&states, 0, 59));
        let expected = ask(&mut drafter, &mut first);
        observe(&mut drafter, &mut restarted, 0, part(&states, 0, 59));
        assert_eq!(ask(&mut drafter, &mut restarted), expected, "{name}");
        observe(&mut drafter, &mut resumed, 40, part(&states, 40, 59));
        assert_eq!(ask(&mut drafter, &mut resumed).tokens.len(), 3, "{name}: it has observed the end alone");
        // The middle is not observed: the context has what it computed before, and the position.
        observe(&mut drafter, &mut gap, 0, part(&states, 0, 30));
        propose(&mut drafter, &mut gap, &tokens[..31], 3);
        observe(&mut drafter, &mut gap, 40, part(&states, 40, 59));
        assert_eq!(ask(&mut drafter, &mut gap).tokens.len(), 3, "{name}");
        assert_eq!(context(&gap).to, 59);
    }
}

#[test]
fn pending_hidden_states_are_bounded() {
    let mut drafter = drafter("qwen3-a", 64);
    let tokens = text(3, 1000);
    let states = hidden(&drafter, &tokens);
    let mut state = DrafterState::default();
    for from in (0..960).step_by(64) {
        observe(&mut drafter, &mut state, from, part(&states, from, from + 64));
        let context = context(&state);
        assert!(context.to - context.from < MAX_PENDING, "{} are pending", context.to - context.from);
    }
    let growing = context(&state).caches[0].as_full_attention().expect("full attention").length();
    assert!(growing > 960 - MAX_PENDING as i32, "every position is in the context: {growing}");
}

#[test]
fn state_after_each_step_of_block_drafts_equals_a_fresh_prefill() {
    for (name, hidden_size) in DRAFTERS {
        let expected = answers(name, 4);
        let mut bench = Bench::with(name, Box::new(drafter(name, hidden_size)));
        let drafters = ["block", "block", "off", "block"];
        let requests = (0..4).zip(drafters).map(|(i, drafter)| request(i, drafter, 2 + i as usize));
        let running: Vec<_> = requests.map(|request| bench.submit(request)).collect();
        let compared = bench.compare_states(name);
        assert!(compared > 20, "{name}: {compared}");
        for ((_handle, events), (_, expected)) in running.into_iter().zip(&expected) {
            assert_eq!(tokens(events), *expected, "{name}");
        }
    }
}

/// A model whose output head panics on demand.
struct FailingModel {
    model: Box<dyn Model>,
    panics: Rc<Cell<bool>>,
    calls: Rc<Cell<usize>>,
}

impl Model for FailingModel {
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array {
        self.model.forward(tokens, batch)
    }

    fn logits(&self, hidden: &Array) -> Array {
        self.calls.set(self.calls.get() + 1);
        assert!(!self.panics.get(), "on purpose");
        self.model.logits(hidden)
    }

    fn make_caches(&self) -> Vec<Cache> {
        self.model.make_caches()
    }

    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn layers(&self) -> usize {
        self.model.layers()
    }

    fn embedding(&self) -> Option<&Embedding> {
        self.model.embedding()
    }
}

#[test]
fn failing_block_drafter_changes_no_answer() {
    for (name, hidden_size) in DRAFTERS {
        let expected = answers(name, 3);
        let (panics, calls) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let failing = FailingModel { model: model(name), panics: panics.clone(), calls: calls.clone() };
        let block = load_dflash(name, &failing, hidden_size);
        let mut bench = Bench::with(name, Box::new(DFlashDrafter::new(Rc::new(failing), block)));
        let running: Vec<_> = (0..3).map(|i| bench.submit(request(i, "block", 3))).collect();
        let (mut steps, mut at_panic) = (0, 0);
        bench.run(|_| {
            steps += 1;
            if steps == 9 {
                panics.set(true);
                at_panic = calls.get();
            }
        });
        assert!(at_panic > 0, "{name}: it has drafted");
        assert_eq!(calls.get(), at_panic + 1, "{name}: it is not called again");
        for ((_handle, events), (_, expected)) in running.into_iter().zip(&expected) {
            assert_eq!(tokens(events), *expected, "{name}");
        }
    }
}
