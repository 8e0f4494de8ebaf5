//! Lossy decoding with skipped layers: its answers, those of other requests in the batch, and the
//! state it stores.

use super::{layer_skip::models, *};
use crate::{api::Lossy, prefix::PrefixKey};

const SKIPPED: usize = 1;

fn bench(golden: &str) -> Bench {
    Bench::with(golden, Box::new(LayerSkip::without(model(golden).into(), vec![SKIPPED], 0.0)))
}

fn lossy(i: u32) -> Request {
    Request { speculation: Some(Speculate::Lossy), ..request(i, "off", 0) }
}

/// Greedy tokens: the prompt by the whole model, the answer without a layer, one at a time.
fn expected_answer(golden: &str, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let model = model(golden);
    let mut caches = model.make_caches();
    let mut answer: Vec<u32> = vec![];
    let mut step = |new: &[u32], past: usize, skipped: &[usize]| {
        let row = BatchRow { num_tokens: new.len(), num_draft: 0, num_computed: past, caches: &mut caches };
        let mut batch = Batch::new([row]);
        batch.skip_layers(skipped);
        let n = new.len() as i32;
        let hidden = model.forward(&Array::from_slice(new, &[n]), &mut batch);
        let logits = model.logits(&hidden.slice(0, n - 1, n)).astype(mlx::Dtype::Float32);
        logits.argmax(-1).to_vec::<u32>().expect("evaluates")[0]
    };
    answer.push(step(prompt, 0, &[]));
    while answer.len() < tokens {
        answer.push(step(&[answer[answer.len() - 1]], prompt.len() + answer.len() - 1, &[SKIPPED]));
    }
    answer
}

/// Tokens of requests that run together, and what each reports as lossy.
fn answers_of(bench: &mut Bench, requests: &[Request]) -> Vec<(Vec<u32>, Vec<Lossy>)> {
    let running: Vec<_> = requests.iter().map(|request| bench.submit(request.clone())).collect();
    bench.run(|_| {});
    running.into_iter().map(|(_handle, events)| result(events)).collect()
}

fn answer_of(bench: &mut Bench, request: &Request) -> (Vec<u32>, Vec<Lossy>) {
    answers_of(bench, std::slice::from_ref(request)).remove(0)
}

fn result(events: Receiver<Event>) -> (Vec<u32>, Vec<Lossy>) {
    let (mut tokens, mut lossy) = (vec![], None);
    for event in events.try_iter() {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { usage, .. } => lossy = Some(usage.lossy),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (tokens, lossy.expect("an end"))
}

#[test]
fn layers_are_skipped_after_the_prompt_alone() {
    for golden in models() {
        let request = lossy(0);
        let expected = expected_answer(golden, &request.prompt, request.max_tokens);
        let got = answer_of(&mut bench(golden), &request);
        assert_eq!(got, (expected.clone(), vec![Lossy::SkippedLayers]), "{golden}");
        let exact = Request { speculation: None, ..request };
        let (plain, reported) = answer_of(&mut bench(golden), &exact);
        assert_eq!(
            (plain[0], reported),
            (expected[0], vec![]),
            "{golden}: the prompt is computed with all layers"
        );
        assert_ne!(plain, expected, "{golden}");
    }
}

#[test]
fn lossy_and_exact_requests_in_a_batch_do_not_affect_each_other() {
    for golden in models() {
        let mixed: Vec<Request> = (0..7)
            .map(|i| match i % 3 {
                0 => lossy(i),
                1 => request(i, "off", 0),
                _ => request(i, "self", 3),
            })
            .collect();
        let alone: Vec<_> = mixed.iter().map(|request| answer_of(&mut bench(golden), request)).collect();
        assert_eq!(answers_of(&mut bench(golden), &mixed), alone, "{golden}");
    }
}

#[test]
fn exact_requests_never_resume_from_lossy_state() {
    for golden in models() {
        let mut bench = bench(golden);
        let request = lossy(1);
        let (answer, _) = answer_of(&mut bench, &request);
        // Prompt and answer, and one more token.
        let all = [&request.prompt[..], &answer, &[3]].concat();
        assert!(
            bench.engine_loop.prefix.resumable(PrefixKey::of(&request, &all)) <= request.prompt.len(),
            "{golden}"
        );
        assert!(bench.engine_loop.prefix.stats().stored_tokens > 0, "{golden}: the prompt is reusable");
        let next = Request { prompt: all.clone(), speculation: None, ..request.clone() };
        let (warm, _) = answer_of(&mut bench, &next);
        let (cold, _) = answer_of(&mut self::bench(golden), &next);
        assert_eq!(warm, cold, "{golden}");
        // Now exact state of everything is stored; a lossy request uses none after its prompt.
        assert_eq!(answer_of(&mut bench, &request).0, answer, "{golden}");
    }
}

#[test]
fn exact_request_does_not_wait_for_lossy_state() {
    for golden in models() {
        let mut bench = bench(golden);
        let request = Request { max_tokens: 60, ..lossy(2) };
        let (answer, _) = answer_of(&mut self::bench(golden), &request);
        let all = [&request.prompt[..], &answer, &[3; 40]].concat();
        let next = Request { prompt: all, speculation: None, max_tokens: 6, ..request.clone() };
        let (cold, _) = answer_of(&mut self::bench(golden), &next);
        let (_handle, events) = bench.submit(request);
        let mut second = None;
        let mut steps = 0;
        // Late in its answer it restarts, together with the other.
        let (engine, next) = (bench.engine.clone(), &next);
        bench.run(|engine_loop| {
            steps += 1;
            if steps == 50 {
                engine_loop.collect_launched(&[]);
                let (model, info) = (engine_loop.model.clone(), &engine_loop.info);
                engine_loop.running.iter_mut().for_each(|s| s.quarantine(&*model, info));
                let (sender, events) = mpsc::channel();
                let submitted = engine.submit(next.clone(), move |event| drop(sender.send(event)));
                second = Some((submitted.expect("valid"), events));
            }
        });
        assert_eq!(result(events), (answer, vec![Lossy::SkippedLayers]), "{golden}");
        let (_handle, events) = second.expect("it was still running");
        assert_eq!(result(events).0, cold, "{golden}");
    }
}

#[test]
fn lossy_answers_are_the_same_after_a_restart() {
    for golden in models() {
        let requests: Vec<Request> = (0..3).map(lossy).collect();
        let expected = answers_of(&mut bench(golden), &requests);
        for at in [3, 6, 9, 14] {
            let mut bench = bench(golden);
            let running: Vec<_> = requests.iter().map(|request| bench.submit(request.clone())).collect();
            let mut steps = 0;
            bench.run(|engine_loop| {
                steps += 1;
                if steps == at {
                    engine_loop.collect_launched(&[]);
                    let (model, info) = (engine_loop.model.clone(), &engine_loop.info);
                    engine_loop.running.iter_mut().for_each(|s| s.quarantine(&*model, info));
                }
            });
            let got: Vec<_> = running.into_iter().map(|(_handle, events)| result(events)).collect();
            assert_eq!(got, expected, "{golden}, restarted at step {at}");
        }
    }
}

#[test]
fn failing_drafters_leave_a_request_lossy() {
    let golden = "qwen3_5-text-sharded";
    let request = lossy(0);
    let expected = expected_answer(golden, &request.prompt, request.max_tokens);
    let mut bench = bench(golden);
    let (_handle, events) = bench.submit(request);
    bench.run(|engine_loop| engine_loop.running.iter_mut().for_each(|s| s.speculation.stop()));
    assert_eq!(result(events), (expected, vec![Lossy::SkippedLayers]));
}
