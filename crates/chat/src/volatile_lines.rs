//! Lines at the head of a system prompt that agent clients change from request to request, so that nothing behind them
//! is the same prompt any more. Knows how such lines are written; what is cached, it does not know.

#[cfg(test)]
mod tests;

use std::ops::Range;

use serde_json::Value;

/// Lines of the system messages that count as their head.
const HEAD: usize = 32;
const BILLING: &str = "x-anthropic-billing-header:";

/// What a line says that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolatileLine {
    /// `x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;`, which Claude Code writes at the
    /// head of its system prompt: new in every request, and nothing that a model needs.
    Billing,
    /// The day: `Today's date is 2026-03-01.`
    Date,
    /// The time of day, with or without the day: `Current time: 2026-03-01 10:32:05 CET`.
    Time,
    /// Tokens used or left: `<system_warning>Token usage: 35000/200000; 165000 remaining</system_warning>`.
    Countdown,
}

impl VolatileLine {
    pub fn name(self) -> &'static str {
        match self {
            VolatileLine::Billing => "billing",
            VolatileLine::Date => "date",
            VolatileLine::Time => "time",
            VolatileLine::Countdown => "token_countdown",
        }
    }

    /// What byte `at` of `text` belongs to, if that is one of these.
    ///
    /// # Panics
    /// If `at` is not between two characters.
    pub fn at(text: &str, at: usize) -> Option<VolatileLine> {
        let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
        let (kind, span) = find(&text[start..end])?;
        // What takes a line's place begins where the line began.
        (start + span.start <= at && at < (start + span.end).max(start + span.start + 1)).then_some(kind)
    }
}

/// The same conversation without what changes at the head of its system messages: billing lines are left out, times of day
/// and countdowns go behind the text of the last user message. Days stay where they are: once a day costs little.
pub fn normalize(messages: &[Value]) -> Vec<Value> {
    let role = |message: &Value, role: &str| message["role"] == role;
    let is_head = |message: &&Value| role(message, "system") || role(message, "developer");
    let heads = messages.iter().take_while(is_head).count();
    let last_user = messages.iter().rposition(|message| role(message, "user"));
    let mut cut = Cut { lines: HEAD, moves: last_user.is_some(), moved: vec![] };
    let mut kept = vec![];
    for (i, mut message) in messages.iter().cloned().enumerate() {
        if i < heads && cut.message(&mut message) {
            continue;
        }
        kept.push(message);
        if Some(i) == last_user && !cut.moved.is_empty() {
            append(&mut kept[..], &cut.moved.join("\n"));
        }
    }
    // A conversation of nothing else is left to the template.
    if kept.is_empty() { messages.to_vec() } else { kept }
}

/// Puts a text behind that of the last message.
fn append(messages: &mut [Value], text: &str) {
    let Some(content) = messages.last_mut().map(|message| &mut message["content"]) else { return };
    match content {
        Value::String(content) => {
            content.push_str("\n\n");
            content.push_str(text);
        }
        Value::Array(parts) => parts.push(serde_json::json!({ "type": "text", "text": text })),
        other => *other = text.into(),
    }
}

/// Takes lines out of texts.
struct Cut {
    /// Lines that may still be looked at.
    lines: usize,
    /// Whether there is a place to move lines to.
    moves: bool,
    moved: Vec<String>,
}

impl Cut {
    /// Whether nothing of the message is left.
    fn message(&mut self, message: &mut Value) -> bool {
        match message.get_mut("content") {
            Some(Value::String(text)) => self.empties(text),
            Some(Value::Array(parts)) => {
                let before = parts.len();
                parts.retain_mut(|part| match part.get_mut("text") {
                    Some(Value::String(text)) => !self.empties(text),
                    _ => true,
                });
                parts.is_empty() && before > 0
            }
            _ => false,
        }
    }

    /// Whether nothing of the text is left.
    fn empties(&mut self, text: &mut String) -> bool {
        let was = std::mem::take(text);
        *text = self.text(&was);
        text.is_empty() && !was.is_empty()
    }

    fn text(&mut self, text: &str) -> String {
        let mut kept = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let found = if self.lines > 0 { find(line.trim_end_matches(['\n', '\r'])) } else { None };
            self.lines = self.lines.saturating_sub(1);
            let goes = |kind| match kind {
                VolatileLine::Billing => true,
                VolatileLine::Time | VolatileLine::Countdown => self.moves,
                VolatileLine::Date => false,
            };
            let Some((kind, span)) = found.filter(|(kind, _)| goes(*kind)) else {
                kept.push_str(line);
                continue;
            };
            if kind != VolatileLine::Billing {
                self.moved.push(line[span.clone()].trim().to_owned());
            }
            let rest = [&line[..span.start], &line[span.end..]];
            if rest.iter().any(|rest| !rest.trim().is_empty()) {
                kept.push_str(rest[0]);
                kept.push_str(rest[1].trim_start_matches(' '));
            }
        }
        kept
    }
}

/// The kind in a line, and its bytes.
fn find(line: &str) -> Option<(VolatileLine, Range<usize>)> {
    if let Some(start) = line.find(BILLING) {
        return Some((VolatileLine::Billing, start..billing_end(line, start + BILLING.len())));
    }
    if is_countdown(line) {
        return Some((VolatileLine::Countdown, 0..line.len()));
    }
    // A template may put a marker in front of the text.
    let starts = line.char_indices().filter(|(_, c)| matches!(c, '>' | ']')).map(|(at, _)| at + 1);
    [0].into_iter().chain(starts).find_map(|start| {
        let (kind, length) = date(&line[start..])?;
        Some((kind, start..start + length))
    })
}

