//! What only the inside can show: what it guesses, in every cut; the state of sequences it drafts for; and its failures.

use std::{cell::Cell, fs, sync::LazyLock};

use serde::Deserialize;

use super::*;
use crate::{
    nn::Embedding,
    request::Sampling,
    speculate::tests::{Bench, answers, model, request, state, tokens},
    tests::{checkpoint, load_dflash},
};

/// Recorded drafters, and the hidden size of the models that they are for: layers that see everything; windows.
const DRAFTERS: [(&str, i32); 2] = [("qwen3-a", 64), ("qwen3_5-text-sharded", 128)];

/// What tools/goldens/blocks.py records.
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

/// What the layers that a drafter wants to see make of tokens: of each `[tokens, hidden_size]`.
fn hidden(drafter: &DFlashDrafter, tokens: &[u32]) -> Vec<Array> {
    let model = &drafter.model;
    let mut caches = model.make_caches();
    let mut batch = Batch::new([Part { tokens: tokens.len(), ahead: 0, past: 0, caches: &mut caches }]);
    batch.watch(&drafter.block.target_layers);
    model.forward(&Array::from_slice(tokens, &[tokens.len() as i32]), &mut batch);
    let seen = batch.seen();
    let behind = |layer: &usize| seen.iter().find(|(at, _)| at == layer).expect("captured").1.clone();
    drafter.block.target_layers.iter().map(behind).collect()
}

fn part(hidden: &[Array], from: usize, to: usize) -> Vec<Array> {
    hidden.iter().map(|x| x.slice(0, from as i32, to as i32)).collect()
}

fn observe(drafter: &mut DFlashDrafter, sequence: u64, from: usize, hidden: Vec<Array>) {
    drafter.observe(&HiddenStates { sequence, tokens: &[], from, hidden });
}

static GREEDY: LazyLock<Sampling> = LazyLock::new(Sampling::default);

fn asked<'a>(sequence: u64, tokens: &'a [u32], depth: usize, sampling: &'a Sampling) -> DraftRequest<'a> {
    DraftRequest { sequence, tokens, prompt: tokens.len().min(3), depth, sampling, constraint: None }
}

fn propose(drafter: &mut DFlashDrafter, asked: &[DraftRequest]) -> Vec<Draft> {
    drafter.propose(asked).expect("computes")
}

fn text(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| 3 + (i * (2 * seed + 5) + i / 3 + seed) % 240).collect()
}

#[test]
fn it_guesses_what_the_reference_says() {
    mlx::set_precision(mlx::Precision::Float32);
    for (name, hidden_size) in DRAFTERS {
        let recorded = recorded(name);
        let drafter = drafter(name, hidden_size);
        let states = hidden(&drafter, &recorded.prompt_ids);
        let mut worst = 0.0f32;
        for (&start, expected) in recorded.starts.iter().zip(&recorded.logits) {
            let guess = |chunk: usize| {
                let mut context = DFlashContext::new(&drafter.block);
                for from in (0..start).step_by(chunk) {
                    context.wait(from, &part(&states, from, start.min(from + chunk)));
                    if from % 3 == 0 {
                        catch_up(&drafter.block, &mut [&mut context]);
                    }
                }
                let tokens = &recorded.prompt_ids[..=start];
                let mut rows = [DFlashRow { asked: &asked(0, tokens, 1, &GREEDY), context }];
                let hidden = drafter.guess(&mut rows).expect("an embedding");
                let logits = drafter.model.logits(&hidden.slice(0, 1, drafter.block.size as i32));
                logits.to_vec::<f32>().expect("evaluates")
            };
            let all = guess(1000);
            let off = all.iter().zip(expected.iter().flatten()).map(|(a, b)| (a - b).abs());
            worst = off.fold(worst, f32::max);
            assert_eq!(all.len(), expected.iter().map(Vec::len).sum::<usize>());
            assert!(guess(1) == all && guess(7) == all, "{name}, behind {start} tokens");
        }
        println!("{name}: within {worst:.1e}");
        assert!(worst < 1e-4, "{name}: logits are off by {worst}");
    }
}

/// One that drafted all the time, and one that only saw what came of it.
#[test]
fn drafts_leave_nothing_behind() {
    for (name, hidden_size) in DRAFTERS {
        let tokens = text(1, 700);
        let (mut often, mut once) = (drafter(name, hidden_size), drafter(name, hidden_size));
        let states = hidden(&often, &tokens);
        let mut seen = 0;
        for known in [2, 20, 21, 24, 100, 400, 690] {
            observe(&mut often, 0, seen, part(&states, seen, known - 1));
            seen = known - 1;
            let draft = propose(&mut often, &[asked(0, &tokens[..known], 32, &GREEDY)]).remove(0);
            assert_eq!(draft.tokens.len(), often.block.size - 1, "{name}");
            let shorter = propose(&mut often, &[asked(0, &tokens[..known], 2, &GREEDY)]).remove(0);
            assert_eq!(shorter.tokens, draft.tokens[..2], "{name}: as long as was asked for");
        }
        assert_eq!(
            propose(&mut often, &[asked(0, &tokens[..691], 4, &GREEDY)]),
            [Draft::default()],
            "not seen"
        );
        observe(&mut once, 0, 0, part(&states, 0, 689));
        let drafts = [&mut often, &mut once].map(|drafter| {
            let draft = propose(drafter, &[asked(0, &tokens[..690], 8, &GREEDY)]);
            (draft, state(&drafter.sequences[&0].caches, 689))
        });
        assert!(drafts[0] == drafts[1], "{name}: {:?}, {:?}", drafts[0].0, drafts[1].0);
    }
}

