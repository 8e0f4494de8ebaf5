//! Requests to a tiny model: seeds, penalties, log-probabilities, cancellation, limits, fairness.

use std::{
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use lanner_engine::*;

use crate::support::checkpoint;

fn model(options: Options) -> Engine {
    let folder = checkpoint::folder("qwen3_5-mlx-4bit");
    let options = Options { device: Some(Device::Cpu), ..options };
    start(Checkpoint::Folder(folder.path().into()), options, |_| {}).expect("loads")
}

fn submit(engine: &Engine, request: Request) -> (RequestHandle, Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    let handle = engine.submit(request, move |event| drop(sender.send(event))).expect("a valid request");
    (handle, events)
}

/// Submits to a channel that preserves the order of all requests' events.
fn submit_as(
    name: &'static str,
    engine: &Engine,
    events: &Sender<(&'static str, Event)>,
    request: Request,
) -> RequestHandle {
    let events = events.clone();
    engine.submit(request, move |event| drop(events.send((name, event)))).expect("a valid request")
}

/// Submits a request whose first token holds the engine until the returned sender is dropped: sinks
/// run on the engine's thread.
fn submit_holding(engine: &Engine, request: Request) -> (RequestHandle, Receiver<Event>, Sender<()>) {
    let (release, held) = mpsc::channel();
    let (sender, events) = mpsc::channel();
    let mut held = Some(held);
    let handle = engine.submit(request, move |event| {
        let is_token = matches!(event, Event::Token { .. });
        drop(sender.send(event));
        if let Some(held) = held.take_if(|_| is_token) {
            let _ = held.recv();
        }
    });
    (handle.expect("a valid request"), events, release)
}

/// Holds the engine in a request's only token, until the result is dropped.
fn hold(engine: &Engine) -> Sender<()> {
    let (_handle, events, release) =
        submit_holding(engine, Request { ignore_eos: true, ..Request::new(prompt(5), 1) });
    assert!(matches!(events.recv(), Ok(Event::Token { .. })));
    release
}

/// Names and kinds of events until `last` has finished.
fn order(events: &Receiver<(&'static str, Event)>, last: &str) -> Vec<(&'static str, &'static str)> {
    let mut order = vec![];
    for (name, event) in events {
        match event {
            Event::Token { .. } => order.push((name, "token")),
            Event::Finished { .. } => order.push((name, "end")),
            other => panic!("{name}: {other:?}"),
        }
        if order.last() == Some(&(last, "end")) {
            break;
        }
    }
    order
}

fn tokens((_handle, events): (RequestHandle, Receiver<Event>)) -> Vec<u32> {
    let id = |event| match event {
        Event::Token { id, .. } => Some(id),
        _ => None,
    };
    events.into_iter().filter_map(id).collect()
}

fn end((_handle, events): (RequestHandle, Receiver<Event>)) -> (FinishReason, Usage) {
    match events.into_iter().last() {
        Some(Event::Finished { reason, usage }) => (reason, usage),
        other => panic!("{other:?}"),
    }
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| 2 + (i * 37 + n) % 300).collect()
}

fn sampled(seed: u64, n: u32) -> Request {
    let sampling = Sampling {
        temperature: 0.9,
        top_p: 0.95,
        top_k: 50,
        presence_penalty: 0.3,
        repetition_penalty: 1.1,
        seed,
        ..Sampling::default()
    };
    Request { sampling, ignore_eos: true, ..Request::new(prompt(n), 30) }
}

#[test]
fn sampled_output_depends_on_the_request_alone() {
    let engine = model(Options { prefill_chunk: 16, ..Options::default() });
    let alone: Vec<_> = (0..4).map(|i| tokens(submit(&engine, sampled(i, 20 + 9 * i as u32)))).collect();
    let running: Vec<_> = (0..4).map(|i| submit(&engine, sampled(i, 20 + 9 * i as u32))).collect();
    let together: Vec<_> = running.into_iter().map(tokens).collect();
    assert_eq!(together, alone);
    assert_eq!(alone[0].len(), 30);
    assert_ne!(tokens(submit(&engine, sampled(99, 20))), alone[0], "the seed counts");
}

#[test]
fn logprobs_match_the_logits() {
    let engine = model(Options { prefill_chunk: 8, ..Options::default() });
    let request = Request {
        logprobs: Some(3),
        prompt_logprobs: true,
        logits: true,
        ignore_eos: true,
        ..Request::new(prompt(21), 5)
    };
    let (mut logits, mut scored): (Vec<Vec<f32>>, Vec<TokenLogprobs>) = (vec![], vec![]);
    let (_handle, events) = submit(&engine, request);
    for event in events {
        match event {
            Event::Logits { values, .. } => logits.push(values),
            Event::Prompt(all) => {
                assert!(
                    scored.is_empty() && all[0].is_none(),
                    "the prompt comes first, its first token unscored"
                );
                scored.extend(all.into_iter().skip(1).map(|l| l.expect("scored")));
            }
            Event::Token { id, logprobs } => {
                let logprobs = logprobs.expect("asked for");
                assert_eq!(logprobs.id, id);
                scored.push(logprobs);
            }
            _ => {}
        }
    }
    assert_eq!((logits.len(), scored.len()), (25, 25));
    for (logits, scored) in logits.iter().zip(&scored) {
        let total: f64 = logits.iter().map(|&l| (l as f64).exp()).sum();
        let exact = |id: u32| logits[id as usize] as f64 - total.ln();
        assert!((scored.logprob as f64 - exact(scored.id)).abs() < 1e-4);
        assert_eq!(scored.top.len(), 3);
        assert!(scored.top.windows(2).all(|w| w[0].1 >= w[1].1), "likeliest first");
        assert!(scored.top.iter().all(|&(id, l)| (l as f64 - exact(id)).abs() < 1e-4));
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(logits[scored.top[0].0 as usize], best);
    }
}

#[test]
fn request_ends_at_max_tokens_or_the_context_length() {
    let engine = model(Options { max_context: Some(40), ..Options::default() });
    let (reason, usage) = end(submit(&engine, Request { ignore_eos: true, ..Request::new(prompt(10), 7) }));
    assert_eq!((reason, usage.prompt_tokens, usage.completion_tokens), (FinishReason::Length, 10, 7));
    let (reason, usage) = end(submit(&engine, Request { ignore_eos: true, ..Request::new(prompt(35), 700) }));
    assert_eq!((reason, usage.completion_tokens), (FinishReason::Length, 5));
}

#[test]
fn eos_token_ends_the_request_and_is_counted() {
    let engine = model(Options::default());
    let bias = Sampling { logit_bias: [(2, 1e4)].into(), ..Sampling::default() };
    let request = Request { sampling: bias, ..Request::new(prompt(5), 9) };
    assert_eq!(engine.info().eos_ids, [2]);
    assert_eq!(tokens(submit(&engine, request.clone())), [0u32; 0]);
    let (reason, usage) = end(submit(&engine, request.clone()));
    assert_eq!((reason, usage.completion_tokens), (FinishReason::Eos(2), 1));
    assert_eq!(tokens(submit(&engine, Request { ignore_eos: true, ..request })), [2; 9]);
}

#[test]
fn invalid_request_is_refused_with_a_reason() {
    let engine = model(Options { max_context: Some(40), ..Options::default() });
    let check = |request: Request, expected: &str| {
        let error = engine.submit(request, |_| {}).err().expect("refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    let with = |change: fn(&mut Sampling)| {
        let mut request = Request::new(prompt(5), 3);
        change(&mut request.sampling);
        request
    };
    check(Request::new(vec![], 3), "prompt is empty");
    check(Request::new(prompt(5), 0), "max_tokens is 0");
    check(Request::new(prompt(41), 3), "41 tokens and the model's context holds 40; shorten the prompt by 2");
    check(Request::new(vec![320], 3), "token id 320 is outside the model's vocabulary of 320");
    check(with(|s| s.temperature = -1.0), "temperature is -1");
    check(with(|s| s.temperature = f32::NAN), "temperature is NaN");
    check(with(|s| s.top_p = 0.0), "top_p is 0");
    check(with(|s| s.min_p = 1.5), "min_p is 1.5");
    check(with(|s| s.repetition_penalty = 0.0), "repetition_penalty is 0");
    check(with(|s| s.logit_bias = [(999, 1.0)].into()), "token id 999");
    check(
        with(|s| s.logit_bias = [(5, f32::INFINITY)].into()),
        "logit_bias is inf; it must be between -10000",
    );
    check(with(|s| s.logit_bias = [(5, f32::NEG_INFINITY)].into()), "logit_bias is -inf");
    check(with(|s| s.logit_bias = [(5, 1e38)].into()), "logit_bias is 1e38");
    check(
        with(|s| s.repetition_penalty = 1e-38),
        "repetition_penalty is 1e-38; it must be between 0.01 and 100",
    );
    check(with(|s| s.frequency_penalty = f32::MAX), "frequency_penalty is 3.4028235e38");
    check(with(|s| s.temperature = 1e30), "temperature is 1e30");
    assert_eq!(tokens(submit(&engine, Request { ignore_eos: true, ..Request::new(prompt(5), 3) })).len(), 3);
}

#[test]
fn sampling_at_the_ends_of_its_ranges_gives_tokens_of_the_vocabulary() {
    let engine = model(Options::default());
    let ban_all = |bias: f32| (0..320).map(|id| (id, bias)).collect();
    let changes: [fn(&mut Sampling); 9] = [
        |s| s.temperature = 100.0,
        |s| s.temperature = 1e-45,
        |s| s.top_p = 1e-45,
        |s| (s.top_k, s.min_p) = (usize::MAX, 1.0),
        |s| s.repetition_penalty = 0.01,
        |s| s.repetition_penalty = 100.0,
        |s| (s.presence_penalty, s.frequency_penalty) = (-100.0, 100.0),
        |s| (s.presence_penalty, s.frequency_penalty) = (100.0, -100.0),
        |s| (s.logit_bias, s.seed) = ([(5, 10_000.0), (6, -10_000.0)].into(), u64::MAX),
    ];
    for change in changes {
        for temperature in [0.0, 1.0] {
            let mut request = Request { logprobs: Some(usize::MAX), ..sampled(7, 12) };
            request.sampling.temperature = temperature;
            change(&mut request.sampling);
            let got = tokens(submit(&engine, request.clone()));
            assert!(got.len() == 30 && got.iter().all(|id| *id < 320), "{:?}: {got:?}", request.sampling);
            // A bias on all tokens changes nothing.
            let Sampling { logit_bias, .. } = &mut request.sampling;
            if logit_bias.is_empty() && temperature == 0.0 {
                *logit_bias = ban_all(-10_000.0);
                assert_eq!(tokens(submit(&engine, request)).len(), 30);
            }
        }
    }
}

/// Allows only tokens outside of the vocabulary.
#[derive(Debug)]
struct Beyond;

impl Constraint for Beyond {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Beyond)
    }
}

impl ConstraintState for Beyond {
    fn push(&mut self, _: u32) -> Result<bool, String> {
        Ok(true)
    }

    fn rewind(&mut self, _: usize) -> Result<(), String> {
        Ok(())
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        Ok(TokenSet::of(400, [350]))
    }

    fn forced(&mut self, _: usize) -> Result<Vec<u32>, String> {
        Ok(vec![])
    }
}

#[test]
fn request_without_a_candidate_fails_alone() {
    let engine = model(Options::default());
    let good = submit(&engine, sampled(3, 30));
    for presence_penalty in [0.0, 0.5] {
        let sampling = Sampling { presence_penalty, ..sampled(1, 5).sampling };
        let constraint: Option<std::sync::Arc<dyn Constraint>> = Some(std::sync::Arc::new(Beyond));
        let (_handle, events) = submit(&engine, Request { sampling, constraint, ..sampled(1, 5) });
        let all: Vec<Event> = events.into_iter().collect();
        assert!(matches!(all[..], [Event::Failed(RequestError::NoCandidate { generated: 0 })]), "{all:?}");
    }
    assert_eq!(tokens(good), tokens(submit(&engine, sampled(3, 30))));
}

#[test]
fn penalised_request_draws_from_the_same_noise() {
    let engine = model(Options::default());
    let with = |presence_penalty: f32| {
        let sampling = Sampling { temperature: 1.0, seed: 11, presence_penalty, ..Sampling::default() };
        tokens(submit(&engine, Request { sampling, ignore_eos: true, ..Request::new(prompt(20), 40) }))
    };
    assert_eq!(with(1e-30), with(0.0));
}

#[test]
fn dropped_request_handle_stops_the_generation() {
    let engine = model(Options { max_batch: 1, ..Options::default() });
    for _ in 0..100 {
        let (handle, events) = submit(&engine, Request { ignore_eos: true, ..Request::new(prompt(5), 1500) });
        assert!(matches!(events.recv(), Ok(Event::Token { .. })));
        drop(handle);
        let generated = 1 + events.iter().filter(|e| matches!(e, Event::Token { .. })).count();
        assert!(generated < 200, "{generated} tokens");
    }
    let queued: Vec<_> = (0..3)
        .map(|_| submit(&engine, Request { ignore_eos: true, ..Request::new(prompt(5), 1500) }))
        .collect();
    for (handle, events) in queued.into_iter().rev() {
        drop(handle);
        assert!(matches!(
            events.iter().last(),
            Some(Event::Finished { reason: FinishReason::Cancelled, .. })
        ));
    }
    assert_eq!(tokens(submit(&engine, Request { ignore_eos: true, ..Request::new(prompt(5), 3) })).len(), 3);
}

#[test]
fn long_prompt_does_not_delay_a_short_one() {
    let engine = model(Options { prefill_chunk: 32, ..Options::default() });
    let (sender, events) = mpsc::channel();
    let held = hold(&engine);
    let submit = |name, request| submit_as(name, &engine, &sender, Request { ignore_eos: true, ..request });
    let _long = submit("long", Request::new(prompt(2000), 40));
    let _short = submit("short", Request::new(prompt(8), 10));
    drop(held);
    let before = order(&events, "short");
    assert_eq!(before.len(), 11, "the long prompt is computed when the short one is answered: {before:?}");
    assert_eq!(order(&events, "long").len(), 41);
}

#[test]
fn long_prompt_delays_a_running_stream_by_one_chunk_at_a_time() {
    let engine = model(Options { prefill_chunk: 50, ..Options::default() });
    // Both send to one channel, which preserves the order of events.
    let (sender, events) = mpsc::channel();
    let submit = |name, request| {
        let sender = sender.clone();
        engine.submit(request, move |event| drop(sender.send((name, event)))).expect("a valid request")
    };
    let _stream = submit("stream", Request { ignore_eos: true, ..Request::new(prompt(5), 500) });
    assert!(matches!(events.recv(), Ok(("stream", Event::Token { .. }))));
    let _long = submit("long", Request::new(prompt(1500), 1));
    let before = events.iter().take_while(|(name, _)| *name == "stream").count();
    assert!(before >= 1500 / 50, "{before} tokens of the stream while 30 chunks were computed");
}

#[test]
fn group_with_many_requests_does_not_delay_another() {
    let engine = model(Options { max_batch: 2, ..Options::default() });
    let (sender, events) = mpsc::channel();
    let held = hold(&engine);
    let permit = engine.acquire().expect("a permit");
    let crowd = (0..20).map(|i| {
        let (name, sender) = (if i == 19 { "last" } else { "crowd" }, sender.clone());
        let long = Request { ignore_eos: true, ..Request::new(prompt(5), 60) };
        let handle = engine.submit_with(&permit, long, move |events| {
            events.into_iter().for_each(|event| drop(sender.send((name, event))));
        });
        handle.expect("a valid request")
    });
    let _crowd: Vec<_> = crowd.collect();
    let other = Request { ignore_eos: true, ..Request::new(prompt(8), 3) };
    let _other = submit_as("other", &engine, &sender, other);
    drop(held);
    let before = order(&events, "other");
    assert!(before.contains(&("crowd", "token")), "{before:?}");
    assert!(!before.contains(&("last", "token")), "the crowd is still waiting: {before:?}");
    let last = order(&events, "last");
    assert_eq!(last.iter().filter(|event| **event == ("last", "token")).count(), 60);
}

#[test]
fn full_queue_refuses_requests_until_one_ends() {
    let engine = model(Options { max_batch: 1, queue_limit: 2, ..Options::default() });
    let endless = || Request { ignore_eos: true, ..Request::new(prompt(5), 1900) };
    let mut requests: Vec<_> = (0..3).map(|_| submit(&engine, endless())).collect();
    let refused = engine.submit(endless(), |_| {}).err();
    assert!(matches!(refused, Some(RequestError::QueueFull { waiting: 2, .. })), "{refused:?}");
    for leaves in [2, 0] {
        let (handle, events) = requests.remove(leaves);
        drop(handle);
        assert!(matches!(events.iter().last(), Some(Event::Finished { .. })));
        requests.push(submit(&engine, endless()));
        assert!(engine.submit(endless(), |_| {}).is_err());
    }
}

#[test]
fn request_past_its_deadline_fails_running_or_waiting() {
    let engine = model(Options { max_batch: 1, ..Options::default() });
    let good = tokens(submit(&engine, sampled(1, 20)));
    let until =
        |deadline| Request { ignore_eos: true, deadline: Some(deadline), ..Request::new(prompt(5), 2000) };
    // Long enough for the first token, however slow the machine is; it holds the engine.
    let mut patience = Duration::from_millis(50);
    let (deadline, (_handle, events, held)) = loop {
        let deadline = Instant::now() + patience;
        let running = submit_holding(&engine, until(deadline));
        match running.1.recv() {
            Ok(Event::Token { .. }) => break (deadline, running),
            Ok(Event::Failed(RequestError::TimeIsUp)) => patience *= 2,
            other => panic!("{other:?}"),
        }
    };
    let waiting = [deadline, Instant::now()].map(|deadline| submit(&engine, until(deadline)));
    let patient = submit(&engine, sampled(1, 20));
    thread::sleep(deadline.saturating_duration_since(Instant::now()));
    drop(held);
    for (_handle, events) in waiting {
        let all: Vec<Event> = events.into_iter().collect();
        assert!(matches!(all[..], [Event::Failed(RequestError::TimeIsUp)]), "{all:?}");
    }
    assert!(matches!(events.iter().last(), Some(Event::Failed(RequestError::TimeIsUp))));
    assert_eq!(tokens(patient), good, "the next one runs");
}

#[test]
fn urgent_requests_overtake_and_background_requests_leave_a_slot() {
    let engine = model(Options { max_batch: 2, ..Options::default() });
    let (sender, events) = mpsc::channel();
    let request = |priority, n| Request { ignore_eos: true, priority, ..Request::new(prompt(5), n) };
    let submit = |name, priority, n| submit_as(name, &engine, &sender, request(priority, n));
    let _background = ["background", "second background", "third background"]
        .map(|name| submit(name, Priority::Background, 1900));
    assert!(matches!(events.recv(), Ok(("background", Event::Token { .. }))));
    // The others leave one slot free.
    let (first, firsts, held) = submit_holding(&engine, request(Priority::Normal, 200));
    assert!(matches!(firsts.recv(), Ok(Event::Token { .. })));
    let _normal = ["normal", "second", "third", "last"].map(|name| submit(name, Priority::Normal, 40));
    let _urgent = submit("urgent", Priority::Interactive, 5);
    drop((first, held));
    let before = order(&events, "urgent");
    assert!(!before.contains(&("second", "token")), "those before it still wait: {before:?}");
    let after = order(&events, "last");
    let ended = |name| before.iter().chain(&after).filter(|event| **event == (name, "token")).count();
    assert_eq!(["urgent", "normal", "second", "third", "last"].map(ended), [5, 40, 40, 40, 40]);
    assert_eq!(["second background", "third background"].map(ended), [0, 0], "they have one slot");
}

#[test]
fn panicking_caller_loses_only_its_own_request() {
    let engine = model(Options::default());
    let good = submit(&engine, sampled(1, 20));
    let handle = engine.submit(sampled(2, 20), |_| panic!("on purpose")).expect("valid");
    assert_eq!(tokens(good), tokens(submit(&engine, sampled(1, 20))));
    drop(handle);
}

#[test]
fn stopped_engine_ends_every_request_and_refuses_new_ones() {
    let engine = model(Options { max_batch: 2, ..Options::default() });
    let endless = || Request { ignore_eos: true, ..Request::new(prompt(5), 1900) };
    let requests: Vec<_> = (0..4).map(|_| submit(&engine, endless())).collect();
    assert!(matches!(requests[0].1.recv(), Ok(Event::Token { .. })));
    engine.stop();
    for (_handle, events) in requests {
        assert!(matches!(
            events.iter().last(),
            Some(Event::Finished { reason: FinishReason::Cancelled, .. })
        ));
    }
    assert_eq!(engine.submit(endless(), |_| {}).err(), Some(RequestError::EngineStopped));
}

#[test]
fn prompt_progress_is_reported_when_it_starts_and_after_each_chunk() {
    let engine = model(Options { prefill_chunk: 8, prefix_cache_bytes: 0, ..Options::default() });
    let progress = |prompt_progress: bool| {
        let request = Request { prompt_progress, ignore_eos: true, ..Request::new(prompt(21), 2) };
        let (_handle, events) = submit(&engine, request);
        let reported = events.into_iter().filter_map(|event| match event {
            Event::PromptProgress { processed, cached } => Some((processed, cached)),
            _ => None,
        });
        reported.collect::<Vec<_>>()
    };
    assert_eq!(progress(true), [(0, 0), (8, 0), (16, 0)]);
    assert_eq!(progress(false), []);
}
