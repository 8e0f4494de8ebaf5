//! One immutable configuration, resolved once: defaults < config file < environment < flags. Nothing else in
//! the program reads the environment.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
    time::Duration,
};

use engine::{
    SamplingRange,
    quantize::{Mode, Quantization, QuantizeError},
};
use serde::Deserialize;
use tracing::level_filters::LevelFilter;

use crate::{
    bench::{
        Shape, Workload, machine,
        speculate::{PROMPT_CLASSES, PromptClass, SpeculationModes},
    },
    cli::{
        self, BenchArgs, CacheArgs, Cli, ConversationArgs, ModelArgs, NgramBuildArgs, QuantizationMode,
        QuantizeArgs, RunArgs, SamplingArgs, ServerArgs, SpeculateArg, VolatilePrefix,
    },
    hub::HubConfig,
    sampling::Overrides,
};

pub struct Config {
    pub log: LevelFilter,
    pub command: Command,
}

pub enum Command {
    Serve(ModelConfig, ServeConfig),
    Chat(ModelConfig, ChatConfig),
    Run(ModelConfig, RunConfig),
    /// The model to download.
    Pull(HubConfig, String),
    Models(HubConfig, ModelsConfig),
    Rm(HubConfig, RmConfig),
    Cache(StateConfig),
    Bench(ModelConfig, BenchConfig),
    Quantize(ModelConfig, QuantizeConfig),
    /// The model whose tokenizer cuts the texts.
    NgramBuild(ModelConfig, NgramConfig),
    NgramShow {
        table: PathBuf,
        json: bool,
    },
}

#[derive(Clone)]
pub struct ModelConfig {
    /// As the user wrote it; `None` means the built-in model.
    pub model: Option<String>,
    pub options: engine::Options,
    pub hub: HubConfig,
    /// What to do with lines of system messages that change with every request.
    pub volatile_prefix: VolatilePrefix,
    /// A table to draft from; [`crate::drafting`] opens it.
    pub ngram_table: Option<PathBuf>,
    /// A smaller model to draft with; [`crate::drafting`] finds it.
    pub draft_model: Option<String>,
}

pub enum ModelsConfig {
    Catalog,
    Json,
    Table,
}

pub struct RmConfig {
    pub model: String,
    pub yes: bool,
}

pub struct StateConfig {
    pub folder: PathBuf,
    pub action: cli::StateAction,
    pub json: bool,
}

pub struct ServeConfig {
    pub address: SocketAddr,
    pub api_key: Option<String>,
    pub allowed_hosts: Vec<String>,
    /// In bytes.
    pub body_limit: usize,
    /// Replaces the model's own name on the wire.
    pub name: Option<String>,
    /// Whether to serve the routes that load and pull models and manage the cache.
    pub admin: bool,
    pub max_connections: u32,
    pub timeouts: Timeouts,
}

/// Limits on how long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// To send a request head.
    pub head: Duration,
    /// Between two reads of a request body.
    pub body: Duration,
    /// Between two requests on a connection.
    pub idle: Duration,
    /// To read some of the response.
    pub write: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let [head, body, idle, write] = [15, 30, 75, 60].map(Duration::from_secs);
        Timeouts { head, body, idle, write }
    }
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

pub enum BenchConfig {
    Perplexity { text: PathBuf, json: bool },
    Speed(SpeedConfig),
    Speculation(SpeculationConfig),
}

/// Speculation modes to compare with plain decoding.
pub struct SpeculationConfig {
    pub weights: BenchWeights,
    pub ways: SpeculationModes,
    /// Kinds of texts; of random weights, which answer none, the lengths of prompts.
    pub texts: Vec<PromptClass>,
    pub prompts: Vec<usize>,
    /// Of random weights: how often a scripted drafter is right.
    pub scripted: Vec<f64>,
    pub generate: Vec<usize>,
    pub batches: Vec<usize>,
    pub repeats: usize,
    pub warmup: usize,
    pub chart: Option<Chart>,
    pub json: bool,
}

