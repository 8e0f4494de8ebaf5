//! One immutable configuration, resolved once: defaults < config file < environment < flags. Only
//! this module and `cli` read the environment.

mod api_keys;
mod bench;
mod dirs;
mod doctor;
mod edit;
mod error;
mod eval;
mod hub;
mod launch;
mod mcp;
mod model;
mod paths;
mod run;
mod server;
mod service;
mod store;
mod thinking;
mod tools;
mod tune;

use std::{
    collections::BTreeMap,
    fs,
    mem::take,
    path::{Path, PathBuf},
    time::Duration,
};

use clap_complete::Shell;
use serde::Deserialize;
use tracing::level_filters::LevelFilter;

pub use self::{
    api_keys::{ApiKey, ApiKeyError, ApiKeys, KeyDigest, KeyLimits, is_readable_by_others, key_digest},
    bench::{BenchConfig, BenchWeights, Chart, SpeculationConfig, SpeedConfig},
    dirs::kernel_cache_folder,
    doctor::DoctorConfig,
    edit::{MergedConfig, merge_model_settings},
    error::ConfigError,
    eval::EvalConfig,
    launch::{LaunchAction, LaunchConfig},
    mcp::{AllowedCall, McpConfig},
    model::ModelConfig,
    paths::{DataPath, PathsConfig},
    run::{ChatConfig, ConversationConfig, PromptText, RunConfig, RunPrompt},
    server::{MAX_CONNECTIONS, RegistryConfig, ServeConfig, ServerAddress, Timeouts},
    service::{LogsConfig, StartConfig, StatusConfig, StopConfig},
    store::{HistoryAction, HistoryConfig, StoreConfig, UsageConfig},
    thinking::ThinkingConfig,
    tools::{DiskCacheConfig, ModelsConfig, NgramConfig, QuantizeConfig, RmConfig, ShowConfig},
    tune::{TuneConfig, WriteConfig},
};
pub use crate::cli::{CorsOrigin, ExportFormat, LogFormat};
use crate::{
    cli::{
        CacheArgs, ChatArgs, Cli, CliCommand, GlobalArgs, LogLevel, ModelArgs, NgramCommand, ServeArgs,
        ServerArgs, StoreArgs, ThinkingArgs,
    },
    hub::HubConfig,
    sampling::SamplingArgs,
};

pub struct Config {
    pub log: LevelFilter,
    pub log_format: LogFormat,
    pub command: Command,
}

pub enum Command {
    Serve(ModelConfig, ServeConfig),
    Chat(ModelConfig, ChatConfig),
    Run(ModelConfig, RunConfig),
    Launch(Box<LaunchConfig>),
    Doctor(Box<DoctorConfig>),
    /// With the model to download.
    Pull(HubConfig, String),
    Models(HubConfig, ModelsConfig),
    Show(HubConfig, ShowConfig),
    /// With whether to print JSON.
    Ps(ServerAddress, bool),
    Top(ServerAddress, TopConfig),
    Start(Box<StartConfig>),
    Stop(StopConfig),
    Status(StatusConfig),
    Logs(LogsConfig),
    Paths(PathsConfig),
    Rm(HubConfig, RmConfig),
    History(HistoryConfig),
    Stats(UsageConfig),
    Cache(DiskCacheConfig),
    Bench(ModelConfig, BenchConfig),
    Tune(ModelConfig, TuneConfig),
    Eval(EvalConfig),
    Completions(Shell),
    /// With the folder of the pages.
    Man(PathBuf),
    Quantize(ModelConfig, QuantizeConfig),
    /// With the model whose tokenizer splits the texts.
    NgramBuild(ModelConfig, NgramConfig),
    NgramShow {
        table: PathBuf,
        json: bool,
    },
}

/// How a server is watched.
#[derive(Clone, Copy, Debug)]
pub struct TopConfig {
    /// Between two readings.
    pub interval: Duration,
    /// Whether to print one reading, as if stdout were no terminal.
    pub once: bool,
}

