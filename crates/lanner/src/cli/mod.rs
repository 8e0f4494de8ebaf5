//! The command line as typed; what its values mean together is decided in `config`.

use std::{
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32, NonZeroUsize},
    path::PathBuf,
    str::FromStr,
};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::FalseyValueParser};
use serde::Deserialize;

/// An LLM inference engine on Apple's MLX.
///
/// The flags of the groups Model, Cache, Server and Sampling can also stand in a TOML config file, in sections of these
/// names. Flags win over the environment, the environment over the file.
#[derive(Debug, Parser)]
#[command(name = "lanner", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: CliCommand,
    #[command(flatten)]
    pub global: GlobalArgs,
}

#[derive(Debug, Args)]
pub struct GlobalArgs {
    /// Config file [default: lanner/config.toml in $XDG_CONFIG_HOME or ~/.config, if it exists].
    #[arg(long, global = true, env = "LANNER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How much to log on stderr.
    #[arg(long, global = true, env = "LANNER_LOG", value_name = "LEVEL", default_value = "warn")]
    pub log: LogLevel,
    /// Do not colour or dim anything.
    #[arg(long, global = true, env = "NO_COLOR", value_parser = FalseyValueParser::new())]
    pub no_color: bool,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Serve the model over the OpenAI HTTP API.
    Serve(ServeArgs),
    /// Chat with the model in the terminal.
    Chat(ChatArgs),
    /// Answer one prompt and exit.
    Run(RunArgs),
    /// Measure how fast a model runs on this machine.
    ///
    /// Runs every combination of --prompt, --generate and --batch: so many requests at once, each with so many random
    /// prompt tokens, greedy, end-of-sequence tokens ignored. Each round runs every combination once; no two runs share a
    /// prompt. A summary goes to stdout, progress to stderr. docs/benchmarks says more than this:
    ///
    /// TTFT: from submitting all requests to the first token of each, over all requests and repeats.
    ///
    /// Prefill: prompt tokens of all requests per second, until the last of them has its first token.
    ///
    /// Decode: tokens of all requests per second from then on.
    ///
    /// p50, p90, p99: time between one token of a request and its next, over all requests and repeats.
    ///
    /// Kernels, host: where a generated token's time goes, in Lanner's own kernels and everywhere else. Nodes, calls:
    /// operations built and kernels run for it. Of a batch, each token has its share.
    ///
    /// Weights GB/s: bytes of weights that a step reads times steps per second. Of reads: that as a part of what all
    /// threads together can read from memory here, which is measured before and after.
    ///
    /// Memory: the peak of the process, or that of MLX's arrays where the system does not tell.
    ///
    /// Speeds and TTFT are medians; times are in milliseconds, memory in megabytes. What cannot be known is `-`, in JSON
    /// null.
    Bench(BenchArgs),
    /// Quantise a model into a new folder, which mlx-lm can load too.
    ///
    /// Vision and audio towers, projectors, MTP heads, norms, convolutions, recurrences and routers stay as they are;
    /// --dry-run shows what becomes of each tensor. Memory is bounded by a few pieces of one tensor, and the same source
    /// gives the same bytes.
    Quantize(QuantizeArgs),
    /// Download a model from the Hugging Face hub, or what of it is not there yet.
    ///
    /// Prints the model's folder. Downloads are resumed and verified, and lie in the cache that other tools use too: in
    /// $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub. HF_TOKEN (or the file $HF_HOME/token) gives access to gated
    /// and private models, HF_ENDPOINT names another hub, and with HF_HUB_OFFLINE=1 the network is never touched.
    Pull(PullArgs),
    /// List the models on this machine.
    Models(ModelsArgs),
    /// Remove a model from the cache.
    Rm(RmArgs),
    /// Show or remove the state of earlier requests that is kept on the disk.
    Cache(StateArgs),
    /// Make or show a table of what tends to follow in your texts, for --ngram-table.
    #[command(subcommand)]
    Ngram(NgramCommand),
}

#[derive(Debug, Subcommand)]
pub enum NgramCommand {
    /// Count what follows what in texts, and write a table of it.
    ///
    /// Memory is bounded, whatever the size of the texts; beside the table lie up to 16 bytes for each token of a text and each
    /// length of context while it is made.
    Build(NgramBuildArgs),
    /// Say what a table was made of, once its checksum is right.
    Show(NgramShowArgs),
}