pub struct SpeedConfig {
    pub weights: BenchWeights,
    pub workloads: Vec<Workload>,
    pub repeats: usize,
    pub warmup: usize,
    pub chart: Option<Chart>,
    /// Whether to show where the time went.
    pub kernels: bool,
    pub json: bool,
}

/// What is measured.
pub enum BenchWeights {
    Model,
    /// Made up for a config.json.
    Random {
        shape: String,
        config: serde_json::Value,
        /// `None` means bfloat16.
        quantization: Option<Quantization>,
    },
}

pub struct Chart {
    pub path: PathBuf,
    /// HTML with the table instead of the picture alone.
    pub page: bool,
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

pub struct NgramConfig {
    pub corpus: Vec<PathBuf>,
    pub out: Option<PathBuf>,
    pub order: usize,
    pub min_count: u32,
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
    #[error("--shape {name}: {problem}")]
    Shape { name: String, problem: String },
    #[error("--chart {}: the file's name must end in .svg or .html", .0.display())]
    Chart(PathBuf),
    #[error("--texts: there is no kind `{name}`; there are {}", PROMPT_CLASSES.map(|class| class.name).join(", "))]
    Texts { name: String },
    #[error("--prompt is for random prompts: with --speculate it needs --shape")]
    TextsHaveLengths,
    #[error("--batch {batch} is more than --max-batch {max_batch}")]
    Batch { batch: usize, max_batch: usize },
    #[error("--disk-cache needs a prefix cache in memory: do without --prefix-cache off")]
    DiskAlone,
    #[error("--disk-cache-bits: nothing is kept on the disk; name how much may be with --disk-cache")]
    BitsOfNothing,
    #[error("there is no home, and so no place for the disk cache: name one with --cache-dir")]
    NoCacheDir,
    /// Named as flags and keys of the config file are.
    #[error("{0}")]
    Sampling(engine::RequestError),
    #[error(transparent)]
    Format(#[from] QuantizeError),
    #[error("HF_ENDPOINT is `{0}`; it must begin with https:// or http://")]
    Endpoint(String),
    #[error("{0} holds characters that no token has")]
    Token(String),
}

/// The config file: the same fields as the flags, in one section per group.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    model: ModelArgs,
    cache: CacheArgs,
    server: ServerArgs,
    sampling: SamplingArgs,
}

impl Config {
    /// # Errors
    /// A config file that cannot be read or holds an unknown key, or `--ids` that are not numbers.
    pub fn resolve(cli: Cli) -> Result<Config, ConfigError> {
        let file = File::read(cli.global.config.as_deref())?;
        let color = !cli.global.no_color;
        let hub = hub()?;
        // One request, or measurements of what is computed, gain nothing from a prefix cache.
        let model = |args, file| model_config(args, file, (0, None), hub.clone());
        let with_cache = |args, file, cache: CacheArgs, cache_file: CacheArgs, usual| {
            let volatile_prefix = cache.volatile_prefix.or(cache_file.volatile_prefix).unwrap_or_default();
            let caches = caches(cache, cache_file, usual)?;
            Ok::<_, ConfigError>(ModelConfig {
                volatile_prefix,
                ..model_config(args, file, caches, hub.clone())
            })
        };
        let command = match cli.command {
            cli::CliCommand::Serve(mut args) => {
                args.model.speculate = args.drafts.speculate;
                let model = with_cache(args.model, file.model, args.cache, file.cache, Some(DISK_CACHE))?;
                Command::Serve(model, serve(args.server, file.server))
            }
            cli::CliCommand::Chat(mut args) => {
                args.model.speculate = args.drafts.speculate;
                let chat = ChatConfig {
                    sampling: overrides(args.sampling, file.sampling)?,
                    conversation: conversation(args.conversation),
                    color,
                    history: user_folder("XDG_STATE_HOME", ".local/state").map(|f| f.join("chat-history")),
                };
                Command::Chat(with_cache(args.model, file.model, args.cache, file.cache, None)?, chat)
            }
            cli::CliCommand::Run(mut args) => {
                args.model.speculate = args.drafts.speculate.take();
                let (args, run) = run(args, file.sampling, color)?;
                Command::Run(model(args, file.model), run)
            }
            cli::CliCommand::Bench(args) => {
                let (args, bench) = bench(args, &file.model)?;
                Command::Bench(model(args, file.model), bench)
            }
            cli::CliCommand::Pull(args) => Command::Pull(hub, args.model),
            cli::CliCommand::Models(args) => Command::Models(hub, models(args)),
            cli::CliCommand::Rm(args) => Command::Rm(hub, RmConfig { model: args.model, yes: args.yes }),
            cli::CliCommand::Cache(args) => {
                let folder = args.cache_dir.or(file.cache.cache_dir).or_else(state_folder);
                let folder = folder.ok_or(ConfigError::NoCacheDir)?;
                Command::Cache(StateConfig { folder, action: args.action, json: args.json })
            }
            cli::CliCommand::Quantize(args) => {
                Command::Quantize(model(ModelArgs::default(), file.model), quantize(args)?)
            }
            cli::CliCommand::Ngram(cli::NgramCommand::Build(args)) => {
                let of = ModelArgs { model: args.model.clone(), ..ModelArgs::default() };
                Command::NgramBuild(model(of, file.model), ngram(args))
            }
            cli::CliCommand::Ngram(cli::NgramCommand::Show(args)) => {
                Command::NgramShow { table: args.table, json: args.json }
            }
        };
        Ok(Config { log: log_level(cli.global.log), command })
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
    Some(base_folder(variable, fallback)?.join("lanner"))
}

fn base_folder(variable: &str, fallback: &str) -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(fallback)))
}

