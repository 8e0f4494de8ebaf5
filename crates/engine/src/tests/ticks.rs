//! Ticks of the engine loop, one by one: admission, preemption, ends of sequences, and recovery
//! from panics.

mod limited;

use std::time::{Duration, Instant};

use super::*;
use crate::{
    api::Priority,
    engine_loop::{fault, handle::Message, run::EngineLoop},
    speculate::{
        ScriptedDrafter,
        drafter::{
            Draft, DraftRequest, Drafter, DrafterInfo, DrafterState, HiddenObserver, HiddenSource,
            HiddenStates,
        },
    },
};

/// An engine without a thread: the test runs its ticks.
struct Rig {
    engine_loop: EngineLoop,
    engine: Engine,
    heartbeat: Arc<Heartbeat>,
    messages: Receiver<Message>,
}

type Running = (RequestHandle, Receiver<Event>);

impl Rig {
    fn new(golden: &str, options: Options, memory: Memory, drafters: Vec<Box<dyn Drafter>>) -> Rig {
        Rig::faulty(golden, options, memory, drafters, None, PANIC)
    }

    /// Building the step with the number `panics_at` panics with a message.
    fn faulty(
        golden: &str,
        options: Options,
        memory: Memory,
        drafters: Vec<Box<dyn Drafter>>,
        panics_at: Option<usize>,
        message: &'static str,
    ) -> Rig {
        let types = Types { activations: Some(Dtype::Float32), weights: None };
        let model = Faulty {
            model: load_golden(golden, types),
            panics_at: Cell::new(panics_at),
            message,
            steps: Cell::new(0),
        };
        let options = Options { prefill_chunk: 16, memory_limit: memory.limit, ..options };
        let info = ModelInfo { vocab_size: model.vocab_size(), context_length: 1000, memory, ..info() };
        let (sender, messages) = mpsc::channel();
        let heartbeat = Arc::new(Heartbeat::new(Duration::from_secs(60)));
        let (admission, thread) = (Admission::new(8, 100), thread::spawn(|| {}));
        let engine = Engine::new(info.clone(), admission, Arc::default(), heartbeat.clone(), sender, thread);
        let speculator = Speculator::new(&options, drafters, StepCosts::new(vec![])).expect("a drafter");
        Rig {
            engine_loop: EngineLoop::new(Rc::new(model), info, options, None, speculator),
            engine,
            heartbeat,
            messages,
        }
    }

    fn plain(memory: Memory) -> Rig {
        let options = Options { speculate: Speculate::Off, prefix_cache_bytes: 0, ..Options::default() };
        Rig::new("qwen3_5-hub", options, memory, vec![])
    }

    fn submit(&self, request: Request) -> Running {
        submit(&self.engine, request)
    }

    fn tick(&mut self) {
        assert!(self.engine_loop.tick(&self.messages, &self.heartbeat));
    }

    /// Ticks until nothing runs or waits.
    fn finish(&mut self) {
        while !self.engine_loop.running.is_empty()
            || !self.engine_loop.deferred.is_empty()
            || self.engine_loop.launched.is_some()
        {
            self.tick();
        }
    }

    fn runs(&self, length: usize) -> bool {
        self.engine_loop.running.iter().any(|s| s.request.prompt.len() == length)
    }
}

/// A megabyte per token, far more than is really taken, and a limit of `tokens` of them.
fn room_for(tokens: usize) -> Memory {
    Memory { limit: Some(tokens << 20), token: 1 << 20, ..Memory::default() }
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|t| 20 + (t * 7) % 200).collect()
}

fn plain(length: usize, max_tokens: usize, priority: Priority) -> Request {
    // Tokens that make a step fail must not be sampled.
    let sampling = Sampling { logit_bias: [(POISON, -1e4), (NAN_TOKEN, -1e4)].into(), ..Sampling::default() };
    Request { ignore_eos: true, priority, sampling, ..Request::new(prompt(length), max_tokens) }
}

fn tokens((_handle, events): &Running) -> Vec<u32> {
    let token = |event| match event {
        Event::Token { id, .. } => Some(id),
        Event::Failed(error) => panic!("{error}"),
        _ => None,
    };
    events.try_iter().filter_map(token).collect()
}

fn has_ended((_, events): &Running) -> bool {
    events.try_iter().any(|event| matches!(event, Event::Finished { .. }))
}

