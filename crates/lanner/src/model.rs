//! An opened model: engine, tokenizer and chat template of one folder, or of the program itself.

use std::{
    borrow::Cow,
    io::IsTerminal,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use chat::{DecodeOptions, Decoder, Markers, RenderInput, Template, TextOffsets, Tokenizer, spoilers};
use engine::{Checkpoint, Engine, LoadError, Options, Progress, Request, Speculate};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value};

use crate::{
    builtin::{BUILTIN, Builtin},
    cache_breakpoints::{CacheBreakpoints, Rendered},
    cli::VolatilePrefix,
    config::ModelConfig,
    ngrams,
    sampling::Overrides,
    source::{ModelLocation, Source, SourceError},
    terminal::say,
};

/// How long loading takes before progress is shown.
const NOTICEABLE: Duration = Duration::from_millis(200);

/// Some prose, a list and some code, by which the engine measures what the model can do without.
const SHORT_TEXT: &str = "The lighthouse keeper counted the ships that passed in the night, and wrote each of them down in the \
    morning: their names, their flags, and where they were going. Nobody had asked for the list. In the third winter somebody \
    did.\n\n1. Open the file and read every line.\n2. Skip the lines that are empty.\n\nfn count(lines: &[String]) -> usize {\n    \
    lines.iter().filter(|line| !line.is_empty()).count()\n}\n";

pub struct Model {
    /// The folder's name, ORG/NAME, or the built-in model's.
    pub name: String,
    /// What it was asked for as, if that is not its name.
    pub alias: Option<String>,
    pub engine: Engine,
    tokenizer: Arc<Tokenizer>,
    /// A model without a template still completes text.
    template: Option<Template>,
    /// `None` if the model does not reason.
    markers: Option<Markers>,
    cache_breakpoints: CacheBreakpoints,
    /// What to do with lines of system messages that change with every request.
    pub volatile_prefix: VolatilePrefix,
}

/// What a chat template turns into a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// As in the OpenAI API.
    pub messages: Vec<Value>,
    pub tools: Vec<Value>,
    /// End with the start of the model's answer.
    pub add_generation_prompt: bool,
    /// End inside the last message, so that the model goes on with it.
    pub continue_final_message: bool,
    /// Whatever else the template reads, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
}