/// The hub's settings, from the variables that huggingface_hub reads too.
fn hub() -> Result<HubConfig, ConfigError> {
    let text =
        |name| env::var(name).ok().map(|text: String| text.trim().to_owned()).filter(|text| !text.is_empty());
    let path = |name| env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let home = path("HF_HOME").or_else(|| Some(base_folder("XDG_CACHE_HOME", ".cache")?.join("huggingface")));
    let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
    if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
        return Err(ConfigError::Endpoint(endpoint));
    }
    let token = match (text("HF_TOKEN"), home.as_ref().map(|home| home.join("token"))) {
        (Some(token), _) => Some((token, "HF_TOKEN".to_owned())),
        (None, Some(file)) => fs::read_to_string(&file).ok().map(|text| (text, file.display().to_string())),
        (None, None) => None,
    };
    let token =
        token.map(|(text, place)| (text.trim().to_owned(), place)).filter(|(text, _)| !text.is_empty());
    if let Some((_, place)) = token.as_ref().filter(|(text, _)| !text.chars().all(|c| c.is_ascii_graphic())) {
        return Err(ConfigError::Token(place.clone()));
    }
    let truthy = |text: String| matches!(text.to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true");
    Ok(HubConfig {
        cache: path("HF_HUB_CACHE").or_else(|| home.map(|home| home.join("hub"))),
        endpoint: endpoint.trim_end_matches('/').into(),
        token: token.map(|(text, _)| text),
        offline: text("HF_HUB_OFFLINE").is_some_and(truthy),
        proxy: ureq::Proxy::try_from_env(),
        uses: user_folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("uses")),
        backoff: Duration::from_millis(500),
    })
}

fn models(args: cli::ModelsArgs) -> ModelsConfig {
    match (args.catalog, args.json) {
        (true, _) => ModelsConfig::Catalog,
        (false, true) => ModelsConfig::Json,
        (false, false) => ModelsConfig::Table,
    }
}

/// The least that is worth a cache by default, and the most it takes unasked.
const LEAST_CACHE: usize = 256 << 20;
const MOST_CACHE: usize = 8 << 30;

/// What a server keeps on the disk unasked.
const DISK_CACHE: usize = 3 << 30;