#[derive(Debug, Args)]
pub struct NgramBuildArgs {
    /// Texts in UTF-8. In files that end in .jsonl each line is an object with a `text`, or with `messages` (and `tools`),
    /// which the model's chat template turns into text; any other file is one text.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub corpus: Vec<PathBuf>,
    /// The model whose tokenizer cuts them: what --model of other commands takes [default: the built-in model].
    #[arg(long, env = "LANNER_MODEL", value_name = "MODEL")]
    pub model: Option<String>,
    /// Where to write the table [default: the model's name with .ngrams, here].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Most tokens of a context.
    #[arg(long, value_name = "TOKENS", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub order: u16,
    /// Leave out contexts that occur less often.
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
    /// ORG/NAME[@REVISION][:PART] or a short name; PART is a folder or a safetensors file of the repository.
    pub model: String,
}

#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Print a JSON array instead of a table.
    #[arg(long)]
    pub json: bool,
    /// List the short names instead, whether these models are here or not.
    #[arg(long)]
    pub catalog: bool,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// ORG/NAME or a short name; with @REVISION only that revision.
    pub model: String,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct StateArgs {
    /// ls shows what is kept of which model; clear removes all of it, also under a server that runs.
    pub action: StateAction,
    /// Its folder [default: that of lanner serve].
    #[arg(long, env = "LANNER_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum StateAction {
    Ls,
    Clear,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub drafts: DraftArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub drafts: DraftArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub conversation: ConversationArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The prompt; `-` reads it from standard input.
    #[arg(required_unless_present = "ids")]
    pub prompt: Option<String>,
    /// Complete the prompt as it stands, without the chat template.
    #[arg(long, conflicts_with_all = ["system", "think", "no_think"])]
    pub raw: bool,
    /// Prompt token ids, space-separated; prints the new token ids and nothing else.
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "raw", "system", "think", "no_think"])]
    pub ids: Option<String>,
    /// Go on after an end-of-sequence token.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Stop before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write the float32 logits of every prompt position and step to this safetensors file.
    #[arg(long, value_name = "FILE")]
    pub dump_logits: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub drafts: DraftArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub conversation: ConversationArgs,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Prompt lengths in tokens, separated by commas [default: 128,512; with --speculate and --shape 128].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub prompt: Vec<NonZeroUsize>,
    /// New tokens of each request [default: 64; with --speculate at most 320].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub generate: Vec<NonZeroUsize>,
    /// Requests at once [default: 1,4; with --speculate 1,8].
    #[arg(long, value_name = "REQUESTS", value_delimiter = ',')]
    pub batch: Vec<NonZeroUsize>,
    /// Compare ways to draft with plain decoding, on texts of several kinds: `all` for every drafter of the model at several
    /// depths and auto, or a list of auto, NAME, NAME:DEPTH and self:lossy. Fails if an answer is not that of plain decoding,
    /// but for self:lossy.
    #[arg(long, value_name = "LIST|all", value_delimiter = ',', num_args = 0..=1, default_missing_value = "all",
          conflicts_with_all = ["perplexity", "kernels"])]
    pub speculate: Option<Vec<SpeculateArg>>,
    /// With --speculate: kinds of texts: prose, copying, json, arithmetic, chat [default: all].
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        requires = "speculate",
        conflicts_with = "shape"
    )]
    pub texts: Vec<String>,
    /// With --speculate and --shape: also draft by a script that is right so often, between 0 and 1
    /// [default: 0,0.5,0.8,1].
    #[arg(long, value_name = "SHARES", value_delimiter = ',', requires_all = ["speculate", "shape"], value_parser = share)]
    pub scripted: Vec<f64>,
    /// Measured rounds.
    #[arg(long, value_name = "ROUNDS", default_value = "3")]
    pub repeats: NonZeroUsize,
    /// Rounds before those, which do not count.
    #[arg(long, value_name = "ROUNDS", default_value = "1")]
    pub warmup: usize,
    /// Instead of a model, random weights made in memory: qwen3.5-0.8b, qwen3.5-4b, llama-8b, qwen3.5-9b, or the shape
    /// that a config.json describes.
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["model", "ngram_table", "draft_model"])]
    pub shape: Option<String>,
    /// With --shape: format of the random weights.
    #[arg(long, default_value = "affine", requires = "shape")]
    pub mode: QuantizationMode,
    /// With --shape: bits per weight, as of lanner quantize [default: 4].
    #[arg(long, requires = "shape")]
    pub bits: Option<i32>,
    /// With --shape: weights that share a scale, as of lanner quantize [default: 64].
    #[arg(long, value_name = "WEIGHTS", requires = "shape")]
    pub group_size: Option<i32>,
    /// With --shape: bfloat16 instead of quantised weights.
    #[arg(long, requires = "shape", conflicts_with_all = ["mode", "bits", "group_size"])]
    pub unquantized: bool,
    /// Also show what each kernel took of a prompt token and of a generated one, in milliseconds; JSON always has it.
    #[arg(long)]
    pub kernels: bool,
    /// Measure no speed, but the perplexity of the model on this text.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["prompt", "generate", "batch", "repeats", "warmup", "shape", "chart", "kernels"])]
    pub perplexity: Option<PathBuf>,
    /// Also draw the speeds: a picture as .svg, or a page with the table as .html.
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// The unquantised model: what --model of other commands takes.
    #[arg(value_name = "SRC")]
    pub source: String,
    /// Folder to write; it must not exist yet, or be empty.
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    pub out: Option<PathBuf>,
    /// Format of the quantised weights.
    #[arg(long, default_value = "affine")]
    pub mode: QuantizationMode,
    /// Bits per weight: 2, 3, 4, 5, 6 or 8 if affine [default: 4]; the other modes have their own.
    #[arg(long)]
    pub bits: Option<i32>,
    /// Weights that share a scale: 32, 64 or 128 if affine [default: 64]; the other modes have their own.
    #[arg(long, value_name = "WEIGHTS")]
    pub group_size: Option<i32>,
    /// Compare the result with the source, tensor by tensor.
    #[arg(long)]
    pub verify: bool,
    /// With --verify: also the perplexity of both on this text; both must fit into memory, one after the other.
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub text: Option<PathBuf>,
    /// Print what would become of each tensor, and write nothing.
    #[arg(long, conflicts_with = "verify")]
    pub dry_run: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Which model to load, and how to run it; `[model]` in the config file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A folder with config.json, tokenizer.json and *.safetensors; a safetensors file beside those; ORG/NAME[@REVISION][:PART]
    /// of a downloaded model; or a short name. What exists on disk wins [default: the built-in model].
    #[arg(long, env = "LANNER_MODEL", value_name = "MODEL")]
    #[serde(rename = "path")]
    pub model: Option<String>,
    /// Where to compute [default: the GPU if there is one].
    #[arg(long, env = "LANNER_DEVICE")]
    pub device: Option<Device>,
    /// Type of the activations [default: float32 on the CPU, the checkpoint's on a GPU].
    #[arg(long, env = "LANNER_DTYPE")]
    pub dtype: Option<Dtype>,
    /// Whether matrix products on the CPU may round activations: `rounded` to integers of 16 bits with a scale per group
    /// beside quantised weights, to bfloat16 beside bfloat16 ones; `int8` to integers of 8 bits instead of 16, which is
    /// less accurate, and faster where the processor multiplies bytes (AVX-512 with VNNI, AMX). Weights are never rounded
    /// [default: rounded].
    #[arg(long, env = "LANNER_PRECISION")]
    pub precision: Option<Precision>,
    /// Threads that compute on the CPU [default: one for each physical core].
    #[arg(long, env = "LANNER_THREADS", value_name = "THREADS")]
    pub threads: Option<NonZeroUsize>,
    /// Most prompt tokens computed in one step [default: 512].
    #[arg(long, value_name = "TOKENS")]
    pub prefill_chunk: Option<usize>,
    /// Most requests stepped together [default: 64].
    #[arg(long, value_name = "REQUESTS")]
    pub max_batch: Option<usize>,
    /// Most requests that wait behind those; the server refuses more with 429 [default: 256].
    #[arg(long, value_name = "REQUESTS")]
    pub queue_limit: Option<usize>,
    /// Lower the model's context length.
    #[arg(long, value_name = "TOKENS")]
    pub max_context: Option<usize>,
    /// Most memory for weights, steps and state, in bytes or as 500M or 4G; what is cached goes before a request is held
    /// back [default: off].
    #[arg(long, env = "LANNER_MEMORY_LIMIT", value_name = "BYTES|off")]
    pub memory_limit: Option<Bytes>,
    /// What happens to a request that the memory limit has room for, but not now [default: wait].
    #[arg(long, value_name = "POLICY")]
    pub when_full: Option<WhenFull>,
    /// Draft tokens from this table where the text so far has no example of what may follow: lanner ngram build makes one
    /// [default: none].
    #[arg(long, env = "LANNER_NGRAM_TABLE", value_name = "FILE")]
    pub ngram_table: Option<PathBuf>,
    /// A smaller model to draft with, where --speculate or a request asks for draft_model or leaves the choice to
    /// measurements; what --model takes, with the same tokens as the model. Of a block drafter made for the model (DFlash) the
    /// name is block [default: none].
    #[arg(long, env = "LANNER_DRAFT_MODEL", value_name = "MODEL")]
    pub draft_model: Option<String>,
    /// Of the commands that answer: see [`DraftArgs`].
    #[arg(skip)]
    pub speculate: Option<SpeculateArg>,
}

