//! Markdown within a paragraph, as it streams: emphasis, code, links. Text is held back only while
//! it may still be the start of one of these.

use crate::{
    style::{Color, Style},
    wrap::Glyph,
};

const CODE: Style = Style::PLAIN.colored(Color::Cyan);
/// Bytes that are held back for the end of a span; longer ones are shown as written.
const LONGEST_SPAN: usize = 600;
/// Bytes of an HTML entity or of `<br/>`.
const SHORT: usize = 8;
const ENTITIES: [(&str, &str); 7] = [
    ("&amp;", "&"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&apos;", "'"),
    ("&nbsp;", " "),
];
const BREAKS: [&str; 3] = ["<br>", "<br/>", "<br />"];

/// Span at the start of a text.
enum Span<'a> {
    /// More text decides.
    Undecided,
    /// Shown as written, with its bytes.
    Plain(usize),
    /// `text` in place of `length` bytes.
    Replaced {
        text: &'a str,
        length: usize,
        style: Style,
    },
    /// Markdown of its own in a style.
    Styled {
        inner: &'a str,
        length: usize,
        style: Style,
    },
    Link {
        label: &'a str,
        address: &'a str,
        length: usize,
        is_image: bool,
    },
}

/// The text of a paragraph that is not shown yet.
#[derive(Debug, Default)]
pub(crate) struct Inline {
    held: String,
    style: Style,
    before: Option<char>,
}

impl Inline {
    /// For a text in this style.
    pub(crate) fn new(style: Style) -> Inline {
        Inline { style, ..Inline::default() }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The glyphs that are certain now.
    pub(crate) fn push(&mut self, c: char) -> Vec<Glyph> {
        self.held.push(c);
        self.run(false)
    }

    /// The rest, and a new text begins.
    pub(crate) fn finish(&mut self) -> Vec<Glyph> {
        let rest = self.run(true);
        self.before = None;
        rest
    }

    fn run(&mut self, is_last: bool) -> Vec<Glyph> {
        let mut out = vec![];
        let mut parser = Parser { out: &mut out, before: self.before };
        let used = parser.run(&self.held, is_last, self.style);
        self.before = parser.before;
        self.held.drain(..used);
        out
    }
}

/// The glyphs of a whole text.
pub(crate) fn glyphs(text: &str, style: Style) -> Vec<Glyph> {
    let mut out = vec![];
    Parser { out: &mut out, before: None }.run(text, true, style);
    out
}

struct Parser<'a> {
    out: &'a mut Vec<Glyph>,
    before: Option<char>,
}

impl Parser<'_> {
    /// Shows what is certain; returns its bytes.
    fn run(&mut self, text: &str, is_last: bool, style: Style) -> usize {
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let is_certain = is_last || rest.len() > LONGEST_SPAN;
            match span(rest, self.before, is_certain, style) {
                Span::Undecided => break,
                Span::Plain(length) => {
                    self.show(&rest[..length], style);
                    at += length;
                }
                Span::Replaced { text, length, style } => {
                    self.show(text, style);
                    at += length;
                }
                Span::Styled { inner, length, style } => {
                    self.run(inner, true, style);
                    at += length;
                }
                Span::Link { label, address, length, is_image } => {
                    self.link(label, address, is_image, style);
                    at += length;
                }
            }
        }
        at
    }

    fn show(&mut self, text: &str, style: Style) {
        self.out.extend(text.chars().map(|c| (c, style)));
        self.before = text.chars().next_back().or(self.before);
    }

    fn link(&mut self, label: &str, address: &str, is_image: bool, style: Style) {
        if is_image {
            self.show("image: ", style.dim());
        }
        match label.is_empty() {
            true => self.show(address, style.underline()),
            false => _ = self.run(label, true, style.underline()),
        }
        // Terminals make addresses clickable.
        if !label.is_empty() && label != address {
            self.show(&format!(" ({address})"), style.dim());
        }
    }
}