#[test]
fn interactive_request_after_a_deferred_background_one_is_admitted_at_once() {
    // The state of each is rounded up to 512 tokens.
    let mut rig = Rig::plain(room_for(1200));
    let _first = rig.submit(plain(10, 60, Priority::Background));
    rig.tick();
    let deferred = rig.submit(plain(300, 200, Priority::Background));
    rig.tick();
    assert!(rig.runs(10) && !rig.runs(300), "there is no room for it");
    let urgent = rig.submit(plain(20, 3, Priority::Interactive));
    rig.tick();
    assert!(rig.runs(20), "which fits");
    rig.finish();
    assert!(has_ended(&urgent) && has_ended(&deferred));
}

#[test]
fn deferred_request_is_not_overtaken_forever() {
    let mut rig = Rig::plain(room_for(1100));
    let first = rig.submit(plain(20, 4, Priority::Interactive));
    rig.tick();
    // It needs all of the memory.
    let deferred = rig.submit(plain(300, 200, Priority::Background));
    let mut urgent = vec![first];
    for i in 0..200 {
        if i % 2 == 0 {
            urgent.push(rig.submit(plain(20, 4, Priority::Interactive)));
        }
        rig.tick();
        if rig.runs(300) {
            assert!(urgent.len() > 5, "some have overtaken it");
            rig.finish();
            assert!(has_ended(&deferred) && urgent.iter().all(has_ended));
            return;
        }
    }
    panic!("{} have overtaken it", urgent.len());
}

#[test]
fn requests_that_may_take_the_whole_context_run_together_and_outgrow_the_limit() {
    let requests = || {
        [30, 40, 50].map(|length| {
            let constraint = if length == 50 { constraints::winding() } else { None };
            Request { constraint, ..plain(length, 1000 - length, Priority::Normal) }
        })
    };
    let mut free = Rig::plain(Memory::default());
    let running = requests().map(|request| free.submit(request));
    free.tick();
    free.finish();
    let expected = running.each_ref().map(tokens);

    // Room for one whole context and its growing buffers, or for the starts of three.
    let mut rig = Rig::plain(room_for(2400));
    let running = requests().map(|request| rig.submit(request));
    rig.tick();
    assert_eq!(rig.engine_loop.running.len(), 3);
    rig.finish();
    assert!(rig.engine_loop.options.metrics.preemptions.get() > 0, "some were preempted");
    for (running, expected) in running.iter().zip(&expected) {
        assert_eq!(&tokens(running), expected, "answers do not change");
    }
    assert_eq!(rig.engine_loop.options.metrics.account.promised(), 0, "all memory is freed");
}

#[test]
fn background_sequence_is_preempted_for_an_interactive_one_that_grows() {
    let mut rig = Rig::plain(room_for(1600));
    let urgent = rig.submit(plain(30, 900, Priority::Interactive));
    let background = rig.submit(plain(40, 900, Priority::Background));
    rig.tick();
    assert_eq!(rig.engine_loop.running.len(), 2);
    while rig.engine_loop.options.metrics.preemptions.get() == 0 {
        assert!(!has_ended(&urgent), "it needs more memory than is free");
        rig.tick();
    }
    assert!(rig.runs(30) && !rig.runs(40));
    rig.finish();
    assert!(has_ended(&urgent) && has_ended(&background));
}

#[test]
fn request_that_shares_an_answer_being_drafted_does_not_wait_for_its_end() {
    let (request, length) = (plain(100, 200, Priority::Normal), 200);
    let options = Options { speculate: Speculate::Off, ..Options::default() };
    let mut rig = Rig::new("qwen3-a", options.clone(), Memory::default(), vec![]);
    let running = rig.submit(request.clone());
    rig.tick();
    rig.finish();
    let answer = tokens(&running);
    assert_eq!(answer.len(), length);

    let script = Script {
        answers: vec![(request.prompt.clone(), answer.clone())],
        acceptance_rate: 1.0,
        vocab_size: 250,
        seed: 1,
    };
    let speculate = Speculate::Fixed { drafter: "scripted".into(), depth: Some(4) };
    let options = Options { speculate, ..options };
    let mut rig = Rig::new("qwen3-a", options, Memory::default(), vec![Box::new(ScriptedDrafter(script))]);
    let first = rig.submit(request.clone());
    while rig.engine_loop.running.first().is_none_or(|s| s.generated() < 60) {
        rig.tick();
    }
    let second = Request {
        prompt: [&request.prompt[..], &answer[..50], &[30, 31]].concat(),
        ..plain(1, 3, Priority::Normal)
    };
    let second = rig.submit(second);
    for _ in 0..12 {
        rig.tick();
    }
    assert!(!has_ended(&first) && has_ended(&second));
}