/// The config file: the fields of the flags, in one section per group.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ConfigFile {
    model: ModelArgs,
    cache: CacheArgs,
    server: ServerArgs,
    store: StoreArgs,
    sampling: SamplingArgs,
    thinking: ThinkingArgs,
    /// By names that --model takes.
    models: BTreeMap<String, ThinkingArgs>,
}

impl Config {
    /// # Errors
    /// The config file cannot be read or has an unknown key, or a value is not valid.
    pub fn resolve(cli: Cli) -> Result<Config, ConfigError> {
        let (log, log_format) = (log_level(cli.global.log), cli.global.log_format);
        let command = match cli.command {
            // Faults of the config file are for it to report.
            CliCommand::Doctor(args) => Command::Doctor(Box::new(DoctorConfig::new(args, cli.global.config))),
            command => Command::resolve(command, cli.global)?,
        };
        Ok(Config { log, log_format, command })
    }
}

impl Command {
    // Long: one arm per command.
    fn resolve(command: CliCommand, global: GlobalArgs) -> Result<Command, ConfigError> {
        let (mut file, color) = (ConfigFile::read(global.config.as_deref())?, !global.no_color);
        let hub = hub::resolve()?;
        let model = |args, file| ModelConfig::without_cache(args, file, hub.clone());
        Ok(match command {
            CliCommand::Serve(args) => {
                let (model, serve) = serve(args, file, hub)?;
                Command::Serve(model, serve)
            }
            CliCommand::Start(args) => {
                let keys = args.serve.server.api_key.clone();
                // Errors of serve are reported here, where the user sees them.
                let (_, serve) = serve(args.serve, file, hub)?;
                Command::Start(Box::new(StartConfig::new(&args.service, serve.address, &keys)?))
            }
            CliCommand::Chat(args) => chat(args, file, color, hub)?,
            CliCommand::Run(mut args) => {
                args.model.speculate = args.speculate.speculate.take();
                args.model.memory = args.memory.memory;
                let thinking = file.thinking(take(&mut args.thinking));
                let (args, run) = RunConfig::new(args, file.sampling, color, &hub)?;
                Command::Run(ModelConfig { thinking, ..model(args, file.model) }, run)
            }
            CliCommand::Bench(args) => {
                let (args, bench) = bench::resolve(args, &file.model)?;
                Command::Bench(model(args, file.model), bench)
            }
            CliCommand::Tune(args) => {
                let (model, tune) = tune::resolve(args, file, global.config, hub)?;
                Command::Tune(model, tune)
            }
            CliCommand::Eval(args) => Command::Eval(EvalConfig::new(args)?),
            CliCommand::Launch(args) => {
                let config = global.config.as_deref();
                let launch = LaunchConfig::new(args, file.server, file.model, hub, config)?;
                Command::Launch(Box::new(launch))
            }
            CliCommand::Completions(args) => Command::Completions(args.shell),
            CliCommand::Man(args) => Command::Man(args.folder),
            CliCommand::Pull(args) => Command::Pull(hub, args.model),
            CliCommand::Models(args) => Command::Models(hub, ModelsConfig::new(&args)),
            CliCommand::Show(args) => Command::Show(hub, ShowConfig { model: args.model, json: args.json }),
            CliCommand::Ps(args) => Command::Ps(ServerAddress::new(args.server, file.server), args.json),
            CliCommand::Top(args) => {
                let top = TopConfig { interval: Duration::from_secs(args.interval.into()), once: args.once };
                Command::Top(ServerAddress::new(args.server, file.server), top)
            }
            CliCommand::Stop(args) => Command::Stop(StopConfig::new(args, file.server)?),
            CliCommand::Status(args) => Command::Status(StatusConfig::new(args, file.server)?),
            CliCommand::Logs(args) => Command::Logs(LogsConfig::new(&args)?),
            CliCommand::Paths(args) => {
                Command::Paths(PathsConfig::new(args, global.config, file.cache, file.store, &hub))
            }
            CliCommand::Rm(args) => Command::Rm(hub, RmConfig { model: args.model, yes: args.yes }),
            CliCommand::History(command) => Command::History(HistoryConfig::new(command, file.store)?),
            CliCommand::Stats(args) => Command::Stats(UsageConfig::new(args, file.store)?),
            CliCommand::Cache(args) => Command::Cache(DiskCacheConfig::new(args, file.cache)?),
            CliCommand::Quantize(args) => {
                Command::Quantize(model(ModelArgs::default(), file.model), QuantizeConfig::new(args)?)
            }
            CliCommand::Ngram(command) => Command::ngram(command, file.model, hub),
            CliCommand::Doctor(_) => unreachable!("it is resolved without the config file"),
        })
    }