/// Bytes in memory, and what is kept on the disk: unasked `usual` bytes.
fn caches(
    args: CacheArgs,
    file: CacheArgs,
    usual: Option<usize>,
) -> Result<(usize, Option<engine::DiskCache>), ConfigError> {
    let most = || (machine::memory().unwrap_or(0) / 8).clamp(LEAST_CACHE, MOST_CACHE);
    let memory = args.prefix_cache.or(file.prefix_cache).map_or_else(most, |bytes| bytes.0);
    let asked = args.disk_cache.or(file.disk_cache).map(|bytes| bytes.0);
    let named = args.cache_dir.or(file.cache_dir);
    // In the file it is also for commands that keep nothing there.
    let asked_bits = args.disk_cache_bits.is_some();
    let bits = args.disk_cache_bits.or(file.disk_cache_bits);
    let usual = usual.or(named.is_some().then_some(DISK_CACHE)).filter(|_| memory > 0);
    let Some(bytes) = asked.or(usual).filter(|bytes| *bytes > 0) else {
        return if asked_bits { Err(ConfigError::BitsOfNothing) } else { Ok((memory, None)) };
    };
    if memory == 0 {
        return Err(ConfigError::DiskAlone);
    }
    match named.or_else(state_folder) {
        Some(folder) => Ok((memory, Some(engine::DiskCache { folder, bytes, bits }))),
        None if asked.is_some() || asked_bits => Err(ConfigError::NoCacheDir),
        // A system without homes.
        None => Ok((memory, None)),
    }
}

fn state_folder() -> Option<PathBuf> {
    user_folder("XDG_CACHE_HOME", ".cache").map(|folder| folder.join("state"))
}

fn model_config(
    args: ModelArgs,
    file: ModelArgs,
    (prefix_cache_bytes, disk_cache): (usize, Option<engine::DiskCache>),
    hub: HubConfig,
) -> ModelConfig {
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
        precision: match args.precision.or(file.precision) {
            Some(cli::Precision::Float32) => engine::Precision::Float32,
            Some(cli::Precision::Rounded) => engine::Precision::Rounded,
            Some(cli::Precision::Int8) => engine::Precision::Int8,
            None => defaults.precision,
        },
        threads: args.threads.or(file.threads),
        prefill_chunk: args.prefill_chunk.or(file.prefill_chunk).unwrap_or(defaults.prefill_chunk),
        max_batch: args.max_batch.or(file.max_batch).unwrap_or(defaults.max_batch),
        queue_limit: args.queue_limit.or(file.queue_limit).unwrap_or(defaults.queue_limit),
        max_context: args.max_context.or(file.max_context),
        prefix_cache_bytes,
        disk_cache,
        checkpoint_every: defaults.checkpoint_every,
        // The tokenizer's, once there is one.
        eos_ids: vec![],
        stuck_after: defaults.stuck_after,
        memory_limit: args.memory_limit.or(file.memory_limit).map(|bytes| bytes.0).filter(|bytes| *bytes > 0),
        when_full: match args.when_full.or(file.when_full) {
            Some(cli::WhenFull::Refuse) => engine::WhenFull::Refuse,
            Some(cli::WhenFull::Wait) => engine::WhenFull::Wait,
            None => defaults.when_full,
        },
        // Opened when the model's tokenizer is known.
        ngram_table: None,
        draft_model: None,
        speculate: args.speculate.or(file.speculate).map_or(defaults.speculate, |asked| asked.0),
        metrics: defaults.metrics,
    };
    ModelConfig {
        model: args.model.or(file.model),
        options,
        hub,
        volatile_prefix: VolatilePrefix::default(),
        ngram_table: args.ngram_table.or(file.ngram_table),
        draft_model: args.draft_model.or(file.draft_model),
    }
}

fn ngram(args: NgramBuildArgs) -> NgramConfig {
    let NgramBuildArgs { corpus, out, order, min_count, json, .. } = args;
    NgramConfig { corpus, out, order: order.into(), min_count, json }
}

