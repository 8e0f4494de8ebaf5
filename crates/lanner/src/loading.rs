//! Starts an engine on a model's files, with progress on stderr.

use std::{
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use chat::{Template, Tokenizer};
use engine::{Checkpoint, Engine, LoadError, Options, Progress, Speculate};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    config::ModelConfig,
    drafting::{self, DraftingError},
    model_files,
    pooling::EmbeddingHead,
    source::{ModelLocation, Source, SourceError},
    terminal::say,
};

/// Loads that take less show no progress.
const NOTICEABLE: Duration = Duration::from_millis(200);

/// Some prose, a list and some code: the engine measures on them which layers the model can skip.
const CALIBRATION_TEXT: &str = "The lighthouse keeper counted the ships that passed in the night, and wrote each of them down in the \
    morning: their names, their flags, and where they were going. Nobody had asked for the list. In the third winter somebody \
    did.\n\n1. Open the file and read every line.\n2. Skip the lines that are empty.\n\nfn count(lines: &[String]) -> usize {\n    \
    lines.iter().filter(|line| !line.is_empty()).count()\n}\n";

/// Why a model cannot be opened, in one sentence that names the folder, file or tensor at fault.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Text(#[from] chat::Error),
    #[error("cannot load {name}: {error}")]
    Load { name: String, error: LoadError },
    #[error(transparent)]
    Drafting(#[from] DraftingError),
}

/// An engine and the text files of its model.
pub struct Opened {
    pub source: Source,
    pub engine: Engine,
    pub tokenizer: Tokenizer,
    /// `None`: the model has no chat template.
    pub template: Option<Template>,
    /// How embeddings are made, or why there are none.
    pub embedding_head: Result<EmbeddingHead, String>,
}

/// Opens the model at `source` as `config` says; once `stopped` is set, loading fails.
///
/// # Errors
/// A file of it cannot be read.
pub fn open(source: Source, config: &ModelConfig, stopped: &Arc<AtomicBool>) -> Result<Opened, OpenError> {
    let options = drafting::options(config, &source)?;
    // Read first: a broken template is reported before a long load.
    let template = model_files::template(&source.location)?;
    let template = template.map(|template| template.within(config.render_memory.clone()));
    let loading = Loading { name: &source.name, options, stopped: stopped.clone() };
    let (engine, tokenizer) = loading.with_tokenizer(&source.location)?;
    engine.set_calibration_text(tokenizer.encode(CALIBRATION_TEXT, true)?);
    let embedding_head = model_files::embedding_head(&source.location);
    Ok(Opened { source, engine, tokenizer, template, embedding_head })
}

/// Opens the engine alone, for callers that bring token ids: a folder then needs no tokenizer.
///
/// # Errors
/// The model is not there, or a file of it cannot be read.
pub fn open_engine(config: &ModelConfig) -> Result<Engine, OpenError> {
    let source = Source::find(config.model.as_deref(), &config.hub)?;
    let mut options = drafting::options(config, &source)?;
    let checkpoint = model_files::checkpoint(source.location.clone());
    if !checkpoint.names_eos() {
        let tokenizer = model_files::tokenizer(&source.location);
        options.eos_ids = tokenizer.as_ref().map_or_else(|_| vec![], model_files::eos_ids);
    }
    load_engine(&source.name, checkpoint, &options)
}

/// Starts an engine on a checkpoint called `name`.
///
/// # Errors
/// A file or a tensor of it cannot be read.
pub fn load_engine(name: &str, checkpoint: Checkpoint, options: &Options) -> Result<Engine, OpenError> {
    Loading { name, options: options.clone(), stopped: Arc::default() }.load(checkpoint)
}

struct Loading<'a> {
    name: &'a str,
    options: Options,
    stopped: Arc<AtomicBool>,
}

impl Loading<'_> {
    /// Reads the tokenizer while the weights load: with a large vocabulary both take a while. It is
    /// read before them if only the tokenizer knows the end-of-sequence token.
    fn with_tokenizer(mut self, location: &ModelLocation) -> Result<(Engine, Tokenizer), OpenError> {
        let checkpoint = model_files::checkpoint(location.clone());
        if !checkpoint.names_eos() {
            let tokenizer = model_files::tokenizer(location)?;
            self.options.eos_ids = model_files::eos_ids(&tokenizer);
            return Ok((self.load(checkpoint)?, tokenizer));
        }
        let (engine, tokenizer) = thread::scope(|scope| {
            let tokenizer = scope.spawn(|| model_files::tokenizer(location));
            let engine = self.load(checkpoint);
            (engine, tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        Ok((engine?, tokenizer?))
    }

    fn load(self, checkpoint: Checkpoint) -> Result<Engine, OpenError> {
        let Loading { name, options, stopped } = self;
        let started = Instant::now();
        let bar = progress_bar(name);
        let shown = bar.clone();
        let progress = move |progress: Progress| {
            if stopped.load(Ordering::Relaxed) {
                // The engine turns it into an error; unlike `panic!` this prints nothing.
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
            say("lanner: warning: self:lossy skips layers, so answers may differ from the model's");
        }
        if !std::io::stderr().is_terminal() {
            let megabytes = engine.info().weight_bytes / 1_000_000;
            let seconds = started.elapsed().as_secs_f64();
            say(format_args!("lanner: loaded {name} ({megabytes} MB) in {seconds:.2} s"));
        }
        Ok(engine)
    }
}

/// Hidden until [`NOTICEABLE`] has passed; never drawn unless stderr is a terminal.
fn progress_bar(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("loading {msg} {bar:30} {bytes} of {total_bytes}");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
        .with_message(name.to_owned())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
