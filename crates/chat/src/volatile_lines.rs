//! Detects lines at the start of system prompts that agent clients change with every request, which
//! breaks prefix caching. Knows nothing of the cache.

#[cfg(test)]
mod tests;

use std::ops::Range;

use serde_json::Value;

/// Number of lines of the system messages that are searched.
const MAX_LINES: usize = 32;
const BILLING: &str = "x-anthropic-billing-header:";

/// A kind of volatile line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolatileLine {
    /// `x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;`, the
    /// first line of Claude Code's system prompt: new in every request and irrelevant to the model.
    Billing,
    /// Date: `Today's date is 2026-03-01.`
    Date,
    /// Time of day, with or without a date: `Current time: 2026-03-01 10:32:05 CET`.
    Time,
    /// Tokens used or left: `<system_warning>Token usage: 35000/200000; 165000
    /// remaining</system_warning>`.
    Countdown,
}

impl VolatileLine {
    /// Name in the API.
    pub fn name(self) -> &'static str {
        match self {
            VolatileLine::Billing => "billing",
            VolatileLine::Date => "date",
            VolatileLine::Time => "time",
            VolatileLine::Countdown => "token_countdown",
        }
    }

    /// The volatile line that contains byte `at` of `text`.
    ///
    /// # Panics
    /// If `at` is not a character boundary.
    pub fn at(text: &str, at: usize) -> Option<VolatileLine> {
        let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
        let (kind, span) = find(&text[start..end])?;
        // Text that replaces a whole line starts where the line started.
        (start + span.start <= at && at < (start + span.end).max(start + span.start + 1)).then_some(kind)
    }
}

/// Removes volatile lines from the start of the system messages: billing lines are dropped, times
/// and token counts are appended to the last user message. Dates stay: they change once a day.
pub fn normalize(messages: &[Value]) -> Vec<Value> {
    let role = |message: &Value, role: &str| message["role"] == role;
    let is_head = |message: &&Value| role(message, "system") || role(message, "developer");
    let heads = messages.iter().take_while(is_head).count();
    let last_user = messages.iter().rposition(|message| role(message, "user"));
    let mut filter = LineFilter { lines_left: MAX_LINES, can_move: last_user.is_some(), moved: vec![] };
    let mut normalized = vec![];
    for (i, mut message) in messages.iter().cloned().enumerate() {
        if i < heads && filter.empties_message(&mut message) {
            continue;
        }
        normalized.push(message);
        if Some(i) == last_user && !filter.moved.is_empty() {
            append(&mut normalized[..], &filter.moved.join("\n"));
        }
    }
    // An empty conversation would be this server's error, not the client's.
    if normalized.is_empty() { messages.to_vec() } else { normalized }
}

/// The text after a billing line at its start.
pub fn without_billing(text: &str) -> &str {
    match find(text.lines().next().unwrap_or_default()) {
        Some((VolatileLine::Billing, span)) if span.start == 0 => text[span.end..].trim_start(),
        _ => text,
    }
}

/// Appends a text to the last message.
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

/// Removes volatile lines from texts.
struct LineFilter {
    /// Lines still to be searched.
    lines_left: usize,
    /// Whether there is a user message to move lines to.
    can_move: bool,
    moved: Vec<String>,
}

impl LineFilter {
    /// Filters a message; `true` if it becomes empty.
    fn empties_message(&mut self, message: &mut Value) -> bool {
        match message.get_mut("content") {
            Some(Value::String(text)) => self.empties_text(text),
            Some(Value::Array(parts)) => {
                let before = parts.len();
                parts.retain_mut(|part| match part.get_mut("text") {
                    Some(Value::String(text)) => !self.empties_text(text),
                    _ => true,
                });
                parts.is_empty() && before > 0
            }
            _ => false,
        }
    }

    /// Filters a text; `true` if it becomes empty.
    fn empties_text(&mut self, text: &mut String) -> bool {
        let original = std::mem::take(text);
        *text = self.filter(&original);
        text.is_empty() && !original.is_empty()
    }

    fn filter(&mut self, text: &str) -> String {
        let mut filtered = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let found = if self.lines_left > 0 { find(line.trim_end_matches(['\n', '\r'])) } else { None };
            self.lines_left = self.lines_left.saturating_sub(1);
            let is_removed = |kind| match kind {
                VolatileLine::Billing => true,
                VolatileLine::Time | VolatileLine::Countdown => self.can_move,
                VolatileLine::Date => false,
            };
            let Some((kind, span)) = found.filter(|(kind, _)| is_removed(*kind)) else {
                filtered.push_str(line);
                continue;
            };
            if kind != VolatileLine::Billing {
                self.moved.push(line[span.clone()].trim().to_owned());
            }
            let rest = [&line[..span.start], &line[span.end..]];
            if rest.iter().any(|rest| !rest.trim().is_empty()) {
                filtered.push_str(rest[0]);
                filtered.push_str(rest[1].trim_start_matches(' '));
            }
        }
        filtered
    }
}

/// The kind of a volatile line, and its byte range.
fn find(line: &str) -> Option<(VolatileLine, Range<usize>)> {
    if let Some(start) = line.find(BILLING) {
        return Some((VolatileLine::Billing, start..billing_end(line, start + BILLING.len())));
    }
    if is_countdown(line) {
        return Some((VolatileLine::Countdown, 0..line.len()));
    }
    // A template may put a marker before the text.
    let starts = line.char_indices().filter(|(_, c)| matches!(c, '>' | ']')).map(|(at, _)| at + 1);
    [0].into_iter().chain(starts).find_map(|start| {
        let (kind, length) = date(&line[start..])?;
        Some((kind, start..start + length))
    })
}

/// End of the last `key=value;`; some clients append the next text without a line feed.
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
            // The last field may lack its semicolon.
            (Some(_), None) => return line.len(),
            _ => return end,
        }
    }
}

/// Maximal sequences of digits and of letters, with their offsets.
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

/// Whether a line contains only a number of used or remaining tokens.
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

/// A labelled date or time of day at the start of a text, and its length.
fn date(text: &str) -> Option<(VolatileLine, usize)> {
    let mut named = false;
    let (mut numbers, mut months, mut years, mut clock) = (0, 0, 0, false);
    let mut end = 0;
    for (at, word) in words(text) {
        let is_number = word.as_bytes()[0].is_ascii_digit();
        let between = &text[end..at];
        // End of a sentence, unless it is a decimal point.
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

/// Bytes of closing brackets, full stop and closing tag.
fn trailing(rest: &str) -> usize {
    let after = rest.trim_start_matches([')', ']', '.', '*', '`', '"']);
    let tag = after.strip_prefix("</").and_then(|tag| tag.find('>')).map_or(0, |length| length + 3);
    rest.len() - after.len() + tag
}
