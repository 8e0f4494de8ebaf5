//! Output on a terminal: answers on stdout, reasoning dimmed on stderr, and tables.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
};

use chat::Delta;

/// Prints a line on stderr; unlike `eprintln!` it does not panic if stderr is closed.
pub fn say(message: impl Display) {
    let _ = writeln!(io::stderr(), "{message}");
}

pub struct Printer {
    dim: bool,
    /// Hides control characters: a model must not move the cursor.
    hide_controls: bool,
    reasoning: bool,
}

impl Printer {
    pub fn new(color: bool) -> Printer {
        Printer {
            dim: color && io::stderr().is_terminal(),
            hide_controls: io::stdout().is_terminal(),
            reasoning: false,
        }
    }

    pub fn print(&mut self, delta: &Delta) -> io::Result<()> {
        match delta {
            Delta::Content(text) => {
                self.end_reasoning()?;
                let mut stdout = io::stdout().lock();
                stdout.write_all(self.visible(text).as_bytes())?;
                stdout.flush()
            }
            Delta::Reasoning(text) => {
                if self.dim && !self.reasoning {
                    io::stderr().write_all(b"\x1b[2m")?;
                }
                self.reasoning = true;
                io::stderr().write_all(self.visible(text).as_bytes())
            }
            Delta::ToolCall { .. } | Delta::ToolArguments { .. } => Ok(()),
        }
    }

    /// Ends the answer's last line.
    pub fn end(&mut self) -> io::Result<()> {
        self.end_reasoning()?;
        writeln!(io::stdout())
    }

    fn end_reasoning(&mut self) -> io::Result<()> {
        let end: &[u8] = match (std::mem::take(&mut self.reasoning), self.dim) {
            (false, _) => b"",
            (true, true) => b"\x1b[0m\n\n",
            (true, false) => b"\n\n",
        };
        io::stderr().write_all(end)
    }

    fn visible(&self, text: &str) -> String {
        let is_hidden = |c: char| self.hide_controls && c.is_control() && !matches!(c, '\n' | '\t');
        text.chars().map(|c| if is_hidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
    }
}

/// Columns as wide as their widest cell, two spaces apart.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_line_up() {
        let rows = [["a".to_owned(), "bb".to_owned()], ["ccc".to_owned(), "d".to_owned()]];
        assert_eq!(table(&rows), "a    bb\nccc  d\n");
    }
}
