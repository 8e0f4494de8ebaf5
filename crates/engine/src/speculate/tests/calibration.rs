//! Measurements in slices between the steps of running requests, and the files that keep them.

use super::{drafter::Calibrated, drafters::mtp::MtpDrafter, *};

const GOLDEN: &str = "qwen3_5-text-sharded";
/// The number of slices depends on the machine's speed, but every pass over the layers or the text
/// ends one and the first pass starts with a short one: three passes at least, and the step of the
/// last slice is not counted.
const MIN_STEPS: usize = 3;

fn plain(tokens: usize) -> Request {
    let prompt = (0..9).map(|t| 3 + t * 7 % 240).collect();
    Request { ignore_eos: true, speculation: Some(Speculate::Off), ..Request::new(prompt, tokens) }
}

/// Steps during a measurement, and how many of them gave the first sequence a token.
fn steps_while_measuring(bench: &mut Bench) -> (usize, usize) {
    let (mut steps, mut tokens, mut before) = (0, 0, 0);
    bench.run(|engine_loop| {
        let generated = engine_loop.running.iter().find(|s| s.id == 0).map_or(before, |s| s.generated());
        if engine_loop.speculator.is_measuring() && generated > 0 {
            (steps, tokens) = (steps + 1, tokens + usize::from(generated > before));
        }
        before = generated;
    });
    (steps, tokens)
}

#[test]
fn first_auto_request_starts_measurements_between_steps() {
    let mut bench = Bench::new(GOLDEN, Script::default());
    let (_first, events) = bench.submit(plain(60));
    for _ in 0..3 {
        bench.tick();
    }
    assert!(
        !bench.engine_loop.speculator.is_measuring() && !bench.engine_loop.speculator.costs().are_measured()
    );
    let (_second, others) = bench.submit(Request { speculation: Some(Speculate::Auto), ..plain(20) });
    let (count, got) = steps_while_measuring(&mut bench);
    assert!(count >= MIN_STEPS, "one width after another: {count}");
    assert_eq!(got, count, "a token in every step");
    let steps = bench.engine_loop.speculator.times().steps;
    assert!(
        [1, 4].iter().all(|width| steps.iter().any(|(known, ms)| known == width && *ms > 0.0)),
        "{steps:?}"
    );
    assert_eq!((tokens(events).len(), tokens(others).len()), (60, 20));
    // A second request finds the costs.
    let (_third, _events) = bench.submit(Request { speculation: Some(Speculate::Auto), ..plain(5) });
    assert_eq!(steps_while_measuring(&mut bench).0, 0);
}

#[test]
fn only_lossy_requests_wait_for_the_layer_profile() {
    let lossy = Request { speculation: Some(Speculate::Lossy), ..plain(12) };
    let text: Vec<u32> = (0..119).map(|t| 3 + (t * t) % 240).collect();
    let bench = || {
        let layer_skip = LayerSkip::new(model(GOLDEN).into(), None).expect("layers to spare");
        let bench = Bench::with(GOLDEN, Box::new(layer_skip));
        bench.engine.set_calibration_text(text.clone());
        bench
    };
    let mut alone = bench();
    let (_handle, events) = alone.submit(lossy.clone());
    alone.run(|_| {});
    let expected = tokens(events);
    let mut beside = bench();
    let (_first, events) = beside.submit(plain(200));
    for _ in 0..3 {
        beside.tick();
    }
    let (_second, others) = beside.submit(lossy);
    let (count, got) = steps_while_measuring(&mut beside);
    assert!(count >= MIN_STEPS, "pass after pass: {count}");
    assert_eq!(got, count, "a token in every step");
    assert_eq!(tokens(events).len(), 200);
    assert_eq!(tokens(others), expected, "the same layers as alone");
}

#[test]
fn lossy_request_waiting_for_the_profile_can_be_cancelled() {
    let layer_skip = LayerSkip::new(model(GOLDEN).into(), None).expect("layers to spare");
    let mut bench = Bench::with(GOLDEN, Box::new(layer_skip));
    bench.engine.set_calibration_text((0..119).map(|t| 3 + (t * t) % 240).collect());
    let (handle, events) = bench.submit(Request { speculation: Some(Speculate::Lossy), ..plain(12) });
    bench.tick();
    assert!(bench.engine_loop.speculator.is_measuring());
    drop(handle);
    bench.run(|_| {});
    assert!(
        matches!(events.try_iter().last(), Some(Event::Finished { usage, .. }) if usage.completion_tokens == 0)
    );
    let (_next, events) = bench.submit(plain(3));
    bench.run(|_| {});
    assert_eq!(tokens(events).len(), 3);
}

#[test]
fn saved_costs_are_used_unless_step_times_have_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(COSTS_FILE);
    let model = model(GOLDEN);
    let load = |auto| load_or_measure_costs(&*model, &mut [], Some(&file), auto).expect("measures");
    assert!(!load(false).are_measured() && !file.exists(), "no request needs them");
    assert!(load(true).are_measured() && file.exists());
    let threads = nn::threads();
    let wrong = format!(r#"{{"threads":{threads},"steps":[[1,1e6],[4,2e6]],"drafters":[]}}"#);
    std::fs::write(&file, wrong).expect("is written");
    assert_eq!(load(false).step(1), Some(1e6), "used without a step to compare with");
    assert!(load(true).step(1).is_some_and(|ms| ms < 1e5), "measured again");
    assert!(load(false).step(1).is_some_and(|ms| ms < 1e5), "and saved");
}

#[test]
fn mtp_drafter_measures_its_latency_once_and_restores_it() {
    let golden: Rc<dyn Model> = model("deepseek_v3-a").into();
    let new = || MtpDrafter::new(golden.clone()).expect("a head");
    let mut head = new();
    assert!(!head.is_measuring() && head.info().latency == 0.0 && head.measurements().is_empty());
    head.prepare();
    let mut slices = 0;
    while head.is_measuring() {
        head.measure().expect("measures");
        slices += 1;
    }
    assert!(slices > 1 && head.info().latency > 0.0);
    head.prepare();
    assert!(!head.is_measuring(), "once");
    let mut again = new();
    again.restore(&head.measurements());
    assert_eq!((again.info().latency, again.measurements()), (head.info().latency, head.measurements()));
}
