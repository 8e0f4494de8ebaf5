//! Prefix cache: it never changes an answer, reuses as much as possible, and reports it.
//!
//! LANNER_SCHEDULES sets the number of random schedules per model.

use std::{sync::Arc, time::Instant};

use lanner_engine::*;

use crate::support::{
    checkpoint,
    requests::{Random, answer, request, submit},
    schedules::schedule,
};

/// One model per kind of cache: keys and values, windows, recurrences and keys, convolutions,
/// latents.
const MODELS: [&str; 5] = ["qwen3-a", "gemma3_text-a", "qwen3_5-text-sharded", "lfm2-a", "deepseek_v3-a"];

/// LANNER_SCHEDULES, if it is set.
fn schedules() -> Option<u64> {
    std::env::var("LANNER_SCHEDULES").ok().and_then(|n| n.parse().ok())
}

fn load(golden: &str, options: Options) -> Engine {
    let folder = checkpoint::folder(golden);
    let options = Options { device: Some(Device::Cpu), ..options };
    start(Checkpoint::Folder(folder.path().into()), options, |_| {}).expect("loads")
}

fn cold() -> Options {
    Options { prefix_cache_bytes: 0, ..Options::default() }
}

#[test]
fn random_schedules_do_not_change_answers() {
    let count = schedules().unwrap_or(16);
    for golden in MODELS {
        let engine = load(golden, cold());
        let (mut reused, mut evictions) = (0, 0);
        for seed in 0..count {
            let stats = schedule(golden, |options| load(golden, options), seed, &engine);
            (reused, evictions) = (reused + stats.reused_tokens, evictions + stats.evictions);
        }
        assert!(reused > 1000 && evictions > 0, "{golden}: {reused} tokens reused, {evictions} evictions");
    }
}

#[test]
fn random_schedules_do_not_change_answers_of_merlin() {
    let engine = merlin(cold());
    for seed in 0..schedules().map_or(1, |count| count / 6) {
        schedule("merlin", merlin, seed, &engine);
    }
}

/// The built-in model with a longer context, for prompts with many tools.
fn merlin(options: Options) -> Engine {
    let merlin = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
    let folder = tempfile::tempdir().expect("a folder");
    let config = std::fs::read_to_string(merlin.join("config.json")).expect("config.json");
    let stretched = config.replace("\"max_position_embeddings\": 8192", "\"max_position_embeddings\": 16384");
    assert_ne!(config, stretched);
    std::fs::write(folder.path().join("config.json"), stretched).expect("written");
    std::fs::copy(merlin.join("model.safetensors"), folder.path().join("model.safetensors")).expect("copied");
    let options = Options { device: Some(Device::Cpu), ..options };
    start(Checkpoint::Folder(folder.path().into()), options, |_| {}).expect("loads")
}

/// Two questions with a common prefix: checks the reuse of the second, and its answer if `compare`.
fn check_shared_prefix(tokens: usize, compare: bool) {
    let mut random = Random(12);
    let head = random.tokens(tokens);
    let questions = [60, 70].map(|length| [&head[..], &random.tokens(length)].concat());
    let ask = |engine: &Engine, prompt: &[u32]| {
        let request = Request { cache_breakpoints: vec![tokens], ..request(prompt.to_vec(), 8) };
        let started = Instant::now();
        let mut running = submit(engine, request);
        running.early.extend(running.events.recv());
        let first = started.elapsed();
        (answer(running), first)
    };
    let engine = merlin(Options { prefill_chunk: 512, ..Options::default() });
    let (_, slow) = ask(&engine, &questions[0]);
    let (warm, fast) = ask(&engine, &questions[1]);
    println!("{tokens} tokens: first token cold after {slow:?}, warm after {fast:?}");
    assert_eq!(warm.usage.cached_tokens, tokens);
    if compare {
        let (alone, _) = ask(&merlin(cold()), &questions[1]);
        assert_eq!(warm.tokens, alone.tokens);
    }
}

