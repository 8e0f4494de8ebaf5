//! Markdown on a terminal, rendered while it streams. Written text is never taken back: text is
//! held until its look is certain, a table until its last row. Knows nothing of models or files.
//!
//! ```
//! let mut renderer = lanner_markdown::Renderer::new(80);
//! let mut shown = renderer.push("- one **big");
//! assert_eq!(shown, "• one");
//! shown += &renderer.push("** owl\n");
//! shown += &renderer.finish();
//! assert_eq!(shown, "• one \x1b[1mbig\x1b[0m owl\n");
//! ```

mod block;
mod code;
mod fenced;
mod inline;
mod style;
mod table;
#[cfg(test)]
mod tests;
mod wrap;

use self::{
    block::{Container, Leaf, LineStart, line_start},
    fenced::Fenced,
    inline::Inline,
    style::{Color, Style},
    table::Table,
    wrap::{Glyph, Prefix, Wrap, text_columns},
};

/// Columns of a rule, and of the lines around code.
const RULE: usize = 60;
/// Bytes of a line's start that are held; a longer one is text.
const LONGEST_START: usize = 4096;
/// Goes to the start of the line and removes it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Renders one text.
pub struct Renderer {
    wrap: Wrap,
    mode: Mode,
    containers: Vec<Container>,
    /// The start of a line whose kind is not certain.
    line: String,
    inline: Inline,
    /// Whether the text before may continue in the next line.
    in_paragraph: bool,
    /// Whether a blank line stands before the next block.
    is_blank: bool,
    has_begun: bool,
    rows: Rows,
    /// A line on a table that is not shown yet.
    notice: Option<String>,
}

enum Mode {
    /// The kind of the line is not certain.
    LineStart,
    Text,
    Heading,
    Code(Box<Fenced>),
}

/// Lines that begin with a bar.
enum Rows {
    None,
    /// The next line decides whether it is a table's.
    Head(String),
    Table(Table),
}

impl Renderer {
    /// For a terminal of this width in columns.
    pub fn new(width: usize) -> Renderer {
        Renderer {
            wrap: Wrap::new(width),
            mode: Mode::LineStart,
            containers: vec![],
            line: String::new(),
            inline: Inline::default(),
            in_paragraph: false,
            is_blank: false,
            has_begun: false,
            rows: Rows::None,
            notice: None,
        }
    }

    /// Sets the terminal's width for what is written from now on.
    pub fn set_width(&mut self, width: usize) {
        self.wrap.set_width(width);
    }

    /// Adds text; returns what to write now. Control characters become U+FFFD.
    pub fn push(&mut self, text: &str) -> String {
        text.chars().for_each(|c| self.push_char(visible(c)));
        self.take()
    }

    /// Ends the text; returns the rest. It ends with a line break, unless the text was empty.
    pub fn finish(&mut self) -> String {
        if !self.line.is_empty() {
            self.start(true);
        }
        if let Mode::Code(_) = self.mode {
            self.end_code(true);
        }
        self.end_rows();
        self.end_paragraph();
        self.take()
    }

    fn take(&mut self) -> String {
        let written = self.wrap.take();
        let notice = match &self.rows {
            Rows::Table(table) => {
                let (rows, s) = (table.rows(), if table.rows() == 1 { "" } else { "s" });
                Some(format!("table: {rows} row{s}"))
            }
            _ => None,
        };
        let mut shown = String::new();
        if self.notice.is_some() && (notice != self.notice || !written.is_empty()) {
            shown += CLEAR_LINE;
            self.notice = None;
        }
        shown += &written;
        if notice.is_some() && self.notice.is_none() {
            let text = notice.as_deref().unwrap_or_default();
            shown += &format!("{}{text}{}", Style::DIM.sequence(), style::RESET);
            self.notice = notice;
        }
        shown
    }