/// A prompt as the engine takes it, and what decoding its answer needs to know.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub ids: Vec<u32>,
    /// Positions from which later prompts are likely to go on another way.
    pub cache_breakpoints: Vec<usize>,
    reasoning: Option<Markers>,
    starts_in_reasoning: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Text(#[from] chat::Error),
    #[error("cannot load {name}: {error}")]
    Load { name: String, error: LoadError },
    #[error(transparent)]
    Table(#[from] engine::ngrams::TableError),
    #[error("the draft model: {0}")]
    Draft(Box<OpenError>),
    #[error("{draft} cannot draft for {model}, whose tokens are not the same: {difference}")]
    OtherTokens { model: String, draft: String, difference: String },
}

impl Model {
    /// Loads what `config` names, with progress on stderr.
    ///
    /// # Errors
    /// One sentence that names the folder, file or tensor at fault.
    pub fn open(config: &ModelConfig) -> Result<Model, OpenError> {
        Model::open_unless(config, &Arc::default())
    }

    /// As [`open`](Model::open), until `stopped` is set: then loading fails.
    ///
    /// # Errors
    /// As [`open`](Model::open).
    pub fn open_unless(config: &ModelConfig, stopped: &Arc<AtomicBool>) -> Result<Model, OpenError> {
        let source = Source::find(config.model.as_deref(), &config.hub)?;
        let options = ngrams::options(config, &source)?;
        let loading = Loading { name: &source.name, options, stopped: stopped.clone() };
        let model = match &source.location {
            ModelLocation::Builtin => open_builtin(loading),
            ModelLocation::Folder(folder) => open_files(loading, folder, Checkpoint::Folder(folder.clone())),
            ModelLocation::File(file) => {
                let folder = file.parent().unwrap_or(file);
                open_files(loading, folder, Checkpoint::File(file.clone()))
            }
        };
        Ok(Model { alias: source.alias, volatile_prefix: config.volatile_prefix, ..model? })
    }

    pub fn new(name: String, engine: Engine, tokenizer: Tokenizer, template: Option<Template>) -> Model {
        let markers = template.as_ref().and_then(|template| Markers::detect(template.source()));
        let (tokenizer, cache_breakpoints) = (Arc::new(tokenizer), CacheBreakpoints::default());
        let volatile_prefix = VolatilePrefix::default();
        Model { name, alias: None, engine, tokenizer, template, markers, cache_breakpoints, volatile_prefix }
    }

    /// Uses the model and closes it, whatever comes of it.
    pub fn with<T>(self, work: impl FnOnce(&Model) -> T) -> T {
        let result = work(&self);
        self.engine.stop();
        result
    }

    /// # Errors
    /// The model has no template, or the template does not accept or does not finish this conversation.
    pub fn chat_prompt(&self, conversation: &Conversation) -> Result<Prompt, PromptError> {
        let template = self.template.as_ref().ok_or_else(|| PromptError::NoTemplate(self.name.clone()))?;
        let messages = match self.volatile_prefix {
            VolatilePrefix::Keep => Cow::Borrowed(&conversation.messages),
            VolatilePrefix::Normalize => Cow::Owned(spoilers::normalize(&conversation.messages)),
        };
        let messages = chat::conversation::prepare(&messages, template)?;
        let input = RenderInput {
            messages: &messages,
            tools: (!conversation.tools.is_empty()).then_some(&conversation.tools),
            documents: None,
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message,
            kwargs: conversation.kwargs.clone(),
        };
        let text = template.render(&input)?;
        self.check_length(&text)?;
        let inside = self.markers.as_ref().is_some_and(|markers| chat::starts_in_reasoning(&text, markers));
        let ids = self.tokenizer.encode_prompt(&text)?;
        let rendered =
            Rendered { template, tokenizer: &self.tokenizer, input: &input, text: &text, ids: &ids };
        let cache_breakpoints = self.cache_breakpoints.find(rendered);
        Ok(Prompt { ids, cache_breakpoints, reasoning: self.markers.clone(), starts_in_reasoning: inside })
    }

    /// Text to continue as it stands.
    ///
    /// # Errors
    /// The tokenizer cannot encode it.
    pub fn text_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        self.check_length(text)?;
        Ok(Prompt::from_ids(self.tokenizer.encode(text, true)?))
    }

    /// Tokens of a text of any length, with whatever the tokenizer puts around one.
    ///
    /// # Errors
    /// The tokenizer cannot encode it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        Ok(self.tokenizer.encode(text, true)?)
    }

    /// Encoding megabytes costs seconds and gigabytes, only for the engine to refuse the ids.
    fn check_length(&self, text: &str) -> Result<(), PromptError> {
        let context = self.engine.info().context_length;
        if self.tokenizer.surely_exceeds(text, context) {
            return Err(PromptError::TooLong { bytes: text.len(), context });
        }
        Ok(())
    }

    pub fn request(&self, ids: Vec<u32>, overrides: &Overrides) -> Request {
        overrides.request(ids, self.engine.info())
    }

    /// # Errors
    /// A stop string is empty.
    pub fn decoder(&self, prompt: &Prompt, stop: Vec<String>) -> Result<Decoder, PromptError> {
        let options = DecodeOptions {
            stop,
            reasoning: prompt.reasoning.clone(),
            starts_in_reasoning: prompt.starts_in_reasoning,
            ..DecodeOptions::default()
        };
        Ok(Decoder::new(self.tokenizer.clone(), options)?)
    }

    /// The text of some tokens, control tokens included.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    /// Where tokens begin in their text, which stands behind `characters` others.
    pub fn text_offsets(&self, characters: usize) -> TextOffsets {
        TextOffsets::new(self.tokenizer.clone(), characters)
    }

    /// Whether a token is a control token, which answers do not show.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    /// One token by itself: its bytes need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id)
    }
}

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("{0} has no chat template; send plain text to the completions endpoint, or use --raw")]
    NoTemplate(String),
    #[error("the prompt has {bytes} bytes, far more than the model's context of {context} tokens holds")]
    TooLong { bytes: usize, context: usize },
    #[error(transparent)]
    Text(#[from] chat::Error),
}