#[test]
fn second_question_reuses_long_shared_prefix() {
    check_shared_prefix(1_500, true);
    // Comparing the long one with a cold engine takes half a minute.
    check_shared_prefix(12_000, schedules().is_some());
}

/// Upper bound of the reuse: compares token ids with all computed sequences.
#[derive(Default)]
struct Oracle {
    sequences: Vec<Vec<u32>>,
    reusable: usize,
    reused: usize,
    prompt: usize,
}

impl Oracle {
    fn count(&mut self, prompt: &[u32], output: &[u32], reused: usize) {
        let common = |other: &Vec<u32>| other.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let most = self.sequences.iter().map(common).max().unwrap_or(0).min(prompt.len() - 1);
        assert!(reused <= most, "{reused} tokens reused of {most}");
        self.reusable += most;
        self.reused += reused;
        self.prompt += prompt.len();
        self.sequences.push([prompt, output].concat());
    }
}

/// One agent's conversation as token ids.
#[derive(Clone)]
struct Agent {
    head: usize,
    history: Vec<u32>,
}

const SCAFFOLD: [u32; 3] = [250, 251, 252];
const END_OF_THINKING: usize = 6;

impl Agent {
    fn new(random: &mut Random, head: &[u32]) -> Agent {
        let mut agent = Agent { head: head.len(), history: head.to_vec() };
        agent.add_message(random, 120);
        agent
    }

    /// A user, or a tool.
    fn add_message(&mut self, random: &mut Random, tokens: usize) {
        self.history.push(253);
        self.history.extend(random.tokens(tokens));
        self.history.push(254);
    }

    fn request(&self) -> Request {
        let prompt = [&self.history[..], &SCAFFOLD].concat();
        Request { cache_breakpoints: vec![self.head, self.history.len()], ..request(prompt, 24) }
    }

    /// The template drops the reasoning of earlier turns.
    fn add_answer(&mut self, output: &[u32]) {
        self.history.extend([250, 251]);
        self.history.extend(&output[END_OF_THINKING..]);
        self.history.push(254);
    }

    fn turn(&mut self, engine: &Engine, oracle: &mut Oracle) {
        let request = self.request();
        let got = answer(submit(engine, request.clone()));
        oracle.count(&request.prompt, &got.ids(), got.usage.cached_tokens);
        self.add_answer(&got.ids());
    }
}

/// Traffic of coding agents: a long system prompt, growing histories without reasoning, tool
/// results, a volatile line, a branch, two alternating agents.
fn trace(golden: &str) -> Oracle {
    let options = Options { snapshot_interval: 512, prefill_chunk: 512, ..Options::default() };
    let engine = load(golden, options);
    let (mut random, mut oracle) = (Random(7), Oracle::default());
    let head = random.tokens(3000);
    let mut agents = [Agent::new(&mut random, &head), Agent::new(&mut random, &head)];
    let mut earlier = vec![];
    for turn in 0..10 {
        for agent in &mut agents {
            agent.turn(&engine, &mut oracle);
            agent.add_message(&mut random, if turn % 3 == 0 { 300 } else { 40 });
        }
        earlier.push(agents[0].clone());
    }
    // A user goes back and branches off, twice.
    for turn in [4, 4, 7] {
        let mut branch = earlier[turn].clone();
        branch.history.truncate(branch.history.len() - 20);
        branch.add_message(&mut random, 60);
        branch.turn(&engine, &mut oracle);
        branch.add_message(&mut random, 30);
        branch.turn(&engine, &mut oracle);
    }
    // A client changes its system prompt, so that nothing after the change matches until it
    // repeats.
    let mut changed = agents[1].clone();
    changed.history[40] = 3 + (changed.history[40] + 1) % 200;
    for _ in 0..3 {
        changed.turn(&engine, &mut oracle);
        changed.add_message(&mut random, 50);
    }
    agents[0].turn(&engine, &mut oracle);
    oracle
}

