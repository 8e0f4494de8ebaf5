//! The command line as typed; `config` decides what its values mean together.

mod bench;
mod doctor;
mod eval;
mod launch;
mod model;
mod packaging;
mod server;
mod service;
mod store;
mod thinking;
mod tune;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, builder::FalseyValueParser};

pub use self::{
    bench::BenchArgs,
    doctor::DoctorArgs,
    eval::EvalArgs,
    launch::LaunchArgs,
    model::{
        CacheArgs, Device, Dtype, MemoryArgs, MemoryMode, ModelArgs, Precision, SpeculateArgs,
        VolatilePrefix, WhenFull,
    },
    packaging::{CompletionsArgs, ManArgs},
    server::{ChatMcpArgs, RemoteArgs, ServerArgs},
    service::{LogsArgs, ServiceArgs, StartArgs, StatusArgs, StopArgs, serve_flags},
    store::{ExportFormat, HistoryCommand, HistoryRmArgs, StoreArgs, StoreFileArgs, UsageArgs},
    thinking::ThinkingArgs,
    tune::TuneArgs,
    values::{Bytes, CorsOrigin, HostAddress, LogFormat, LogLevel, QuantizationMode, SpeculateArg},
};
use crate::sampling::SamplingArgs;

/// An LLM inference engine on Apple's MLX.
///
/// The flags of the groups Model, Cache, Server, Store, Thinking and Sampling may also be set in a
/// TOML config file, in sections of these names; those of Thinking also for one model, in
/// [models.NAME]. Flags override the environment, which overrides the file.
#[derive(Debug, Parser)]
#[command(name = "lanner", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: CliCommand,
    #[command(flatten)]
    pub global: GlobalArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "General")]
