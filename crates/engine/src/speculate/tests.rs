//! Tests through the engine loop: the state of sequences after each step, and what drafters
//! observe.

mod calibration;
mod layer_skip;
mod lossy;

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use mlx::Array;

use super::{
    drafter::{Draft, DraftRequest, DrafterInfo, DrafterState, HiddenObserver, HiddenSource, HiddenStates},
    step_costs::StepCosts,
    *,
};
use crate::{
    api::{Event, ModelInfo, Options, Request, Sampling, Speculate, WeightSummary},
    batch::{Batch, BatchRow},
    cache::{Cache, Snapshot},
    engine_loop::{
        admission::Admission,
        handle::{Engine, Message, RequestHandle},
        heartbeat::Heartbeat,
        run::EngineLoop,
    },
    models::Model,
    tests::load_golden,
    weights::Types,
};

/// One model for each kind of cache: keys and values, windows, windows shared by layers,
/// recurrences with a decay per head and per channel, convolutions, latents.
pub(super) const MODELS: [&str; 7] = [
    "qwen3-a",
    "gemma3_text-a",
    "gemma4_e-a",
    "qwen3_5-text-sharded",
    "kimi_linear-a",
    "lfm2-a",
    "deepseek_v3-a",
];

pub(super) fn model(golden: &str) -> Box<dyn Model> {
    load_golden(golden, Types { activations: Some(mlx::Dtype::Float32), weights: None })
}

fn script(acceptance_rate: f64, answers: Vec<(Vec<u32>, Vec<u32>)>) -> Script {
    Script { answers, acceptance_rate, vocab_size: 250, seed: 5 }
}

/// An engine without a thread: the test runs its ticks.
pub(super) struct Bench {
    engine_loop: EngineLoop,
    engine: Engine,
    heartbeat: Arc<Heartbeat>,
    messages: Receiver<Message>,
}

impl Bench {
    fn new(golden: &str, script: Script) -> Bench {
        Bench::with(golden, Box::new(ScriptedDrafter(script)))
    }

    pub(super) fn with(golden: &str, drafter: Box<dyn Drafter>) -> Bench {
        let model = model(golden);
        let info = ModelInfo {
            model_type: golden.into(),
            vocab_size: model.vocab_size(),
            context_length: 2048,
            is_encoder: false,
            vision: crate::api::Vision::None,
            eos_ids: vec![],
            drafters: vec!["ngram", drafter.info().name],
            speculate: Speculate::Off,
            default_sampling: Sampling::default(),
            weight_bytes: 0,
            weights: WeightSummary::default(),
            memory: crate::Memory::default(),
        };
        let (sender, messages) = mpsc::channel();
        let heartbeat = Arc::new(Heartbeat::new(Duration::from_secs(60)));
        let engine = Engine::new(
            info.clone(),
            Admission::new(8, 100),
            Arc::default(),
            heartbeat.clone(),
            sender,
            thread::spawn(|| {}),
        );
        let options = Options { prefill_chunk: 16, speculate: Speculate::Off, ..Options::default() };
        let speculator = Speculator::new(&options, vec![drafter], StepCosts::new(vec![])).expect("off");
        Bench {
            engine_loop: EngineLoop::new(model.into(), info, options, None, speculator),
            engine,
            heartbeat,
            messages,
        }
    }

    pub(super) fn submit(&self, request: Request) -> (RequestHandle, Receiver<Event>) {
        let (sender, events) = mpsc::channel();
        (self.engine.submit(request, move |event| drop(sender.send(event))).expect("valid"), events)
    }

    /// Runs until nothing is left to do. After each step every decoding sequence must have the
    /// state of a fresh prefill of its tokens, bit for bit. Returns the number of comparisons.
    pub(super) fn compare_states(&mut self, what: &str) -> usize {
        let mut compared = 0;
        self.run(|engine_loop| {
            engine_loop.collect_launched(&[]);
            for s in engine_loop.running.iter().filter(|s| s.generated() > 0) {
                let expected = fresh(&*engine_loop.model, &s.tokens[..s.progress.num_computed_tokens]);
                assert!(
                    state(&s.caches, s.progress.num_computed_tokens) == expected,
                    "{what}, after {} tokens",
                    s.progress.num_computed_tokens
                );
                compared += 1;
            }
        });
        compared
    }

