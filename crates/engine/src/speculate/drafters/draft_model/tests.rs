//! The state after each draft, the tokens that are computed, and failures.

use std::cell::Cell;

use super::*;
use crate::cache::Cache;
use crate::speculate::tests::{Bench, MODELS, answers, fresh, model, request, state, tokens};

/// A model that counts the tokens it computes, and panics on demand.
struct CountingModel {
    model: Box<dyn Model>,
    computed: Cell<usize>,
    panics: Cell<bool>,
}

impl CountingModel {
    fn new(golden: &str) -> Rc<CountingModel> {
        Rc::new(CountingModel { model: model(golden), computed: Cell::new(0), panics: Cell::new(false) })
    }
}

impl Model for CountingModel {
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array {
        self.computed.set(self.computed.get() + tokens.dim(0) as usize);
        let hidden = self.model.forward(tokens, batch);
        // After the caches were changed: the worst moment.
        assert!(!self.panics.get(), "on purpose");
        hidden
    }

    fn logits(&self, hidden: &Array) -> Array {
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
}

const CHUNK: usize = 16;

fn drafter(model: Rc<CountingModel>) -> DraftModel {
    let options = Options { prefill_chunk: CHUNK, snapshot_interval: 32, ..Options::default() };
    DraftModel::new(model, StepCosts::new(vec![(1, 1.0), (32, 8.0)]), &options, 1 << 28)
}

/// Unpredictable tokens.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| 3 + self.below(240) as u32).collect()
    }
}

/// A sequence to draft for.
struct Text {
    tokens: Vec<u32>,
    prompt: usize,
    sampling: Sampling,
    state: DrafterState,
}

impl Text {
    fn new(tokens: Vec<u32>, prompt: usize, sampling: Sampling) -> Text {
        Text { tokens, prompt, sampling, state: DrafterState::default() }
    }

    fn request(&mut self, depth: usize) -> DraftRequest<'_> {
        let Text { tokens, prompt, sampling, state } = self;
        DraftRequest::new(tokens, *prompt, depth, sampling, state)
    }

    fn propose(&mut self, drafter: &mut DraftModel, depth: usize) -> Draft {
        drafter.propose(&mut [self.request(depth)]).expect("computes").remove(0)
    }

    fn catch_up_cost(&mut self, drafter: &DraftModel) -> Option<f64> {
        drafter.catch_up_cost(&self.request(4))
    }
}

fn texts(random: &mut Random) -> Vec<Text> {
    let text = |id: u64| {
        let prompt = random.tokens([3, 9, 40, 90][id as usize % 4]);
        let temperature = [0.0, 1.0][id as usize / 2 % 2];
        let sampling = Sampling { temperature, seed: id, ..Sampling::default() };
        Text::new([&prompt[..], &[7]].concat(), prompt.len(), sampling)
    };
    (0..8).map(text).collect()
}

#[test]
fn draft_model_state_after_each_draft_equals_a_fresh_prefill() {
    for golden in MODELS {
        let counting = CountingModel::new(golden);
        let (mut together, mut alone) = (drafter(counting.clone()), drafter(counting.clone()));
        let mut random = Random(golden.len() as u64);
        let (mut texts, mut single) = (texts(&mut random), texts(&mut Random(golden.len() as u64)));
        let (mut drafted, mut went_back) = (0, 0);
        for round in 0..24 {
            let depths: Vec<usize> = texts.iter().map(|_| 1 + random.below(12)).collect();
            let requests = texts.iter_mut().zip(&depths).map(|(text, depth)| text.request(*depth));
            let drafts = together.propose(&mut requests.collect::<Vec<_>>()).expect("computes");
            assert!(!together.failed, "{golden}");
            let contexts = texts.iter().filter_map(|text| text.state.get());
            for context in contexts.filter(|context: &&DraftContext| !context.tokens.is_empty()) {
                let got = state(&context.caches, context.tokens.len());
                assert!(got == fresh(&*counting.model, &context.tokens), "{golden}, round {round}");
            }
            // Sequences that share a chunk take longer to catch up.
            for ((text, draft), depth) in single.iter_mut().zip(&drafts).zip(depths) {
                if draft.tokens.is_empty() {
                    continue;
                }
                assert_eq!(draft.tokens.len(), depth);
                let mut own = Draft::default();
                while own.tokens.is_empty() {
                    own = text.propose(&mut alone, depth);
                }
                assert_eq!(own, *draft, "{golden}, round {round}, alone");
                drafted += 1;
            }
            for ((text, single), draft) in texts.iter_mut().zip(&mut single).zip(drafts) {
                let accepted = random.below(draft.tokens.len() + 1);
                went_back += usize::from(accepted + 1 < draft.tokens.len());
                text.tokens.extend(&draft.tokens[..accepted]);
                text.tokens.extend(random.tokens(1));
                single.tokens = text.tokens.clone();
            }
        }
        assert!(drafted > 80 && went_back > 50, "{golden}: {drafted} drafts, {went_back} wrong");
    }
}

