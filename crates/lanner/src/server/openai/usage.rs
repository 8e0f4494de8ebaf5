//! `usage` of a response.

use std::{collections::BTreeMap, time::Duration};

use chat::{thinking::Cut, volatile_lines::VolatileLine};
use engine::{CacheReport, CacheSource, Lossy, MissReason};
use schemars::JsonSchema;
use serde::Serialize;

use crate::generate::{Finish, Timing};

#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Every generated token: reasoning and the end-of-sequence token included.
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
    pub completion_tokens_details: CompletionTokensDetails,
    /// Fields that OpenAI's API does not have.
    pub lanner: LannerUsage,
    /// Of the slowest choice.
    #[serde(skip)]
    pub timing: Timing,
    #[serde(skip)]
    choices: usize,
}

/// llama-server's `timings`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Timings {
    pub cache_n: usize,
    pub prompt_n: usize,
    pub prompt_ms: f64,
    pub prompt_per_token_ms: Option<f64>,
    pub prompt_per_second: Option<f64>,
    pub predicted_n: usize,
    /// From the first token to the end.
    pub predicted_ms: f64,
    /// Of the tokens after the first.
    pub predicted_per_token_ms: Option<f64>,
    pub predicted_per_second: Option<f64>,
    /// Omitted if nothing was drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n_accepted: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct PromptTokensDetails {
    pub cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct CompletionTokensDetails {
    pub reasoning_tokens: usize,
}

#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct LannerUsage {
    pub cache: CacheUsage,
    pub speculation: SpeculationUsage,
    /// Tokens of the prompt that stand for images; omitted without images.
    #[serde(skip_serializing_if = "is_zero")]
    pub image_tokens: usize,
    /// Whether the answer thinks; omitted if the model cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<ThinkingUsage>,
    /// Usage of MCP tools in the answer; omitted without them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<McpUsage>,
    /// Why the answer may differ from the model's own, each reason once; omitted if none applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lossy: Vec<&'static str>,
}

/// Steps of an answer with MCP tools; all other figures are sums over them.
#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct McpUsage {
    /// Times that the model was asked.
    pub steps: usize,
    /// Calls that this server made.
    pub calls: usize,
    /// Bytes of their results.
    pub result_bytes: usize,
}

/// The thinking of an answer.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct ThinkingUsage {
    pub enabled: bool,
    /// The rule that decided: `request`, `keyword`, `needle`, `short_question`, `otherwise`,
    /// `default` or `template`.
    pub rule: &'static str,
    /// Most tokens of thinking; null if it has no limit.
    pub budget: Option<usize>,
    /// Tokens of the answer, without those of thinking.
    pub answer_tokens: usize,
    /// Why it was closed, `budget` or `repetition`; null: the model closed it.
    pub cut: Option<&'static str>,
}

/// `usage` of a response without generated tokens.
#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct InputUsage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Drafted and accepted tokens.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct SpeculationUsage {
    pub drafted: usize,
    pub accepted: usize,
    pub by_drafter: BTreeMap<&'static str, DrafterUsage>,
}

#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct DrafterUsage {
    pub drafted: usize,
    pub accepted: usize,
}

/// What was reused from the prefix cache, and why not more.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct CacheUsage {
    /// `ram`, `disk` or null.
    pub source: Option<&'static str>,
    pub cached_tokens: usize,
    /// The first miss of all prompts.
    pub miss: Option<CacheMiss>,
}

#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct CacheMiss {
    pub reason: &'static str,
    /// Token of the prompt.
    pub position: usize,
    /// The prompt's text around it.
    pub text: String,
    /// Kind of volatile line there: `billing`, `date`, `time`, `token_countdown`, or null.
    #[serde(rename = "spoiler")]
    pub volatile_line: Option<&'static str>,
}

/// The text of a prompt at a cache miss.
pub struct MissContext {
    /// Some tokens on either side.
    pub text: String,
    pub volatile_line: Option<VolatileLine>,
}

impl Usage {
    /// Adds a finished choice; a prompt counts once for all its choices. `context` gives the
    /// prompt's text at a position.
    pub fn add(&mut self, finish: &Finish, first_of_prompt: bool, context: impl Fn(usize) -> MissContext) {
        if first_of_prompt {
            self.prompt_tokens += finish.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += finish.cache.reused;
            self.lanner.cache.add(&finish.cache, context);
        }
        finish.speculation.iter().for_each(|drafted| self.lanner.speculation.add(drafted));
        self.lanner.add_lossy(&finish.lossy);
        self.timing.extend(&finish.timing);
        self.choices += 1;
        self.completion_tokens += finish.completion_tokens;
        self.completion_tokens_details.reasoning_tokens += finish.reasoning_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        if let Some(thinking) = &mut self.lanner.thinking {
            thinking.answer_tokens += finish.completion_tokens.saturating_sub(finish.reasoning_tokens);
            thinking.cut = thinking.cut.or(finish.cut.map(cut));
        }
    }