#[test]
fn agents_reuse_99_percent_of_reusable_tokens() {
    for golden in MODELS {
        let Oracle { reused, reusable, prompt, .. } = trace(golden);
        println!("{golden}: {reused} of {reusable} tokens reused, {prompt} sent");
        assert!(reusable > prompt * 8 / 10, "most of the trace is reusable");
        assert!(reused * 100 >= reusable * 99, "{golden}: {reused} of {reusable} tokens reused");
    }
}

fn usage(engine: &Engine, request: Request) -> Usage {
    answer(submit(engine, request)).usage
}

fn miss(usage: &Usage) -> Option<(MissReason, usize)> {
    usage.cache.miss.map(|miss| (miss.reason, miss.position))
}

#[test]
fn concurrent_requests_compute_shared_prefix_once() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let engine = load(golden, Options { prefill_chunk: 64, ..Options::default() });
        let mut random = Random(3);
        let head = random.tokens(600);
        let with = |tail: Vec<u32>| request([&head[..], &tail].concat(), 4);
        let tails: Vec<Vec<u32>> = (0..4).map(|i| random.tokens(10 + i)).collect();
        // One prompt twice, as with `n: 2`.
        let prompts = [&tails[0], &tails[1], &tails[1], &tails[2], &tails[3]];
        let running: Vec<_> = prompts.iter().map(|tail| submit(&engine, with((*tail).clone()))).collect();
        let usages: Vec<Usage> = running.into_iter().map(|running| answer(running).usage).collect();
        let computed: usize = usages.iter().map(|usage| usage.prompt_tokens - usage.cached_tokens).sum();
        let least = head.len() + tails.iter().map(Vec::len).sum::<usize>();
        assert!(
            computed <= least + 40,
            "{golden}: {computed} tokens computed, {least} different ones: {usages:?}"
        );
    }
}

#[test]
fn request_waiting_for_cancelled_one_continues() {
    let engine = load("qwen3_5-text-sharded", Options { prefill_chunk: 16, ..Options::default() });
    let prompt = Random(4).tokens(900);
    let with = |tail: &[u32]| request([&prompt[..], tail].concat(), 3);
    for _ in 0..5 {
        engine.clear_cache().expect("runs");
        let first = submit(&engine, with(&[5]));
        let second = submit(&engine, with(&[6]));
        first.handle.cancel();
        assert_eq!(answer(second).reason, FinishReason::Length);
    }
}

#[test]
fn cancelled_request_leaves_its_state() {
    let engine = load("qwen3_5-text-sharded", Options { prefill_chunk: 50, ..Options::default() });
    let prompt = Random(5).tokens(400);
    let mut running = submit(&engine, request(prompt.clone(), 1000));
    for _ in 0..3 {
        running.early.extend(running.events.recv());
    }
    running.handle.cancel();
    let got = answer(running);
    let next = [&prompt[..], &got.ids()[..2], &[7, 8]].concat();
    // There is a snapshot before the prompt's last token.
    assert!(usage(&engine, request(next, 2)).cached_tokens >= 399);
}

