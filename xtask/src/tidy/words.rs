//! Names and words that only insiders know; `words.txt` lists them with what to write instead.

use super::{
    Fault,
    source::{Kind, Source},
};

const WORDS: &str = include_str!("words.txt");

/// A line of `words.txt`: `name`, `word` or `phrase`, then `WRONG -> RIGHT`.
fn entries(what: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let entry = move |line: &'static str| line.strip_prefix(what)?.trim().split_once(" -> ");
    WORDS.lines().filter_map(entry)
}

pub fn check(source: &Source) -> Vec<Fault> {
    let mut faults = vec![];
    for (line, text) in &source.prose {
        let lower = text.to_lowercase();
        for (wrong, right) in entries("word ").filter(|(wrong, _)| has_word(&lower, wrong)) {
            faults.push(fault(source, *line, "private-word", wrong, right));
        }
    }
    if source.kind == Kind::Rust {
        for (index, code) in source.code.lines().enumerate() {
            for (wrong, right) in entries("name ").filter(|(wrong, _)| has_word(code, wrong)) {
                faults.push(fault(source, index + 1, "private-name", wrong, right));
            }
        }
    }
    faults
}

fn fault(source: &Source, line: usize, rule: &'static str, wrong: &str, right: &str) -> Fault {
    Fault { path: source.path.clone(), line, rule, message: format!("`{wrong}`; write {right}") }
}

/// Whether `text` holds `word` as a whole word or phrase.
fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(part_of_word);
        let after = text[at + word.len()..].chars().next().is_some_and(part_of_word);
        !before && !after
    })
}
