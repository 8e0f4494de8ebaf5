//! What callers hand to the engine and what they get back: token ids and numbers, never text or arrays.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    constrain::Constraint,
    memory::{Memory, megabytes},
    options::{Precision, Speculate},
};

/// One generation: prompt token ids in, [`Event`]s out.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt token ids; at least one, each below the model's vocabulary size.
    pub prompt: Vec<u32>,
    /// Upper bound on new tokens; at least one.
    pub max_tokens: usize,
    pub sampling: Sampling,
    /// Go on after an end-of-sequence token (parity checks, benchmarks).
    pub ignore_eos: bool,
    /// `Some(n)`: report each token's log-probability and the `n` likeliest tokens beside it.
    pub logprobs: Option<usize>,
    /// Report the prompt's own log-probabilities too, in one [`Event::Prompt`].
    pub prompt_logprobs: bool,
    /// Report raw float32 logits of every prompt position and step (parity checks).
    pub logits: bool,
    pub priority: Priority,
    /// When the request fails with [`RequestError::TimeIsUp`] if it has not ended, waiting or running.
    pub deadline: Option<Instant>,
    /// Positions in the prompt from which later requests are likely to go on another way (the end of a system message,
    /// of a conversation before the start of the answer): state is kept there. At most the prompt's length, each.
    pub cache_breakpoints: Vec<usize>,
    /// Drafts; `None`: as the engine's options say.
    pub speculation: Option<Speculate>,
    /// Which tokens may come next, position by position; `None`: all.
    pub constraint: Option<Arc<dyn Constraint>>,
}

impl Request {
    /// A greedy request with nothing else asked for.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Request {
        Request {
            prompt,
            max_tokens,
            sampling: Sampling::default(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: false,
            logits: false,
            priority: Priority::default(),
            deadline: None,
            cache_breakpoints: vec![],
            speculation: None,
            constraint: None,
        }
    }

    /// Whether every prompt token has to be computed, for its logits.
    pub fn wants_prompt_logits(&self) -> bool {
        self.prompt_logprobs || self.logits
    }

    pub fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// How urgent a request is: when it is admitted, and how much of a step its prompt gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Somebody watches.
    Interactive,
    #[default]
    Normal,
    /// Whatever the others leave, and a little more, so that it does not starve.
    Background,
}

impl Priority {
    /// Most urgent first.
    pub const ALL: [Priority; 3] = [Priority::Interactive, Priority::Normal, Priority::Background];

    /// Shares among those who want the same.
    pub fn weight(self) -> usize {
        [16, 4, 1][self as usize]
    }

    /// The time from one turn to the next, in proportion: the inverse of the weight.
    pub fn stride(self) -> usize {
        16 / self.weight()
    }
}

/// How a token is chosen from logits. The default is greedy, with every filter and penalty off.
/// [`SamplingRange`](crate::SamplingRange) bounds the values.
///
/// The choice is a pure function of the logits, the tokens so far and these values: random numbers are
/// keyed by `(seed, position)`, so the same request gives the same text whatever else is running.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 means all.
    pub top_k: usize,
    /// Keep the smallest set of likeliest tokens whose probabilities reach `top_p`; 1 means all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the likeliest; 0 means none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 means off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token already generated.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it was generated.
    pub frequency_penalty: f32,
    /// Added to the logits of the given token ids before anything else.
    pub logit_bias: BTreeMap<u32, f32>,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
        }
    }
}

/// What happens to a request, in order. `Finished` or `Failed` is the last one.
#[derive(Clone, Debug)]
pub enum Event {
    /// With `prompt_logprobs`: one entry per prompt token, the first `None`; comes before any token.
    Prompt(Vec<Option<TokenLogprobs>>),
    /// With `logits`: float32 logits `[vocab_size]` that follow position `position` of prompt plus output.
    Logits {
        position: usize,
        values: Vec<f32>,
    },
    /// One new token. An end-of-sequence token is reported by `Finished` alone, unless `ignore_eos`.
    Token {
        id: u32,
        logprobs: Option<TokenLogprobs>,
    },
    Finished {
        reason: FinishReason,
        usage: Usage,
    },
    Failed(RequestError),
}

/// Log-probabilities (natural log, of the distribution before temperature, filters and penalties).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub id: u32,
    pub logprob: f32,
    /// The likeliest tokens with their log-probabilities, likeliest first.
    pub top: Vec<(u32, f32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn with this end-of-sequence token.
    Eos(u32),
    /// `max_tokens` or the context length was reached.
    Length,
    /// The [`Ticket`](crate::Ticket) was dropped or cancelled.
    Cancelled,
}

