//! Input of the chat: a line editor with history, or the lines of a pipe.

use std::{
    io::{self, BufRead, IsTerminal},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustyline::{
    Behavior, Cmd, CompletionType, ConditionalEventHandler, Config, Editor, Event, EventContext,
    EventHandler, KeyCode, KeyEvent, Modifiers, RepeatCount, error::ReadlineError, history::DefaultHistory,
};

use super::{CommandError, complete::ChatCompleter};
use crate::terminal::say;

/// Most lines of the history file.
const HISTORY_LINES: usize = 1000;
/// Keys that come sooner after the prompt were typed before it.
pub(super) const TYPED_AHEAD: Duration = Duration::from_millis(250);
/// Encloses a message of several lines.
const QUOTES: &str = "\"\"\"";

pub(super) enum Input {
    Terminal { editor: Box<ChatEditor>, history: Option<PathBuf>, prompted: Prompted },
    Pipe,
}

type ChatEditor = Editor<ChatCompleter, DefaultHistory>;

/// When the last prompt was shown.
#[derive(Clone)]
pub(super) struct Prompted(Arc<Mutex<Instant>>);

/// A message or a command.
pub(super) struct Entered {
    pub(super) text: String,
    /// Between quotes it is no command.
    pub(super) is_quoted: bool,
}

/// Input from the terminal.
enum Typed {
    Line(String),
    /// Ctrl-C.
    Cancelled,
    End,
}

impl Input {
    pub(super) fn open(history: Option<PathBuf>, completion: ChatCompleter) -> Result<Input, CommandError> {
        if !io::stdin().is_terminal() {
            return Ok(Input::Pipe);
        }
        // Echoes on the terminal, so that stdout has answers only.
        let config = Config::builder().behavior(Behavior::PreferTerm).max_history_size(HISTORY_LINES)?;
        let config = config.completion_type(CompletionType::List).build();
        let mut editor = Box::new(ChatEditor::with_config(config)?);
        editor.set_helper(Some(completion));
        let prompted = Prompted(Arc::new(Mutex::new(Instant::now())));
        let alt_enter = KeyEvent(KeyCode::Enter, Modifiers::ALT);
        editor.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        editor.bind_sequence(KeyEvent::ctrl('J'), EventHandler::Conditional(Box::new(prompted.clone())));
        if let Some(path) = &history {
            // Fails if there is none yet.
            let _ = editor.load_history(path);
        }
        Ok(Input::Terminal { editor, history, prompted })
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// The next turn that is not blank, its continued lines joined; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Entered>, CommandError> {
        let mut turn = String::new();
        loop {
            match self.line(if turn.is_empty() { "> " } else { ". " }, "")? {
                Typed::Line(line) => turn += &line,
                Typed::Cancelled => {
                    turn.clear();
                    continue;
                }
                Typed::End => return Ok(Some(entered(&turn)).filter(|turn| !turn.text.trim().is_empty())),
            }
            if is_in_quotes(&turn) {
                turn.push('\n');
            } else if !turn.starts_with(QUOTES) && turn.ends_with('\\') {
                turn.pop();
                turn.push('\n');
            } else if entered(&turn).text.trim().is_empty() {
                turn.clear();
            } else {
                self.remember(&turn);
                return Ok(Some(entered(&turn)));
            }
        }
    }

    /// Lets the user change a text; `None`: the user has cancelled that.
    pub(super) fn edit(&mut self, text: &str) -> Result<Option<String>, CommandError> {
        match self.line("edit> ", text)? {
            Typed::Line(line) => Ok(Some(line)),
            Typed::Cancelled | Typed::End => Ok(None),
        }
    }

    fn line(&mut self, prompt: &str, text: &str) -> Result<Typed, CommandError> {
        match self {
            Input::Pipe => {
                let mut line = String::new();
                let read = io::stdin().lock().read_line(&mut line)?;
                let line = line.trim_end_matches(['\r', '\n']).to_owned();
                Ok(if read > 0 { Typed::Line(line) } else { Typed::End })
            }
            Input::Terminal { editor, prompted, .. } => typed(editor, prompted, prompt, text),
        }
    }

    /// Appends to the history at once: the program may be killed. Failures are logged only.
    fn remember(&mut self, turn: &str) {
        let Input::Terminal { editor, history: Some(path), .. } = self else { return };
        let _ = editor.add_history_entry(turn);
        let _ = path.parent().map(std::fs::create_dir_all);
        if let Err(error) = editor.append_history(path) {
            tracing::debug!("cannot write {}: {error}", path.display());
        }
    }
}

/// A line of the terminal; one with bytes that are not UTF-8 is dropped.
fn typed(
    editor: &mut ChatEditor,
    prompted: &Prompted,
    prompt: &str,
    text: &str,
) -> Result<Typed, CommandError> {
    let mut was_dropped = false;
    loop {
        prompted.set_now();
        match editor.readline_with_initial(prompt, (text, "")) {
            // The rest of a pasted line, which is no message.
            Ok(_) if was_dropped && prompted.is_recent() => {}
            Ok(line) => return Ok(Typed::Line(line)),
            Err(ReadlineError::Eof) => return Ok(Typed::End),
            Err(ReadlineError::Interrupted) => return Ok(Typed::Cancelled),
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                if !std::mem::replace(&mut was_dropped, true) {
                    say("(this line is not UTF-8 and was dropped; paste text in UTF-8)");
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the quotes of a message are still open.
fn is_in_quotes(turn: &str) -> bool {
    turn.strip_prefix(QUOTES).is_some_and(|rest| !rest.trim_end().ends_with(QUOTES))
}

/// A turn without the quotes around it.
fn entered(turn: &str) -> Entered {
    let Some(inner) = turn.strip_prefix(QUOTES) else {
        return Entered { text: turn.to_owned(), is_quoted: false };
    };
    let inner = inner.trim_end();
    let inner = inner.strip_suffix(QUOTES).unwrap_or(inner);
    let text = inner.strip_prefix('\n').unwrap_or(inner).trim_end_matches('\n').to_owned();
    Entered { text, is_quoted: true }
}

impl Prompted {
    fn set_now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether keys that come now were typed, or pasted, before the prompt.
    fn is_recent(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < TYPED_AHEAD
    }
}

impl ConditionalEventHandler for Prompted {
    /// Ctrl+J begins a new line. Enter arrives as Ctrl+J too if it was typed while an answer was
    /// written, as the terminal was in another mode then.
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext) -> Option<Cmd> {
        (!self.is_recent()).then_some(Cmd::Newline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_enclose_a_message_of_several_lines() {
        for (turn, is_open, text) in [
            ("plain", false, "plain"),
            ("a \"\"\" b", false, "a \"\"\" b"),
            ("\"\"\"", true, ""),
            ("\"\"\"a", true, "a"),
            ("\"\"\"\na\n\nb\n\"\"\"", false, "a\n\nb"),
            ("\"\"\"a\nb\"\"\" ", false, "a\nb"),
            ("\"\"\"\"\"\"", false, ""),
            ("\"\"\"\n/quit\n\\\n\"\"\"", false, "/quit\n\\"),
        ] {
            assert_eq!((is_in_quotes(turn), &*entered(turn).text), (is_open, text), "{turn:?}");
        }
    }
}
