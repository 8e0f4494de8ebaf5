//! Private names and words, and their standard replacements, as listed in `words.txt`.

use super::{
    Fault,
    source::{Kind, Source},
};

const WORDS: &str = include_str!("words.txt");

/// A line of `words.txt`.
struct Entry {
    wrong: &'static str,
    right: &'static str,
    /// Crates in which the name is private; all if empty.
    crates: Vec<&'static str>,
}

impl Entry {
    fn applies_to(&self, path: &str) -> bool {
        let part = path.strip_prefix("crates/").and_then(|path| path.split('/').next());
        self.crates.is_empty() || part.is_some_and(|part| self.crates.contains(&part))
    }
}

/// The entries of `kind`: `name` or `word`.
fn entries(kind: &str) -> impl Iterator<Item = Entry> {
    let entry = move |line: &'static str| {
        let (wrong, right) = line.strip_prefix(kind)?.trim().split_once(" -> ")?;
        let (wrong, crates) = wrong.split_once(" in ").unwrap_or((wrong, ""));
        let crates = crates.split(", ").filter(|name| !name.is_empty()).collect();
        Some(Entry { wrong, right, crates })
    };
    WORDS.lines().filter_map(entry)
}

pub(super) fn check(source: &Source) -> Vec<Fault> {
    let mut faults = vec![];
    for (line, text) in &source.prose {
        let lower = text.to_lowercase();
        for entry in entries("word ").filter(|entry| has_word(&lower, entry.wrong)) {
            faults.push(fault(source, *line, "private-word", &entry));
        }
    }
    if source.kind == Kind::Rust {
        let names: Vec<Entry> = entries("name ").filter(|entry| entry.applies_to(&source.path)).collect();
        for (index, code) in source.code.lines().enumerate() {
            for entry in names.iter().filter(|entry| has_word(code, entry.wrong)) {
                faults.push(fault(source, index + 1, "private-name", entry));
            }
        }
    }
    faults
}

fn fault(source: &Source, line: usize, rule: &'static str, entry: &Entry) -> Fault {
    let message = format!("`{}`; write {}", entry.wrong, entry.right);
    Fault { path: source.path.clone(), line, rule, message }
}

/// Whether `text` contains `word` as a whole word or phrase.
fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(part_of_word);
        let after = text[at + word.len()..].chars().next().is_some_and(part_of_word);
        !before && !after
    })
}