/// Counts the sequences that it keeps state of.
#[derive(Clone, Default)]
struct Counting(Rc<Cell<usize>>);

/// State of one sequence.
struct Counted(Rc<Cell<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Drafter for Counting {
    fn info(&self) -> DrafterInfo {
        DrafterInfo::new("counting")
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        Ok(vec![Draft::default(); requests.len()])
    }

    fn hidden_observer(&mut self) -> Option<&mut dyn HiddenObserver> {
        Some(self)
    }
}

impl HiddenObserver for Counting {
    fn source(&self) -> HiddenSource<'_> {
        HiddenSource::Final
    }

    fn observe(&mut self, _: &HiddenStates, state: &mut DrafterState) {
        state.get_or_insert_with(|| {
            self.0.set(self.0.get() + 1);
            Counted(self.0.clone())
        });
    }
}

#[test]
fn drafter_state_is_dropped_however_a_sequence_ends() {
    let drafter = Counting::default();
    let speculate = Speculate::Fixed { drafter: "counting".into(), depth: Some(2) };
    let options = Options { speculate, ..Options::default() };
    let mut rig = Rig::new("qwen3_5-hub", options, Memory::default(), vec![Box::new(drafter.clone())]);
    let with = |last: u32| Request {
        prompt: [prompt(40), vec![last; 3]].concat(),
        ..plain(1, 12, Priority::Normal)
    };
    let late = Request {
        deadline: Some(Instant::now() + Duration::from_millis(1)),
        ..plain(90, 900, Priority::Normal)
    };
    let cases =
        [("finished", with(30)), ("not a number", with(NAN_TOKEN)), ("failed", with(POISON)), ("late", late)];
    for (what, request) in cases {
        let _running = rig.submit(request);
        rig.tick();
        thread::sleep(Duration::from_millis(2));
        rig.finish();
        assert_eq!(drafter.0.get(), 0, "{what}");
    }
    let (handle, _events) = rig.submit(with(31));
    (0..5).for_each(|_| rig.tick());
    assert_eq!(drafter.0.get(), 1, "it has observed something");
    handle.cancel();
    rig.finish();
    assert_eq!(drafter.0.get(), 0, "cancelled");
}

#[test]
fn panic_in_recovery_ends_every_sequence_as_failed() {
    let drafter = Counting::default();
    let speculate = Speculate::Fixed { drafter: "counting".into(), depth: Some(2) };
    let options = Options { speculate, ..Options::default() };
    let mut rig = Rig::new("qwen3_5-hub", options, Memory::default(), vec![Box::new(drafter.clone())]);
    let running: Vec<Running> = (0..3).map(|i| rig.submit(plain(40 + i, 100, Priority::Normal))).collect();
    while drafter.0.get() < 3 {
        rig.tick();
    }
    fault::panic_at("recover", 0, 1);
    rig.engine_loop.recover("a tick panics on purpose");
    assert_eq!(drafter.0.get(), 0, "drafters keep state of sequences that ended");
    for (_, events) in &running {
        let last = events.try_iter().last();
        let is_failed = matches!(&last, Some(Event::Failed(RequestError::Step(message))) if message.contains("on purpose"));
        assert!(is_failed, "{last:?}");
    }
    let next = rig.submit(plain(20, 3, Priority::Normal));
    rig.tick();
    rig.finish();
    assert_eq!(tokens(&next).len(), 3);
}

#[test]
fn wait_for_the_turn_of_another_engine_is_not_work() {
    let gate = Arc::new(StepGate::default());
    let options = Options { speculate: Speculate::Off, gate: gate.clone(), ..Options::default() };
    let mut rig = Rig::new("qwen3_5-hub", options, Memory::default(), vec![]);
    let _running = rig.submit(plain(40, 12, Priority::Normal));
    rig.tick();
    let (other, heartbeat) = (gate.join(), rig.heartbeat.clone());
    let turn = other.turn(Priority::Normal);
    // The tick is not idle before: it has a sequence to compute.
    heartbeat.working();
    let watcher = thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(20);
        let is_idle = || matches!(heartbeat.health(), Health::Idle(_));
        while !is_idle() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let was_idle = is_idle();
        drop(turn);
        was_idle
    });
    rig.tick();
    assert!(watcher.join().expect("no panic"), "the wait counts as a step");
}

