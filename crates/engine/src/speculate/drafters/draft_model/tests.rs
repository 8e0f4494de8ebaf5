//! What only the inside can show: state behind every round, what is computed, and failures.

use std::cell::Cell;

use super::*;
use crate::speculate::tests::{Bench, MODELS, answers, fresh, model, request, state, tokens};

/// A real model that counts the tokens it computes, and panics when it is told to.
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
    let options = Options { prefill_chunk: CHUNK, checkpoint_every: 32, ..Options::default() };
    DraftModel::new(model, StepCosts::new(vec![(1, 1.0), (32, 8.0)]), &options, 1 << 28)
}

/// Tokens that nobody can guess.
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

/// A sequence as whoever asks for drafts has it.
struct Text {
    id: u64,
    tokens: Vec<u32>,
    prompt: usize,
    sampling: Sampling,
}

impl Text {
    fn asked(&self, depth: usize) -> DraftRequest<'_> {
        let Text { id, tokens, prompt, sampling } = self;
        DraftRequest { sequence: *id, tokens, prompt: *prompt, depth, sampling, constraint: None }
    }
}

fn texts(random: &mut Random) -> Vec<Text> {
    let text = |id: u64| {
        let prompt = random.tokens([3, 9, 40, 90][id as usize % 4]);
        let temperature = [0.0, 1.0][id as usize / 2 % 2];
        let sampling = Sampling { temperature, seed: id, ..Sampling::default() };
        Text { id, prompt: prompt.len(), tokens: [&prompt[..], &[7]].concat(), sampling }
    };
    (0..8).map(text).collect()
}

/// Whatever of its drafts was right, and however many are asked for at once.
#[test]
fn its_state_behind_every_round_is_that_of_a_fresh_prefill() {
    for golden in MODELS {
        let counting = CountingModel::new(golden);
        let (mut together, mut alone) = (drafter(counting.clone()), drafter(counting.clone()));
        let mut random = Random(golden.len() as u64);
        let mut texts = texts(&mut random);
        let (mut drafted, mut went_back) = (0, 0);
        for round in 0..24 {
            let depths: Vec<usize> = texts.iter().map(|_| 1 + random.below(12)).collect();
            let asked: Vec<DraftRequest> =
                texts.iter().zip(&depths).map(|(text, depth)| text.asked(*depth)).collect();
            let drafts = together.propose(&asked).expect("computes");
            assert!(!together.failed, "{golden}");
            let begun = |context: &&DraftContext| !context.tokens.is_empty();
            for context in together.sequences.values().filter(begun) {
                let got = state(&context.caches, context.tokens.len());
                assert!(got == fresh(&*counting.model, &context.tokens), "{golden}, round {round}");
            }
            // Whoever shares a chunk takes longer to catch up.
            for (asked, draft) in asked.iter().zip(&drafts).filter(|(_, draft)| !draft.tokens.is_empty()) {
                assert_eq!(draft.tokens.len(), asked.depth);
                let mut own = Draft::default();
                while own.tokens.is_empty() {
                    own = alone
                        .propose(&[DraftRequest { constraint: None, ..*asked }])
                        .expect("computes")
                        .remove(0);
                }
                assert_eq!(own, *draft, "{golden}, round {round}, alone");
                drafted += 1;
            }
            for (text, draft) in texts.iter_mut().zip(drafts) {
                let accepted = random.below(draft.tokens.len() + 1);
                went_back += usize::from(accepted + 1 < draft.tokens.len());
                text.tokens.extend(&draft.tokens[..accepted]);
                text.tokens.extend(random.tokens(1));
            }
        }
        assert!(drafted > 80 && went_back > 50, "{golden}: {drafted} drafts, {went_back} wrong");
    }
}