/// Span at the start of `text`, which is not empty. `is_certain`: no more text comes that could
/// decide.
fn span(text: &str, before: Option<char>, is_certain: bool, style: Style) -> Span<'_> {
    let first = text.chars().next().unwrap_or_default();
    let found = match first {
        '\\' => escape(text, style),
        '`' => code(text, is_certain, style),
        '*' | '_' | '~' => emphasis(text, before, is_certain, style),
        '[' => link(text, 0),
        '!' if text.len() == 1 => Span::Undecided,
        '!' if text[1..].starts_with('[') => link(text, 1),
        '<' => angle(text, style),
        '&' => entity(text, style),
        '$' => math(text),
        _ => return Span::Plain(plain_length(text)),
    };
    match found {
        Span::Undecided if is_certain => Span::Plain(undecided_length(text, first)),
        found => found,
    }
}

/// Bytes up to the next character that may begin a span.
fn plain_length(text: &str) -> usize {
    let is_special = |c: char| matches!(c, '\\' | '`' | '*' | '_' | '~' | '[' | '!' | '<' | '&' | '$');
    let mut characters = text.char_indices();
    characters.next();
    characters.find(|(_, c)| is_special(*c)).map_or(text.len(), |(at, _)| at)
}

/// Bytes of a start that has no end: the whole run of a delimiter.
fn undecided_length(text: &str, first: char) -> usize {
    match first {
        '`' | '*' | '_' | '~' => run_length(text, first),
        _ => first.len_utf8(),
    }
}

fn run_length(text: &str, c: char) -> usize {
    text.len() - text.trim_start_matches(c).len()
}

fn escape(text: &str, style: Style) -> Span<'_> {
    let Some(next) = text[1..].chars().next() else { return Span::Undecided };
    match next {
        '(' => verbatim(text, 2, "\\)"),
        '[' => verbatim(text, 2, "\\]"),
        // A line break.
        '\n' => Span::Replaced { text: "\n", length: 2, style },
        next if next.is_ascii_punctuation() => Span::Replaced { text: &text[1..2], length: 2, style },
        _ => Span::Plain(1),
    }
}

fn math(text: &str) -> Span<'_> {
    match text.len() {
        1 => Span::Undecided,
        _ if text.starts_with("$$") => verbatim(text, 2, "$$"),
        _ => Span::Plain(1),
    }
}

/// A formula, which is shown as written.
fn verbatim<'a>(text: &'a str, start: usize, end: &str) -> Span<'a> {
    text[start..].find(end).map_or(Span::Undecided, |at| Span::Plain(start + at + end.len()))
}

fn code(text: &str, is_certain: bool, style: Style) -> Span<'_> {
    let count = run_length(text, '`');
    let Some(end) = closing_ticks(&text[count..], count, is_certain) else { return Span::Undecided };
    let inner = &text[count..count + end];
    let is_padded = inner.starts_with(' ') && inner.ends_with(' ') && !inner.trim().is_empty();
    let inner = if is_padded { &inner[1..inner.len() - 1] } else { inner };
    Span::Replaced { text: inner, length: 2 * count + end, style: Style { color: CODE.color, ..style } }
}

/// Where exactly `count` backticks stand. Those at the end count if no more can follow.
fn closing_ticks(text: &str, count: usize, is_certain: bool) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let length = run_length(&text[at + found..], '`');
        if length == count && (is_certain || at + found + length < text.len()) {
            return Some(at + found);
        }
        at += found + length;
    }
    None
}

fn emphasis(text: &str, before: Option<char>, is_certain: bool, style: Style) -> Span<'_> {
    let c = text.chars().next().unwrap_or_default();
    let count = run_length(text, c);
    let Some(next) = text[count..].chars().next() else { return Span::Undecided };
    let follows_word = before.is_some_and(char::is_alphanumeric);
    let is_before_mark = next.is_ascii_punctuation() && !matches!(next, '`' | '*' | '_' | '[');
    let is_open = !next.is_whitespace() && !(follows_word && (c == '_' || is_before_mark));
    let inner_style = match (c, count) {
        ('~', 2) => style.strike(),
        ('*' | '_', 1) => style.italic(),
        ('*' | '_', 2) => style.bold(),
        ('*' | '_', 3) => style.bold().italic(),
        _ => return Span::Plain(count),
    };
    if !is_open {
        return Span::Plain(count);
    }
    match closing_run(text, c, count, is_certain) {
        Some((end, length)) => Span::Styled { inner: &text[count..end], length, style: inner_style },
        None => Span::Undecided,
    }
}

