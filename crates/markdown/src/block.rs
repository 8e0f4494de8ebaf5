//! Starts of lines: quotes, lists, headings, code, tables, text. A line is read again with each
//! character until its start is certain.

/// Digits of a list's number.
const LONGEST_NUMBER: usize = 9;
/// Quotes and lists within each other.
pub(crate) const DEEPEST: usize = 12;

/// A block that contains other blocks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Container {
    Quote,
    /// An item of a list: its marker as shown, and the columns of its text in the source.
    Item {
        marker: String,
        indent: usize,
    },
}

/// Kind of a line, within its containers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Leaf {
    Blank,
    /// Code until a line of at least `length` such characters.
    Fence {
        character: char,
        length: usize,
        label: String,
        indent: usize,
    },
    Heading {
        level: usize,
    },
    Rule,
    /// A line that begins with a bar.
    Row,
    /// `===` under a line, which makes that a heading.
    Underline,
    Text,
}

/// The start of a line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LineStart {
    /// Open containers that it continues.
    pub(crate) matched: usize,
    /// Containers that it opens.
    pub(crate) opened: Vec<Container>,
    pub(crate) leaf: Leaf,
    /// Where the text of the leaf begins, in bytes.
    pub(crate) text: usize,
}

/// Reads the start of a line. `is_whole`: no more of the line follows. `in_paragraph`: the line
/// before is text that may continue. `None`: more characters decide.
pub(crate) fn line_start(
    line: &str,
    is_whole: bool,
    open: &[Container],
    in_paragraph: bool,
) -> Option<LineStart> {
    let (mut at, mut matched) = (0, 0);
    for container in open {
        let rest = &line[at..];
        let spaces = spaces(rest);
        if rest[spaces..].is_empty() && !is_whole {
            return None;
        }
        match container {
            Container::Quote if spaces < 4 && rest[spaces..].starts_with('>') => {
                at += spaces + after_quote(line, at + spaces, is_whole)?;
            }
            Container::Item { .. } if rest[spaces..].is_empty() => {}
            // Models often indent less than the marker is wide.
            Container::Item { indent, .. } if spaces >= (*indent).min(2) => at += spaces.min(*indent),
            _ => break,
        }
        matched += 1;
    }
    Starts { line, is_whole, open, in_paragraph, matched }.read(at)
}

struct Starts<'a> {
    line: &'a str,
    is_whole: bool,
    open: &'a [Container],
    in_paragraph: bool,
    matched: usize,
}

