//! `usage` of a response.

use std::collections::BTreeMap;

use chat::volatile_lines::VolatileLine;
use engine::{CacheReport, CacheSource, Lossy, MissReason};
use serde::Serialize;

use crate::generate::Finish;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Every generated token: reasoning and the end-of-sequence token included.
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
    pub completion_tokens_details: CompletionTokensDetails,
    /// Fields that OpenAI's API does not have.
    pub lanner: LannerUsage,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PromptTokensDetails {
    pub cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CompletionTokensDetails {
    pub reasoning_tokens: usize,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct LannerUsage {
    pub cache: CacheUsage,
    pub speculation: SpeculationUsage,
    /// Why the answer may differ from the model's own, each reason once; omitted if none applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lossy: Vec<&'static str>,
}

/// `usage` of a response without generated tokens.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct InputUsage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Drafted and accepted tokens.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SpeculationUsage {
    pub drafted: usize,
    pub accepted: usize,
    pub by_drafter: BTreeMap<&'static str, DrafterUsage>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DrafterUsage {
    pub drafted: usize,
    pub accepted: usize,
}

/// What was reused from the prefix cache, and why not more.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CacheUsage {
    /// `ram`, `disk` or null.
    pub source: Option<&'static str>,
    pub cached_tokens: usize,
    /// The first miss of all prompts.
    pub miss: Option<CacheMiss>,
}

#[derive(Clone, Debug, Serialize)]
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
        self.completion_tokens += finish.completion_tokens;
        self.completion_tokens_details.reasoning_tokens += finish.reasoning_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }

    /// Returns the sum and resets it.
    pub fn take(&mut self) -> Usage {
        std::mem::take(self)
    }
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
        MissReason::Evicted => "evicted",
        MissReason::TooLarge => "too_large",
        MissReason::NoSnapshot => "no_checkpoint",
        MissReason::LogitsWanted => "logprobs",
        MissReason::Disabled => "disabled",
    }
}