/// Where the text of an emphasis ends, and where the emphasis does; `None`: it does not, or more of
/// the text decides.
fn closing_run(text: &str, c: char, count: usize, is_certain: bool) -> Option<(usize, usize)> {
    let mut at = count;
    while let Some(next) = text[at..].chars().next() {
        match next {
            '\\' => at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
            '`' => {
                let ticks = run_length(&text[at..], '`');
                at += ticks;
                match closing_ticks(&text[at..], ticks, is_certain) {
                    Some(end) => at += end + ticks,
                    None if is_certain => {}
                    None => return None,
                }
            }
            next if next == c => {
                let length = run_length(&text[at..], c);
                let after = text[at + length..].chars().next();
                if after.is_none() && !is_certain {
                    return None;
                }
                let follows_space = text[..at].ends_with(char::is_whitespace);
                let is_inside = c == '_' && after.is_some_and(char::is_alphanumeric);
                // A longer run also ends what is inside; a shorter one begins or ends only that.
                let is_end = length == count || length == 3 && count < 3;
                if is_end && !follows_space && !is_inside {
                    return Some((at + length - count, at + length));
                }
                at += length;
            }
            next => at += next.len_utf8(),
        }
    }
    None
}

/// `[label](address)`, or an image after `skip` bytes.
fn link(text: &str, skip: usize) -> Span<'_> {
    let start = skip + 1;
    let Some(label_end) = closing_bracket(text, start, '[', ']') else { return Span::Undecided };
    let rest = &text[label_end + 1..];
    if rest.is_empty() {
        return Span::Undecided;
    }
    if !rest.starts_with('(') {
        return Span::Plain(start);
    }
    let open = label_end + 2;
    let Some(close) = closing_bracket(text, open, '(', ')') else { return Span::Undecided };
    // A title may follow.
    let address = text[open..close].split_whitespace().next().unwrap_or_default();
    let address = address.trim_start_matches('<').trim_end_matches('>');
    Span::Link { label: &text[start..label_end], address, length: close + 1, is_image: skip == 1 }
}

/// Where the bracket ends that was opened before `start`.
fn closing_bracket(text: &str, start: usize, open: char, close: char) -> Option<usize> {
    let (mut depth, mut is_escaped) = (0, false);
    for (at, c) in text[start..].char_indices() {
        match c {
            _ if std::mem::take(&mut is_escaped) => {}
            '\\' => is_escaped = true,
            c if c == open => depth += 1,
            c if c == close && depth == 0 => return Some(start + at),
            c if c == close => depth -= 1,
            _ => {}
        }
    }
    None
}

/// `<https://...>`, or a line break in HTML.
fn angle(text: &str, style: Style) -> Span<'_> {
    if let Some(found) = BREAKS.iter().find(|tag| text.starts_with(**tag)) {
        return Span::Replaced { text: "\n", length: found.len(), style };
    }
    let is_start = |of: &str| text.len() < of.len() && of.starts_with(text);
    if BREAKS.iter().chain(&["<https://", "<http://", "<mailto:"]).any(|of| is_start(of)) {
        return Span::Undecided;
    }
    if !["<https://", "<http://", "<mailto:"].iter().any(|start| text.starts_with(start)) {
        return Span::Plain(1);
    }
    match text.find(['>', ' ', '\n']) {
        None => Span::Undecided,
        Some(end) if text[end..].starts_with('>') => {
            Span::Replaced { text: &text[1..end], length: end + 1, style: style.underline() }
        }
        Some(_) => Span::Plain(1),
    }
}

