//! Lines of a terminal: words wrapped at its width, and what stands before each line.

use unicode_width::UnicodeWidthChar;

use crate::style::{RESET, Style};

/// Columns that a line has at least, whatever stands before it.
const NARROWEST: usize = 16;
/// Columns of a tab in code.
const TAB: usize = 4;
const JOINER: char = '\u{200D}';

/// A character and its style.
pub(crate) type Glyph = (char, Style);

/// Columns of a character on a terminal.
pub(crate) fn columns(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Columns of some text.
pub(crate) fn text_columns(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// Text before a line, with its columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prefix {
    pub(crate) glyphs: Vec<Glyph>,
}

impl Prefix {
    pub(crate) fn push(&mut self, text: &str, style: Style) {
        self.glyphs.extend(text.chars().map(|c| (c, style)));
    }

    pub(crate) fn columns(&self) -> usize {
        self.glyphs.iter().map(|(c, _)| columns(*c)).sum()
    }
}

/// Writes glyphs as lines. A word is written once its end is known, and nothing is ever taken back.
#[derive(Debug)]
pub(crate) struct Wrap {
    out: String,
    width: usize,
    column: usize,
    /// Before the next line, if none of it is written yet.
    first: Option<Prefix>,
    /// Before each line after it.
    rest: Prefix,
    /// Written, but not ended yet.
    word: Vec<Glyph>,
    spaces: usize,
    space_style: Style,
    style: Style,
    after_joiner: bool,
}

impl Wrap {
    pub(crate) fn new(width: usize) -> Wrap {
        Wrap {
            out: String::new(),
            width,
            column: 0,
            first: Some(Prefix::default()),
            rest: Prefix::default(),
            word: vec![],
            spaces: 0,
            space_style: Style::PLAIN,
            style: Style::PLAIN,
            after_joiner: false,
        }
    }

    pub(crate) fn set_width(&mut self, width: usize) {
        self.width = width;
    }

    /// Columns that the text of a line has.
    pub(crate) fn room(&self) -> usize {
        self.width.saturating_sub(self.rest.columns()).max(NARROWEST)
    }

    /// Sets the prefixes of the next line and of those after it. The line before has ended.
    pub(crate) fn set_prefixes(&mut self, first: Prefix, rest: Prefix) {
        (self.first, self.rest) = (Some(first), rest);
    }

    /// A character of a text that is wrapped.
    pub(crate) fn put(&mut self, c: char, style: Style) {
        match c {
            '\n' => self.end_line(),
            ' ' | '\t' => {
                self.end_word();
                self.spaces += 1;
                self.space_style = style;
            }
            _ => self.put_in_word(c, style),
        }
    }

    fn put_in_word(&mut self, c: char, style: Style) {
        let is_joined = columns(c) == 0 || std::mem::take(&mut self.after_joiner);
        self.after_joiner = c == JOINER;
        // A line may break before and after each wide character.
        let is_wide = columns(c) > 1;
        let after_wide = self.word.last().is_some_and(|(last, _)| columns(*last) > 1);
        if !is_joined && (is_wide || after_wide) && !is_closing(c) {
            self.end_word();
        }
        self.word.push((c, style));
        if self.word_columns() >= self.room() {
            self.end_word();
        }
    }

    fn word_columns(&self) -> usize {
        self.word.iter().map(|(c, _)| columns(*c)).sum()
    }

    /// Writes the word that was held: no more of it follows.
    pub(crate) fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let word = std::mem::take(&mut self.word);
        let needed: usize = self.spaces + word.iter().map(|(c, _)| columns(*c)).sum::<usize>();
        let start = self.width.saturating_sub(self.room());
        if self.first.is_none() && self.column + needed > start + self.room() && self.column > start {
            self.break_line();
        } else {
            let (spaces, style) = (std::mem::take(&mut self.spaces), self.space_style);
            (0..spaces).for_each(|_| self.write(' ', style));
        }
        self.spaces = 0;
        for (c, style) in word {
            if self.column + columns(c) > start + self.room() && self.column > start {
                self.break_line();
            }
            self.write(c, style);
        }
    }

    /// A character that is not wrapped, such as one of code.
    pub(crate) fn put_unwrapped(&mut self, c: char, style: Style) {
        match c {
            '\n' => self.end_line(),
            '\t' => {
                self.write_prefix();
                let start = self.rest.columns();
                let stop = TAB - self.column.saturating_sub(start) % TAB;
                (0..stop).for_each(|_| self.write(' ', style));
            }
            _ => self.write(c, style),
        }
    }

    /// Text that is not wrapped.
    pub(crate) fn put_text(&mut self, text: &str, style: Style) {
        text.chars().for_each(|c| self.put_unwrapped(c, style));
    }

    /// Ends the line, also an empty one.
    pub(crate) fn end_line(&mut self) {
        self.end_word();
        self.spaces = 0;
        self.write_prefix_of_empty_line();
        self.break_line();
    }

    fn break_line(&mut self) {
        self.set_style(Style::PLAIN);
        self.out.push('\n');
        self.column = 0;
        self.first = Some(self.rest.clone());
    }

    /// A blank line with what stands before each line, if it is visible.
    fn write_prefix_of_empty_line(&mut self) {
        if let Some(prefix) = &mut self.first {
            while prefix.glyphs.last().is_some_and(|(c, _)| *c == ' ') {
                prefix.glyphs.pop();
            }
            self.write_prefix();
        }
    }

    fn write(&mut self, c: char, style: Style) {
        self.write_prefix();
        self.write_glyph(c, style);
    }

    fn write_prefix(&mut self) {
        if let Some(prefix) = self.first.take() {
            prefix.glyphs.into_iter().for_each(|(c, style)| self.write_glyph(c, style));
        }
    }

    fn write_glyph(&mut self, c: char, style: Style) {
        self.set_style(style);
        self.out.push(c);
        self.column += columns(c);
    }

    fn set_style(&mut self, style: Style) {
        if style != self.style {
            if self.style != Style::PLAIN {
                self.out.push_str(RESET);
            }
            self.out.push_str(&style.sequence());
            self.style = style;
        }
    }

    /// Whether nothing is written or held of the current line.
    pub(crate) fn is_at_line_start(&self) -> bool {
        self.first.is_some() && self.word.is_empty()
    }

    /// Takes the text written since the last call; the terminal is left without a style.
    pub(crate) fn take(&mut self) -> String {
        self.set_style(Style::PLAIN);
        std::mem::take(&mut self.out)
    }
}