impl PromptError {
    /// Whether another request could do better.
    pub fn is_request_error(&self) -> bool {
        match self {
            PromptError::NoTemplate(_) | PromptError::TooLong { .. } => true,
            PromptError::Text(error) => error.is_request_error(),
        }
    }
}

impl Prompt {
    pub fn from_ids(ids: Vec<u32>) -> Prompt {
        Prompt { ids, cache_breakpoints: vec![], reasoning: None, starts_in_reasoning: false }
    }
}

/// The engine alone, for those who bring token ids: a folder then needs no tokenizer.
///
/// # Errors
/// One sentence that names the folder, file or tensor at fault.
pub fn open_engine(config: &ModelConfig) -> Result<Engine, OpenError> {
    let source = Source::find(config.model.as_deref(), &config.hub)?;
    let mut options = ngrams::options(config, &source)?;
    let files = checkpoint(source.location.clone());
    if !files.names_eos() {
        options.eos_ids = tokenizer(&source.location).as_ref().map_or_else(|_| vec![], eos_ids);
    }
    load_engine(&source.name, files, &options)
}

/// The end-of-sequence token by tokenizer_config.json, if there is one.
fn eos_ids(tokenizer: &Tokenizer) -> Vec<u32> {
    let id = tokenizer.eos_token().and_then(|token| tokenizer.token_to_id(token));
    id.into_iter().collect()
}

/// The engine alone, of a checkpoint called `name`.
///
/// # Errors
/// As [`open_engine`].
pub fn load_engine(name: &str, checkpoint: Checkpoint, options: &Options) -> Result<Engine, OpenError> {
    Loading { name, options: options.clone(), stopped: Arc::default() }.load(checkpoint)
}

/// The files at a location.
pub fn checkpoint(location: ModelLocation) -> Checkpoint {
    match location {
        ModelLocation::Builtin => builtin_checkpoint(),
        ModelLocation::Folder(folder) => Checkpoint::Folder(folder),
        ModelLocation::File(file) => Checkpoint::File(file),
    }
}

/// The tokenizer alone: nothing else of the model is read.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn tokenizer(location: &ModelLocation) -> Result<Tokenizer, chat::Error> {
    match location {
        ModelLocation::Builtin => builtin_tokenizer(),
        ModelLocation::Folder(folder) => Tokenizer::from_dir(folder),
        ModelLocation::File(file) => Tokenizer::from_dir(file.parent().unwrap_or(file)),
    }
}

fn builtin_tokenizer() -> Result<Tokenizer, chat::Error> {
    Tokenizer::from_bytes(BUILTIN.tokenizer.as_bytes(), Some(BUILTIN.tokenizer_config.as_bytes()))
}

/// The chat template alone, if there is one; `tokenizer` is that of the same location.
///
/// # Errors
/// It cannot be read.
pub fn template(location: &ModelLocation, tokenizer: &Tokenizer) -> Result<Option<Template>, chat::Error> {
    match location {
        ModelLocation::Builtin => Ok(Some(builtin_template(tokenizer)?)),
        ModelLocation::Folder(folder) => folder_template(folder),
        ModelLocation::File(file) => folder_template(file.parent().unwrap_or(file)),
    }
}

