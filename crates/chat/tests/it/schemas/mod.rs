//! Published suites of JSON Schemas: answers under every supported schema are valid, and schemas
//! that cannot be honoured are refused. Counts go into docs/structured-output.md.
//!
//! The suites are not in this repository: set `LANNER_SHARED` to a folder with an unpacked
//! `suites/`, or the test runs on the few schemas in `tests/data/schemas.jsonl`.

mod validator;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lanner_chat::Tokenizer;
use lanner_chat::grammar::{Grammars, Source, Start};
use serde_json::Value;

use crate::grammars::{EOS, Random, allowed, tokenizer};
use crate::skipped;

/// Random answers per schema, and the maximum tokens of each.
const ANSWERS: u64 = 3;
const MAX_TOKENS: usize = 300;

/// A schema, and instances with their validity.
struct Case {
    name: String,
    schema: Value,
    instances: Vec<(Value, bool)>,
}

/// Counts of one suite.
#[derive(Debug, Default)]
struct Counts {
    schemas: usize,
    supported: usize,
    /// By the reason's first words.
    refused: BTreeMap<String, usize>,
    valid: usize,
    valid_accepted: usize,
    invalid: usize,
    answers: usize,
}

/// Counts of one suite, and its faults.
#[derive(Debug, Default)]
struct Report {
    counts: Counts,
    faults: Vec<String>,
}

#[test]
fn recorded_schemas_give_valid_answers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schemas.jsonl");
    let report = run(&lines(&path));
    assert!(report.faults.is_empty(), "{:#?}", report.faults);
    let Counts { schemas, supported, .. } = report.counts;
    assert!(supported > schemas / 2 && supported < schemas, "{:?}", report.counts);
}

#[test]
fn schemas_of_published_suites_give_valid_answers_or_are_refused() {
    let Some(folder) = suites() else { return };
    let mut rows = String::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut faults = vec![];
    for (name, cases) in [
        ("JSON-Schema-Test-Suite, draft 2020-12, required", test_suite(&folder)),
        ("MaskBench, 2,500 schemas", lines(&folder.join("maskbench/maskbench_sample.jsonl"))),
        ("JSONSchemaBench, 3,347 schemas", bench(&folder.join("jsonschemabench"))),
    ] {
        let Report { counts, faults: more } = run(&cases);
        println!("{name}: {counts:?}");
        let Counts { schemas, supported, valid, valid_accepted, invalid, answers, refused } = counts;
        rows += &format!(
            "| {name} | {schemas} | {supported} | {} | {answers} | {invalid} | {valid_accepted} of {valid} |\n",
            schemas - supported
        );
        refused.into_iter().for_each(|(reason, count)| *reasons.entry(reason).or_default() += count);
        faults.extend(more);
    }
    assert!(faults.is_empty(), "{} faults: {:#?}", faults.len(), &faults[..faults.len().min(40)]);
    let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(reason, count)| (usize::MAX - count, reason.clone()));
    let reasons: String = reasons.iter().map(|(reason, count)| format!("| {reason} | {count} |\n")).collect();
    check_document("counts", &format!("{COUNTS}{rows}"));
    check_document("refused", &format!("| reason | schemas |\n|---|---|\n{reasons}"));
}

const COUNTS: &str = "| suite | schemas | supported | refused | random answers, all valid | invalid instances, all \
                      rejected | valid instances accepted |\n|---|---|---|---|---|---|---|\n";

fn suites() -> Option<PathBuf> {
    let folder = std::env::var_os("LANNER_SHARED").map(|shared| PathBuf::from(shared).join("suites"));
    let folder = folder.filter(|folder| folder.is_dir());
    if folder.is_none() {
        skipped::skipped("suites of JSON Schemas: LANNER_SHARED is not set or does not hold suites/");
    }
    folder
}

/// Cases of a file with one object in each line.
fn lines(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| case(&serde_json::from_str(line).unwrap())).collect()
}

fn case(value: &Value) -> Case {
    let name = value["description"].as_str().or(value["id"].as_str()).unwrap_or_default();
    let instance = |test: &Value| (test["data"].clone(), test["valid"] == true);
    let tests = value["tests"].as_array().into_iter().flatten();
    Case { name: name.to_owned(), schema: value["schema"].clone(), instances: tests.map(instance).collect() }
}

fn test_suite(folder: &Path) -> Vec<Case> {
    let mut cases = vec![];
    for file in files(&folder.join("JSON-Schema-Test-Suite/tests/draft2020-12"), "json") {
        let groups: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        for group in groups.as_array().unwrap() {
            let case = case(group);
            cases.push(Case { name: format!("{stem}: {}", case.name), ..case });
        }
    }
    cases
}

fn bench(folder: &Path) -> Vec<Case> {
    files(folder, "jsonl").iter().flat_map(|file| lines(file)).collect()
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    paths.sort();
    paths
}