pub struct GlobalArgs {
    /// Config file [default: lanner/config.toml in $XDG_CONFIG_HOME or ~/.config, if it exists].
    #[arg(long, global = true, env = "LANNER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Log level on stderr.
    #[arg(long, global = true, env = "LANNER_LOG", value_name = "LEVEL", default_value = "warn")]
    pub log: LogLevel,
    /// Log lines as text or as JSON; see docs/store.md.
    #[arg(long, global = true, env = "LANNER_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Print without colours.
    #[arg(long, global = true, env = "NO_COLOR", value_parser = FalseyValueParser::new())]
    pub no_color: bool,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Answer one prompt and exit: `lanner run MODEL PROMPT`.
    ///
    /// The first word is the model if it names one on this machine, unless --model does; all other
    /// words are the prompt. Text that is piped in comes before the prompt, or is all of it.
    Run(RunArgs),
    /// Chat with the model in the terminal.
    Chat(ChatArgs),
    /// Serve the model over the HTTP APIs of OpenAI, Anthropic and Ollama.
    Serve(ServeArgs),
    /// Start a server in the background, and wait until it is ready.
    ///
    /// Takes the flags of `lanner serve`, and prints the server's address. If the server does not
    /// get ready, prints the end of its log and fails. The server runs as a systemd unit of the
    /// user on Linux, as a launchd agent on macOS, and else as a plain process. docs/service.md has
    /// the details.
    Start(StartArgs),
    /// End the server in the background: `lanner stop`; or unload one model of a running server:
    /// `lanner stop MODEL`.
    ///
    /// Running requests get some seconds to end. Without MODEL, --host and --port only make sure
    /// that the right server is ended.
    Stop(StopArgs),
    /// Show whether the server in the background runs, where, since when, and its models.
    ///
    /// The exit status is 0 if it is ready, 1 if it is starting or does not answer, and 3 if none
    /// runs.
    Status(StatusArgs),
    /// Print the end of the log of the server in the background.
    Logs(LogsArgs),
    /// Start a coding agent with a model of this machine: `lanner launch codex -m qwen3.5-9b`.
    ///
    /// Uses the server that runs at the address, or starts one that ends with the agent. The agent
    /// gets its settings as variables and flags, or in a file of Lanner's own; only an agent that
    /// has no other way gets an entry in its own file, which --restore takes out again. Without
    /// AGENT, lists the agents and how they are installed. docs/agents.md has the details.
    Launch(LaunchArgs),
    /// Check this machine: processor, GPU, libraries, memory, disk, models, port.
    ///
    /// Each line is ok, warn or error; the last column says what to do. The exit status is 1 if
    /// there is an error. Nothing is sent to any host without --network.
    Doctor(DoctorArgs),
    /// Measure this machine, and say which models fit, at which context and how fast.
    ///
    /// Measures the read bandwidth, a step, a prompt of 512 tokens and each drafter through the
    /// engine that serves, and predicts from the headers of weight files what local models and
    /// those of the catalogue take. Predicted speeds stand beside measured ones. Settings that
    /// follow are written only with --write. docs/tune.md has the details.
    Tune(TuneArgs),
    /// Download a model from the Hugging Face hub, or the files of it that are missing.
    ///
    /// Prints the model's folder. Downloads are resumed and verified. They go to the cache that
    /// other tools share: $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub. HF_TOKEN (or the
    /// file $HF_HOME/token) gives access to gated and private models, HF_ENDPOINT names another
    /// hub, and HF_HUB_OFFLINE=1 forbids network access.
    Pull(PullArgs),
    /// List the models on this machine.
    #[command(visible_alias = "list", alias = "ls")]
    Models(ModelsArgs),
    /// Show what is known of a model on this machine.
    Show(ShowArgs),
    /// List the models that a running server has loaded.
    Ps(PsArgs),
    /// Watch a running server: requests, speed, prefix cache, drafts, memory.
    ///
    /// Redraws the terminal until Ctrl-C. If stdout is not a terminal, prints one reading.
    Top(TopArgs),
    /// Remove a model from the cache.
    Rm(RmArgs),
    /// Show where data lies: config file, models, caches.
    Paths(PathsArgs),
    /// List, show, export or remove conversations of `lanner chat` and of the web page.
    #[command(subcommand)]
    History(HistoryCommand),
    /// Show how much servers were used: requests, tokens and speed by day and model.
    Stats(UsageArgs),
    /// Show or remove the disk cache of earlier requests' state.
    Cache(DiskCacheArgs),
    /// Quantise a model into a new folder, which mlx-lm can load too.
    ///
    /// Vision and audio towers, projectors, MTP heads, norms, convolutions, recurrences and routers
    /// are copied as they are; --dry-run lists what happens to each tensor. Memory holds a few
    /// pieces of one tensor at a time, and the same source gives the same bytes.
    Quantize(QuantizeArgs),
    /// Build or show an n-gram table of your texts, for --ngram-table.
    #[command(subcommand)]
    Ngram(NgramCommand),
    /// Measure how fast a model runs on this machine.
    ///
    /// Runs every combination of --prompt, --generate, --batch and --sampling once per round:
    /// --batch concurrent requests with random prompts of their own, end-of-sequence tokens
    /// ignored. The summary goes to stdout, progress to stderr. docs/benchmarks has the details.
    ///
    /// TTFT: time from submitting all requests to the first token of each, over all requests and
    /// repeats.
    ///
    /// Prefill: prompt tokens of all requests per second, until the last request has its first
    /// token.
    ///
    /// Decode: tokens of all requests per second from then on.
    ///
    /// p50, p90, p99: time between two tokens of a request, over all requests and repeats.
    ///
    /// Kernels, host: time per generated token in Lanner's own kernels and everywhere else. On a
    /// GPU only --kernels times kernels, and host is the time in which the host does not wait for
    /// it. Nodes, calls: operations built and kernels run or launched per generated token. In a
    /// batch, a step's cost is divided by its tokens.
    ///
    /// Weights GB/s: bytes of weights that a step reads times steps per second. Of reads: that as a
    /// share of the memory's read bandwidth. On the CPU, bench measures the bandwidth of all
    /// threads before and after the runs. On a GPU, the bandwidth is the memory's clock times the
    /// width of its bus.
    ///
    /// Prefill TFLOP/s: a prompt's products with weights, without attention.
    ///
    /// Memory: peak of the process; of arrays on a GPU and where the system does not report it.
    ///
    /// Speeds and TTFT are medians; times are in milliseconds, memory in megabytes. An unknown
    /// value is `-`, in JSON null.
    Bench(BenchArgs),
    /// Measure any server with OpenAI's chat completions, and grade its answers.
    ///
    /// The tests: 512 generated tokens; a tool schema of 12,000 tokens, cold and warm; a session
    /// of five turns; a fact in texts of 4,000 and 12,000 tokens, at three depths; short questions
    /// with thinking on and off; ten quality tasks, each with a rubric. The summary goes to stdout,
    /// progress to stderr. docs/eval.md defines every figure.
    Eval(EvalArgs),
    /// Print the completions of a shell.
    ///
    /// bash: lanner completions bash > ~/.local/share/bash-completion/completions/lanner
    ///
    /// zsh: lanner completions zsh > _lanner, in a folder of $fpath
    ///
    /// fish: lanner completions fish > ~/.config/fish/completions/lanner.fish
    Completions(CompletionsArgs),
    /// Write a manual page of each command.
    Man(ManArgs),
}

#[derive(Debug, Subcommand)]
pub enum NgramCommand {
    /// Count n-grams in texts, and write a table of them.
    ///
    /// Memory is bounded whatever the size of the texts. Temporary files beside the table take up
    /// to 16 bytes for each token of a text and each length of context.
    Build(NgramBuildArgs),
    /// Verify a table's checksum and show what it was built from.
    Show(NgramShowArgs),
}

