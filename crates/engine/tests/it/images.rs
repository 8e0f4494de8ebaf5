//! Requests with images: towers and prompts against transformers in float32, and every way of
//! computing them against a lone cold run, bit for bit.

use std::{collections::BTreeMap, ops::ControlFlow, path::Path, sync::Arc};

use lanner_engine::{
    quantize::{Mode, Plan, SHARD_BYTES, quantization},
    *,
};

use crate::support::{
    document,
    pictures::{IMAGE_TOKEN, Recorded, names},
    recorded::{self, options},
    requests::{Random, answer, submit},
};

const BOUND: f32 = 3e-4;

fn start_with(folder: &Path, with: Options) -> Engine {
    start(Checkpoint::Folder(folder.into()), options(with), |_| {}).expect("the checkpoint loads")
}

fn engine(recorded: &Recorded, with: Options) -> Engine {
    start_with(recorded.folder.path(), with)
}

fn exact(prefill_chunk: usize) -> Options {
    Options { prefill_chunk, precision: Precision::Float32, speculate: Speculate::Off, ..Options::default() }
}

#[test]
fn prompts_with_images_match_the_reference_in_every_chunking_and_batch() {
    let names = names();
    assert!(names.len() >= 14, "the goldens are there");
    let mut rows: BTreeMap<String, (Vec<String>, f32)> = BTreeMap::new();
    for name in names {
        let recorded = Recorded::read(&name);
        let (names, farthest) = rows.entry(recorded.model_type()).or_default();
        names.push(name.clone());
        let cases = &recorded.towers.cases;
        let mut first = None;
        for chunk in [4096, 64, 7, 1] {
            let engine = engine(&recorded, Options { max_batch: 1, ..exact(chunk) });
            let ask = |case| recorded::ask(&engine, recorded.request(case))();
            let answers: Vec<_> = cases.iter().map(ask).collect();
            for (case, answer) in cases.iter().zip(&answers) {
                let worst =
                    recorded::check(&case.text, answer, BOUND).unwrap_or_else(|e| panic!("{name}: {e}"));
                println!("{name}: logits within {worst:.1e} in chunks of {chunk}");
                *farthest = farthest.max(worst);
            }
            let first = first.get_or_insert(answers);
            let answers: Vec<_> = cases.iter().map(ask).collect();
            assert!(recorded::same(first, &answers), "{name}: chunks of {chunk} change bits");
        }
        let engine = engine(&recorded, Options { max_batch: 8, ..exact(20) });
        let asked: Vec<_> = cases.iter().map(|case| recorded::ask(&engine, recorded.request(case))).collect();
        let answers: Vec<_> = asked.into_iter().map(|finish| finish()).collect();
        assert!(
            recorded::same(first.as_deref().unwrap_or_default(), &answers),
            "{name}: neighbours change bits"
        );
    }
    check_document(&rows);
}

/// The table of docs/models.md: recorded checkpoints and the largest difference of a logit, by
/// `model_type`.
fn check_document(rows: &BTreeMap<String, (Vec<String>, f32)>) {
    let mut text = String::from("| model_type | checkpoints | within |\n|---|---|---|\n");
    for (model_type, (names, worst)) in rows {
        text += &format!("| {model_type} | {} | {:.0e} |\n", names.join(", "), document::within(*worst));
    }
    document::check("towers", &text, |model_type| rows[model_type].1);
}

#[test]
fn layout_of_mlx_vlm_gives_the_same_bits() {
    for name in names() {
        let recorded = Recorded::read(&name);
        // Whole norms, which mlx-vlm stores, are another matter: only towers and experts change.
        let folder = recorded.in_mlx_layout();
        let (hub, mlx) = (engine(&recorded, exact(64)), start_with(folder.path(), exact(64)));
        for case in &recorded.towers.cases {
            let ask = |engine| recorded::ask(engine, recorded.request(case))();
            assert!(ask(&hub).equals(&ask(&mlx)), "{name}");
        }
    }
}