/// Punctuation that does not begin a line.
fn is_closing(c: char) -> bool {
    matches!(
        c,
        '、' | '。'
            | '，'
            | '．'
            | '！'
            | '？'
            | '：'
            | '；'
            | '」'
            | '』'
            | '）'
            | '】'
            | '〉'
            | '》'
            | '’'
            | '”'
            | ','
            | '.'
            | '!'
            | '?'
            | ':'
            | ';'
            | ')'
            | ']'
            | '}'
    )
}

/// Breaks glyphs into lines of at most `width` columns, at spaces where that is possible.
pub(crate) fn lines(glyphs: &[Glyph], width: usize) -> Vec<Vec<Glyph>> {
    let (mut lines, mut line, mut used) = (vec![], vec![], 0);
    let mut rest = glyphs;
    while let Some((c, _)) = rest.first() {
        if *c == ' ' && line.is_empty() && !lines.is_empty() {
            rest = &rest[1..];
            continue;
        }
        let length = word_length(rest);
        let word = &rest[..length];
        let needed: usize = word.iter().map(|(c, _)| columns(*c)).sum();
        if used + needed > width && *c != ' ' {
            if !line.is_empty() {
                lines.push(std::mem::take(&mut line));
            }
            let fitting = fitting(word, width);
            line.extend(&word[..fitting]);
            used = line.iter().map(|(c, _)| columns(*c)).sum();
            rest = &rest[fitting..];
            continue;
        }
        line.extend(word);
        used += needed;
        rest = &rest[length..];
    }
    lines.push(line);
    for line in &mut lines {
        while line.last().is_some_and(|(c, _)| *c == ' ') {
            line.pop();
        }
    }
    lines
}

/// Glyphs up to where a line may break: a space, a wide character, or a word.
fn word_length(glyphs: &[Glyph]) -> usize {
    let is_unit = |c: char| c == ' ' || columns(c) > 1;
    match glyphs {
        [(c, _), rest @ ..] if is_unit(*c) => 1 + rest.iter().take_while(|(c, _)| columns(*c) == 0).count(),
        _ => glyphs.iter().take_while(|(c, _)| !is_unit(*c)).count(),
    }
}

/// Most glyphs of a word that fit into a line of their own; at least one.
fn fitting(word: &[Glyph], width: usize) -> usize {
    let mut used = 0;
    let fits = word.iter().take_while(|(c, _)| {
        used += columns(*c);
        used <= width
    });
    fits.count().max(1)
}
