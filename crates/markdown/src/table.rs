//! Tables: columns as wide as their widest cell, narrower with wrapped cells where the terminal is.

use crate::{
    inline,
    style::Style,
    wrap::{Glyph, columns, lines},
};

/// Columns of a table's column at least; a table with too many columns becomes a list.
const NARROWEST: usize = 6;
/// Between two columns.
const GAP: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Center,
    Right,
}

/// A table whose rows arrive one by one.
#[derive(Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// `None` if the second line is not the one below a table's head.
    pub(crate) fn new(head: &str, delimiters: &str) -> Option<Table> {
        let (head, delimiters) = (cells(head), cells(delimiters));
        let align: Vec<Align> = delimiters.iter().map(|cell| alignment(cell)).collect::<Option<_>>()?;
        (head.len() == align.len()).then_some(Table { align, head, rows: vec![] })
    }

    pub(crate) fn push(&mut self, row: &str) {
        let mut cells = cells(row);
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Its lines in at most `width` columns.
    pub(crate) fn render(&self, width: usize) -> Vec<Vec<Glyph>> {
        let style = |cells: &[String], style| cells.iter().map(|cell| inline::glyphs(cell, style)).collect();
        let head: Vec<Vec<Glyph>> = style(&self.head, Style::PLAIN.bold());
        let rows: Vec<Vec<Vec<Glyph>>> = self.rows.iter().map(|row| style(row, Style::PLAIN)).collect();
        let all = || std::iter::once(&head).chain(&rows);
        let natural: Vec<usize> =
            (0..head.len()).map(|i| all().map(|row| length(&row[i])).max().unwrap_or(0).max(1)).collect();
        let gaps = GAP * (head.len() - 1);
        if gaps + natural.iter().map(|width| (*width).min(NARROWEST)).sum::<usize>() > width {
            return list(&head, &rows, width);
        }
        let widths = fit(natural, width - gaps);
        let is_wrapped = all().any(|row| row.iter().zip(&widths).any(|(cell, width)| length(cell) > *width));
        let rule = rule(&widths);
        let mut found = self.row(&head, &widths);
        for (i, row) in rows.iter().enumerate() {
            if i == 0 || is_wrapped {
                found.push(rule.clone());
            }
            found.extend(self.row(row, &widths));
        }
        if rows.is_empty() {
            found.push(rule);
        }
        found
    }

    fn row(&self, cells: &[Vec<Glyph>], widths: &[usize]) -> Vec<Vec<Glyph>> {
        let wrapped: Vec<Vec<Vec<Glyph>>> =
            cells.iter().zip(widths).map(|(cell, width)| lines(cell, *width)).collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        let line = |y: usize| {
            let mut line: Vec<Glyph> = vec![];
            for (i, cell) in wrapped.iter().enumerate() {
                if i > 0 {
                    line.extend([(' ', Style::PLAIN), ('│', Style::DIM), (' ', Style::PLAIN)]);
                }
                let cell = cell.get(y).map_or(&[][..], Vec::as_slice);
                line.extend(aligned(cell, widths[i], self.align[i]));
            }
            while line.last() == Some(&(' ', Style::PLAIN)) {
                line.pop();
            }
            line
        };
        (0..height).map(line).collect()
    }
}

fn length(glyphs: &[Glyph]) -> usize {
    glyphs.iter().map(|(c, _)| columns(*c)).sum()
}

fn aligned(cell: &[Glyph], width: usize, align: Align) -> Vec<Glyph> {
    let space = width.saturating_sub(length(cell));
    let before = match align {
        Align::Left => 0,
        Align::Center => space / 2,
        Align::Right => space,
    };
    let spaces = |count| std::iter::repeat_n((' ', Style::PLAIN), count);
    spaces(before).chain(cell.iter().copied()).chain(spaces(space - before)).collect()
}

fn rule(widths: &[usize]) -> Vec<Glyph> {
    let parts: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
    parts.join("─┼─").chars().map(|c| (c, Style::DIM)).collect()
}

/// Takes from the widest columns until the sum fits.
fn fit(mut widths: Vec<usize>, room: usize) -> Vec<usize> {
    while widths.iter().sum::<usize>() > room {
        let Some(widest) = widths.iter_mut().max() else { break };
        *widest -= 1;
    }
    widths
}