/// Three requests through an engine whose thread panics at a point: their events, and those of one
/// more request.
fn panicking(point: &'static str, after: usize, times: usize) -> (Vec<Vec<String>>, Vec<String>) {
    let engine = engine_with(None, move || fault::panic_at(point, after, times));
    let running: Vec<_> = (0..3).map(|i| submit(&engine, request(i))).collect();
    let ends = running.into_iter().map(event_texts).collect();
    (ends, event_texts(submit(&engine, request(3))))
}

#[test]
fn panics_anywhere_in_a_tick_fail_no_more_requests_than_panics() {
    let good = engine(None);
    let alone: Vec<_> = (0..4).map(|i| event_texts(submit(&good, request(i)))).collect();
    // Number of panics, and of requests that may fail.
    let points = [
        ("receive", 1, 0),
        ("admit", 1, 1),
        ("tick", 1, 0),
        ("tick", 2, 1),
        ("schedule", 1, 0),
        ("schedule", 3, 2),
        ("attach", 1, 0),
        ("attach", 2, 1),
        ("store", 1, 0),
        ("end", 1, 1),
    ];
    for (point, times, cost) in points {
        for after in [0, 2] {
            let (got, last) = panicking(point, after, times);
            let failed: Vec<usize> = (0..3).filter(|&i| got[i] != alone[i]).collect();
            assert!(failed.len() <= cost, "{point} {after}: {failed:?} failed");
            for i in failed {
                let end = got[i].last().expect("an end");
                assert!(end.contains("Failed") && end.contains("on purpose"), "{point} {after}: {end}");
            }
            assert_eq!(last, alone[3], "{point} {after}: the engine continues");
        }
    }
}

#[test]
fn panic_while_sequences_restart_fails_one_of_them() {
    let options = || Options { speculate: Speculate::Off, ..Options::default() };
    let requests = || (0..3).map(|i| plain(20 + 11 * i, 12, Priority::Normal));
    let mut good = Rig::new("qwen3_5-hub", options(), Memory::default(), vec![]);
    let running: Vec<_> = requests().map(|request| good.submit(request)).collect();
    good.tick();
    good.finish();
    let expected: Vec<_> = running.iter().map(tokens).collect();

    let mut rig = Rig::faulty("qwen3_5-hub", options(), Memory::default(), vec![], Some(3), PANIC);
    fault::panic_at("restart", 1, 1);
    let running: Vec<_> = requests().map(|request| rig.submit(request)).collect();
    rig.tick();
    rig.finish();
    let ends: Vec<Vec<Event>> = running.iter().map(|(_, events)| events.try_iter().collect()).collect();
    let failed = |events: &Vec<Event>| matches!(events.last(), Some(Event::Failed(RequestError::Step(_))));
    assert_eq!(ends.iter().filter(|events| failed(events)).count(), 1);
    for (events, expected) in ends.iter().zip(&expected).filter(|(events, _)| !failed(events)) {
        let token = |event: &Event| if let Event::Token { id, .. } = event { Some(*id) } else { None };
        assert_eq!(&events.iter().filter_map(token).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn ticks_that_never_succeed_fail_all_requests_and_the_thread_lives() {
    let engine = engine_with(None, || fault::panic_at("tick", 0, 30));
    let running: Vec<_> = (0..3).map(|i| submit(&engine, request(i))).collect();
    for (i, events) in running.into_iter().map(event_texts).enumerate() {
        assert!(events.last().expect("an end").contains("on purpose"), "request {i}");
    }
    assert!(!matches!(engine.health(), Health::Ended));
}

#[test]
fn health_of_an_engine_that_was_stopped_is_ended() {
    let engine = engine(None);
    assert!(event_texts(submit(&engine, request(0))).last().expect("an end").contains("Finished"));
    assert!(matches!(engine.health(), Health::Idle(_) | Health::Working(_)));
    engine.stop();
    assert_eq!(engine.health(), Health::Ended);
    let gone = engine.submit(request(0), |event| panic!("{event:?}"));
    assert!(
        matches!(gone, Err(RequestError::EngineStopped)),
        "a refused request gets one error and no event"
    );
}