    fn push_char(&mut self, c: char) {
        match &mut self.mode {
            Mode::LineStart => {
                if c != '\n' {
                    self.line.push(c);
                }
                self.start(c == '\n');
            }
            Mode::Text if c == '\n' => {
                if self.inline.is_empty() {
                    self.wrap.end_word();
                }
                self.mode = Mode::LineStart;
            }
            Mode::Heading if c == '\n' => self.end_paragraph(),
            Mode::Text | Mode::Heading => self.text(c),
            Mode::Code(fenced) => {
                let line = fenced.push(c);
                self.put_code(line);
            }
        }
    }

    fn text(&mut self, c: char) {
        let glyphs = self.inline.push(c);
        self.put(glyphs);
    }

    fn put(&mut self, glyphs: Vec<Glyph>) {
        glyphs.into_iter().for_each(|(c, style)| self.wrap.put(c, style));
    }

    fn start(&mut self, is_whole: bool) {
        let found = match self.line.len() > LONGEST_START && !is_whole {
            true => {
                let (matched, leaf) = (self.containers.len(), Leaf::Text);
                Some(LineStart { matched, opened: vec![], leaf, text: 0 })
            }
            false => line_start(&self.line, is_whole, &self.containers, self.in_paragraph),
        };
        if let Some(start) = found {
            let line = std::mem::take(&mut self.line);
            self.begin(start, &line);
            if is_whole && matches!(self.mode, Mode::Text) {
                self.mode = Mode::LineStart;
            }
            if is_whole && matches!(self.mode, Mode::Heading) {
                self.end_paragraph();
            }
        }
    }

    /// Begins a line, or goes on with the block of the one before.
    fn begin(&mut self, start: LineStart, line: &str) {
        let text = &line[start.text..];
        let is_inside = start.opened.is_empty() && start.matched == self.containers.len();
        if start.leaf == Leaf::Row && is_inside && !matches!(self.rows, Rows::None) {
            return self.row(text);
        }
        self.end_rows();
        // A paragraph may go on without the marks of its containers.
        if self.in_paragraph && start.opened.is_empty() && start.leaf == Leaf::Text {
            self.text('\n');
            text.chars().for_each(|c| self.text(c));
            self.mode = Mode::Text;
            return;
        }
        self.end_paragraph();
        match start.leaf {
            Leaf::Underline => {}
            Leaf::Blank if start.opened.is_empty() => {
                self.is_blank = self.has_begun;
                if self.containers.get(start.matched) == Some(&Container::Quote) {
                    self.containers.truncate(start.matched);
                }
            }
            _ => self.begin_block(start, text),
        }
    }

    fn begin_block(&mut self, start: LineStart, text: &str) {
        let is_heading = matches!(start.leaf, Leaf::Heading { .. });
        self.containers.truncate(start.matched);
        if self.has_begun && (self.is_blank || is_heading) {
            let (_, rest) = prefixes(&self.containers, start.matched);
            self.wrap.set_prefixes(rest.clone(), rest);
            self.wrap.end_line();
        }
        (self.is_blank, self.has_begun) = (false, true);
        self.containers.extend(start.opened);
        let (first, rest) = prefixes(&self.containers, start.matched);
        self.wrap.set_prefixes(first, rest);
        match start.leaf {
            Leaf::Text | Leaf::Blank | Leaf::Underline => {
                self.begin_text(Style::PLAIN, text);
                (self.in_paragraph, self.mode) = (true, Mode::Text);
            }
            Leaf::Heading { level } => {
                self.begin_text(heading(level), text);
                self.mode = Mode::Heading;
            }
            Leaf::Rule => {
                self.put_rule("");
            }
            Leaf::Row => self.rows = Rows::Head(text.to_owned()),
            Leaf::Fence { character, length, label, indent } => {
                self.put_rule(&label);
                let fenced = Fenced::new(&self.containers, character, length, &label, indent);
                self.mode = Mode::Code(Box::new(fenced));
            }
        }
    }

    fn begin_text(&mut self, style: Style, text: &str) {
        self.inline = Inline::new(style);
        text.chars().for_each(|c| self.text(c));
    }