#[derive(Debug, Args)]
pub struct NgramBuildArgs {
    /// Texts in UTF-8. In a .jsonl file each line is an object with a `text`, or with `messages`
    /// (and `tools`) for the model's chat template; any other file is one text.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub corpus: Vec<PathBuf>,
    /// Model whose tokenizer splits the texts; takes what --model of other commands takes
    /// [default: the built-in model].
    #[arg(long, short, env = "LANNER_MODEL", value_name = "MODEL")]
    pub model: Option<String>,
    /// Table to write [default: the model's name with .ngrams, in the current folder].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Most tokens of a context.
    #[arg(long, value_name = "TOKENS", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub order: u16,
    /// Omit contexts that occur less often.
    #[arg(long, value_name = "TIMES", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub min_count: u32,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NgramShowArgs {
    /// The table.
    #[arg(value_name = "FILE")]
    pub table: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PullArgs {
    /// ORG/NAME[@REVISION][:PART] or a short name; PART is a folder or a safetensors file of the
    /// repository.
    pub model: String,
}

#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Print a JSON array instead of a table.
    #[arg(long)]
    pub json: bool,
    /// List all short names instead, downloaded or not.
    #[arg(long)]
    pub catalog: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The model; takes what --model of other commands takes.
    pub model: String,
    /// Print a JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PsArgs {
    #[command(flatten)]
    pub server: RemoteArgs,
    /// Print a JSON array instead of a table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub server: RemoteArgs,
    /// Seconds between two readings; speeds and latencies are those of this time.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub interval: u16,
    /// Print one reading, after this time, and exit.
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct PathsArgs {
    /// Print a JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// For `LANNER_STORE`.
    #[arg(long, env = "LANNER_STORE", value_name = "FILE", hide = true)]
    pub store: Option<PathBuf>,
    /// For `LANNER_CACHE_DIR`.
    #[arg(long, env = "LANNER_CACHE_DIR", value_name = "DIR", hide = true)]
    pub cache_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// ORG/NAME or a short name; with @REVISION only that revision.
    pub model: String,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct DiskCacheArgs {
    /// `ls` shows what is stored for each model; `clear` removes everything, also while a server
    /// runs.
    pub action: DiskCacheAction,
    /// Folder of the disk cache [default: that of lanner serve].
    #[arg(long, env = "LANNER_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum DiskCacheAction {
    Ls,
    Clear,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub speculate: SpeculateArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub store: StoreArgs,
}

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub speculate: SpeculateArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub conversation: ConversationArgs,
    /// Continue a conversation: its id or the start of it, by default the latest one; see
    /// `lanner history list`.
    #[arg(long = "continue", value_name = "ID", num_args = 0..=1, help_heading = "Conversation")]
    pub continued: Option<Option<String>>,
    /// Print answers as the model writes them; by default a terminal gets their Markdown rendered.
    #[arg(long, help_heading = "Conversation")]
    pub plain: bool,
    /// Do not save the conversation, nor the lines that are typed.
    #[arg(long, help_heading = "Conversation", conflicts_with = "continued")]
    pub no_history: bool,
    #[command(flatten)]
    pub store: StoreFileArgs,
    #[command(flatten)]
    pub mcp: ChatMcpArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The model, if it names one on this machine and --model does not; else the first word of the
    /// prompt.
    #[arg(value_name = "MODEL")]
    pub model_or_prompt: Option<String>,
    /// The prompt; `-` reads it from standard input.
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
    /// An image to show the model before the prompt; may be given several times.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["raw", "ids"])]
    pub image: Vec<PathBuf>,
    /// Complete the prompt as plain text, without the chat template.
    #[arg(long, conflicts_with_all = ["system", "think", "no_think"])]
    pub raw: bool,
    /// Prompt as token ids, separated by spaces; prints only the new token ids.
    #[arg(hide_short_help = true, long, value_name = "IDS", conflicts_with_all = ["prompt", "raw", "system", "think", "no_think"])]
    pub ids: Option<String>,
    /// Continue after an end-of-sequence token.
    #[arg(hide_short_help = true, long)]
    pub ignore_eos: bool,
    /// Stop before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write the float32 logits of every prompt position and step to this safetensors file.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub dump_logits: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub speculate: SpeculateArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub conversation: ConversationArgs,
}

#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// The unquantised model; takes what --model of other commands takes.
    #[arg(value_name = "SRC")]
    pub source: String,
    /// Folder to write; it must be empty or not exist yet.
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    pub out: Option<PathBuf>,
    /// Format of the quantised weights.
    #[arg(long, default_value = "affine")]
    pub mode: QuantizationMode,
    /// Bits per weight: 2, 3, 4, 5, 6 or 8 if affine [default: 4]; fixed in the other modes.
    #[arg(long)]
    pub bits: Option<i32>,
    /// Weights that share a scale: 32, 64 or 128 if affine [default: 64]; fixed in the other modes.
    #[arg(long, value_name = "WEIGHTS")]
    pub group_size: Option<i32>,
    /// Compare the result with the source, tensor by tensor.
    #[arg(long)]
    pub verify: bool,
    /// With --verify: also compare the perplexity of both on this text; each must fit into memory.
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub text: Option<PathBuf>,
    /// Print what would happen to each tensor, and write nothing.
    #[arg(long, conflicts_with = "verify")]
    pub dry_run: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Conversation")]
pub struct ConversationArgs {
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Ask the template for thinking, whatever --thinking says.
    #[arg(long, overrides_with = "no_think")]
    pub think: bool,
    /// Ask the template for no thinking.
    #[arg(long, overrides_with = "think")]
    pub no_think: bool,
}