    fn ngram(command: NgramCommand, file: ModelArgs, hub: HubConfig) -> Command {
        match command {
            NgramCommand::Build(args) => {
                let tokenizer = ModelArgs { model: args.model.clone(), ..ModelArgs::default() };
                Command::NgramBuild(ModelConfig::without_cache(tokenizer, file, hub), NgramConfig::new(args))
            }
            NgramCommand::Show(args) => Command::NgramShow { table: args.table, json: args.json },
        }
    }
}

fn serve(
    mut args: ServeArgs,
    mut file: ConfigFile,
    hub: HubConfig,
) -> Result<(ModelConfig, ServeConfig), ConfigError> {
    args.model.speculate = args.speculate.speculate;
    args.model.memory = args.memory.memory;
    let preset = model::memory_mode(&args.model, &file.model).preset();
    let caches = model::caches(&args.cache, &file.cache, preset, Some(preset.disk_cache))?;
    let thinking = file.thinking(args.thinking);
    let model = ModelConfig::without_cache(args.model, file.model, hub);
    let mut model = model.with_cache(caches, &args.cache, &file.cache);
    model.thinking = thinking;
    let dialect = args.server.tool_dialect.or(file.server.tool_dialect);
    model.tool_dialect = dialect.map(|dialect| dialect.0);
    let store = StoreConfig::new(args.store, file.store);
    let mcp = McpConfig::for_server(&args.server, &file.server, model.hub.proxy.clone())?;
    Ok((model, ServeConfig { store, mcp, ..ServeConfig::new(args.server, file.server)? }))
}

fn chat(
    mut args: ChatArgs,
    mut file: ConfigFile,
    color: bool,
    hub: HubConfig,
) -> Result<Command, ConfigError> {
    args.model.speculate = args.speculate.speculate;
    args.model.memory = args.memory.memory;
    let preset = model::memory_mode(&args.model, &file.model).preset();
    let caches = model::caches(&args.cache, &file.cache, preset, None)?;
    let thinking = file.thinking(args.thinking);
    let hub_proxy = hub.proxy.clone();
    let model = ModelConfig::without_cache(args.model, file.model, hub);
    let model = ModelConfig { thinking, ..model.with_cache(caches, &args.cache, &file.cache) };
    let store = StoreArgs { store: args.store.store, no_store: args.no_history };
    let chat = ChatConfig {
        sampling: args.sampling.overrides(file.sampling).map_err(ConfigError::Sampling)?,
        conversation: ConversationConfig::new(args.conversation),
        color,
        markdown: color && !args.plain && run::has_styles(),
        lines: paths::history_file().filter(|_| !args.no_history),
        store: StoreConfig::new(store, file.store),
        continued: args.continued,
        mcp: McpConfig::for_chat(args.mcp, hub_proxy)?,
    };
    Ok(Command::Chat(model, chat))
}

impl ConfigFile {
    /// Takes the settings of thinking, which flags override.
    fn thinking(&mut self, flags: ThinkingArgs) -> ThinkingConfig {
        ThinkingConfig { flags, models: take(&mut self.models), file: take(&mut self.thinking) }
    }

    /// The file at `path`, else the user's, if it exists.
    fn read(path: Option<&Path>) -> Result<ConfigFile, ConfigError> {
        let default = || paths::config_file().filter(|path| path.exists());
        let Some(path) = path.map(Path::to_path_buf).or_else(default) else {
            return Ok(ConfigFile::default());
        };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => return Err(ConfigError::Read { path, error }),
        };
        toml::from_str(&text).map_err(|error| ConfigError::Parse { path, error })
    }
}

fn log_level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
