//! Settings of `lanner run` and `lanner chat`.

use std::{
    env,
    fs::File,
    os::{fd::AsFd, unix::fs::FileTypeExt},
    path::PathBuf,
};

use super::{error::ConfigError, mcp::McpConfig, store::StoreConfig};
use crate::{
    cli::{ConversationArgs, ModelArgs, RunArgs},
    hub::HubConfig,
    sampling::{Overrides, SamplingArgs},
    source::is_model,
};

pub struct ChatConfig {
    pub sampling: Overrides,
    pub conversation: ConversationConfig,
    pub color: bool,
    /// Whether answers are rendered if stdout is a terminal.
    pub markdown: bool,
    /// File of typed lines; `None`: they are forgotten with the program.
    pub lines: Option<PathBuf>,
    /// Where the conversation is saved; `None`: nowhere.
    pub store: Option<StoreConfig>,
    /// The conversation to continue, or within it none: the latest one.
    pub continued: Option<Option<String>>,
    /// `None`: no tools.
    pub mcp: Option<McpConfig>,
}

pub struct RunConfig {
    pub prompt: RunPrompt,
    pub sampling: Overrides,
    pub ignore_eos: bool,
    pub stop: Vec<String>,
    pub json: bool,
    pub dump_logits: Option<PathBuf>,
    pub color: bool,
}

pub enum RunPrompt {
    /// A user message for the chat template.
    Turn {
        text: PromptText,
        images: Vec<PathBuf>,
        conversation: ConversationConfig,
    },
    /// Text to continue.
    Raw(PromptText),
    Ids(Vec<u32>),
}

/// A prompt on the command line, on standard input, or both.
pub struct PromptText {
    pub given: Option<String>,
    /// Comes before what is given.
    pub reads_stdin: bool,
}

pub struct ConversationConfig {
    pub system: Option<String>,
    /// `None` leaves it to the template.
    pub think: Option<bool>,
}

/// Whether a terminal shows styles: `dumb` ones, such as those of editors, show their sequences.
pub(super) fn has_styles() -> bool {
    env::var_os("TERM").is_none_or(|name| name != "dumb")
}

impl RunConfig {
    /// # Errors
    /// There is no prompt, or a parameter is not valid.
    pub fn new(
        mut args: RunArgs,
        file: SamplingArgs,
        color: bool,
        hub: &HubConfig,
    ) -> Result<(ModelArgs, RunConfig), ConfigError> {
        let prompt =
            take_model(&mut args, env::var("LANNER_MODEL").ok().as_deref(), |name| is_model(name, hub));
        let prompt = match args.ids {
            Some(ids) => RunPrompt::Ids(token_ids(&ids)?),
            None if args.raw => RunPrompt::Raw(PromptText::new(prompt)?),
            None => RunPrompt::Turn {
                text: PromptText::new(prompt)?,
                images: args.image,
                conversation: ConversationConfig::new(args.conversation),
            },
        };
        let run = RunConfig {
            prompt,
            sampling: args.sampling.overrides(file).map_err(ConfigError::Sampling)?,
            ignore_eos: args.ignore_eos,
            stop: args.stop,
            json: args.json,
            dump_logits: args.dump_logits,
            color,
        };
        Ok((args.model, run))
    }
}

/// Moves the model from the words of the command line into `args.model`, and returns the others.
/// `env` is the model of the environment, which a word overrides.
fn take_model(args: &mut RunArgs, env: Option<&str>, is_model: impl Fn(&str) -> bool) -> Option<String> {
    let mut words = Vec::from_iter(args.model_or_prompt.take());
    words.append(&mut args.prompt);
    let named = args.model.model.as_deref();
    let is_explicit = named.is_some() && named != env;
    let has_model = match &words[..] {
        [] => false,
        _ if is_explicit => false,
        [word] => args.ids.is_some() || is_model(word),
        // A model that is not there is an error, unless another one is named.
        [first, ..] => named.is_none() || is_model(first),
    };
    if has_model {
        args.model.model = Some(words.remove(0));
    }
    (!words.is_empty()).then(|| words.join(" "))
}

impl PromptText {
    /// # Errors
    /// There is none.
    fn new(prompt: Option<String>) -> Result<PromptText, ConfigError> {
        match prompt {
            Some(dash) if dash == "-" => Ok(PromptText { given: None, reads_stdin: true }),
            None if !is_stdin_piped() => Err(ConfigError::NoPrompt),
            given => Ok(PromptText { given, reads_stdin: is_stdin_piped() }),
        }
    }
}

/// Whether standard input is a pipe or a file: others may never end.
fn is_stdin_piped() -> bool {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let file = stdin.and_then(|stdin| File::from(stdin).metadata());
    file.is_ok_and(|file| file.is_file() || file.file_type().is_fifo())
}

impl ConversationConfig {
    pub fn new(args: ConversationArgs) -> ConversationConfig {
        let think = match (args.think, args.no_think) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        ConversationConfig { system: args.system, think }
    }
}

fn token_ids(text: &str) -> Result<Vec<u32>, ConfigError> {
    text.split_whitespace().map(|id| id.parse().map_err(|_| ConfigError::Ids(id.into()))).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    /// The model and the prompt of a command line.
    fn check(line: &[&str], env: Option<&str>, expected: [Option<&str>; 2]) {
        let cli = Cli::try_parse_from([&["lanner", "run"], line].concat()).unwrap();
        let CliCommand::Run(mut args) = cli.command else { panic!("{line:?}") };
        args.model.model = args.model.model.or(env.map(str::to_owned));
        let prompt = take_model(&mut args, env, |name| name == "merlin" || name == "owl");
        let found = [args.model.model.as_deref(), prompt.as_deref()];
        assert_eq!(found, expected, "{line:?} {env:?}");
    }

    #[test]
    fn first_word_is_the_model_if_it_names_one() {
        check(&["merlin", "hi"], None, [Some("merlin"), Some("hi")]);
        check(&["merlin", "how", "are", "you"], None, [Some("merlin"), Some("how are you")]);
        check(&["merlin"], None, [Some("merlin"), None]);
        check(&["hi"], None, [None, Some("hi")]);
        check(&["-"], None, [None, Some("-")]);
        check(&["hi there"], None, [None, Some("hi there")]);
        check(&["-m", "owl", "merlin"], None, [Some("owl"), Some("merlin")]);
        check(&["-m", "owl", "merlin", "hi"], None, [Some("owl"), Some("merlin hi")]);
        check(&["--model", "owl", "-"], None, [Some("owl"), Some("-")]);
        check(&["unknown", "hi"], None, [Some("unknown"), Some("hi")]);
        check(&["owl", "--ids", "1 2"], None, [Some("owl"), None]);
        check(&["merlin", "hi"], Some("owl"), [Some("merlin"), Some("hi")]);
        check(&["merlin"], Some("owl"), [Some("merlin"), None]);
        check(&["say", "hi"], Some("owl"), [Some("owl"), Some("say hi")]);
    }
}
