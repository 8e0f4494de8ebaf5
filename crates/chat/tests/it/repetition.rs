//! The detector of repetition: planted loops are found soon, healthy text never alarms.

use std::{
    fmt::Write,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use lanner_chat::{MAX_PERIOD, Repetition};
use proptest::prelude::*;

/// Shortest loop that is one, in tokens.
const MIN_LOOP: usize = 96;
/// Tokens over which changed repetitions are counted.
const WINDOW: usize = 384;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn tokens(&mut self, count: usize, alphabet: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(alphabet) as u32).collect()
    }

    fn choose<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// Tokens until the report; `None`: there is none.
fn reported_after(tokens: impl IntoIterator<Item = u32>) -> Option<usize> {
    let mut repetition = Repetition::new();
    let mut reports = tokens.into_iter().map(|token| repetition.push(token)).enumerate();
    let first = reports.find(|(_, reported)| *reported).map(|(at, _)| at + 1);
    assert!(!reports.any(|(_, reported)| reported), "a repetition is reported once");
    first
}

/// Words, numbers, spaces and single signs: about what tokenizers make of text.
fn tokens(text: &str) -> Vec<u32> {
    let kind = |c: char| if c.is_alphanumeric() { 1 } else { 2 * usize::from(c.is_whitespace()) };
    let characters: Vec<char> = text.chars().collect();
    let pieces = characters.chunk_by(|a, b| kind(*a) == kind(*b) && kind(*a) > 0);
    let hash = |piece: &[char]| {
        let mut hasher = DefaultHasher::new();
        piece.hash(&mut hasher);
        hasher.finish() as u32
    };
    pieces.map(hash).collect()
}

fn assert_healthy(name: &str, text: &str) {
    if let Some(at) = reported_after(tokens(text)) {
        let end = text.char_indices().nth(at).map_or(text.len(), |(end, _)| end);
        panic!("{name}: an alarm after {at} tokens, some time after\n{}", &text[..end]);
    }
}

#[test]
fn planted_loops_of_two_hundred_kinds_are_reported_in_time() {
    for kind in 0..200 {
        let mut random = Random(kind as u64);
        let period = 1 + kind * (MAX_PERIOD - 1) / 199;
        let alphabet = [2, 6, 60, 50_000][kind % 4];
        let (before, block) = (random.below(900), random.tokens(period, alphabet));
        let text = random.tokens(before, 50_000);
        let looped = text.into_iter().chain(block.iter().copied().cycle().take(8 * period + MIN_LOOP));
        let reported = reported_after(looped).unwrap_or_else(|| panic!("loop {kind} is not reported"));
        let latest = before + (5 * period).max(MIN_LOOP);
        assert!(
            reported <= latest,
            "loop {kind} of period {period}: {reported} tokens, {before} before it, at most {latest}"
        );
        assert!(reported > before, "loop {kind}: random text alarms");
    }
}

#[test]
fn loops_with_small_changes_are_reported_in_time() {
    for kind in 0..60 {
        let mut random = Random(1000 + kind as u64);
        let period = 20 + kind * 4;
        let (before, block) = (random.below(900), random.tokens(period, 50_000));
        let mut text = random.tokens(before, 50_000);
        // Every 200 tokens one is another, is missing, or is new.
        let (mut looped, mut until_change) = (vec![], 200);
        while looped.len() < 8 * period + 3 * WINDOW {
            for &token in &block {
                until_change -= 1;
                if until_change > 0 {
                    looped.push(token);
                    continue;
                }
                until_change = 200;
                let new = 60_000 + random.below(10_000) as u32;
                match random.below(3) {
                    0 => looped.push(new),
                    1 => looped.extend([token, new]),
                    _ => {}
                }
            }
        }
        text.extend(looped);
        let reported = reported_after(text).unwrap_or_else(|| panic!("loop {kind} is not reported"));
        let latest = before + 6 * period + 2 * WINDOW;
        assert!(reported <= latest, "loop {kind} of period {period}: {reported}, {before} before it");
    }
}

const NAMES: [&str; 24] = [
    "amber", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbor", "iris", "juniper", "kelp",
    "lagoon", "meadow", "nickel", "opal", "pebble", "quartz", "raven", "saffron", "thistle", "umber",
    "violet", "willow", "zephyr",
];

