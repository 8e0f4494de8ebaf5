//! `lanner chat`: a conversation in the terminal, or one turn per line of a pipe.

mod branch;
mod complete;
mod input;
mod loaded;
mod parameters;
mod saved;
mod session;
mod slash;
mod stats;
mod tools;

use std::path::PathBuf;

use engine::RequestError;

use self::{
    complete::ChatCompleter,
    input::{Entered, Input},
    loaded::Loaded,
    saved::{Continued, Saved},
    session::Session,
    slash::Slash,
    tools::ChatTools,
};
use super::{CommandError, history};
use crate::{
    attach::dropped_image,
    config::{ChatConfig, ModelConfig},
    memory,
    terminal::{say, table},
};

/// # Errors
/// The model does not load, or its engine stops; in a pipe, also a turn that fails.
pub fn chat(model: &ModelConfig, config: ChatConfig) -> Result<(), CommandError> {
    super::say_memory_mode(model);
    let _monitor = memory::watch(model.memory_mode, &model.options);
    let (saved, continued) = Saved::open(&config)?;
    let completion = ChatCompleter::new(model.hub.clone(), saved.store().cloned());
    let mut input = Input::open(config.lines.clone(), completion)?;
    let tools = ChatTools::new(config.mcp.clone(), input.is_terminal())?;
    let model = Loaded::open(model)?;
    if input.is_terminal() {
        say(format_args!("{}: type a message, /help for commands, Ctrl-D to leave", model.name));
    }
    continued.iter().for_each(say_continued);
    let mut session = Session::new(model, config, (saved, continued), tools, input.is_terminal())?;
    converse(&mut session, &mut input)
}

fn converse(session: &mut Session, input: &mut Input) -> Result<(), CommandError> {
    while let Some(Entered { text, is_quoted }) = input.next()? {
        let dropped = dropped_image(&text).map(|path| Slash::Image(path.display().to_string()));
        let result = match dropped.or_else(|| Slash::parse(&text)).filter(|_| !is_quoted) {
            Some(Slash::Quit) => break,
            Some(Slash::Edit(None)) => edit(session, input),
            Some(command) => run(session, command),
            None => session.turn(&text),
        };
        match result {
            Err(error) if !input.is_terminal() => return Err(error),
            Err(error @ CommandError::Request(RequestError::EngineStopped)) => return Err(error),
            Err(error @ CommandError::Request(RequestError::PromptTooLong { .. })) => {
                say(format_args!("{error}\nhint: /clear forgets the conversation so far"));
            }
            Err(error) => say(error),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn say_continued(Continued { title, branch, .. }: &Continued) {
    say(format_args!("(continuing \"{title}\" after {} messages)", branch.len()));
}

/// Changes the last message in the line editor.
fn edit(session: &mut Session, input: &mut Input) -> Result<(), CommandError> {
    let Some(question) = session.branch.question().map(str::to_owned) else {
        say("(there is no message to change)");
        return Ok(());
    };
    if !input.is_terminal() {
        return Err(CommandError::Chat("/edit takes the new text where stdin is no terminal".into()));
    }
    let text = input.edit(&question)?.unwrap_or_default();
    session.edit(&text)
}

fn run(session: &mut Session, command: Slash) -> Result<(), CommandError> {
    match command {
        Slash::Help => say(slash::help()),
        Slash::Model(None) => say(about(session)),
        Slash::Model(Some(name)) => {
            session.model.switch(&name)?;
            say(format_args!("({} answers from now on; the conversation stays)", session.model.name));
        }
        Slash::Load(start) => {
            let continued = session.saved.load(&start)?;
            say_continued(&continued);
            (session.system, session.branch) = (continued.system, continued.branch);
        }
        Slash::History(words) => say(list(&session.saved, &words)?),
        Slash::Regenerate => session.regenerate()?,
        Slash::Edit(text) => session.edit(&text.unwrap_or_default())?,
        Slash::Stats => say(session.stats.show()),
        Slash::System(text) => {
            say(if text.is_empty() { "(no system message)" } else { "(the system message is set)" });
            session.system = (!text.is_empty()).then_some(text);
        }
        Slash::Think(think) => session.think = Some(think),
        Slash::Parameters => {
            say(parameters::show(&session.sampling, &session.model.engine.info().default_sampling));
        }
        Slash::Set { name, value } => match parameters::set(&mut session.sampling, name, value.as_deref()) {
            Ok(()) => say(format_args!("({name}: {})", value.as_deref().unwrap_or("the model's own"))),
            Err(error) => return Err(CommandError::Chat(error.to_string())),
        },
        Slash::Image(path) => session.attach(&expanded(&path))?,
        Slash::Clear => {
            session.branch = branch::Branch::default();
            session.attached.clear();
            session.saved.restart();
        }
        Slash::Save(Some(path)) => save_file(session, expanded(&path))?,
        Slash::Save(None) => say(session.saved.place()),
        Slash::Invalid(message) => return Err(CommandError::Chat(message)),
        Slash::Quit => {}
    }
    Ok(())
}

/// Writes the conversation into a file, over none but one of this chat's own.
fn save_file(session: &mut Session, path: PathBuf) -> Result<(), CommandError> {
    if path.exists() && !session.saved.files.contains(&path) {
        let message = format!("{} is there already; name another file", path.display());
        return Err(CommandError::Chat(message));
    }
    session.write(&path)?;
    say(format_args!("(written to {})", path.display()));
    session.saved.files.push(path);
    Ok(())
}

/// A path as a shell reads it: `~/` is the home folder.
fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    }
}

/// The model that answers.
fn about(session: &Session) -> String {
    let (model, info) = (&session.model, session.model.engine.info());
    let alias = model.alias.as_ref().map_or(String::new(), |alias| format!(" ({alias})"));
    format!(
        "{}{alias}: {}, context of {} tokens; /model NAME goes on with another one, lanner models lists them",
        model.name, info.model_type, info.context_length
    )
}

/// Saved conversations as a table.
fn list(saved: &Saved, words: &str) -> Result<String, CommandError> {
    let found = saved.list(words)?;
    if found.is_empty() {
        return Ok("(no saved conversation has all these words)".into());
    }
    let text = table(&found.iter().map(history::row).collect::<Vec<_>>());
    Ok(text + "(/load with the start of an id or title goes on with one)")
}