#[test]
fn neighbours_change_no_draft() {
    for (name, hidden_size) in DRAFTERS {
        let (mut together, mut alone) = (drafter(name, hidden_size), drafter(name, hidden_size));
        let texts: Vec<Vec<u32>> = (1..=5).map(|s| text(s, 30 * s as usize + 2)).collect();
        let sampled = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
        let samplings: Vec<Sampling> =
            (0..5).map(|i| if i % 2 == 0 { Sampling::default() } else { sampled(i) }).collect();
        for (i, text) in texts.iter().enumerate() {
            let states = hidden(&together, text);
            for drafter in [&mut together, &mut alone] {
                observe(drafter, i as u64, 0, part(&states, 0, text.len() - 1));
            }
        }
        let asked: Vec<DraftRequest> =
            (0..5).map(|i| asked(i as u64, &texts[i], [3, 0, 9, 1, 2][i], &samplings[i])).collect();
        let drafts = propose(&mut together, &asked);
        assert_eq!(drafts[1], Draft::default(), "{name}: nobody wants any");
        for (i, asked) in asked.into_iter().enumerate() {
            assert_eq!(propose(&mut alone, &[asked])[0], drafts[i], "{name}, row {i}");
        }
    }
}

#[test]
fn a_sequence_that_resumed_or_begins_again_is_drafted_for() {
    for (name, hidden_size) in DRAFTERS {
        let mut drafter = drafter(name, hidden_size);
        let tokens = text(2, 60);
        let states = hidden(&drafter, &tokens);
        let ask = |drafter: &mut DFlashDrafter, sequence| {
            propose(drafter, &[asked(sequence, &tokens, 3, &GREEDY)]).remove(0)
        };
        assert_eq!(ask(&mut drafter, 1), Draft::default(), "{name}: nothing was seen");
        observe(&mut drafter, 1, 0, part(&states, 0, 59));
        let first = ask(&mut drafter, 1);
        drafter.forget(1);
        observe(&mut drafter, 1, 0, part(&states, 0, 59));
        assert_eq!(ask(&mut drafter, 1), first, "{name}");
        observe(&mut drafter, 2, 40, part(&states, 40, 59));
        assert_eq!(ask(&mut drafter, 2).tokens.len(), 3, "{name}: one that resumed has its end alone");
        // One that was not shown its middle has what was taken in, and where it stands.
        observe(&mut drafter, 3, 0, part(&states, 0, 30));
        propose(&mut drafter, &[asked(3, &tokens[..31], 3, &GREEDY)]);
        observe(&mut drafter, 3, 40, part(&states, 40, 59));
        assert_eq!(ask(&mut drafter, 3).tokens.len(), 3, "{name}");
        assert_eq!(drafter.sequences[&3].to, 59);
    }
}

#[test]
fn hidden_states_do_not_pile_up() {
    let mut drafter = drafter("qwen3-a", 64);
    let tokens = text(3, 1000);
    let states = hidden(&drafter, &tokens);
    for from in (0..960).step_by(64) {
        observe(&mut drafter, 1, from, part(&states, from, from + 64));
        let context = &drafter.sequences[&1];
        assert!(context.to - context.from < MAX_PENDING, "{} wait", context.to - context.from);
    }
    let growing = drafter.sequences[&1].caches[0].as_growing().expect("sees everything").length();
    assert!(growing > 960 - MAX_PENDING as i32, "every position is in the context: {growing}");
}

#[test]
fn the_state_behind_its_rounds_is_that_of_a_fresh_prefill() {
    for (name, hidden_size) in DRAFTERS {
        let expected = answers(name, 4);
        let mut bench = Bench::with(name, Box::new(drafter(name, hidden_size)));
        let drafters = ["block", "block", "off", "block"];
        let asked = (0..4).zip(drafters).map(|(i, drafter)| request(i, drafter, 2 + i as usize));
        let running: Vec<_> = asked.map(|asked| bench.submit(asked)).collect();
        let compared = bench.compare_states(name);
        assert!(compared > 20, "{name}: {compared}");
        for ((_ticket, events), (_, expected)) in running.into_iter().zip(&expected) {
            assert_eq!(tokens(events), *expected, "{name}");
        }
    }
}

/// A model whose embedding or output head panics when it is told to.
struct Dying {
    model: Box<dyn Model>,
    panics: Rc<Cell<bool>>,
    asked: Rc<Cell<usize>>,
}

impl Model for Dying {
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array {
        self.model.forward(tokens, batch)
    }

    fn logits(&self, hidden: &Array) -> Array {
        self.asked.set(self.asked.get() + 1);
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
fn its_failure_costs_speed_alone() {
    for (name, hidden_size) in DRAFTERS {
        let expected = answers(name, 3);
        let (panics, calls) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let dying = Dying { model: model(name), panics: panics.clone(), asked: calls.clone() };
        let block = load_dflash(name, &dying, hidden_size);
        let mut bench = Bench::with(name, Box::new(DFlashDrafter::new(Rc::new(dying), block)));
        let running: Vec<_> = (0..3).map(|i| bench.submit(request(i, "block", 3))).collect();
        let mut rounds = 0;
        let mut at_panic = 0;
        bench.run(|_| {
            rounds += 1;
            if rounds == 9 {
                panics.set(true);
                at_panic = calls.get();
            }
        });
        assert!(at_panic > 0, "{name}: it had begun");
        assert_eq!(calls.get(), at_panic + 1, "{name}: nobody asked it again");
        for ((_ticket, events), (_, expected)) in running.into_iter().zip(&expected) {
            assert_eq!(tokens(events), *expected, "{name}");
        }
    }
}