#[test]
fn it_catches_up_a_chunk_at_a_time() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let counting = CountingModel::new(golden);
        let mut drafter = drafter(counting.clone());
        let sampling = Sampling::default();
        let long = Text { id: 1, tokens: Random(3).tokens(101), prompt: 100, sampling: sampling.clone() };
        let short = Text { id: 2, tokens: Random(4).tokens(6), prompt: 5, sampling };
        let mut rounds = 0;
        loop {
            let catch_up_cost = drafter.catch_up_cost(&long.asked(4)).expect("can follow");
            assert_eq!(
                catch_up_cost > 0.0,
                101 - (rounds * CHUNK).min(100) > MAX_DEPTH,
                "{golden}, round {rounds}"
            );
            let before = counting.computed.get();
            let drafts = drafter.propose(&[long.asked(4), short.asked(3)]).expect("computes");
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
fn a_prompt_that_it_has_seen_is_not_computed_again() {
    for golden in MODELS {
        let counting = CountingModel::new(golden);
        let mut drafter = drafter(counting.clone());
        let mut random = Random(9);
        let prompt = random.tokens(80);
        let mut ask = |id: u64, prompt: &[u32], more: &[u32]| {
            let tokens = [prompt, more].concat();
            let text = Text { id, prompt: prompt.len(), tokens, sampling: Sampling::default() };
            let before = counting.computed.get();
            let mut draft = Draft::default();
            while draft.tokens.is_empty() {
                draft = drafter.propose(&[text.asked(4)]).expect("computes").remove(0);
            }
            drafter.forget(id);
            (counting.computed.get() - before, draft)
        };
        let (all, expected) = ask(1, &prompt, &[50]);
        assert_eq!(all, 81 + 3, "{golden}");
        let again = ask(2, &prompt, &[50]);
        assert_eq!(again, (1 + 3, expected), "{golden}: the same again");
        let (other, _) = ask(3, &prompt, &[51]);
        assert_eq!(other, 1 + 3, "{golden}: another answer");
        // A next turn, which begins with all of the one before.
        let (next, _) = ask(4, &[&prompt[..], &[50], &random.tokens(9)].concat(), &[60]);
        assert_eq!(next, 10 + 3, "{golden}: a next turn");
    }
}

#[test]
fn it_leaves_alone_what_it_cannot_follow() {
    let counting = CountingModel::new("qwen3-a");
    let mut drafter = drafter(counting.clone());
    let sampling = Sampling { logit_bias: [(60_000, 3.0)].into(), temperature: 1.0, ..Sampling::default() };
    let mut text = Text { id: 1, tokens: vec![5, 6, 7], prompt: 2, sampling };
    assert_eq!(
        drafter.propose(&[text.asked(3)]).expect("computes")[0].tokens.len(),
        3,
        "a bias is not its business"
    );
    text.tokens.push(60_000);
    assert_eq!(drafter.catch_up_cost(&text.asked(3)), None);
    assert_eq!(drafter.propose(&[text.asked(3)]).expect("nothing to compute"), [Draft::default()]);
    text.tokens = vec![5; counting.context_length() - 3];
    assert_eq!(drafter.catch_up_cost(&text.asked(3)), None);
    assert!(!drafter.failed);
}

#[test]
fn its_failure_costs_speed_alone() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let expected = answers(golden, 3);
        let counting = CountingModel::new(golden);
        let mut bench = Bench::with(golden, Box::new(drafter(counting.clone())));
        let running: Vec<_> = (0..3).map(|i| bench.submit(request(i, "draft_model", 3))).collect();
        let (mut rounds, mut at_panic) = (0, 0);
        bench.run(|_| {
            rounds += 1;
            if rounds == 9 {
                counting.panics.set(true);
                at_panic = counting.computed.get();
            }
        });
        assert!(at_panic > 60, "{golden}: it had begun");
        // The step in which it failed, and no other.
        assert!((1..20).contains(&(counting.computed.get() - at_panic)), "{golden}");
        for ((_ticket, events), (_, expected)) in running.into_iter().zip(&expected) {
            assert_eq!(tokens(events), *expected, "{golden}");
        }
    }
}