fn folder_template(folder: &Path) -> Result<Option<Template>, chat::Error> {
    match Template::from_dir(folder) {
        Ok(template) => Ok(Some(template)),
        Err(chat::Error::NoTemplate(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn builtin_template(tokenizer: &Tokenizer) -> Result<Template, chat::Error> {
    let special = [("bos_token", tokenizer.bos_token()), ("eos_token", tokenizer.eos_token())];
    let special = special.into_iter().filter_map(|(name, text)| Some((name.into(), text?.into()))).collect();
    Template::new(BUILTIN.chat_template, special)
}

fn open_files(loading: Loading, folder: &Path, checkpoint: Checkpoint) -> Result<Model, OpenError> {
    let template = folder_template(folder)?;
    let name = loading.name.to_owned();
    let (engine, tokenizer) = loading.load_both(checkpoint, || Tokenizer::from_dir(folder))?;
    Ok(Model::new(name, engine, tokenizer, template))
}

fn open_builtin(loading: Loading) -> Result<Model, OpenError> {
    let (engine, tokenizer) = loading.load_both(builtin_checkpoint(), builtin_tokenizer)?;
    let template = builtin_template(&tokenizer)?;
    Ok(Model::new(BUILTIN.name.into(), engine, tokenizer, Some(template)))
}

fn builtin_checkpoint() -> Checkpoint {
    let Builtin { config, generation_config, weights, .. } = BUILTIN;
    Checkpoint::Builtin { config, generation_config: Some(generation_config), weights }
}

/// How to load, whatever is loaded.
struct Loading<'a> {
    name: &'a str,
    options: Options,
    stopped: Arc<AtomicBool>,
}

impl Loading<'_> {
    /// Reads the tokenizer while the weights load: with a large vocabulary both take a while. Reads it
    /// before them if it has to say which token ends a sequence.
    fn load_both(
        mut self,
        checkpoint: Checkpoint,
        tokenizer: impl FnOnce() -> Result<Tokenizer, chat::Error> + Send,
    ) -> Result<(Engine, Tokenizer), OpenError> {
        if !checkpoint.names_eos() {
            let tokenizer = tokenizer()?;
            self.options.eos_ids = eos_ids(&tokenizer);
            let engine = self.load(checkpoint)?;
            engine.read(tokenizer.encode(SHORT_TEXT, true)?);
            return Ok((engine, tokenizer));
        }
        let (engine, tokenizer) = thread::scope(|scope| {
            let tokenizer = scope.spawn(tokenizer);
            let engine = self.load(checkpoint);
            (engine, tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (engine, tokenizer) = (engine?, tokenizer?);
        engine.read(tokenizer.encode(SHORT_TEXT, true)?);
        Ok((engine, tokenizer))
    }

    /// Loads the weights, with progress on stderr.
    fn load(self, checkpoint: Checkpoint) -> Result<Engine, OpenError> {
        let Loading { name, options, stopped } = self;
        let started = Instant::now();
        let bar = progress_bar(name);
        let shown = bar.clone();
        let progress = move |progress: Progress| {
            if stopped.load(Ordering::Relaxed) {
                // The engine turns it into an error; unlike a panic of its own this prints nothing.
                std::panic::resume_unwind(Box::new("loading was stopped"));
            }
            shown.set_length(progress.total_bytes as u64);
            shown.set_position(progress.loaded_bytes as u64);
            if shown.is_hidden() && started.elapsed() > NOTICEABLE {
                shown.set_draw_target(ProgressDrawTarget::stderr());
            }
        };
        let lossy = options.speculate == Speculate::Lossy;
        let engine = engine::start(checkpoint, options, progress);
        bar.finish_and_clear();
        let engine = engine.map_err(|error| OpenError::Load { name: name.into(), error })?;
        if lossy {
            say("lanner: self:lossy leaves out layers: answers may be others than the model's");
        }
        if !std::io::stderr().is_terminal() {
            let megabytes = engine.info().weight_bytes / 1_000_000;
            let seconds = started.elapsed().as_secs_f64();
            say(format_args!("lanner: loaded {name} ({megabytes} MB) in {seconds:.2} s"));
        }
        Ok(engine)
    }
}

/// Hidden at first: most models load before anybody could read it. Never drawn unless stderr is a terminal.
fn progress_bar(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("loading {msg} {bar:30} {bytes} of {total_bytes}");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
        .with_message(name.to_owned())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