#[test]
fn draft_model_catches_up_a_chunk_at_a_time() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let counting = CountingModel::new(golden);
        let mut drafter = drafter(counting.clone());
        let mut long = Text::new(Random(3).tokens(101), 100, Sampling::default());
        let mut short = Text::new(Random(4).tokens(6), 5, Sampling::default());
        let mut rounds = 0;
        loop {
            let cost = long.catch_up_cost(&drafter).expect("supported");
            assert_eq!(cost > 0.0, 101 - (rounds * CHUNK).min(100) > MAX_DEPTH, "{golden}, round {rounds}");
            let before = counting.computed.get();
            let drafts = drafter.propose(&mut [long.request(4), short.request(3)]).expect("computes");
            rounds += 1;
            // The drafts themselves come on top.
            let most = CHUNK + drafts.iter().map(|draft| draft.tokens.len().saturating_sub(1)).sum::<usize>();
            assert!(counting.computed.get() - before <= most, "{golden}, round {rounds}");
            assert_eq!(drafts[1].tokens.len(), 3, "{golden}: the short one does not wait");
            if !drafts[0].tokens.is_empty() {
                break;
            }
        }
        assert!((7..=9).contains(&rounds), "{golden}: {rounds} rounds");
    }
}

#[test]
fn known_prompt_is_not_computed_again_by_the_draft_model() {
    for golden in MODELS {
        let counting = CountingModel::new(golden);
        let mut drafter = drafter(counting.clone());
        let mut random = Random(9);
        let prompt = random.tokens(80);
        let mut ask = |prompt: &[u32], more: &[u32]| {
            let mut text = Text::new([prompt, more].concat(), prompt.len(), Sampling::default());
            let before = counting.computed.get();
            let mut draft = Draft::default();
            while draft.tokens.is_empty() {
                draft = text.propose(&mut drafter, 4);
            }
            drafter.store(text.state);
            (counting.computed.get() - before, draft)
        };
        let (all, expected) = ask(&prompt, &[50]);
        assert_eq!(all, 81 + 3, "{golden}");
        let again = ask(&prompt, &[50]);
        assert_eq!(again, (1 + 3, expected), "{golden}: the same again");
        let (other, _) = ask(&prompt, &[51]);
        assert_eq!(other, 1 + 3, "{golden}: another answer");
        // A next turn, which starts with all of the one before.
        let (next, _) = ask(&[&prompt[..], &[50], &random.tokens(9)].concat(), &[60]);
        assert_eq!(next, 10 + 3, "{golden}: a next turn");
    }
}

#[test]
fn unsupported_sequences_get_no_draft() {
    let counting = CountingModel::new("qwen3-a");
    let mut drafter = drafter(counting.clone());
    let sampling = Sampling { logit_bias: [(60_000, 3.0)].into(), temperature: 1.0, ..Sampling::default() };
    let mut text = Text::new(vec![5, 6, 7], 2, sampling);
    assert_eq!(text.propose(&mut drafter, 3).tokens.len(), 3, "a bias of an unknown token is ignored");
    text.tokens.push(60_000);
    assert_eq!(text.catch_up_cost(&drafter), None);
    assert_eq!(text.propose(&mut drafter, 3), Draft::default());
    text.tokens = vec![5; counting.context_length() - 3];
    assert_eq!(text.catch_up_cost(&drafter), None);
    assert!(!drafter.failed);
}

#[test]
fn failing_draft_model_changes_no_answer() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let expected = answers(golden, 3);
        let counting = CountingModel::new(golden);
        let mut bench = Bench::with(golden, Box::new(drafter(counting.clone())));
        let running: Vec<_> = (0..3).map(|i| bench.submit(request(i, "draft_model", 3))).collect();
        let (mut steps, mut at_panic) = (0, 0);
        bench.run(|_| {
            steps += 1;
            if steps == 9 {
                counting.panics.set(true);
                at_panic = counting.computed.get();
            }
        });
        assert!(at_panic > 60, "{golden}: it has drafted");
        // The step in which it failed is the last one.
        assert!((1..20).contains(&(counting.computed.get() - at_panic)), "{golden}");
        for ((_handle, events), (_, expected)) in running.into_iter().zip(&expected) {
            assert_eq!(tokens(events), *expected, "{golden}");
        }
    }
}
