//! What only the inside can show: the state of a sequence behind every round.

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

use super::*;
use crate::{
    Options,
    batch::{Batch, Part},
    cache::{Cache, Kept},
    handle::{Engine, Message, Ticket},
    heartbeat::Heartbeat,
    models::Model,
    options::Speculate,
    places::Places,
    request::{Event, ModelInfo, Request, Sampling, WeightSummary},
    run::Runner,
    tests::load_golden,
    weights::Types,
};

/// One of each kind of cache: keys and values, windows, windows that layers share, recurrences with a decay per head and
/// per channel, convolutions, latents.
pub const MODELS: [&str; 7] = [
    "qwen3-a",
    "gemma3_text-a",
    "gemma4_e-a",
    "qwen3_5-text-sharded",
    "kimi_linear-a",
    "lfm2-a",
    "deepseek_v3-a",
];

pub fn model(golden: &str) -> Box<dyn Model> {
    load_golden(golden, Types { activations: Some(mlx::Dtype::Float32), weights: None })
}

fn script(right: f64, answers: Vec<(Vec<u32>, Vec<u32>)>) -> Script {
    Script { answers, right, vocab_size: 250, seed: 5 }
}

/// An engine without a thread: whoever holds it takes the steps.
pub struct Bench {
    runner: Runner,
    engine: Engine,
    heartbeat: Arc<Heartbeat>,
    messages: Receiver<Message>,
}

impl Bench {
    fn new(golden: &str, script: Script) -> Bench {
        Bench::with(golden, Box::new(ScriptedDrafter(script)))
    }

    pub fn with(golden: &str, drafter: Box<dyn Drafter>) -> Bench {
        let model = model(golden);
        let info = ModelInfo {
            model_type: golden.into(),
            vocab_size: model.vocab_size(),
            context_length: 2048,
            eos_ids: vec![],
            drafters: vec!["ngram", drafter.name()],
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
            Places::new(8, 100),
            Arc::default(),
            heartbeat.clone(),
            sender,
            thread::spawn(|| {}),
        );
        let options = Options { prefill_chunk: 16, speculate: Speculate::Off, ..Options::default() };
        let speculator = Speculator::new(&options, vec![drafter], StepCosts::new(vec![])).expect("off");
        Bench {
            runner: Runner::new(model.into(), info, options, None, speculator),
            engine,
            heartbeat,
            messages,
        }
    }

    pub fn submit(&self, request: Request) -> (Ticket, Receiver<Event>) {
        let (sender, events) = mpsc::channel();
        (self.engine.submit(request, move |event| drop(sender.send(event))).expect("valid"), events)
    }

    /// Runs until nothing is left to do. Behind each step every sequence that decodes must have the state of a fresh prefill
    /// of its tokens, bit for bit. How many were compared.
    pub fn compare_states(&mut self, what: &str) -> usize {
        let mut compared = 0;
        self.run(|runner| {
            runner.collect_launched(&[]);
            for s in runner.running.iter().filter(|s| s.generated() > 0) {
                let expected = fresh(&*runner.model, &s.tokens[..s.computed]);
                assert!(state(&s.caches, s.computed) == expected, "{what}, behind {} tokens", s.computed);
                compared += 1;
            }
        });
        compared
    }

    /// One turn of the engine's loop.
    pub fn turn(&mut self) {
        assert!(self.runner.turn(&self.messages, &self.heartbeat));
    }

    /// Runs until nothing is left to do, and has `look` at everything behind each step.
    pub fn run(&mut self, mut look: impl FnMut(&mut Runner)) {
        loop {
            self.turn();
            look(&mut self.runner);
            self.runner.keep_ended();
            if self.runner.running.is_empty() && self.runner.launched.is_none() {
                return;
            }
        }
    }
}

pub fn tokens(events: Receiver<Event>) -> Vec<u32> {
    let token = |event| match event {
        Event::Token { id, .. } => Some(id),
        Event::Failed(error) => panic!("{error}"),
        _ => None,
    };
    events.try_iter().filter_map(token).collect()
}

/// Everything in caches behind `length` tokens, as bits.
pub fn state(caches: &[Cache], length: usize) -> Vec<u32> {
    let growing = caches.iter().filter_map(Cache::as_growing).flat_map(|kv| kv.copy(0, length as i32));
    let kept: Vec<Kept> = caches.iter().filter_map(|cache| cache.keep(0)).collect();
    let growing: Vec<Array> = growing.flatten().collect();
    let arrays = growing.iter().chain(kept.iter().flat_map(Kept::arrays));
    arrays.flat_map(|x| x.to_f32().expect("evaluates")).map(f32::to_bits).collect()
}