/// One paragraph for each row, where columns would be too narrow.
fn list(head: &[Vec<Glyph>], rows: &[Vec<Vec<Glyph>>], width: usize) -> Vec<Vec<Glyph>> {
    let mut found = vec![];
    for (i, row) in rows.iter().enumerate() {
        if i > 0 {
            found.push(vec![]);
        }
        for (name, cell) in head.iter().zip(row) {
            let colon = [(':', Style::PLAIN.bold()), (' ', Style::PLAIN)];
            let line: Vec<Glyph> = name.iter().copied().chain(colon).chain(cell.iter().copied()).collect();
            found.extend(lines(&line, width));
        }
    }
    found
}

/// Splits a row at bars that are neither escaped nor in code.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim();
    let inner = row.strip_prefix('|').unwrap_or(row);
    let (mut found, mut in_code, mut is_escaped) = (vec![String::new()], false, false);
    for c in inner.chars() {
        let was_escaped = std::mem::take(&mut is_escaped);
        match (c, found.last_mut()) {
            ('|', Some(cell)) if was_escaped => {
                cell.pop();
                cell.push('|');
            }
            ('|', _) if !in_code => found.push(String::new()),
            (c, Some(cell)) => {
                in_code ^= c == '`';
                is_escaped = c == '\\' && !was_escaped;
                cell.push(c);
            }
            (_, None) => {}
        }
    }
    if found.len() > 1 && found.last().is_some_and(|cell| cell.trim().is_empty()) {
        found.pop();
    }
    found.iter().map(|cell| cell.trim().to_owned()).collect()
}

/// `None` if the cell is not of the line below a table's head.
fn alignment(cell: &str) -> Option<Align> {
    let inner = cell.strip_prefix(':').unwrap_or(cell);
    let dashes = inner.strip_suffix(':').unwrap_or(inner);
    let is_delimiter = !dashes.is_empty() && dashes.bytes().all(|byte| byte == b'-');
    is_delimiter.then_some(match (cell.starts_with(':'), cell.ends_with(':')) {
        (true, true) => Align::Center,
        (_, true) => Align::Right,
        _ => Align::Left,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(width: usize, source: &str, expected: &[&str]) {
        let mut rows = source.lines();
        let mut table = Table::new(rows.next().unwrap(), rows.next().unwrap()).unwrap();
        rows.for_each(|row| table.push(row));
        let lines = table.render(width);
        let text: Vec<String> = lines.iter().map(|line| line.iter().map(|(c, _)| c).collect()).collect();
        assert_eq!(text, expected);
        assert!(lines.iter().all(|line| length(line) <= width));
    }

    #[test]
    fn columns_are_aligned() {
        check(
            80,
            "| name | n |\n|---|--:|\n| 鳥 | 1 |\n| **owl** | 12 |\n| `a|b` \\| |",
            &["name  │  n", "──────┼───", "鳥    │  1", "owl   │ 12", "a|b | │"],
        );
        check(80, "| a | b |\n| :-: | - |\n| xyz | |", &[" a  │ b", "────┼──", "xyz │"]);
    }

    #[test]
    fn wide_table_wraps_its_cells() {
        check(
            21,
            "| key | text |\n|-|-|\n| a | one two three four |\n| b | x |",
            &[
                "key │ text",
                "────┼────────────────",
                "a   │ one two three",
                "    │ four",
                "────┼────────────────",
                "b   │ x",
            ],
        );
    }

    #[test]
    fn table_with_too_many_columns_becomes_a_list() {
        let head = "| column a | column b | column c |\n|-|-|-|\n";
        check(
            20,
            &format!("{head}| 1 | 2 | 3 |\n| 4 | 5 | |"),
            &["column a: 1", "column b: 2", "column c: 3", "", "column a: 4", "column b: 5", "column c:"],
        );
    }

    #[test]
    fn other_lines_are_no_table() {
        for (head, delimiters) in [("| a | b |", "| - |"), ("| a |", "| b |"), ("| a |", "|   |")] {
            assert!(Table::new(head, delimiters).is_none(), "{delimiters}");
        }
    }
}