fn entity(text: &str, style: Style) -> Span<'_> {
    if let Some((name, shown)) = ENTITIES.iter().find(|(name, _)| text.starts_with(name)) {
        return Span::Replaced { text: shown, length: name.len(), style };
    }
    let may_follow = text.len() < SHORT && ENTITIES.iter().any(|(name, _)| name.starts_with(text));
    if may_follow { Span::Undecided } else { Span::Plain(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text with each style as a tag.
    fn marked(glyphs: &[Glyph]) -> String {
        let (mut marked, mut last) = (String::new(), Style::PLAIN);
        for (c, style) in glyphs {
            if *style != last {
                let names = [
                    (style.bold, 'b'),
                    (style.italic, 'i'),
                    (style.strike, 's'),
                    (style.underline, 'u'),
                    (style.dim, 'd'),
                    (style.color.is_some(), 'c'),
                ];
                let names: String = names.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| name).collect();
                marked += &format!("<{names}>");
                last = *style;
            }
            marked.push(*c);
        }
        marked
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(marked(&glyphs(text, Style::PLAIN)), expected, "{text:?}");
        let mut inline = Inline::new(Style::PLAIN);
        let mut streamed: Vec<Glyph> = text.chars().flat_map(|c| inline.push(c)).collect();
        streamed.extend(inline.finish());
        assert_eq!(marked(&streamed), expected, "{text:?} streamed");
    }

    #[test]
    fn emphasis_code_and_links_are_styled() {
        check("a **b** *c* _d_ ~~e~~ ***f***", "a <b>b<> <i>c<> <i>d<> <s>e<> <bi>f");
        check("**a *b* c** and *a **b***", "<b>a <bi>b<b> c<> and <i>a <bi>b");
        check("`a*b*` ``x`y`` **`z`**", "<c>a*b*<> <c>x`y<> <bc>z");
        check(
            "[site](https://x.org/a_b) <https://y.org>",
            "<u>site<d> (https://x.org/a_b)<> <u>https://y.org",
        );
        check("![alt](a.png \"title\") [https://x](https://x)", "<d>image: <u>alt<d> (a.png)<> <u>https://x");
        check("[**b**](u)", "<bu>b<d> (u)");
    }

    #[test]
    fn what_only_looks_like_markdown_is_shown_as_written() {
        for text in [
            "2 * 3 * 4",
            "snake_case_name",
            "2*3 is 6",
            "a ** b",
            "**open",
            "`open",
            "[x] y",
            "[x](open",
            "5 < 6 <a>",
            "a & b",
            "$5 and $$x_1 + y_1$$",
            "\\(a_1 * b_1 * c\\)",
            "\\[x\\]",
            "a ~ b ~ c",
            "****",
            "Wow!",
            "<",
            "&",
            "x_1_ y",
            "C:\\dir",
            "!",
            "[a][b]",
            "_",
            "a\\",
        ] {
            check(text, text);
        }
    }

    #[test]
    fn escapes_entities_and_breaks_are_replaced() {
        check("\\*a\\* &lt;b&gt; c<br>d", "*a* <b> c\nd");
        check("*a \\* b*", "<i>a * b");
    }

    #[test]
    fn certain_text_is_not_held_back() {
        let mut inline = Inline::new(Style::PLAIN);
        let mut shown = |text: &str| {
            let glyphs: Vec<Glyph> = text.chars().flat_map(|c| inline.push(c)).collect();
            glyphs.into_iter().map(|(c, _)| c).collect::<String>()
        };
        assert_eq!(shown("plain "), "plain ");
        assert_eq!(shown("**bo"), "");
        assert_eq!(shown("ld** x"), "bold x");
        assert_eq!(shown(" 3 * 4"), " 3 * 4");
        assert_eq!(shown("*"), "");
        assert_eq!(shown(&"a".repeat(LONGEST_SPAN)), format!("*{}", "a".repeat(LONGEST_SPAN)));
    }
}