    /// One tick of the engine loop.
    pub(super) fn tick(&mut self) {
        assert!(self.engine_loop.tick(&self.messages, &self.heartbeat));
    }

    /// Runs until nothing is left to do, and calls `look` after each step.
    pub(super) fn run(&mut self, mut look: impl FnMut(&mut EngineLoop)) {
        loop {
            self.tick();
            look(&mut self.engine_loop);
            self.engine_loop.store_finished();
            if self.engine_loop.running.is_empty() && self.engine_loop.launched.is_none() {
                return;
            }
        }
    }
}

pub(super) fn tokens(events: Receiver<Event>) -> Vec<u32> {
    let token = |event| match event {
        Event::Token { id, .. } => Some(id),
        Event::Failed(error) => panic!("{error}"),
        _ => None,
    };
    events.try_iter().filter_map(token).collect()
}

/// Everything in caches after `length` tokens, as bits.
pub(super) fn state(caches: &[Cache], length: usize) -> Vec<u32> {
    let growing = caches.iter().filter_map(Cache::as_full_attention).flat_map(|kv| kv.copy(0, length as i32));
    let kept: Vec<Snapshot> = caches.iter().filter_map(|cache| cache.snapshot(0)).collect();
    let growing: Vec<Array> = growing.flatten().collect();
    let arrays = growing.iter().chain(kept.iter().flat_map(Snapshot::arrays));
    arrays.flat_map(|x| x.to_f32().expect("evaluates")).map(f32::to_bits).collect()
}

/// The state of a sequence that has computed `tokens` and nothing else.
pub(super) fn fresh(model: &dyn Model, tokens: &[u32]) -> Vec<u32> {
    let mut caches = model.make_caches();
    let row = BatchRow { num_tokens: tokens.len(), num_draft: 0, num_computed: 0, caches: &mut caches };
    let hidden = model.forward(&Array::from_slice(tokens, &[tokens.len() as i32]), &mut Batch::new([row]));
    mlx::eval([&hidden]).expect("evaluates");
    state(&caches, tokens.len())
}

pub(super) fn request(i: u32, drafter: &str, depth: usize) -> Request {
    let sampling = match i % 3 {
        0 => Sampling::default(),
        1 => Sampling { temperature: 1.0, seed: i as u64, ..Sampling::default() },
        _ => Sampling {
            temperature: 0.8,
            repetition_penalty: 1.3,
            frequency_penalty: 0.2,
            ..Sampling::default()
        },
    };
    let prompt = (0..7 + 31 * i).map(|t| 3 + (t * 7 + i) % 240).collect();
    let speculation = match drafter {
        "off" => Speculate::Off,
        _ => Speculate::Fixed { drafter: drafter.into(), depth: Some(depth) },
    };
    Request { sampling, ignore_eos: true, speculation: Some(speculation), ..Request::new(prompt, 18) }
}

/// Answers of plain decoding to requests `0..n`.
pub(super) fn answers(golden: &str, n: u32) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut bench = Bench::new(golden, Script::default());
    let requests = (0..n).map(|i| request(i, "off", 0));
    let running: Vec<_> = requests.map(|request| (request.prompt.clone(), bench.submit(request))).collect();
    bench.run(|_| {});
    running.into_iter().map(|(prompt, (_handle, events))| (prompt, tokens(events))).collect()
}