/// Behind the last `key=value;`: clients have been seen that put the next text right there.
fn billing_end(line: &str, from: usize) -> usize {
    let mut end = from;
    loop {
        let rest = &line[end..];
        let field = rest.trim_start_matches(' ');
        let name = field.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let value = name.strip_prefix('=').filter(|_| name.len() < field.len());
        let stop = value.and_then(|value| value.find([';', ' ', '<']));
        match (value, stop) {
            (Some(value), Some(stop)) if value[stop..].starts_with(';') => {
                end = line.len() - value.len() + stop + 1;
            }
            // The last one may lack its semicolon.
            (Some(_), None) => return line.len(),
            _ => return end,
        }
    }
}

/// Runs of digits and runs of letters, with where they begin.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let kind = |c: char| {
        if c.is_ascii_digit() { 1 } else { 2 * u8::from(c.is_alphabetic() || matches!(c, '\'' | '’')) }
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text[at..].find(|c| kind(c) > 0)?;
        let (start, first) = (at, kind(text[at..].chars().next()?));
        at += text[at..].find(|c| kind(c) != first).unwrap_or(text.len() - at);
        Some((start, &text[start..at]))
    })
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|known| word.eq_ignore_ascii_case(known))
}

const COUNTDOWN: &[&str] = &[
    "token",
    "tokens",
    "usage",
    "total",
    "used",
    "of",
    "remaining",
    "left",
    "budget",
    "context",
    "window",
    "available",
    "you",
    "have",
    "system",
    "warning",
    "k",
    "m",
];

/// Whether a line says nothing but how many tokens were used or are left.
fn is_countdown(line: &str) -> bool {
    let has = |wanted: &[&str]| words(line).any(|(_, word)| is_one_of(word, wanted));
    let number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    words(line).all(|(_, word)| number(word) || is_one_of(word, COUNTDOWN))
        && words(line).any(|(_, word)| number(word))
        && has(&["token", "tokens"])
        && has(&["usage", "used", "remaining", "left", "available"])
}

const LABELS: &[&str] = &[
    "the",
    "today",
    "todays",
    "today's",
    "today’s",
    "current",
    "currently",
    "local",
    "system",
    "user",
    "utc",
    "date",
    "time",
    "datetime",
    "timestamp",
    "now",
    "and",
    "is",
    "it",
    "it's",
];
const NAMES: &[&str] =
    &["today", "todays", "today's", "today’s", "date", "time", "datetime", "timestamp", "now"];
const MONTHS: &[&str] = &[
    "jan",
    "january",
    "feb",
    "february",
    "mar",
    "march",
    "apr",
    "april",
    "may",
    "jun",
    "june",
    "jul",
    "july",
    "aug",
    "august",
    "sep",
    "sept",
    "september",
    "oct",
    "october",
    "nov",
    "november",
    "dec",
    "december",
];
const BESIDE_DATES: &[&str] = &[
    "mon",
    "monday",
    "tue",
    "tues",
    "tuesday",
    "wed",
    "wednesday",
    "thu",
    "thur",
    "thursday",
    "fri",
    "friday",
    "sat",
    "saturday",
    "sun",
    "sunday",
    "st",
    "nd",
    "rd",
    "th",
    "of",
    "at",
    "t",
    "z",
    "am",
    "pm",
    "utc",
    "gmt",
];

/// A date or a time of day behind its name, at the start of a text, and where it ends.
fn date(text: &str) -> Option<(VolatileLine, usize)> {
    let mut named = false;
    let (mut numbers, mut months, mut years, mut clock) = (0, 0, 0, false);
    let mut end = 0;
    for (at, word) in words(text) {
        let is_number = word.as_bytes()[0].is_ascii_digit();
        let between = &text[end..at];
        // The end of a sentence, unless it is a point between digits.
        if numbers + months > 0 && between.starts_with('.') && !(is_number && between == ".") {
            break;
        }
        let zone = clock && word.len() <= 5 && word.bytes().all(|b| b.is_ascii_uppercase());
        if is_number {
            clock |= between == ":" && numbers > 0;
            numbers += 1;
            years += usize::from(word.len() == 4 && (word.starts_with("19") || word.starts_with("20")));
        } else if named && is_one_of(word, MONTHS) {
            months += 1;
        } else if numbers + months == 0 && is_one_of(word, LABELS) {
            named |= is_one_of(word, NAMES);
        } else if !(zone || named && is_one_of(word, BESIDE_DATES)) {
            break;
        }
        end = at + word.len();
    }
    let day = years == 1 && numbers + months > 2 || numbers == 3 && !clock;
    let kind = match (named, clock, day) {
        (true, true, _) => VolatileLine::Time,
        (true, false, true) => VolatileLine::Date,
        _ => return None,
    };
    Some((kind, end + trailing(&text[end..])))
}

/// Bytes of a closing bracket, full stop and closing tag.
fn trailing(rest: &str) -> usize {
    let after = rest.trim_start_matches([')', ']', '.', '*', '`', '"']);
    let tag = after.strip_prefix("</").and_then(|tag| tag.find('>')).map_or(0, |length| length + 3);
    rest.len() - after.len() + tag
}