/// What the request cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Every generated token, the end-of-sequence token included.
    pub completion_tokens: usize,
    /// Prompt tokens whose state was reused instead of computed.
    pub cached_tokens: usize,
    pub cache: CacheReport,
    /// By drafter, of those that drafted anything.
    pub speculation: Vec<Drafted>,
    /// Why the answer may be another than the model's own; empty unless somebody asked for that.
    pub lossy: Vec<Lossy>,
}

/// What made an answer inexact, because somebody asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lossy {
    /// It went on from state that was compressed on the disk, or computed behind such state.
    CompressedCache,
    /// Behind the prompt some layers were left out.
    SkippedLayers,
}

/// What became of a drafter's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    pub drafter: &'static str,
    pub drafted: usize,
    /// Those that were right: each saved a step.
    pub accepted: usize,
}

impl Drafted {
    /// Nothing yet.
    pub(crate) fn of(drafter: &'static str) -> Drafted {
        Drafted { drafter, drafted: 0, accepted: 0 }
    }
}

/// What a request got from the prefix cache, and why it got no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Where the reused state lay; `None` if none was.
    pub source: Option<CacheSource>,
    /// Prompt tokens whose state was reused.
    pub reused: usize,
    /// Prompt tokens, without the last, in common with the closest sequence that is stored, or was not long ago.
    pub reusable: usize,
    /// Why not the whole prompt but its last token was reused, what cost most of it; `None` also if whatever was sent
    /// before ends where the reuse ended.
    pub miss: Option<Miss>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSource {
    Ram,
    /// All or some of it had to be read from a disk.
    Disk,
}

impl CacheSource {
    pub const ALL: [CacheSource; 2] = [CacheSource::Ram, CacheSource::Disk];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    pub reason: MissReason,
    /// The first prompt token concerned.
    pub position: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// The closest stored sequence has another token at this position.
    Differs,
    /// What lies behind this position was stored, and had to make room.
    Evicted,
    /// What lies behind this position was never stored: with all before it, it takes more than the cache may hold.
    TooLarge,
    /// More is stored, but the model's state can only be resumed where it was kept: this is the last such position.
    NoSnapshot,
    /// All of the prompt's logits are wanted, so all of it is computed.
    LogitsWanted,
    /// There is no prefix cache.
    Disabled,
}

impl MissReason {
    pub const ALL: [MissReason; 6] = [
        MissReason::Differs,
        MissReason::Evicted,
        MissReason::TooLarge,
        MissReason::NoSnapshot,
        MissReason::LogitsWanted,
        MissReason::Disabled,
    ];
}

/// What the prefix cache holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Most bytes; 0 if it is off.
    pub budget_bytes: usize,
    pub bytes: usize,
    /// Runs of tokens, each stored once for all sequences that share it.
    pub entries: usize,
    /// Tokens of those.
    pub stored_tokens: usize,
    /// States of recurrences, convolutions and windows.
    pub snapshots: usize,
    /// Since the engine started: requests that began, and those that reused something.
    pub requests: usize,
    pub hits: usize,
    /// Tokens of those requests, those they reused, and those they had in common with what was known.
    pub prompt_tokens: usize,
    pub reused_tokens: usize,
    pub reusable_tokens: usize,
    /// Entries and snapshots that made room for others.
    pub evictions: usize,
    /// Bytes of state that were copied to be stored.
    pub copied_bytes: usize,
    /// Most bytes on the disk; 0 if nothing is kept there.
    pub disk_budget_bytes: usize,
    /// Those of this model's state, and its files.
    pub disk_bytes: usize,
    pub disk_files: usize,
    /// Files removed because they did not hold what they should.
    pub disk_rejected: usize,
    /// Times it had to be emptied because of a bug of ours.
    pub failures: usize,
}

