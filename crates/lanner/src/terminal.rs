//! Output on a terminal: answers on stdout, reasoning dimmed on stderr, and tables.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    sync::OnceLock,
    time::{Duration, Instant},
};

use chat::Delta;

/// How messages become lines: as they are, if nothing else was set at the start.
static LINE: OnceLock<fn(&str) -> String> = OnceLock::new();

/// Prints a line on stderr; unlike `eprintln!` it does not panic if stderr is closed.
pub fn say(message: impl Display) {
    let message = message.to_string();
    let line = LINE.get().map_or(message.clone(), |line| line(&message));
    let _ = writeln!(io::stderr(), "{line}");
}

/// Sets the form of all messages, once.
pub(crate) fn say_in(line: fn(&str) -> String) {
    let _ = LINE.set(line);
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

/// Prompts that are computed in less time show no progress.
const NOTICEABLE: Duration = Duration::from_secs(1);

/// The progress of a long prompt: one line on a terminal's stderr, rewritten until the answer
/// begins.
pub struct PromptProgress<W = io::Stderr> {
    /// `None`: it is no terminal.
    terminal: Option<W>,
    total: usize,
    started: Instant,
    noticeable: Duration,
    is_shown: bool,
}

impl PromptProgress {
    /// Of a prompt of `total` tokens.
    pub fn new(total: usize) -> PromptProgress {
        let terminal = io::stderr().is_terminal().then(io::stderr);
        PromptProgress::over(terminal, total, NOTICEABLE)
    }
}

impl<W: Write> PromptProgress<W> {
    fn over(terminal: Option<W>, total: usize, noticeable: Duration) -> PromptProgress<W> {
        PromptProgress { terminal, total, started: Instant::now(), noticeable, is_shown: false }
    }

    /// Shows that `processed` tokens are computed or reused.
    pub fn update(&mut self, processed: usize) {
        let is_due = self.started.elapsed() >= self.noticeable;
        if let Some(terminal) = self.terminal.as_mut().filter(|_| is_due) {
            self.is_shown = true;
            let (total, percent) = (self.total, 100 * processed / self.total.max(1));
            // Progress that cannot be shown is no reason to stop.
            let _ = write!(terminal, "\r\x1b[Kreading the prompt: {processed} of {total} tokens, {percent}%");
            let _ = terminal.flush();
        }
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if let Some(terminal) = self.terminal.as_mut().filter(|_| self.is_shown) {
            self.is_shown = false;
            let _ = write!(terminal, "\r\x1b[K");
            let _ = terminal.flush();
        }
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
    fn prompt_progress_is_one_line_that_is_removed() {
        let mut written = vec![];
        let mut progress = PromptProgress::over(Some(&mut written), 2048, Duration::ZERO);
        progress.update(512);
        progress.update(2048);
        progress.clear();
        progress.clear();
        let text = String::from_utf8(written).unwrap();
        let shown: Vec<&str> = text.split("\r\x1b[K").collect();
        let expected = [
            "",
            "reading the prompt: 512 of 2048 tokens, 25%",
            "reading the prompt: 2048 of 2048 tokens, 100%",
            "",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn prompt_progress_of_a_short_prompt_shows_nothing() {
        let mut written = vec![];
        let mut progress = PromptProgress::over(Some(&mut written), 8, Duration::from_secs(3600));
        progress.update(8);
        progress.clear();
        assert_eq!(written, b"");
    }

    #[test]
    fn table_columns_line_up() {
        let rows = [["a".to_owned(), "bb".to_owned()], ["ccc".to_owned(), "d".to_owned()]];
        assert_eq!(table(&rows), "a    bb\nccc  d\n");
    }
}