impl Starts<'_> {
    fn read(&self, mut at: usize) -> Option<LineStart> {
        let mut opened = vec![];
        loop {
            let indent = spaces(&self.line[at..]);
            let rest = &self.line[at + indent..];
            let found = |leaf, skipped| {
                let text = at + indent + skipped;
                Some(LineStart { matched: self.matched, opened: opened.clone(), leaf, text })
            };
            let Some(first) = rest.chars().next() else {
                return if self.is_whole { found(Leaf::Blank, 0) } else { None };
            };
            let may_open = self.matched + opened.len() < DEEPEST;
            // A paragraph of the same block goes on, unless something certain interrupts it.
            let continues = self.in_paragraph && opened.is_empty() && self.matched == self.open.len();
            match first {
                '>' if may_open => {
                    at += indent;
                    at += after_quote(self.line, at, self.is_whole)?;
                    opened.push(Container::Quote);
                    continue;
                }
                '#' => return self.heading(rest).and_then(|(leaf, skipped)| found(leaf, skipped)),
                '`' | '~' => {
                    return self.fence(rest, first, indent).and_then(|leaf| match leaf {
                        Leaf::Text => found(Leaf::Text, 0),
                        leaf => found(leaf, rest.len()),
                    });
                }
                '|' => return if self.is_whole { found(Leaf::Row, 0) } else { None },
                '=' if continues && rest.trim_end().bytes().all(|byte| byte == b'=') => {
                    return if self.is_whole { found(Leaf::Underline, rest.len()) } else { None };
                }
                '-' | '*' | '_' if is_rule_so_far(rest, first) => {
                    if !self.is_whole {
                        return None;
                    }
                    if rest.bytes().filter(|byte| *byte == first as u8).count() >= 3 {
                        return found(Leaf::Rule, rest.len());
                    }
                }
                _ => {}
            }
            match self.marker(rest, continues) {
                Marker::Undecided => return None,
                Marker::None => return found(Leaf::Text, 0),
                Marker::Found { .. } if !may_open => return found(Leaf::Text, 0),
                Marker::Found { shown, length } => {
                    opened.push(Container::Item { marker: shown, indent: indent + length });
                    at += indent + length.min(rest.len());
                }
            }
        }
    }

    fn heading(&self, rest: &str) -> Option<(Leaf, usize)> {
        let level = rest.len() - rest.trim_start_matches('#').len();
        match rest[level..].chars().next() {
            None if !self.is_whole => None,
            Some(' ' | '\t') | None if level <= 6 => {
                let spaces = spaces(&rest[level..]);
                Some((Leaf::Heading { level }, level + spaces))
            }
            _ => Some((Leaf::Text, 0)),
        }
    }

    fn fence(&self, rest: &str, character: char, indent: usize) -> Option<Leaf> {
        let length = rest.len() - rest.trim_start_matches(character).len();
        let label = &rest[length..];
        if length < 3 && !label.is_empty() || character == '`' && label.contains('`') {
            return Some(Leaf::Text);
        }
        if !self.is_whole {
            return None;
        }
        let label = label.split_whitespace().next().unwrap_or_default().to_owned();
        Some(if length < 3 { Leaf::Text } else { Leaf::Fence { character, length, label, indent } })
    }

    fn marker(&self, rest: &str, continues: bool) -> Marker {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (shown, length) = match rest.as_bytes().get(digits) {
            None if digits > 0 && digits <= LONGEST_NUMBER && !self.is_whole => return Marker::Undecided,
            Some(b'-' | b'*' | b'+') if digits == 0 => ("• ".to_owned(), 1),
            Some(b'.' | b')') if (1..=LONGEST_NUMBER).contains(&digits) => {
                (format!("{} ", &rest[..=digits]), digits + 1)
            }
            _ => return Marker::None,
        };
        let after = &rest[length..];
        let spaces = spaces(after);
        match after[spaces..].chars().next() {
            None if !self.is_whole => Marker::Undecided,
            Some(_) if spaces == 0 => Marker::None,
            // A number other than 1 is more likely part of a sentence.
            _ if continues && digits > 0 && &rest[..digits] != "1" => Marker::None,
            None if continues => Marker::None,
            None => Marker::Found { shown, length: length + 1 },
            Some('[') => self.task(&after[spaces..], shown, length + spaces),
            Some(_) => Marker::Found { shown, length: length + if spaces > 4 { 1 } else { spaces } },
        }
    }

    /// An item that may be a task.
    fn task(&self, text: &str, shown: String, length: usize) -> Marker {
        let boxes = [("[ ] ", "☐ "), ("[x] ", "☑ "), ("[X] ", "☑ ")];
        if let Some((_, mark)) = boxes.iter().find(|(mark, _)| text.starts_with(mark)) {
            let shown = if shown == "• " { (*mark).to_owned() } else { shown + mark };
            return Marker::Found { shown, length: length + 4 };
        }
        match boxes.iter().any(|(mark, _)| mark.starts_with(text)) && !self.is_whole {
            true => Marker::Undecided,
            false => Marker::Found { shown, length },
        }
    }
}

enum Marker {
    Undecided,
    None,
    /// With its bytes, spaces after it included.
    Found {
        shown: String,
        length: usize,
    },
}

/// Bytes of spaces at the start; a tab counts as one.
pub(crate) fn spaces(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t']).len()
}

/// Bytes of the mark of a quote and of the space after it.
fn after_quote(line: &str, mark: usize, is_whole: bool) -> Option<usize> {
    match line[mark + 1..].chars().next() {
        None if !is_whole => None,
        Some(' ') => Some(2),
        _ => Some(1),
    }
}

/// Whether the line so far is nothing but this character and spaces.
fn is_rule_so_far(text: &str, c: char) -> bool {
    text.chars().all(|other| other == c || other == ' ')
}