/// Why one request failed; the engine and every other request go on.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum RequestError {
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    #[error("max_tokens is 0; ask for at least one token")]
    NoTokensAsked,
    #[error(
        "the prompt has {prompt} tokens and the model's context holds {context}; shorten the prompt by {} or more",
        prompt + 1 - context
    )]
    PromptTooLong { prompt: usize, context: usize },
    #[error("cache breakpoint {position} is outside the prompt of {prompt} tokens")]
    BadCacheBreakpoint { position: usize, prompt: usize },
    #[error("token id {id} is outside the model's vocabulary of {vocab_size}")]
    TokenOutOfRange { id: u32, vocab_size: usize },
    #[error("{name} is {}; it must be {must}", short(*value))]
    BadSampling { name: &'static str, value: f64, must: &'static str },
    #[error("there is no drafter `{name}` for this model; there are {known}{}", loaded_beside(name))]
    UnknownDrafter { name: String, known: String },
    #[error("a draft of {depth} tokens is too long; it has at most {most}")]
    DraftTooLong { depth: usize, most: usize },
    #[error("the constraint on the answer allows no token behind {generated} generated ones")]
    NothingAllowed { generated: usize },
    #[error(
        "no token can be chosen behind {generated} generated ones: logit_bias, the penalties and the constraint on the \
         answer leave none with a finite logit; change them"
    )]
    NoCandidate { generated: usize },
    #[error("the model failed on this request: {0}")]
    Step(String),
    #[error("the model computed logits that are not numbers; its weights are broken or its type too narrow")]
    NotFinite,
    #[error("the request's time was up before it was answered")]
    TimeIsUp,
    #[error(
        "{waiting} requests wait already, and no more may; try again in {} s",
        retry_after.as_secs_f64().ceil()
    )]
    QueueFull { waiting: usize, retry_after: Duration },
    #[error(
        "a prompt of {prompt} tokens and max_tokens {max_tokens} need up to {} of memory, and under the memory limit {} are left for \
         requests; ask for at most {most} tokens in all, or raise the limit",
        megabytes(*needs),
        megabytes(*room)
    )]
    NeverFits { prompt: usize, max_tokens: usize, needs: usize, room: usize, most: usize },
    #[error(
        "the request needs up to {} of memory, and requests that run leave {} under the memory limit; try again later",
        megabytes(*needs),
        megabytes(*free)
    )]
    MemoryFull { needs: usize, free: usize },
    #[error("there was no memory for a step of this request; try again later: {0}")]
    OutOfMemory(String),
    #[error("{} of the answer wait to be read; read it faster", megabytes(*bytes))]
    Unread { bytes: usize },
    #[error("the engine has stopped; restart the server")]
    EngineStopped,
}

/// A number without a row of zeros.
fn short(value: f64) -> String {
    let plain = value == 0.0 || (1e-4..1e9).contains(&value.abs());
    if plain { value.to_string() } else { format!("{value:?}") }
}

/// What drafters of this name lack, if they are no part of the model.
fn loaded_beside(name: &str) -> &'static str {
    match name {
        "draft_model" | "block" => "; a draft model is loaded only if one is named when the model is loaded",
        _ => "",
    }
}

/// What a loaded model is; fixed for the life of an engine.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `model_type` of config.json.
    pub model_type: String,
    pub vocab_size: usize,
    /// Longest prompt plus output, in tokens.
    pub context_length: usize,
    /// From generation_config.json and config.json together; the tokenizer's if neither names one.
    pub eos_ids: Vec<u32>,
    /// Drafters that requests may name.
    pub drafters: Vec<&'static str>,
    /// What requests get that do not say who drafts.
    pub speculate: Speculate,
    /// generation_config.json's sampling parameters; `temperature` is 0 if it says `do_sample: false`.
    pub default_sampling: Sampling,
    /// Size of all weights in memory, in bytes.
    pub weight_bytes: usize,
    pub weights: WeightSummary,
    pub memory: Memory,
}

impl ModelInfo {
    /// Whether a request that asks so for drafts may get another answer than the model's.
    pub fn is_lossy(&self, asked: Option<&Speculate>) -> bool {
        *asked.unwrap_or(&self.speculate) == Speculate::Lossy
    }
}

/// What a model's weights are, for whoever measures it.
#[derive(Clone, Debug, Default)]
pub struct WeightSummary {
    /// Numbers that the weights stand for, scales of quantised ones not among them.
    pub parameters: usize,
    /// That of most bytes: `affine 4-bit, group 64`, `mxfp4`, `bfloat16`.
    pub format: String,
    /// In which products with them are computed; `None` on a GPU, where it is MLX's.
    pub precision: Option<Precision>,
    /// `None` if the model has experts and does not say how many of them a token takes.
    pub reads: Option<WeightReads>,
}

/// Bytes of weights that computing takes; single rows of tables are left out.
#[derive(Clone, Copy, Debug)]
pub struct WeightReads {
    /// Once in each step, for all tokens in it together.
    pub every_step: usize,
    /// Of the experts that a token takes; tokens of one step may share some.
    pub per_token: usize,
}
