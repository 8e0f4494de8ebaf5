//! Architecture decision records: status, date and length.

use super::{Fault, source::Source};

const WORDS: usize = 450;

pub(super) fn check(source: &Source) -> Option<Fault> {
    let name = source.path.strip_prefix("docs/adr/")?;
    if !name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let words = source.text.split_whitespace().count();
    let message = if !source.text.lines().any(is_status) {
        "add a line `Status: accepted, YYYY-MM-DD`".to_owned()
    } else if words > WORDS {
        format!("{words} words, {WORDS} at most; move figures to docs/notes")
    } else {
        return None;
    };
    Some(Fault { path: source.path.clone(), line: 0, rule: "record", message })
}

fn is_status(line: &str) -> bool {
    let Some((_, status)) = line.split_once("Status: ") else { return false };
    let is_date = |word: &str| {
        let parts: Vec<&str> = word.split('-').collect();
        let digits = |part: &&str| part.chars().all(|c| c.is_ascii_digit());
        parts.len() == 3 && parts.iter().all(digits) && parts[0].len() == 4
    };
    status.split([' ', ',', ';']).any(is_date)
}
