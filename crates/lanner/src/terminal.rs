//! Output on a terminal: answers on stdout, reasoning dimmed on stderr, and tables.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    sync::OnceLock,
    time::{Duration, Instant},
};

use chat::Delta;
use markdown::Renderer;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Columns of a terminal that does not tell.
const COLUMNS: usize = 80;

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
    /// Renders content.
    markdown: Option<Renderer>,
    has_content: bool,
}

impl Printer {
    pub fn new(color: bool) -> Printer {
        Printer {
            dim: color && io::stderr().is_terminal(),
            hide_controls: io::stdout().is_terminal(),
            reasoning: false,
            markdown: None,
            has_content: false,
        }
    }

    /// Renders Markdown, if it is wanted and stdout is a terminal.
    pub fn with_markdown(self, is_wanted: bool) -> Printer {
        let is_on = is_wanted && io::stdout().is_terminal();
        Printer { markdown: is_on.then(|| Renderer::new(columns())), ..self }
    }

    pub fn print(&mut self, delta: &Delta) -> io::Result<()> {
        match delta {
            Delta::Content(text) => {
                self.end_reasoning()?;
                self.has_content = true;
                let shown = match &mut self.markdown {
                    None => self.visible(text),
                    Some(renderer) => {
                        // The window may have another size now.
                        renderer.set_width(columns());
                        renderer.push(text)
                    }
                };
                let mut stdout = io::stdout().lock();
                stdout.write_all(shown.as_bytes())?;
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
        match &mut self.markdown {
            Some(renderer) if self.has_content => write!(io::stdout(), "{}", renderer.finish()),
            _ => writeln!(io::stdout()),
        }
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

/// Columns of the terminal of stdout.
fn columns() -> usize {
    tcgetwinsize(io::stdout()).map_or(COLUMNS, |size| match size.ws_col {
        0 => COLUMNS,
        columns => columns.into(),
    })
}

/// While it lives, the terminal does not show what is typed; it is read later.
pub(crate) struct NoEcho(Option<Termios>);

impl NoEcho {
    pub(crate) fn begin() -> NoEcho {
        let Ok(former) = tcgetattr(io::stdin()) else { return NoEcho(None) };
        let mut quiet = former.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        // Nor does Ctrl-C forget it.
        quiet.local_modes.insert(LocalModes::NOFLSH);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &quiet);
        NoEcho(Some(former))
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        if let Some(former) = &self.0 {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, former);
        }
    }
}

/// Text as one line without control characters.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
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