/// Above the default batch plus queue, below the usual limit on open files.
const MAX_CONNECTIONS: u32 = 512;

fn serve(args: ServerArgs, file: ServerArgs) -> ServeConfig {
    let host = args.host.or(file.host).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let port = args.port.or(file.port).unwrap_or(11436);
    let usual = Timeouts::default();
    let seconds = |flag: Option<NonZeroU32>, file: Option<NonZeroU32>, usual| {
        flag.or(file).map_or(usual, |seconds| Duration::from_secs(seconds.get().into()))
    };
    ServeConfig {
        address: SocketAddr::new(host, port),
        api_key: args.api_key.or(file.api_key).filter(|key| !key.is_empty()),
        allowed_hosts: [args.allow_host, file.allow_host].concat(),
        body_limit: args.body_limit.or(file.body_limit).unwrap_or(16) << 20,
        name: args.name.or(file.name),
        admin: !args.no_admin && !file.no_admin,
        max_connections: args
            .max_connections
            .or(file.max_connections)
            .map_or(MAX_CONNECTIONS, |most| most.get().into()),
        timeouts: Timeouts {
            head: seconds(args.header_timeout, file.header_timeout, usual.head),
            body: seconds(args.body_timeout, file.body_timeout, usual.body),
            idle: seconds(args.idle_timeout, file.idle_timeout, usual.idle),
            write: seconds(args.write_timeout, file.write_timeout, usual.write),
        },
    }
}

fn run(args: RunArgs, file: SamplingArgs, color: bool) -> Result<(ModelArgs, RunConfig), ConfigError> {
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
        sampling: overrides(args.sampling, file)?,
        ignore_eos: args.ignore_eos,
        stop: args.stop,
        json: args.json,
        dump_logits: args.dump_logits,
        color,
    };
    Ok((args.model, run))
}

fn bench(args: BenchArgs, file: &ModelArgs) -> Result<(ModelArgs, BenchConfig), ConfigError> {
    let BenchArgs { mut model, json, .. } = args;
    if let Some(text) = args.perplexity {
        return Ok((model, BenchConfig::Perplexity { text, json }));
    }
    let weights = match args.shape {
        None => BenchWeights::Model,
        Some(name) => {
            let problem = |problem| ConfigError::Shape { name: name.clone(), problem };
            let Shape { name: shape, config } = Shape::find(&name).map_err(problem)?;
            let quantization = quantization(args.mode, args.bits, args.group_size)?;
            BenchWeights::Random { shape, config, quantization: (!args.unquantized).then_some(quantization) }
        }
    };
    let comparing = args.speculate.is_some();
    let sizes = |given: &[NonZeroUsize], plain: &[usize], compared: &[usize]| match (given, comparing) {
        ([], false) => plain.to_vec(),
        ([], true) => compared.to_vec(),
        (given, _) => given.iter().map(|size| size.get()).collect(),
    };
    let prompts = sizes(&args.prompt, &[128, 512], &[128]);
    let generate = sizes(&args.generate, &[64], &[320]);
    let batches = sizes(&args.batch, &[1, 4], &[1, 8]);
    // All requests of a batch run together, unless somebody wanted fewer.
    let batch = batches.iter().copied().max().unwrap_or(1);
    let max_batch = *model.max_batch.get_or_insert(file.max_batch.unwrap_or(batch));
    if batch > max_batch {
        return Err(ConfigError::Batch { batch, max_batch });
    }
    let chart = args.chart.map(chart).transpose()?;
    let (repeats, warmup) = (args.repeats.get(), args.warmup);
    if let Some(asked) = args.speculate {
        if matches!(weights, BenchWeights::Model) && !args.prompt.is_empty() {
            return Err(ConfigError::TextsHaveLengths);
        }
        let texts = texts(&args.texts)?;
        let scripted = if args.scripted.is_empty() { vec![0.0, 0.5, 0.8, 1.0] } else { args.scripted };
        let ways = ways(asked);
        // What steps cost is measured while the model loads.
        model.speculate = Some(SpeculateArg(engine::Speculate::Auto));
        let config = SpeculationConfig {
            weights,
            ways,
            texts,
            prompts,
            scripted,
            generate,
            batches,
            repeats,
            warmup,
            chart,
            json,
        };
        return Ok((model, BenchConfig::Speculation(config)));
    }
    // What a token costs is measured without drafts.
    model.speculate = Some(SpeculateArg(engine::Speculate::Off));
    let mut workloads = vec![];
    for prompt in prompts {
        for &generate in &generate {
            workloads.extend(batches.iter().map(|&batch| Workload { prompt, generate, batch }));
        }
    }
    let speed = SpeedConfig { weights, workloads, repeats, warmup, chart, kernels: args.kernels, json };
    Ok((model, BenchConfig::Speed(speed)))
}

