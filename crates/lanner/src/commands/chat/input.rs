//! Input of the chat: a line editor with history, or the lines of a pipe.

use std::{
    io::{self, BufRead, IsTerminal},
    path::PathBuf,
};

use rustyline::{Behavior, Config, DefaultEditor, error::ReadlineError};

use super::CommandError;

/// Most lines of the history file.
const HISTORY_LINES: usize = 1000;

pub(super) enum Input {
    Terminal { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Pipe,
}

impl Input {
    pub(super) fn open(history: Option<PathBuf>) -> Result<Input, CommandError> {
        if !io::stdin().is_terminal() {
            return Ok(Input::Pipe);
        }
        // Echoes on the terminal, so that stdout has answers only.
        let config = Config::builder().behavior(Behavior::PreferTerm).max_history_size(HISTORY_LINES)?;
        let mut editor = Box::new(DefaultEditor::with_config(config.build())?);
        if let Some(path) = &history {
            // Fails if there is none yet.
            let _ = editor.load_history(path);
        }
        Ok(Input::Terminal { editor, history })
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// The next turn that is not blank, its continued lines joined; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<String>, CommandError> {
        let mut turn = String::new();
        loop {
            let Some(line) = self.line(turn.is_empty())? else {
                return Ok((!turn.trim().is_empty()).then_some(turn));
            };
            match line.strip_suffix('\\') {
                Some(start) => turn = turn + start + "\n",
                None if (turn.clone() + &line).trim().is_empty() => turn.clear(),
                None => {
                    turn += &line;
                    self.remember(&turn);
                    return Ok(Some(turn));
                }
            }
        }
    }

    fn line(&mut self, first: bool) -> Result<Option<String>, CommandError> {
        match self {
            Input::Pipe => {
                let mut line = String::new();
                let read = io::stdin().lock().read_line(&mut line)?;
                Ok((read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned()))
            }
            Input::Terminal { editor, .. } => match editor.readline(if first { "> " } else { ". " }) {
                Ok(line) => Ok(Some(line)),
                Err(ReadlineError::Eof) => Ok(None),
                Err(ReadlineError::Interrupted) => Ok(Some(String::new())),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Appends to the history at once: the program may be killed. Failures are logged only.
    fn remember(&mut self, turn: &str) {
        let Input::Terminal { editor, history: Some(path) } = self else { return };
        let _ = editor.add_history_entry(turn);
        let _ = path.parent().map(std::fs::create_dir_all);
        if let Err(error) = editor.append_history(path) {
            tracing::debug!("cannot write {}: {error}", path.display());
        }
    }
}