/// `lanner quantize` leaves towers alone.
#[test]
fn quantized_copies_see_nearly_what_their_sources_see() {
    let cosine = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    for name in names().iter().filter(|name| !name.ends_with("-odd")) {
        let recorded = Recorded::read(name);
        let copy = recorded.folder.path().join("copy");
        let format = quantization(Mode::Affine, Some(8), Some(32)).expect("a format");
        let mut plan = Plan::new(&Checkpoint::Folder(recorded.folder.path().into()), format).expect("a plan");
        plan.write(&copy, SHARD_BYTES, &mut |_| ControlFlow::Continue(())).expect("written");
        let (source, copy) = (engine(&recorded, exact(64)), start_with(&copy, exact(64)));
        let request = recorded.request(&recorded.towers.cases[1]);
        let [before, after] = [&source, &copy].map(|engine| recorded::ask(engine, request.clone())());
        // Up to the first other token; a router may choose another expert.
        let mut cosines: Vec<f64> =
            before.logits.iter().zip(&after.logits).take(request.prompt.len()).map(cosine).collect();
        cosines.sort_by(f64::total_cmp);
        let median = cosines[cosines.len() / 2];
        assert!(median > 0.97, "{name}: {median}");
    }
}

#[test]
fn conversion_without_its_tower_serves_text_and_refuses_images() {
    for name in ["qwen3_5", "qwen3_vl_moe", "lfm2_vl", "gemma4_unified"] {
        let recorded = Recorded::read(name);
        let folder = recorded.without_tower();
        let engine = start_with(folder.path(), exact(64));
        assert_eq!(engine.info().vision, Vision::Dropped, "{name}");
        let request = recorded.request(&recorded.towers.cases[0]);
        let refused = engine.submit(request.clone(), |_| {}).err().expect("refused");
        assert_eq!(refused, RequestError::NoVisionTower, "{name}");
        answer(submit(&engine, Request { logprobs: Some(2), images: vec![], ..request }));
    }
}

/// A request whose first image is changed must be refused with a sentence that says `expected`.
#[track_caller]
fn check_refused(engine: &Engine, good: &Request, change: &dyn Fn(&mut Image), expected: &str) {
    let mut request = good.clone();
    change(&mut request.images[0]);
    let (sender, events) = std::sync::mpsc::channel();
    let error = match engine.submit(request, move |event| drop(sender.send(event))) {
        Err(error) => error,
        Ok(_handle) => match events.iter().last() {
            Some(Event::Failed(error)) => error,
            other => panic!("{other:?}, not {expected}"),
        },
    };
    assert!(matches!(error, RequestError::BadImage { index: 0, .. }), "{error}");
    assert!(error.to_string().contains(expected), "{error}, not {expected}");
}

fn tensor(rows: usize, columns: usize, values: usize) -> ImageTensor {
    ImageTensor { rows, columns, values: vec![0.0; values] }
}

#[test]
fn images_that_do_not_fit_are_refused() {
    let recorded = Recorded::read("qwen3_5");
    let engine = engine(&recorded, exact(64));
    assert_eq!(engine.info().vision, Vision::Tower { image_token_id: IMAGE_TOKEN });
    let good = recorded.request(&recorded.towers.cases[0]);
    let check = |change: &dyn Fn(&mut Image), expected: &str| check_refused(&engine, &good, change, expected);
    check(&|image| image.positions.clear(), "no positions");
    check(&|image| image.positions[0].end = 1000, "outside the prompt");
    check(&|image| image.positions[0].start -= 1, "not the image token 252");
    check(&|image| image.positions[0].end -= 1, "6 features for 5 prompt positions");
    check(&|image| image.tensors = Arc::from([]), "0 tensors");
    check(&|image| image.tensors = Arc::from([tensor(4, 6, 7)]), "7 values for 4 x 6 patches");
    let count = good.images[0].tensors[0].values.len();
    check(&|image| image.tensors = Arc::from([tensor(3, 8, count)]), "groups of 2 x 2");
    check(&|image| image.tensors = Arc::from([tensor(0, 6, 0)]), "0 values");
    check(&|image| image.tensors = Arc::from([tensor(usize::MAX, 6, 0)]), "0 values");
    // The engine goes on.
    answer(submit(&engine, Request { logprobs: Some(2), ..good }));
}