#[test]
fn miss_reports_reason_and_position() {
    let mut random = Random(6);
    let prompt = random.tokens(300);
    let mut other = prompt.clone();
    other[100] = 251;
    let off = load("qwen3-a", cold());
    assert_eq!(miss(&usage(&off, request(prompt.clone(), 2))), Some((MissReason::Disabled, 0)));
    let engine = load("qwen3-a", Options::default());
    let first = usage(&engine, request(prompt.clone(), 2));
    assert_eq!((first.cached_tokens, first.cache), (0, CacheReport::default()), "first request");
    let second = usage(&engine, request(prompt.clone(), 2));
    assert_eq!(
        (second.cached_tokens, second.cache.source, miss(&second)),
        (299, Some(CacheSource::Ram), None)
    );
    let changed = usage(&engine, request(other.clone(), 2));
    assert_eq!((changed.cached_tokens, miss(&changed)), (100, Some((MissReason::Differs, 100))));
    let all = usage(&engine, Request { prompt_logprobs: true, ..request(prompt.clone(), 2) });
    assert_eq!((all.cached_tokens, miss(&all)), (0, Some((MissReason::LogitsWanted, 0))));
    assert_eq!(all.cache.reusable, 299);
    assert!(engine.clear_cache().expect("runs").bytes > 0);
    let stats = engine.cache_stats().expect("runs");
    assert_eq!((stats.bytes, stats.entries, stats.stored_tokens), (0, 0, 0));
    assert_eq!(usage(&engine, request(prompt.clone(), 2)).cache, CacheReport::default());
    // A recurrence has no state between snapshots, until a branch is known.
    let hybrid = load("qwen3_5-text-sharded", Options::default());
    usage(&hybrid, Request { cache_breakpoints: vec![40], ..request(prompt.clone(), 2) });
    other = prompt.clone();
    other[250] = 251;
    let branch = usage(&hybrid, request(other.clone(), 2));
    assert_eq!((branch.cached_tokens, miss(&branch)), (40, Some((MissReason::NoSnapshot, 40))));
    other[250] = 252;
    let again = usage(&hybrid, request(other, 2));
    assert_eq!((again.cached_tokens, miss(&again)), (250, Some((MissReason::Differs, 250))));
}

#[test]
fn miss_after_eviction_reports_evicted() {
    let engine = load("qwen3-a", Options { prefix_cache_bytes: 700_000, ..Options::default() });
    let mut random = Random(8);
    let prompt = random.tokens(200);
    usage(&engine, request(prompt.clone(), 2));
    for _ in 0..4 {
        usage(&engine, request(random.tokens(200), 2));
    }
    let stats = engine.cache_stats().expect("runs");
    assert!(stats.evictions > 0, "{stats:?}");
    let back = usage(&engine, request(prompt, 2));
    assert_eq!(miss(&back), Some((MissReason::Evicted, back.cached_tokens)));
}

#[test]
fn identical_prompt_resumes_before_last_token_without_extra_step() {
    for golden in MODELS {
        let metrics: Arc<Metrics> = Arc::default();
        let mut random = Random(11);
        for length in [2, 17, 300, 900] {
            let prompt = random.tokens(length);
            let with_breakpoints = |cache_breakpoints: Vec<usize>| Request {
                cache_breakpoints,
                speculation: Some(Speculate::Off),
                ..request(prompt.clone(), 20)
            };
            let alone = answer(submit(&load(golden, cold()), with_breakpoints(vec![])));
            // A completion, and a chat whose history ends before the prompt.
            for cache_breakpoints in [vec![], vec![length / 2]] {
                let options = Options { metrics: metrics.clone(), prefill_chunk: 1000, ..Options::default() };
                let engine = load(golden, options);
                let before = metrics.prompt_steps.get();
                let first = answer(submit(&engine, with_breakpoints(cache_breakpoints.clone())));
                let steps = metrics.prompt_steps.get() - before;
                assert!(
                    steps <= 1 + cache_breakpoints.len() as u64,
                    "{golden}: {length} tokens in {steps} steps"
                );
                let again = answer(submit(&engine, with_breakpoints(cache_breakpoints)));
                assert!(first.tokens == alone.tokens && again.tokens == alone.tokens, "{golden}, {length}");
                assert_eq!((again.usage.cached_tokens, miss(&again.usage)), (length - 1, None), "{golden}");
                // A prompt that continues the first one.
                let longer = [&prompt[..], &[9, 8, 7]].concat();
                let next = usage(&engine, request(longer, 2));
                assert!(next.cached_tokens >= length - 1, "{golden}: {next:?}");
            }
        }
    }
}
