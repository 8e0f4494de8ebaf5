//! Measures the cost of masks:
//! `cargo bench -p lanner-chat --bench mask_cost -- TOKENIZER_DIR CASES.jsonl [THREADS]`.
//!
//! A line of the cases has a `schema`, and `tests` with `data` and `valid` (MaskBench's form). Each
//! valid instance is followed token by token, with a mask before each token, by one matcher per
//! instance; with THREADS, on several threads at once.

use std::{
    error::Error,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lanner_chat::{
    Tokenizer,
    grammar::{Grammars, Source, Start},
};
use serde_json::Value;

#[derive(Default)]
struct Times {
    compile: Vec<Duration>,
    matcher: Vec<Duration>,
    mask: Vec<Duration>,
    push: Vec<Duration>,
}

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo adds an argument of its own.
    let args: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [folder, cases, threads @ ..] = &args[..] else {
        return Err("usage: mask_cost TOKENIZER_DIR CASES.jsonl [THREADS]".into());
    };
    let threads = threads.first().map_or(Ok(1), |threads| threads.parse())?;
    let tokenizer = Arc::new(tokenizer(Path::new(folder))?);
    let eos = tokenizer.eos_token().and_then(|eos| tokenizer.token_to_id(eos)).unwrap_or(0);
    let started = Instant::now();
    let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size(), &[eos])?;
    println!("vocabulary {}, shared tables {:?}", tokenizer.vocab_size(), started.elapsed());
    let text = std::fs::read_to_string(cases)?;
    let cases: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let (next, times) = (AtomicUsize::new(0), Mutex::new(Times::default()));
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = Times::default();
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    follow(case, &grammars, &tokenizer, &mut own);
                }
                let mut all = times.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                all.compile.extend(own.compile);
                all.matcher.extend(own.matcher);
                all.mask.extend(own.mask);
                all.push.extend(own.push);
            });
        }
    });
    println!("{threads} threads, {:?} in all", started.elapsed());
    let times = times.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    report("compile", times.compile);
    report("matcher", times.matcher);
    report("mask", times.mask);
    report("push", times.push);
    Ok(())
}

/// Folders may hold a tokenizer that was rebuilt from its vocabulary alone.
fn tokenizer(folder: &Path) -> Result<Tokenizer, Box<dyn Error>> {
    let rebuilt = folder.join("tokenizer.rebuilt.json");
    if !rebuilt.exists() {
        return Ok(Tokenizer::from_dir(folder)?);
    }
    let config = std::fs::read(folder.join("tokenizer_config.json")).ok();
    Ok(Tokenizer::from_bytes(&std::fs::read(rebuilt)?, config.as_deref())?)
}

fn follow(case: &Value, grammars: &Grammars, tokenizer: &Tokenizer, times: &mut Times) {
    let timed = |into: &mut Vec<Duration>, started: Instant| into.push(started.elapsed());
    let started = Instant::now();
    let source = Source::JsonSchema(case["schema"].clone());
    let Ok(grammar) = grammars.compile(&source, &Start::default()) else { return };
    timed(&mut times.compile, started);
    let tests = case["tests"].as_array().into_iter().flatten();
    for instance in tests.filter(|test| test["valid"] == true).map(|test| test["data"].to_string()) {
        let started = Instant::now();
        let mut matcher = grammar.matcher();
        timed(&mut times.matcher, started);
        for id in tokenizer.encode(&instance, false).unwrap_or_default() {
            let started = Instant::now();
            if matcher.mask().is_err() {
                break;
            }
            timed(&mut times.mask, started);
            let started = Instant::now();
            if !matcher.push(id).unwrap_or(false) {
                break;
            }
            timed(&mut times.push, started);
        }
    }
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).map_or(0.0, |time| us(*time));
    let mean = times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len().max(1) as f64;
    println!(
        "{name}: {} times, mean {mean:.1} us, p50 {:.1}, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, most {:.1}",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        times.last().map_or(0.0, |time| us(*time)),
    );
}