/// Text of a kind that repeats its form and not its content.
fn healthy(kind: usize, random: &mut Random) -> String {
    let mut text = String::new();
    for row in 0..400 {
        let [a, b, c] = [0; 3].map(|_| random.choose(&NAMES));
        let [n, m] = [random.below(10_000), random.below(100)];
        let line = match kind {
            0 => writeln!(text, "| {row} | {a} | {b} {c} | {n}.{m} | yes |"),
            1 => writeln!(text, "{}. Check the {a} of the {b}, then move the {c}.", row + 1),
            2 => writeln!(text, "- {a}: {n} ({b})"),
            3 => writeln!(
                text,
                "{{\"id\": {row}, \"name\": \"{a}\", \"tags\": [\"{b}\", \"{c}\"], \"price\": {n}}},"
            ),
            4 => writeln!(
                text,
                "        Kind::{a}_{b} => Ok(Some(self.{c}(buffer, {n})?)), // {m}\n        _ if {row} > 0 => None,"
            ),
            5 => writeln!(text, "def test_{a}_{b}_{row}():\n    assert {c}({n}) == {m}\n"),
            6 => writeln!(
                text,
                "O {a} and {b}, we sail, we sail,\n  the {c} sings {n} times,\nand home we go, and home we go.\n"
            ),
            7 => writeln!(text, "{a},{b},{n},{m},0,0,0,0,0,0,{row}"),
            8 => writeln!(text, "+----------+----------+----------+\n| {a:8} | {n:8} | {m:8} |"),
            _ => writeln!(text, "INSERT INTO {a} (id, name, total) VALUES ({row}, '{b}', {n});"),
        };
        line.expect("strings take text");
    }
    text
}

#[test]
fn lists_tables_json_code_and_poems_never_alarm() {
    for kind in 0..10 {
        for seed in 0..12 {
            let text = healthy(kind, &mut Random(seed));
            assert_healthy(&format!("kind {kind}, seed {seed}"), &text);
        }
    }
}

/// Text files of this repository, and of the folder `LANNER_SHARED`.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            files(&path, found);
        } else if [".rs", ".md", ".py", ".jinja", ".lock", ".toml", ".sh"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            found.push(path);
        }
    }
}

#[test]
fn files_of_this_repository_never_alarm() {
    let mut found = vec![];
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &mut found);
    let (mut bytes, mut read) = (0, 0);
    for path in found {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        assert_healthy(&path.display().to_string(), &text);
        (bytes, read) = (bytes + text.len(), read + 1);
    }
    assert!(bytes > 1 << 20 && read > 300, "{bytes} bytes in {read} files");
}

#[test]
fn corpus_never_alarms() {
    let corpus = std::env::var_os("LANNER_SHARED").map(|shared| Path::new(&shared).join("corpus"));
    let Some(archives) = corpus.and_then(|corpus| fs::read_dir(corpus).ok()) else {
        return eprintln!("skipped: LANNER_SHARED names no folder with a corpus/ of text");
    };
    let (mut bytes, mut alarms) = (0, vec![]);
    for path in archives
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "zst"))
    {
        let unpacked = Command::new("zstd").arg("-dc").arg(&path).output().expect("zstd");
        // A document a line; without optimisation some of them.
        let some = if cfg!(debug_assertions) { 16 } else { 1 };
        for (line, document) in String::from_utf8_lossy(&unpacked.stdout).lines().enumerate().step_by(some) {
            bytes += document.len();
            if reported_after(tokens(document)).is_some() {
                alarms.push(format!("{}:{}", path.display(), line + 1));
            }
        }
    }
    eprintln!("{} alarms in {bytes} bytes: {alarms:?}", alarms.len());
    assert!(bytes > 5 << 20 && alarms.is_empty());
}

#[test]
fn cost_per_token_is_below_five_microseconds() {
    let mut random = Random(7);
    let text: Vec<u32> = [random.tokens(100_000, 50_000), random.tokens(100_000, 3)].concat();
    let started = Instant::now();
    let mut repetition = Repetition::new();
    text.iter().for_each(|token| _ = repetition.push(*token));
    let each = started.elapsed().as_secs_f64() * 1e6 / text.len() as f64;
    eprintln!("{each:.2} us per token");
    // Without optimisation, beside other tests.
    let most = if cfg!(debug_assertions) { 50.0 } else { 5.0 };
    assert!(each < most, "{each} us per token");
}

proptest! {
    #[test]
    fn rewound_detector_equals_a_new_one(
        block in prop::collection::vec(0u32..40, 1..60),
        parts in prop::collection::vec((1usize..90, 0usize..40), 1..20),
    ) {
        let (mut repetition, mut text) = (Repetition::new(), vec![]);
        let mut next = block.iter().copied().cycle();
        for (more, removed) in parts {
            for token in next.by_ref().take(more) {
                text.push(token);
                repetition.push(token);
            }
            repetition.rewind(removed);
            text.truncate(text.len().saturating_sub(removed));
            let mut new = Repetition::new();
            text.iter().for_each(|token| _ = new.push(*token));
            prop_assert_eq!(repetition.detected(), new.detected());
            let (mut a, mut b) = (repetition.clone(), new);
            for token in block.iter().copied().cycle().take(300) {
                prop_assert_eq!(a.push(token), b.push(token));
            }
        }
    }
}