    /// [`add`](Usage::add) of a step of an answer that calls tools, one after the other.
    pub fn add_step(&mut self, finish: &Finish, context: impl Fn(usize) -> MissContext) {
        let before = self.timing;
        self.add(finish, true, context);
        self.timing = before;
        self.timing.add(&finish.timing);
        self.lanner.mcp.get_or_insert_default().steps += 1;
    }

    pub fn timings(&self) -> Timings {
        let cache_n = self.prompt_tokens_details.cached_tokens;
        let prompt_n = self.prompt_tokens - cache_n;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let [prompt_ms, predicted_ms] = [self.timing.prompt, self.timing.decode].map(milliseconds);
        let per_token = |ms: f64, tokens: usize| (tokens > 0 && ms > 0.0).then(|| ms / tokens as f64);
        let per_second = |ms: f64, tokens: usize| per_token(ms, tokens).map(|ms| 1e3 / ms);
        let intervals = self.completion_tokens.saturating_sub(self.choices);
        let speculation = &self.lanner.speculation;
        let drafts = speculation.drafted > 0;
        Timings {
            cache_n,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: per_token(prompt_ms, prompt_n),
            prompt_per_second: per_second(prompt_ms, prompt_n),
            predicted_n: self.completion_tokens,
            predicted_ms,
            predicted_per_token_ms: per_token(predicted_ms, intervals),
            predicted_per_second: per_second(predicted_ms, intervals),
            draft_n: drafts.then_some(speculation.drafted),
            draft_n_accepted: drafts.then_some(speculation.accepted),
        }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl LannerUsage {
    fn add_lossy(&mut self, reasons: &[Lossy]) {
        for name in reasons.iter().map(|reason| lossy(*reason)) {
            if !self.lossy.contains(&name) {
                self.lossy.push(name);
            }
        }
    }
}

impl SpeculationUsage {
    pub fn add(&mut self, drafted: &engine::Drafted) {
        self.drafted += drafted.drafted;
        self.accepted += drafted.accepted;
        let own = self.by_drafter.entry(drafted.drafter).or_default();
        own.drafted += drafted.drafted;
        own.accepted += drafted.accepted;
    }
}

impl CacheUsage {
    fn add(&mut self, report: &CacheReport, context: impl Fn(usize) -> MissContext) {
        self.cached_tokens += report.reused;
        self.source = self.source.or(report.source.map(source));
        let miss = report.miss.filter(|_| self.miss.is_none());
        self.miss =
            self.miss.take().or_else(|| miss.map(|miss| CacheMiss::new(miss, context(miss.position))));
    }
}

impl CacheMiss {
    fn new(miss: engine::Miss, context: MissContext) -> CacheMiss {
        let differs = miss.reason == MissReason::Differs;
        CacheMiss {
            reason: reason(miss.reason),
            position: miss.position,
            text: context.text,
            volatile_line: context.volatile_line.filter(|_| differs).map(VolatileLine::name),
        }
    }
}

/// The name of a cut in responses.
fn cut(cut: Cut) -> &'static str {
    match cut {
        Cut::Budget => "budget",
        Cut::Repetition => "repetition",
    }
}

/// The name of a reason in responses.
pub fn lossy(reason: Lossy) -> &'static str {
    match reason {
        Lossy::CompressedCache => "compressed_cache",
        Lossy::SkippedLayers => "skipped_layers",
    }
}

/// The name of a cache in responses and metrics.
pub fn source(source: CacheSource) -> &'static str {
    match source {
        CacheSource::Ram => "ram",
        CacheSource::Disk => "disk",
    }
}

/// The name of a miss in responses and metrics.
pub fn reason(reason: MissReason) -> &'static str {
    match reason {
        MissReason::Differs => "differs",
        MissReason::ImageDropped => "image_dropped",
        MissReason::Evicted => "evicted",
        MissReason::TooLarge => "too_large",
        MissReason::NoSnapshot => "no_checkpoint",
        MissReason::LogitsWanted => "logprobs",
        MissReason::Disabled => "disabled",
    }
}