#[test]
fn images_that_do_not_fit_a_tower_of_tiles_are_refused() {
    let recorded = Recorded::read("lfm2_vl");
    let engine = engine(&recorded, exact(64));
    let good = recorded.request(&recorded.towers.cases[1]);
    let check = |tensors: &[ImageTensor], expected: &str| {
        check_refused(&engine, &good, &|image| image.tensors = tensors.into(), expected);
    };
    let views = &good.images[0].tensors;
    check(&[], "0 tensors");
    check(&views[..2], "8 features for 11 prompt positions");
    check(&[views[0].clone(), tensor(4, 4, 7)], "7 values for 4 x 4 patches");
    check(&[views[0].clone(), tensor(3, 4, 576)], "multiples of 2");
    check(&[views[0].clone(), tensor(0, 4, 0)], "0 values");
    check(&[views[0].clone(), tensor(usize::MAX - 1, 4, 0)], "0 values");
    answer(submit(&engine, Request { logprobs: Some(2), ..good }));
}

#[test]
fn images_that_do_not_fit_a_model_without_an_encoder_are_refused() {
    let recorded = Recorded::read("gemma4_unified");
    let engine = engine(&recorded, exact(64));
    let good = recorded.request(&recorded.towers.cases[0]);
    let check = |tensors: &[ImageTensor], expected: &str| {
        check_refused(&engine, &good, &|image| image.tensors = tensors.into(), expected);
    };
    check(&[], "0 tensors");
    check(&[tensor(1, 5, 5 * 192)], "5 features for 6 prompt positions");
    check(&[tensor(2, 3, 7)], "7 values for 2 x 3 patches");
    check(&[tensor(1, 17, 17 * 192)], "sides of 1 to 16");
    check(&[tensor(0, 3, 0)], "0 values");
    answer(submit(&engine, Request { logprobs: Some(2), ..good }));
}

#[test]
fn picture_is_computed_once_and_another_one_shares_no_state() {
    let recorded = Recorded::read("qwen3_5");
    let engine = engine(&recorded, exact(64));
    let ask = |request: Request| answer(submit(&engine, Request { logprobs: Some(2), ..request }));
    let computed = || engine.metrics().images_computed.get();
    let case = &recorded.towers.cases[1];
    let request = Request { logits: false, ..recorded.request(case) };
    let first = ask(request.clone());
    assert_eq!((computed(), first.usage.cached_tokens), (3, 0));
    let again = ask(request.clone());
    assert_eq!(again.tokens, first.tokens);
    assert_eq!((computed(), again.usage.cached_tokens), (3, request.prompt.len() - 1));
    // Without state the features are there nonetheless.
    let cold = Request { logits: true, ..request.clone() };
    assert_eq!(ask(cold).tokens, first.tokens);
    assert_eq!(computed(), 3);

    // Another picture in the same place.
    let mut other = request.clone();
    other.images[0].digest[31] ^= 1;
    let mut tensor = other.images[0].tensors[0].clone();
    tensor.values.iter_mut().for_each(|value| *value = -*value);
    other.images[0].tensors = Arc::from([tensor]);
    let start = other.images[0].positions[0].start;
    let answered = ask(other);
    assert_eq!(computed(), 4);
    assert!(answered.usage.cached_tokens <= start, "{:?}", answered.usage);
    let miss = answered.usage.cache.miss.expect("a miss");
    assert_eq!((miss.reason, miss.position), (MissReason::ImageDropped, start));
    assert_ne!(answered.tokens, first.tokens);

    // The first image is dropped, with the tokens around it.
    let mut dropped = request.clone();
    let removed = start - 1..dropped.images[0].positions[0].end + 1;
    dropped.prompt.drain(removed.clone());
    dropped.images.remove(0);
    for run in dropped.images.iter_mut().flat_map(|image| &mut image.positions) {
        *run = run.start - removed.len()..run.end - removed.len();
    }
    let answered = ask(dropped);
    assert_eq!(computed(), 4);
    let miss = answered.usage.cache.miss.expect("a miss");
    assert_eq!((miss.reason, miss.position), (MissReason::ImageDropped, removed.start));
}

#[test]
fn picture_sent_under_another_salt_is_computed_anew() {
    let recorded = Recorded::read("qwen3_5");
    let engine = engine(&recorded, exact(64));
    let request = Request { logits: false, ..recorded.request(&recorded.towers.cases[0]) };
    let computed = |client| {
        let cache_salt = Some(CacheSalt::new([Some(client)]));
        answer(submit(&engine, Request { cache_salt, logprobs: Some(2), ..request.clone() }));
        engine.metrics().images_computed.get()
    };
    assert_eq!([computed("a"), computed("a"), computed("b"), computed("a")], [1, 1, 2, 2]);
}

