//! Tests of internals: failing steps, and rewinding caches.

#[path = "../tests/it/support/checkpoint.rs"]
pub(crate) mod checkpoint;
#[path = "../tests/it/support/constraints.rs"]
mod constraints;
mod real_configs;
mod ticks;
mod towers;

use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use mlx::{Array, Dtype, OutputSpec};

use crate::{
    batch::{Batch, BatchRow},
    cache::Cache,
    engine_loop::{admission::Admission, handle::Engine, heartbeat::Heartbeat, run::run},
    models::{self, Model},
    speculate::{Speculator, step_costs::StepCosts},
    weights::{Layout, QuantizationConfig, Types, Weights},
    *,
};

/// A message of a panic.
const PANIC: &str = "it panics on purpose";
const POISON: u32 = 13;
/// Makes its own row's hidden state not a number.
const NAN_TOKEN: u32 = 14;

/// A real model that fails at a chosen step or token.
struct Faulty {
    model: Box<dyn Model>,
    /// Building the step with this number panics, once.
    panics_at: Cell<Option<usize>>,
    /// What it panics with.
    message: &'static str,
    steps: Cell<usize>,
}

impl Model for Faulty {
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array {
        let step = self.steps.replace(self.steps.get() + 1);
        let spec = OutputSpec { shape: tokens.shape().to_vec(), dtype: Dtype::Uint32 };
        let [checked] = mlx::apply("checked", &[tokens], [spec], |inputs, outputs| {
            let tokens: &[u32] = inputs[0].values();
            assert!(!tokens.contains(&POISON), "poison");
            outputs[0].values::<u32>().copy_from_slice(tokens);
        });
        let hidden = self.model.forward(&checked, batch);
        // After the caches were changed: the worst moment.
        if self.panics_at.get() == Some(step) {
            self.panics_at.set(None);
            panic!("step {step}: {}", self.message);
        }
        let id = Array::scalar(NAN_TOKEN as f32, Dtype::Float32);
        let ids = tokens.astype(Dtype::Float32).reshape(&[-1, 1]);
        let broken = ids.less_equal(&id).select(&ids, &(&id - 1.0)).greater_equal(&id);
        broken.select(&Array::scalar(f32::NAN, hidden.dtype()), &hidden)
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

fn load() -> Box<dyn Model> {
    load_golden("qwen3_5-hub", Types { activations: Some(Dtype::Float32), weights: None })
}

pub(crate) fn load_golden(name: &str, types: Types) -> Box<dyn Model> {
    let folder = checkpoint::folder(name);
    load_checkpoint(&Checkpoint::Folder(folder.path().into()), types)
}

/// A recorded block drafter, loaded for the golden of the same name.
pub(crate) fn load_dflash(name: &str, target: &dyn Model, hidden_size: i32) -> models::DFlash {
    let folder = checkpoint::folder(&format!("../blocks/{name}"));
    let checkpoint = Checkpoint::Folder(folder.path().into());
    let config = checkpoint.config().expect("config");
    let types = Types { activations: Some(Dtype::Float32), weights: None };
    let declared = QuantizationConfig::from_config(&config).expect("declared");
    let files = checkpoint.weight_files().expect("files");
    let layout = Layout::plain(&config);
    let weights = Weights::new(files, &layout, types, declared, Box::new(|_, _| {})).expect("weights");
    let block = models::DFlash::load(&config, &weights, target, hidden_size).expect("loads");
    weights.all_used().expect("all of it is needed");
    block
}

pub(crate) fn load_checkpoint(checkpoint: &Checkpoint, types: Types) -> Box<dyn Model> {
    let config = checkpoint.config().expect("config");
    let family = models::family(&config).expect("a family");
    let files = checkpoint.weight_files().expect("files");
    let declared = QuantizationConfig::from_config(&config).expect("declared");
    let text = models::text_config(&config);
    let weights =
        Weights::new(files, &family.layout(text), types, declared, Box::new(|_, _| {})).expect("weights");
    let model = (family.load)(text, &weights).expect("loads");
    weights.all_used().expect("all of it is needed");
    model
}

fn info() -> ModelInfo {
    ModelInfo {
        model_type: "qwen3_5".into(),
        vocab_size: 320,
        context_length: 2048,
        is_encoder: false,
        vision: crate::api::Vision::None,
        eos_ids: vec![],
        drafters: vec![],
        speculate: Speculate::Off,
        default_sampling: Sampling::default(),
        weight_bytes: 0,
        weights: WeightSummary::default(),
        memory: Memory::default(),
    }
}

fn engine(panics_at: Option<usize>) -> Engine {
    engine_with(panics_at, || ())
}

/// `begin` is called on the engine's thread first.
fn engine_with(panics_at: Option<usize>, begin: impl FnOnce() + Send + 'static) -> Engine {
    let (sender, messages) = mpsc::channel();
    let info = info();
    let given = info.clone();
    let beats = Arc::new(Heartbeat::new(Duration::from_secs(60)));
    let own = beats.clone();
    let thread = thread::spawn(move || {
        let _streams = mlx::Streams::lease().expect("streams");
        begin();
        let model: Rc<dyn Model> = Rc::new(Faulty {
            model: load(),
            panics_at: Cell::new(panics_at),
            message: PANIC,
            steps: Cell::new(0),
        });
        let options = Options { prefill_chunk: 16, speculate: Speculate::Off, ..Options::default() };
        let speculator = Speculator::new(&options, vec![], StepCosts::new(vec![])).expect("off");
        run(model, given, options, None, speculator, &own, messages);
    });
    Engine::new(info, Admission::new(8, 100), Arc::default(), beats, sender, thread)
}

fn request(i: u32) -> Request {
    let sampling =
        Sampling { temperature: 1.0, seed: i as u64, repetition_penalty: 1.2, ..Sampling::default() };
    // The poison must not be sampled: only prompts hold it.
    let sampling = Sampling { logit_bias: [(POISON, -1e4)].into(), ..sampling };
    let prompt = (0..20 + 11 * i).map(|t| 20 + (t * 7 + i) % 290).collect();
    let constraint = if i == 1 { constraints::winding() } else { None };
    let asked =
        Request { logprobs: Some(1), prompt_logprobs: true, logits: true, ..Request::new(prompt, 25) };
    Request { sampling, constraint, ..asked }
}

fn submit(engine: &Engine, request: Request) -> (RequestHandle, Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    (engine.submit(request, move |event| drop(sender.send(event))).expect("valid"), events)
}

/// All events of a request without its cache report, as text: bit-exact for floats.
fn event_texts((_handle, events): (RequestHandle, Receiver<Event>)) -> Vec<String> {
    let without_cache = |event| match event {
        Event::Finished { reason, usage } => {
            let usage = Usage { cached_tokens: 0, cache: CacheReport::default(), ..usage };
            Event::Finished { reason, usage }
        }
        event => event,
    };
    events.into_iter().map(|event| format!("{:?}", without_cache(event))).collect()
}

#[test]
fn poisoned_request_fails_alone() {
    let engine = engine(None);
    let alone: Vec<_> = (0..4).map(|i| event_texts(submit(&engine, request(i)))).collect();
    let mut poisoned = request(2);
    poisoned.prompt[40] = POISON;
    let running: Vec<_> = [request(0), request(1), poisoned.clone(), request(3)]
        .into_iter()
        .map(|r| submit(&engine, r))
        .collect();
    let together: Vec<_> = running.into_iter().map(event_texts).collect();
    for i in [0, 1, 3] {
        assert_eq!(together[i], alone[i], "request {i} is not affected");
    }
    let last = together[2].last().expect("an end");
    assert!(last.contains("Failed") && last.contains("poison"), "{last}");
    assert_eq!(event_texts(submit(&engine, request(2))), alone[2], "the engine continues");
}

#[test]
fn step_that_panics_while_it_is_built_changes_no_answer() {
    let good = engine(None);
    let alone: Vec<_> = (0..3).map(|i| event_texts(submit(&good, request(i)))).collect();
    for panics_at in [0, 1, 3, 5, 9, 20] {
        let engine = engine(Some(panics_at));
        // Step 0 may have only one request; the panic then fails that request.
        let running: Vec<_> = (0..3).map(|i| submit(&engine, request(i))).collect();
        let together: Vec<_> = running.into_iter().map(event_texts).collect();
        for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
            let failed = together.last().is_some_and(|e| e.contains("panics on purpose"));
            assert!(together == alone || (failed && panics_at == 0), "request {i}, step {panics_at}");
        }
    }
}

#[test]
fn request_alone_in_a_failing_step_reports_the_error() {
    let engine = engine(Some(4));
    let (_handle, events) = submit(&engine, request(0));
    match events.into_iter().last() {
        Some(Event::Failed(RequestError::Step(message))) => {
            assert!(message.contains("on purpose"), "{message}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn non_finite_logits_fail_their_request_alone() {
    let engine = engine(None);
    let mut broken = request(0);
    broken.sampling.logit_bias.clear();
    broken.prompt = vec![NAN_TOKEN; 3];
    let good = submit(&engine, request(1));
    let (_handle, events) = submit(&engine, broken);
    assert!(matches!(events.into_iter().last(), Some(Event::Failed(RequestError::NotFinite))));
    assert!(event_texts(good).last().expect("an end").contains("Length"));
}

#[test]
fn failing_request_leaves_stored_prefixes_usable() {
    let engine = engine(None);
    let plain = |prompt: Vec<u32>| Request { ignore_eos: true, ..Request::new(prompt, 8) };
    let head: Vec<u32> = (0..200).map(|t| 20 + t % 290).collect();
    let with = |last: u32| plain([&head[..], &[last; 40]].concat());
    let alone = event_texts(submit(&engine, with(30)));
    let stored = engine.cache_stats().expect("runs").stored_tokens;
    // It resumes after the head, fails, and fails again without the cache.
    let last = event_texts(submit(&engine, with(POISON))).pop().expect("an end");
    assert!(last.contains("Failed") && last.contains("poison"), "{last}");
    assert!(engine.cache_stats().expect("runs").stored_tokens >= stored, "no other sequence lost anything");
    let running: Vec<_> = [30, POISON, 30].map(|token| submit(&engine, with(token))).into_iter().collect();
    let together: Vec<_> = running.into_iter().map(event_texts).collect();
    assert_eq!((&together[0], &together[2]), (&alone, &alone));
}

#[test]
fn steps_that_panic_change_no_answer_while_others_wait_and_resume() {
    let head: Vec<u32> = (0..150).map(|t| 20 + t % 290).collect();
    let with = |i: u32| {
        let sampling = Sampling { temperature: 1.0, seed: i as u64, ..Sampling::default() };
        let sampling = Sampling { logit_bias: [(POISON, -1e4), (NAN_TOKEN, -1e4)].into(), ..sampling };
        let prompt = [&head[..], &[30 + i; 9]].concat();
        Request {
            sampling,
            ignore_eos: true,
            logprobs: Some(1),
            cache_breakpoints: vec![150],
            ..Request::new(prompt, 12)
        }
    };
    let good = engine(None);
    let alone: Vec<_> = (0..4).map(|i| event_texts(submit(&good, with(i)))).collect();
    for panics_at in [2, 5, 9, 10, 11, 12, 14, 18] {
        let engine = engine(Some(panics_at));
        let running: Vec<_> = (0..4).map(|i| submit(&engine, with(i))).collect();
        let together: Vec<_> = running.into_iter().map(event_texts).collect();
        for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
            // While the others wait, steps have only the first request, and a panic fails it.
            let failed = together.last().is_some_and(|e| e.contains("panics on purpose"));
            assert!(together == alone || (failed && i == 0), "request {i}, step {panics_at}");
        }
        assert_eq!(engine.cache_stats().expect("runs").failures, 0);
        assert_eq!(event_texts(submit(&engine, with(3))), alone[3], "after step {panics_at}");
    }
}

#[test]
fn non_finite_state_is_never_stored() {
    let engine = engine(None);
    let mut broken = request(0);
    (broken.prompt, broken.logits) = (vec![NAN_TOKEN; 40], false);
    assert!(event_texts(submit(&engine, broken)).last().expect("an end").contains("NotFinite"));
    assert_eq!(engine.cache_stats().expect("runs").stored_tokens, 0);
}

/// Feeds tokens to a model, the last ones ahead, and returns the logits of the last one, as bits.
fn feed(model: &dyn Model, tokens: &[u32], ahead: usize, past: usize, caches: &mut [Cache]) -> Vec<u32> {
    let mut batch =
        Batch::new([BatchRow { num_tokens: tokens.len(), num_draft: ahead, num_computed: past, caches }]);
    let n = tokens.len() as i32;
    let hidden = model.forward(&Array::from_slice(tokens, &[n]), &mut batch);
    let logits = model.logits(&hidden.slice(0, n - 1, n));
    logits.to_f32().expect("evaluates").into_iter().map(f32::to_bits).collect()
}

#[test]
fn rewound_cache_equals_one_without_the_removed_tokens() {
    let model = load();
    let prompt: Vec<u32> = (0..30).map(|t| 20 + t * 9).collect();
    let mut caches = model.make_caches();
    let expected = feed(&*model, &[&prompt[..], &[50, 60, 70]].concat(), 0, 0, &mut caches);
    let mut caches = model.make_caches();
    feed(&*model, &prompt[..20], 0, 0, &mut caches);
    let mut at = 20;
    for (wrong, right) in [(vec![1], 0), (vec![99; 40], 4), (vec![5; 60], 1), (vec![3], 0)] {
        // Certain tokens, right drafted ones, and wrong drafted ones.
        let tokens = [&prompt[at..at + 1 + right], &wrong].concat();
        feed(&*model, &tokens, right + wrong.len(), at, &mut caches);
        caches.iter_mut().for_each(|cache| cache.rewind(wrong.len()).expect("nothing was dropped"));
        at += 1 + right;
    }
    assert_eq!(feed(&*model, &[&prompt[at..], &[50, 60, 70]].concat(), 0, at, &mut caches), expected);
}

#[test]
fn half_precision_activations_keep_their_type_in_every_family() {
    let mut names: Vec<_> = std::fs::read_dir(checkpoint::recorded()).expect("goldens").collect();
    names.sort_by_key(|entry| entry.as_ref().map(std::fs::DirEntry::file_name).ok());
    assert!(names.len() >= 80, "the goldens are there");
    for entry in names {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        for dtype in [Dtype::Float16, Dtype::Bfloat16] {
            let types = Types { activations: Some(dtype), weights: Some(dtype) };
            let model = load_golden(&name, types);
            let mut caches = model.make_caches();
            let mut batch =
                Batch::new([BatchRow { num_tokens: 3, num_draft: 0, num_computed: 0, caches: &mut caches }]);
            let hidden = model.forward(&Array::from_slice(&[5u32, 6, 7], &[3]), &mut batch);
            assert_eq!((hidden.dtype(), model.logits(&hidden).dtype()), (dtype, dtype), "{name}");
            let kept: Vec<Dtype> = batch.cache_arrays().map(Array::dtype).collect();
            assert!(kept.iter().all(|&d| d == dtype || d == Dtype::Float32), "{name}: {kept:?}");
        }
    }
}