/// That of a sequence that has computed `tokens` and nothing else.
pub fn fresh(model: &dyn Model, tokens: &[u32]) -> Vec<u32> {
    let mut caches = model.make_caches();
    let part = Part { tokens: tokens.len(), ahead: 0, past: 0, caches: &mut caches };
    let hidden = model.forward(&Array::from_slice(tokens, &[tokens.len() as i32]), &mut Batch::new([part]));
    mlx::eval([&hidden]).expect("evaluates");
    state(&caches, tokens.len())
}

pub fn request(i: u32, drafter: &str, depth: usize) -> Request {
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

/// What plain decoding answers to requests `0..n`.
pub fn answers(golden: &str, n: u32) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut bench = Bench::new(golden, Script::default());
    let asked = (0..n).map(|i| request(i, "off", 0));
    let running: Vec<_> = asked.map(|asked| (asked.prompt.clone(), bench.submit(asked))).collect();
    bench.run(|_| {});
    running.into_iter().map(|(prompt, (_ticket, events))| (prompt, tokens(events))).collect()
}

#[test]
fn the_state_behind_every_round_is_that_of_a_fresh_prefill() {
    for golden in MODELS {
        let expected = answers(golden, 3);
        for (right, depth) in [(0.0, 3), (0.6, 5), (1.0, 2)] {
            let mut bench = Bench::new(golden, script(right, expected.clone()));
            let drafters = ["scripted", "scripted", "off"];
            let asked = (0..3).zip(drafters).map(|(i, drafter)| request(i, drafter, depth));
            let running: Vec<_> = asked.map(|asked| bench.submit(asked)).collect();
            let compared = bench.compare_states(&format!("{golden}, {right} right"));
            assert!(compared > 20, "{golden}: {compared}");
            for ((_ticket, events), (_, expected)) in running.into_iter().zip(&expected) {
                assert_eq!(tokens(events), *expected, "{golden}, {right} right");
            }
        }
    }
}

/// Hidden states of tokens with their positions, as bits.
type Shown = Rc<RefCell<Vec<(usize, Vec<u32>)>>>;

/// Follows a script, and notes what it is shown of the first sequence.
struct Watching {
    script: ScriptedDrafter,
    hidden: HiddenSource<'static>,
    shown: Shown,
}

impl Drafter for Watching {
    fn name(&self) -> &'static str {
        "watching"
    }

    fn hidden(&self) -> HiddenSource<'_> {
        self.hidden
    }

    fn observe(&mut self, seen: &HiddenStates) {
        let [hidden] = &seen.hidden[..] else { panic!("one kind of hidden states") };
        let rows = hidden.dim(0) as usize;
        assert!(seen.from + rows < seen.tokens.len(), "the token behind them is known");
        if seen.sequence == 0 {
            let bits = hidden.to_f32().expect("evaluates").into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let rows = (seen.from..).zip(bits.chunks(bits.len() / rows)).map(|(at, row)| (at, row.to_vec()));
            self.shown.borrow_mut().extend(rows);
        }
    }

    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        assert!(asked.iter().all(|asked| asked.sampling.temperature >= 0.0));
        self.script.propose(asked)
    }
}

#[test]
fn drafters_see_each_token_that_stays_once() {
    for golden in ["qwen3_5-text-sharded", "gemma4_e-a"] {
        let expected = answers(golden, 2);
        for hidden in [HiddenSource::Final, HiddenSource::Layers(&[1])] {
            let shown = Shown::default();
            let script = ScriptedDrafter(script(0.6, expected.clone()));
            let watching = Watching { script, hidden, shown: shown.clone() };
            let mut bench = Bench::with(golden, Box::new(watching));
            let running = [0, 1].map(|i| bench.submit(request(i, "watching", 4)));
            let mut tokens = vec![];
            bench.run(|runner| {
                if let Some(s) = runner.running.iter().find(|s| s.id == 0) {
                    tokens = s.tokens.clone();
                }
            });
            drop(running);
            let model = model(golden);
            let mut caches = model.make_caches();
            let part = Part { tokens: tokens.len(), ahead: 0, past: 0, caches: &mut caches };
            let mut batch = Batch::new([part]);
            batch.watch(&[1]);
            let last = model.forward(&Array::from_slice(&tokens, &[tokens.len() as i32]), &mut batch);
            let all = if hidden == HiddenSource::Final { last } else { batch.seen()[0].1.clone() };
            let all: Vec<u32> = all.to_f32().expect("evaluates").into_iter().map(f32::to_bits).collect();
            let width = all.len() / tokens.len();
            let shown = shown.borrow();
            assert!(shown.len() + 8 > tokens.len(), "{} of {}", shown.len(), tokens.len());
            for (at, (position, row)) in shown.iter().enumerate() {
                assert_eq!(at, *position, "in order");
                assert!(*row == all[at * width..][..width], "{golden}, {hidden:?}: position {at}");
            }
        }
    }
}