#[test]
fn tiny_pictures_share_no_state() {
    let recorded = Recorded::read("qwen3_5");
    let engine = engine(&recorded, exact(64));
    let image = recorded.image(2, std::iter::once(30..31).collect());
    assert_eq!(image.num_tokens(), 1);
    let mut prompt = Random(7).tokens(60);
    prompt[30] = IMAGE_TOKEN;
    let request = |digest| {
        let image = Image { digest: [digest; 32], ..image.clone() };
        Request { images: vec![image], logprobs: Some(2), ..Request::new(prompt.clone(), 2) }
    };
    let cached = |digest| answer(submit(&engine, request(digest))).usage.cached_tokens;
    assert_eq!([cached(1), cached(1), cached(2), cached(2)], [0, 59, 0, 59]);
}

#[test]
fn cancelled_request_keeps_the_features_of_its_images() {
    let recorded = Recorded::read("qwen3_5");
    let engine = engine(&recorded, exact(64));
    let request = Request { max_tokens: 1000, ..recorded.request(&recorded.towers.cases[0]) };
    let running = submit(&engine, Request { logits: false, logprobs: Some(2), ..request.clone() });
    // Its first token has come.
    running.events.recv().expect("an event");
    drop(running.handle);
    running.events.iter().for_each(drop);
    let again = Request { logits: true, logprobs: Some(2), max_tokens: 2, ..request };
    answer(submit(&engine, again));
    assert_eq!(engine.metrics().images_computed.get(), 1);
}

/// Requests in random schedules: chunks, batches, stored prefixes, restarts with a disk cache,
/// drafts, and too little memory for all at once.
fn check_schedule(recorded: &Recorded, seed: u64) {
    let random = &mut Random(seed);
    let mut requests: Vec<Request> = vec![];
    for _ in 0..8 {
        let max_tokens = random.below(12) + 1;
        let mut request = recorded.random_request(random, &requests, max_tokens);
        let lookup = Speculate::Fixed { drafter: "ngram".into(), depth: Some(random.below(7) + 1) };
        let mtp = Speculate::Fixed { drafter: "mtp".into(), depth: Some(random.below(4) + 1) };
        let kinds = if recorded.has_mtp() { 4 } else { 3 };
        request.speculation =
            [None, Some(Speculate::Off), Some(lookup), Some(mtp)][random.below(kinds)].clone();
        let marks = random.below(3);
        request.cache_breakpoints = (0..marks).map(|_| random.below(request.prompt.len() + 1)).collect();
        if random.one_in(2) {
            request.sampling = Sampling { temperature: 1.0, seed: random.next(), ..Sampling::default() };
        }
        requests.push(request);
    }
    let expected: Vec<_> = requests
        .iter()
        .map(|request| {
            let cold = Options { prefix_cache_bytes: 0, ..exact(4096) };
            let lone = Request { speculation: Some(Speculate::Off), ..request.clone() };
            answer(submit(&engine(recorded, cold), lone)).tokens
        })
        .collect();
    let disk = tempfile::tempdir().expect("a folder");
    for round in 0..3 {
        let with = Options {
            max_batch: random.choose(&[1, 3, 8]),
            prefix_cache_bytes: random.choose(&[0, 100_000, 1 << 30]),
            disk_cache: Some(DiskCache { folder: disk.path().into(), bytes: 1 << 30, bits: None }),
            snapshot_interval: random.choose(&[0, 16, 100]),
            ..exact(random.choose(&[1, 7, 33, 512]))
        };
        let described = format!("seed {seed}, round {round}, {with:?}");
        let engine = engine(recorded, with);
        let running: Vec<_> = requests.iter().map(|request| submit(&engine, request.clone())).collect();
        for ((running, expected), i) in running.into_iter().zip(&expected).zip(0..) {
            assert_eq!(answer(running).tokens, *expected, "request {i} of {described}");
        }
    }
}

#[test]
fn schedules_with_images_give_the_tokens_of_lone_cold_runs() {
    let count = std::env::var("LANNER_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    for name in names() {
        let recorded = Recorded::read(&name);
        (0..count).for_each(|seed| check_schedule(&recorded, 1000 + seed));
    }
}