/// `all` among others is all.
fn ways(asked: Vec<SpeculateArg>) -> SpeculationModes {
    let asked: Vec<engine::Speculate> = asked.into_iter().map(|asked| asked.0).collect();
    let all = engine::Speculate::Fixed { drafter: "all".into(), depth: None };
    if asked.contains(&all) { SpeculationModes::All } else { SpeculationModes::Listed(asked) }
}

fn texts(names: &[String]) -> Result<Vec<PromptClass>, ConfigError> {
    let of = |name: &String| {
        let class = PROMPT_CLASSES.into_iter().find(|class| class.name == name);
        class.ok_or_else(|| ConfigError::Texts { name: name.clone() })
    };
    if names.is_empty() { Ok(PROMPT_CLASSES.to_vec()) } else { names.iter().map(of).collect() }
}

fn chart(path: PathBuf) -> Result<Chart, ConfigError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(Chart { path, page: false }),
        Some("html") => Ok(Chart { path, page: true }),
        _ => Err(ConfigError::Chart(path)),
    }
}

fn quantize(args: QuantizeArgs) -> Result<QuantizeConfig, ConfigError> {
    Ok(QuantizeConfig {
        source: args.source,
        out: args.out.filter(|_| !args.dry_run),
        quantization: quantization(args.mode, args.bits, args.group_size)?,
        verify: args.verify,
        text: args.text,
        json: args.json,
    })
}

fn quantization(
    mode: QuantizationMode,
    bits: Option<i32>,
    group_size: Option<i32>,
) -> Result<Quantization, QuantizeError> {
    let mode = match mode {
        QuantizationMode::Affine => Mode::Affine,
        QuantizationMode::Mxfp4 => Mode::Mxfp4,
        QuantizationMode::Mxfp8 => Mode::Mxfp8,
        QuantizationMode::Nvfp4 => Mode::Nvfp4,
    };
    engine::quantize::quantization(mode, bits, group_size)
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

fn overrides(args: SamplingArgs, file: SamplingArgs) -> Result<Overrides, ConfigError> {
    let number = |range: SamplingRange, flag: Option<f64>, file: Option<f64>| {
        flag.or(file).map(|value| range.check(value)).transpose().map_err(ConfigError::Sampling)
    };
    Ok(Overrides {
        max_tokens: args.max_tokens.or(file.max_tokens),
        temperature: number(SamplingRange::TEMPERATURE, args.temperature, file.temperature)?,
        top_p: number(SamplingRange::TOP_P, args.top_p, file.top_p)?,
        top_k: args.top_k.or(file.top_k),
        min_p: number(SamplingRange::MIN_P, args.min_p, file.min_p)?,
        repetition_penalty: number(
            SamplingRange::REPETITION_PENALTY,
            args.repetition_penalty,
            file.repetition_penalty,
        )?,
        presence_penalty: number(
            SamplingRange::PRESENCE_PENALTY,
            args.presence_penalty,
            file.presence_penalty,
        )?,
        frequency_penalty: number(
            SamplingRange::FREQUENCY_PENALTY,
            args.frequency_penalty,
            file.frequency_penalty,
        )?,
        seed: args.seed.or(file.seed),
        ..Overrides::default()
    })
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