/// Runs the cases on all cores.
fn run(cases: &[Case]) -> Report {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(tokenizer.clone(), 512, &[EOS]).unwrap();
    let (next, report) = (AtomicUsize::new(0), Mutex::new(Report::default()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(case, &grammars, &tokenizer, &report);
                }
            });
        }
    });
    report.into_inner().unwrap()
}

fn check(case: &Case, grammars: &Grammars, tokenizer: &Tokenizer, report: &Mutex<Report>) {
    let Case { name, schema, instances } = case;
    let compiled = grammars.compile(&Source::JsonSchema(schema.clone()), &Start::default());
    let mut own = Report::default();
    own.counts.schemas = 1;
    match compiled {
        Err(error) => own.counts.refused = BTreeMap::from([(reason(&error.to_string()), 1)]),
        Ok(grammar) => {
            own.counts.supported = 1;
            for (instance, is_valid) in instances {
                let mut matcher = grammar.matcher();
                let ids = tokenizer.encode(&instance.to_string(), false).unwrap();
                let accepted = ids.iter().all(|&id| matcher.push(id).unwrap_or(false))
                    && matcher.push(EOS).unwrap_or(false);
                match is_valid {
                    true => own.counts.valid += 1,
                    false => own.counts.invalid += 1,
                }
                own.counts.valid_accepted += usize::from(*is_valid && accepted);
                if accepted && !is_valid {
                    own.faults.push(format!("{name}: accepts {instance}"));
                }
                // The validator does not know formats.
                let known = *is_valid || !schema.to_string().contains("\"format\"");
                let found = validator::is_valid(schema, instance, schema).filter(|_| known);
                if found.is_some_and(|valid| valid != *is_valid) {
                    own.faults.push(format!("{name}: the tests' validator is wrong about {instance}"));
                }
            }
            for seed in 1..=ANSWERS {
                let Some(text) = answer(&mut grammar.matcher(), tokenizer, seed) else { continue };
                own.counts.answers += 1;
                match serde_json::from_str(&text) {
                    Ok(value) if validator::is_valid(schema, &value, schema) == Some(false) => {
                        own.faults.push(format!("{name}: gave {text}"));
                    }
                    // Numbers of hundreds of digits are JSON too.
                    Err(error) if !error.to_string().contains("out of range") => {
                        own.faults.push(format!("{name}: gave {text}: {error}"));
                    }
                    _ => {}
                }
            }
        }
    }
    merge(&mut report.lock().unwrap(), own);
}

/// A random answer, if it ends.
fn answer(matcher: &mut lanner_chat::grammar::Matcher, tokenizer: &Tokenizer, seed: u64) -> Option<String> {
    let (mut random, mut ids) = (Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)), vec![]);
    for _ in 0..MAX_TOKENS {
        let allowed = allowed(&matcher.mask().ok()?, 512);
        // Random texts rarely end by themselves.
        let ends = |id: &&u32| matches!(tokenizer.token_bytes(**id)[..], [b'"' | b'}' | b']']) || **id == EOS;
        let closing = allowed.iter().find(ends).filter(|_| random.below(3) == 0);
        let id = *closing.unwrap_or(&allowed[random.below(allowed.len())]);
        assert!(matcher.push(id).unwrap());
        if id == EOS {
            return Some(tokenizer.decode(&ids, false).unwrap());
        }
        ids.push(id);
    }
    None
}

/// The part of an error that names the keyword.
fn reason(error: &str) -> String {
    let text = error.strip_prefix("the grammar cannot be used: ").unwrap_or(error);
    let keyword = text.strip_prefix("the keyword `").and_then(|text| text.split('`').next());
    match keyword {
        Some(keyword) => format!("`{keyword}`"),
        None => {
            let words = text.split([':', '(', '`', '"', '\'']).next().unwrap_or_default().trim();
            words.chars().take(70).collect()
        }
    }
}

fn merge(report: &mut Report, other: Report) {
    let (sum, more) = (&mut report.counts, other.counts);
    sum.schemas += more.schemas;
    sum.supported += more.supported;
    sum.valid += more.valid;
    sum.valid_accepted += more.valid_accepted;
    sum.invalid += more.invalid;
    sum.answers += more.answers;
    more.refused.into_iter().for_each(|(reason, count)| *sum.refused.entry(reason).or_default() += count);
    report.faults.extend(other.faults);
}

/// Compares a generated part of docs/structured-output.md; with UPDATE_DOCS, writes it first.
fn check_document(part: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/structured-output.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- generated: {part} -->\n"), format!("<!-- end: {part} -->"));
    let (before, rest) = document.split_once(&begin).unwrap();
    let (written, after) = rest.split_once(&end).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, [before, &begin, text, &end, after].concat()).unwrap();
    } else {
        assert!(written == text, "docs/structured-output.md is stale: run this test with UPDATE_DOCS=1");
    }
}