/// Of the commands that answer; in the config file it stands with the model. `lanner bench` compares instead.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct DraftArgs {
    /// Who drafts tokens before they are computed, several at a time, which never changes an answer: `auto` leaves that to
    /// measurements, and on GPUs drafts for a request that is alone; a name (ngram, mtp, draft_model, block, self) and, behind a colon, most tokens of a draft fix it. self:lossy
    /// drafts nothing and does change answers: the model goes without some layers, unverified [default: auto].
    #[arg(long, env = "LANNER_SPECULATE", value_name = "auto|off|NAME[:DEPTH]|self:lossy")]
    pub speculate: Option<SpeculateArg>,
}

/// What is kept for requests that begin like earlier ones; `[cache]` in the config file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// Most memory for the state of earlier requests, in bytes or as 500M or 4G; `off` keeps none [default: an eighth of
    /// the machine's memory, at most 8G].
    #[arg(long, env = "LANNER_PREFIX_CACHE", value_name = "BYTES|off")]
    pub prefix_cache: Option<Bytes>,
    /// Most room on the disk for the same, where it outlives the program; `off` keeps none there [default: 3G for serve if
    /// there is a prefix cache, off for chat unless there is a --cache-dir].
    #[arg(long, env = "LANNER_DISK_CACHE", value_name = "BYTES|off")]
    pub disk_cache: Option<Bytes>,
    /// Compress keys and values on the disk to so many bits each, and a bit for what groups of them share, so that more
    /// prompts have room there. This is lossy: a request that goes on from them, or from what was computed behind them,
    /// says `compressed_cache` in `usage.lanner.lossy`, and may be answered otherwise [default: all bits are kept].
    #[arg(long, env = "LANNER_DISK_CACHE_BITS", value_name = "8|4")]
    pub disk_cache_bits: Option<engine::CacheBits>,
    /// Folder for that; several servers may share it, and the room in it. It holds what users wrote, as numbers
    /// [default: lanner/state in $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, env = "LANNER_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// What to do with lines at the head of system messages that change with every request, such as the time or Claude
    /// Code's billing line: `keep` them and name them where they cost a cache hit, or `normalize` the prompt, so that they
    /// cost none [default: keep].
    #[arg(long, env = "LANNER_VOLATILE_PREFIX", value_name = "RULE")]
    pub volatile_prefix: Option<VolatilePrefix>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum VolatilePrefix {
    #[default]
    Keep,
    Normalize,
}

