//! The lines of a block of code, up to the one that ends it.

use crate::{block::Container, code::Highlighter, wrap::Glyph};

/// Bytes of a line's start that are held.
const LONGEST_START: usize = 1024;

/// A block of code whose lines arrive.
pub(crate) struct Fenced {
    character: char,
    /// Characters of the line that ends it, at least.
    length: usize,
    quotes: usize,
    /// Spaces before each line that are not the code's.
    indent: usize,
    highlighter: Highlighter,
    /// The start of a line that may end the block.
    held: String,
    is_in_line: bool,
}

/// Result of one character of the source.
pub(crate) enum Line {
    Code(Vec<Glyph>),
    /// The block has ended.
    Closed,
    /// The block has ended before this line.
    Left {
        line: String,
        is_whole: bool,
    },
}

impl Fenced {
    pub(crate) fn new(
        containers: &[Container],
        character: char,
        length: usize,
        label: &str,
        indent: usize,
    ) -> Fenced {
        let quotes = containers.iter().filter(|container| **container == Container::Quote).count();
        let items = containers.iter().map(|container| match container {
            Container::Quote => 0,
            Container::Item { indent, .. } => *indent,
        });
        Fenced {
            character,
            length,
            quotes,
            indent: items.sum::<usize>() + indent,
            highlighter: Highlighter::new(label),
            held: String::new(),
            is_in_line: false,
        }
    }

    pub(crate) fn push(&mut self, c: char) -> Line {
        if self.is_in_line {
            self.is_in_line = c != '\n';
            return Line::Code(self.highlighter.push(c));
        }
        let is_whole = c == '\n';
        if !is_whole {
            self.held.push(c);
        }
        let Some(code) = self.without_quotes(is_whole) else {
            return match is_whole || self.held.trim_start().chars().next().is_some_and(|c| c != '>') {
                true => Line::Left { line: std::mem::take(&mut self.held), is_whole },
                false => Line::Code(vec![]),
            };
        };
        let own = code.len() - code.trim_start_matches(' ').len();
        let text = code[own.min(self.indent)..].to_owned();
        let mark = text.trim();
        let may_end = mark.chars().all(|c| c == self.character);
        if !is_whole && may_end && self.held.len() < LONGEST_START {
            return Line::Code(vec![]);
        }
        self.held.clear();
        if is_whole && may_end && mark.chars().count() >= self.length {
            return Line::Closed;
        }
        self.is_in_line = !is_whole;
        let line = if is_whole { text + "\n" } else { text };
        Line::Code(line.chars().flat_map(|c| self.highlighter.push(c)).collect())
    }

    /// The held line after the marks of the quotes around the block; `None` if one is missing.
    fn without_quotes(&self, is_whole: bool) -> Option<&str> {
        let mut rest = &*self.held;
        for _ in 0..self.quotes {
            rest = rest.trim_start_matches(' ').strip_prefix('>')?;
            rest = match rest.strip_prefix(' ') {
                Some(rest) => rest,
                None if rest.is_empty() && !is_whole => "",
                None => rest,
            };
        }
        Some(rest)
    }

    /// The rest of a block that has no end.
    pub(crate) fn finish(&mut self) -> Vec<Glyph> {
        let held = std::mem::take(&mut self.held);
        let is_end = !held.is_empty() && held.trim().chars().all(|c| c == self.character || c == '>');
        let shown = if is_end { String::new() } else { held };
        let mut glyphs: Vec<Glyph> = shown.chars().flat_map(|c| self.highlighter.push(c)).collect();
        glyphs.extend(self.highlighter.finish());
        glyphs
    }
}