    /// A line across, with a label.
    fn put_rule(&mut self, label: &str) {
        let width = self.wrap.room().min(RULE);
        let label: String = label.chars().take(width / 2).collect();
        let start = if label.is_empty() { String::new() } else { format!("── {label} ") };
        let rest = width.saturating_sub(text_columns(&start));
        self.wrap.put_text(&format!("{start}{}", "─".repeat(rest)), Style::DIM);
        self.wrap.end_line();
    }

    fn row(&mut self, text: &str) {
        self.rows = match std::mem::replace(&mut self.rows, Rows::None) {
            Rows::None => Rows::Head(text.to_owned()),
            Rows::Head(head) => match Table::new(&head, text) {
                Some(table) => Rows::Table(table),
                None => {
                    self.rows = Rows::Head(head);
                    self.end_rows();
                    self.end_paragraph();
                    Rows::Head(text.to_owned())
                }
            },
            Rows::Table(mut table) => {
                table.push(text);
                Rows::Table(table)
            }
        };
        self.mode = Mode::LineStart;
    }

    /// Shows a table. A line that only looked like one is a paragraph that may continue.
    fn end_rows(&mut self) {
        match std::mem::replace(&mut self.rows, Rows::None) {
            Rows::None => {}
            Rows::Head(head) => {
                self.begin_text(Style::PLAIN, &head);
                self.in_paragraph = true;
            }
            Rows::Table(table) => {
                for line in table.render(self.wrap.room()) {
                    line.into_iter().for_each(|(c, style)| self.wrap.put_unwrapped(c, style));
                    self.wrap.end_line();
                }
            }
        }
    }

    /// Ends a paragraph or a heading.
    fn end_paragraph(&mut self) {
        if self.in_paragraph || matches!(self.mode, Mode::Heading) {
            let rest = self.inline.finish();
            self.put(rest);
            self.wrap.end_line();
        }
        (self.in_paragraph, self.mode) = (false, Mode::LineStart);
    }

    fn put_code(&mut self, line: fenced::Line) {
        match line {
            fenced::Line::Code(glyphs) => {
                glyphs.into_iter().for_each(|(c, style)| self.wrap.put_unwrapped(c, style));
            }
            fenced::Line::Closed => self.end_code(false),
            // The quote that it was in has ended.
            fenced::Line::Left { line, is_whole } => {
                self.end_code(false);
                self.line = line;
                self.start(is_whole);
            }
        }
    }

    fn end_code(&mut self, is_cut: bool) {
        let Mode::Code(mut fenced) = std::mem::replace(&mut self.mode, Mode::LineStart) else { return };
        if is_cut {
            let rest = fenced.finish();
            rest.into_iter().for_each(|(c, style)| self.wrap.put_unwrapped(c, style));
        }
        if !self.wrap.is_at_line_start() {
            self.wrap.end_line();
        }
        self.put_rule("");
    }
}

/// Prefixes of a block's first line and of its others. The first `continued`
/// containers were there before.
fn prefixes(containers: &[Container], continued: usize) -> (Prefix, Prefix) {
    let (mut first, mut rest) = (Prefix::default(), Prefix::default());
    for (i, container) in containers.iter().enumerate() {
        match container {
            Container::Quote => {
                first.push("│ ", Style::DIM);
                rest.push("│ ", Style::DIM);
            }
            Container::Item { marker, .. } => {
                let indent = " ".repeat(text_columns(marker));
                first.push(if i < continued { &indent } else { marker }, Style::PLAIN);
                rest.push(&indent, Style::PLAIN);
            }
        }
    }
    (first, rest)
}

fn heading(level: usize) -> Style {
    match level {
        1 => Style::PLAIN.bold().underline(),
        2 => Style::PLAIN.bold(),
        _ => Style::PLAIN.bold().colored(Color::Cyan),
    }
}

/// A character that cannot steer the terminal.
fn visible(c: char) -> char {
    if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c }
}