/// Where and to whom to serve; `[server]` in the config file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Address to listen on [default: 127.0.0.1].
    #[arg(long, env = "LANNER_HOST", value_name = "IP")]
    pub host: Option<IpAddr>,
    /// Port to listen on; 0 picks a free one [default: 11436].
    #[arg(long, env = "LANNER_PORT")]
    pub port: Option<u16>,
    /// Ask for this key in `Authorization: Bearer KEY` on /v1/*.
    #[arg(long, env = "LANNER_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Also accept this name in Host and Origin headers; `*` accepts all. By default a loopback
    /// address accepts loopback names, any other address also IP addresses and names of the local
    /// network.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Largest request body, in MiB [default: 16].
    #[arg(long, value_name = "MIB")]
    pub body_limit: Option<usize>,
    /// Serve the model under this name [default: the folder's name].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Turn off the routes that load and pull models and those of the prefix cache.
    #[arg(long)]
    pub no_admin: bool,
    /// Most connections at once; idle ones are evicted first, further ones get a 503 [default:
    /// 512].
    #[arg(long, value_name = "CONNECTIONS")]
    pub max_connections: Option<NonZeroU16>,
    /// Seconds to receive a request head [default: 15].
    #[arg(long, value_name = "SECONDS")]
    pub header_timeout: Option<NonZeroU32>,
    /// Longest pause in a request body, in seconds, and the time it may stay below 64 KiB a second
    /// on average [default: 30].
    #[arg(long, value_name = "SECONDS")]
    pub body_timeout: Option<NonZeroU32>,
    /// Seconds to keep an idle connection open [default: 75].
    #[arg(long, value_name = "SECONDS")]
    pub idle_timeout: Option<NonZeroU32>,
    /// Seconds after which a client that reads none of its response is disconnected [default: 60].
    #[arg(long, value_name = "SECONDS")]
    pub write_timeout: Option<NonZeroU32>,
}