#[test]
fn state_after_each_step_of_scripted_drafts_equals_a_fresh_prefill() {
    for golden in MODELS {
        let expected = answers(golden, 3);
        for (rate, depth) in [(0.0, 3), (0.6, 5), (1.0, 2)] {
            let mut bench = Bench::new(golden, script(rate, expected.clone()));
            let drafters = ["scripted", "scripted", "off"];
            let requests = (0..3).zip(drafters).map(|(i, drafter)| request(i, drafter, depth));
            let running: Vec<_> = requests.map(|request| bench.submit(request)).collect();
            let compared = bench.compare_states(&format!("{golden}, acceptance rate {rate}"));
            assert!(compared > 20, "{golden}: {compared}");
            for ((_handle, events), (_, expected)) in running.into_iter().zip(&expected) {
                assert_eq!(tokens(events), *expected, "{golden}, acceptance rate {rate}");
            }
        }
    }
}

/// Hidden states of tokens with their positions, as bits.
type Observed = Rc<RefCell<Vec<(usize, Vec<u32>)>>>;

/// Follows a script, and records what it observes of the first sequence.
struct Recording {
    script: ScriptedDrafter,
    source: HiddenSource<'static>,
    observed: Observed,
    /// Sequences observed so far.
    sequences: usize,
}

impl Drafter for Recording {
    fn info(&self) -> DrafterInfo {
        DrafterInfo::new("recording")
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        assert!(requests.iter().all(|request| request.sampling.temperature >= 0.0));
        self.script.propose(requests)
    }

    fn hidden_observer(&mut self) -> Option<&mut dyn HiddenObserver> {
        Some(self)
    }
}

impl HiddenObserver for Recording {
    fn source(&self) -> HiddenSource<'_> {
        self.source
    }

    fn observe(&mut self, states: &HiddenStates, state: &mut DrafterState) {
        let [hidden] = &states.hidden[..] else { panic!("one kind of hidden states") };
        let rows = hidden.dim(0) as usize;
        assert!(states.from + rows < states.tokens.len(), "the token after them is known");
        let sequence = *state.get_or_insert_with(|| {
            self.sequences += 1;
            self.sequences
        });
        if sequence == 1 {
            let bits = hidden.to_f32().expect("evaluates").into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let rows =
                (states.from..).zip(bits.chunks(bits.len() / rows)).map(|(at, row)| (at, row.to_vec()));
            self.observed.borrow_mut().extend(rows);
        }
    }
}

#[test]
fn observers_get_hidden_states_of_each_accepted_token_once() {
    for golden in ["qwen3_5-text-sharded", "gemma4_e-a"] {
        let expected = answers(golden, 2);
        for source in [HiddenSource::Final, HiddenSource::Layers(&[1])] {
            let observed = Observed::default();
            let script = ScriptedDrafter(script(0.6, expected.clone()));
            let recording = Recording { script, source, observed: observed.clone(), sequences: 0 };
            let mut bench = Bench::with(golden, Box::new(recording));
            let running = [0, 1].map(|i| bench.submit(request(i, "recording", 4)));
            let mut tokens = vec![];
            bench.run(|engine_loop| {
                if let Some(s) = engine_loop.running.iter().find(|s| s.id == 0) {
                    tokens = s.tokens.clone();
                }
            });
            drop(running);
            let model = model(golden);
            let mut caches = model.make_caches();
            let row =
                BatchRow { num_tokens: tokens.len(), num_draft: 0, num_computed: 0, caches: &mut caches };
            let mut batch = Batch::new([row]);
            batch.capture(&[1]);
            let last = model.forward(&Array::from_slice(&tokens, &[tokens.len() as i32]), &mut batch);
            let all = if source == HiddenSource::Final { last } else { batch.take_captured()[0].1.clone() };
            let all: Vec<u32> = all.to_f32().expect("evaluates").into_iter().map(f32::to_bits).collect();
            let width = all.len() / tokens.len();
            let observed = observed.borrow();
            assert!(observed.len() + 8 > tokens.len(), "{} of {}", observed.len(), tokens.len());
            for (at, (position, row)) in observed.iter().enumerate() {
                assert_eq!(at, *position, "in order");
                assert!(*row == all[at * width..][..width], "{golden}, {source:?}: position {at}");
            }
        }
    }
}
