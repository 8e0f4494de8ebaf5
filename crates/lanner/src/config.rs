//! One immutable configuration, resolved once: defaults < config file < environment < flags. Nothing else in
//! the program reads the environment.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use engine::quantize::{Mode, Quantization, QuantizeError};
use serde::Deserialize;
use tracing::level_filters::LevelFilter;

use crate::{
    cli::{
        self, Cli, ConversationArgs, ModelArgs, QuantizationMode, QuantizeArgs, RunArgs, SamplingArgs,
        ServerArgs,
    },
    sampling::Overrides,
};

pub struct Config {
    pub log: LevelFilter,
    pub model: ModelConfig,
    pub command: Command,
}

pub enum Command {
    Serve(ServeConfig),
    Chat(ChatConfig),
    Run(RunConfig),
    Quantize(QuantizeConfig),
}

pub struct ModelConfig {
    /// `None` means the built-in model.
    pub folder: Option<PathBuf>,
    pub options: engine::Options,
}

pub struct ServeConfig {
    pub address: SocketAddr,
    pub api_key: Option<String>,
    pub allowed_hosts: Vec<String>,
    /// In bytes.
    pub body_limit: usize,
    /// Replaces the model's own name on the wire.
    pub name: Option<String>,
}

pub struct ChatConfig {
    pub sampling: Overrides,
    pub conversation: ConversationConfig,
    pub color: bool,
    /// `None` if the system has no place for it: then history lasts as long as the program.
    pub history: Option<PathBuf>,
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

pub struct QuantizeConfig {
    /// As the user wrote it.
    pub source: String,
    /// `None`: only show what would be written.
    pub out: Option<PathBuf>,
    pub quantization: Quantization,
    pub verify: bool,
    /// What perplexity is measured on.
    pub text: Option<PathBuf>,
    pub json: bool,
}

pub enum RunPrompt {
    /// A question for the chat template.
    Turn {
        text: PromptText,
        conversation: ConversationConfig,
    },
    /// Text to continue.
    Raw(PromptText),
    Ids(Vec<u32>),
}

pub enum PromptText {
    Given(String),
    Stdin,
}

pub struct ConversationConfig {
    pub system: Option<String>,
    /// `None` leaves it to the template.
    pub think: Option<bool>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the config file {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("the config file {} is wrong: {error}", path.display())]
    Parse { path: PathBuf, error: toml::de::Error },
    #[error("--ids: `{0}` is not a token id")]
    Ids(String),
    #[error(transparent)]
    Format(#[from] QuantizeError),
}

/// The config file: the same fields as the flags, in one section per group.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    model: ModelArgs,
    server: ServerArgs,
    sampling: SamplingArgs,
}

impl Config {
    /// # Errors
    /// A config file that cannot be read or holds an unknown key, or `--ids` that are not numbers.
    pub fn resolve(cli: Cli) -> Result<Config, ConfigError> {
        let file = File::read(cli.global.config.as_deref())?;
        let color = !cli.global.no_color;
        let (model, command) = match cli.command {
            cli::Command::Serve(args) => (args.model, Command::Serve(serve(args.server, file.server))),
            cli::Command::Chat(args) => {
                let chat = ChatConfig {
                    sampling: overrides(args.sampling, file.sampling),
                    conversation: conversation(args.conversation),
                    color,
                    history: user_folder("XDG_STATE_HOME", ".local/state").map(|f| f.join("chat-history")),
                };
                (args.model, Command::Chat(chat))
            }
            cli::Command::Run(args) => run(args, file.sampling, color)?,
            cli::Command::Quantize(args) => (ModelArgs::default(), Command::Quantize(quantize(args)?)),
        };
        Ok(Config { log: log_level(cli.global.log), model: model_config(model, file.model), command })
    }
}

impl File {
    fn read(asked: Option<&Path>) -> Result<File, ConfigError> {
        let usual = || user_folder("XDG_CONFIG_HOME", ".config").map(|f| f.join("config.toml"));
        let Some(path) = asked.map(Path::to_path_buf).or_else(|| usual().filter(|p| p.exists())) else {
            return Ok(File::default());
        };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => return Err(ConfigError::Read { path, error }),
        };
        toml::from_str(&text).map_err(|error| ConfigError::Parse { path, error })
    }
}

/// `$variable/lanner`, or `~/fallback/lanner`.
fn user_folder(variable: &str, fallback: &str) -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(fallback)))?;
    Some(base.join("lanner"))
}