/// How tokens are chosen; `[sampling]` in the config file. What is left out, the model's
/// generation_config.json says.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Most new tokens [default: the rest of the context].
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<usize>,
    /// 0 takes the likeliest token every time; at most 100.
    #[arg(long, allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Keep the smallest set of likeliest tokens whose probabilities reach this; above 0 and at most 1.
    #[arg(long, allow_negative_numbers = true)]
    pub top_p: Option<f64>,
    /// Keep this many likeliest tokens; 0 keeps all.
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Drop tokens less likely than this times the likeliest; between 0 and 1.
    #[arg(long, allow_negative_numbers = true)]
    pub min_p: Option<f64>,
    /// Make tokens seen in prompt or answer less likely; between 0.01 and 100, 1 is off.
    #[arg(long, allow_negative_numbers = true)]
    pub repetition_penalty: Option<f64>,
    /// Subtracted once from the logit of every token already generated; between -100 and 100.
    #[arg(long, allow_negative_numbers = true)]
    pub presence_penalty: Option<f64>,
    /// Subtracted from a token's logit for each time it was generated; between -100 and 100.
    #[arg(long, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f64>,
    /// The same seed gives the same answer [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Conversation")]
pub struct ConversationArgs {
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Ask the template for reasoning.
    #[arg(long, overrides_with = "no_think")]
    pub think: bool,
    /// Ask the template for no reasoning.
    #[arg(long, overrides_with = "think")]
    pub no_think: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "it must be a number between 0 and 1".into())
}

/// Who drafts tokens, as the engine reads it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SpeculateArg(pub engine::Speculate);

impl TryFrom<String> for SpeculateArg {
    type Error = String;

    fn try_from(text: String) -> Result<SpeculateArg, String> {
        text.parse()
    }
}

impl FromStr for SpeculateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<SpeculateArg, String> {
        text.parse().map(SpeculateArg)
    }
}

/// An amount of memory, written as a number, a number with K, M, G or T (of 1024), or `off` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub struct Bytes(pub usize);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of bytes, or text such as \"4G\" or \"off\"")]
enum NumberOrText {
    Number(usize),
    Text(String),
}

impl TryFrom<NumberOrText> for Bytes {
    type Error = String;

    fn try_from(given: NumberOrText) -> Result<Bytes, String> {
        match given {
            NumberOrText::Number(bytes) => Ok(Bytes(bytes)),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        if text == "off" {
            return Ok(Bytes(0));
        }
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift =
            match text[digits.len()..].to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
                "" => 0,
                "K" => 10,
                "M" => 20,
                "G" => 30,
                "T" => 40,
                _ => return Err(format!("`{text}` is no amount of memory; write bytes, 500M, 4G or off")),
            };
        let bytes = digits.parse().ok().and_then(|number: usize| number.checked_mul(1 << shift));
        bytes
            .map(Bytes)
            .ok_or_else(|| format!("`{text}` is no amount of memory; write bytes, 500M, 4G or off"))
    }
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// It waits for others to end.
    Wait,
    /// It is refused with 503.
    Refuse,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    Cpu,
    Gpu,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    Float32,
    Rounded,
    Int8,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    Float32,
    Float16,
    Bfloat16,
}

/// How weights are quantised.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum QuantizationMode {
    /// Integers with a scale and a bias per group.
    Affine,
    /// 4-bit floats with a power of two per 32.
    Mxfp4,
    /// 8-bit floats with a power of two per 32.
    Mxfp8,
    /// 4-bit floats with an 8-bit float per 16.
    Nvfp4,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory() {
        let check = |text: &str, expected: Option<usize>| {
            assert_eq!(text.parse().ok(), expected.map(Bytes), "{text}");
        };
        check("off", Some(0));
        check("0", Some(0));
        check("1000", Some(1000));
        check("4G", Some(4 << 30));
        check("4GiB", Some(4 << 30));
        check("500mb", Some(500 << 20));
        check("2k", Some(2048));
        check("many", None);
        check("-1", None);
        check("4X", None);
        check("99999999T", None);
        check("", None);
    }
}