fn model_config(args: ModelArgs, file: ModelArgs) -> ModelConfig {
    let defaults = engine::Options::default();
    let options = engine::Options {
        device: args.device.or(file.device).map(|device| match device {
            cli::Device::Cpu => engine::Device::Cpu,
            cli::Device::Gpu => engine::Device::Gpu,
        }),
        dtype: args.dtype.or(file.dtype).map(|dtype| match dtype {
            cli::Dtype::Float32 => engine::Dtype::Float32,
            cli::Dtype::Float16 => engine::Dtype::Float16,
            cli::Dtype::Bfloat16 => engine::Dtype::Bfloat16,
        }),
        prefill_chunk: args.prefill_chunk.or(file.prefill_chunk).unwrap_or(defaults.prefill_chunk),
        max_batch: args.max_batch.or(file.max_batch).unwrap_or(defaults.max_batch),
        max_context: args.max_context.or(file.max_context),
    };
    ModelConfig { folder: args.model.or(file.model), options }
}

fn serve(args: ServerArgs, file: ServerArgs) -> ServeConfig {
    let host = args.host.or(file.host).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let port = args.port.or(file.port).unwrap_or(11436);
    ServeConfig {
        address: SocketAddr::new(host, port),
        api_key: args.api_key.or(file.api_key).filter(|key| !key.is_empty()),
        allowed_hosts: [args.allow_host, file.allow_host].concat(),
        body_limit: args.body_limit.or(file.body_limit).unwrap_or(16) << 20,
        name: args.name.or(file.name),
    }
}

fn run(args: RunArgs, file: SamplingArgs, color: bool) -> Result<(ModelArgs, Command), ConfigError> {
    let text = |prompt: Option<String>| match prompt.unwrap_or_default() {
        dash if dash == "-" => PromptText::Stdin,
        text => PromptText::Given(text),
    };
    let prompt = match args.ids {
        Some(ids) => RunPrompt::Ids(token_ids(&ids)?),
        None if args.raw => RunPrompt::Raw(text(args.prompt)),
        None => RunPrompt::Turn { text: text(args.prompt), conversation: conversation(args.conversation) },
    };
    let run = RunConfig {
        prompt,
        sampling: overrides(args.sampling, file),
        ignore_eos: args.ignore_eos,
        stop: args.stop,
        json: args.json,
        dump_logits: args.dump_logits,
        color,
    };
    Ok((args.model, Command::Run(run)))
}

fn quantize(args: QuantizeArgs) -> Result<QuantizeConfig, ConfigError> {
    let mode = match args.mode {
        QuantizationMode::Affine => Mode::Affine,
        QuantizationMode::Mxfp4 => Mode::Mxfp4,
        QuantizationMode::Mxfp8 => Mode::Mxfp8,
        QuantizationMode::Nvfp4 => Mode::Nvfp4,
    };
    Ok(QuantizeConfig {
        source: args.source,
        out: args.out.filter(|_| !args.dry_run),
        quantization: engine::quantize::quantization(mode, args.bits, args.group_size)?,
        verify: args.verify,
        text: args.text,
        json: args.json,
    })
}

fn token_ids(text: &str) -> Result<Vec<u32>, ConfigError> {
    text.split_whitespace().map(|id| id.parse().map_err(|_| ConfigError::Ids(id.into()))).collect()
}

fn conversation(args: ConversationArgs) -> ConversationConfig {
    let think = match (args.think, args.no_think) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    ConversationConfig { system: args.system, think }
}

fn overrides(args: SamplingArgs, file: SamplingArgs) -> Overrides {
    Overrides {
        max_tokens: args.max_tokens.or(file.max_tokens),
        temperature: args.temperature.or(file.temperature),
        top_p: args.top_p.or(file.top_p),
        top_k: args.top_k.or(file.top_k),
        min_p: args.min_p.or(file.min_p),
        repetition_penalty: args.repetition_penalty.or(file.repetition_penalty),
        presence_penalty: args.presence_penalty.or(file.presence_penalty),
        frequency_penalty: args.frequency_penalty.or(file.frequency_penalty),
        seed: args.seed.or(file.seed),
        ..Overrides::default()
    }
}

fn log_level(level: cli::LogLevel) -> LevelFilter {
    match level {
        cli::LogLevel::Off => LevelFilter::OFF,
        cli::LogLevel::Error => LevelFilter::ERROR,
        cli::LogLevel::Warn => LevelFilter::WARN,
        cli::LogLevel::Info => LevelFilter::INFO,
        cli::LogLevel::Debug => LevelFilter::DEBUG,
        cli::LogLevel::Trace => LevelFilter::TRACE,
    }
}
