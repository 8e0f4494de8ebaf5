//! What an answer cost, on the wire.

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
    /// What OpenAI's API has no place for.
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
    /// Why the answer may be another than the model's own, each reason once; left out if it is that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lossy: Vec<&'static str>,
}

/// Tokens that were proposed before they were computed, and those of them that were right.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SpeculationUsage {
    pub drafted: usize,
    /// Each saved a step.
    pub accepted: usize,
    pub by_drafter: BTreeMap<&'static str, DrafterUsage>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DrafterUsage {
    pub drafted: usize,
    pub accepted: usize,
}

/// What the prefix cache gave, and why it gave no more.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CacheUsage {
    /// `ram`, or null.
    pub source: Option<&'static str>,
    pub cached_tokens: usize,
    /// Of the first prompt that missed something.
    pub miss: Option<CacheMiss>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CacheMiss {
    pub reason: &'static str,
    /// Of a token in the prompt.
    pub position: usize,
    /// The prompt around it.
    pub text: String,
    /// What agent clients are known to change there: `billing`, `date`, `time`, `token_countdown`, or null.
    #[serde(rename = "spoiler")]
    pub volatile_line: Option<&'static str>,
}

/// What a prompt says at one of its tokens.
pub struct MissContext {
    /// With some tokens on either side.
    pub text: String,
    pub volatile_line: Option<VolatileLine>,
}

impl Usage {
    /// Adds a finished choice; a prompt counts once, however many choices it has. `place` is what the prompt says
    /// at a position.
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

    /// The sum, which begins anew.
    pub fn take(&mut self) -> Usage {
        std::mem::take(self)
    }
}

impl LannerUsage {
    fn add_lossy(&mut self, of_one: &[Lossy]) {
        for name in of_one.iter().map(|why| lossy(*why)) {
            if !self.lossy.contains(&name) {
                self.lossy.push(name);
            }
        }
    }
}

impl SpeculationUsage {
    pub fn add(&mut self, of_one: &engine::Drafted) {
        self.drafted += of_one.drafted;
        self.accepted += of_one.accepted;
        let own = self.by_drafter.entry(of_one.drafter).or_default();
        own.drafted += of_one.drafted;
        own.accepted += of_one.accepted;
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

/// How a reason for another answer than the model's is called.
pub fn lossy(why: Lossy) -> &'static str {
    match why {
        Lossy::CompressedCache => "compressed_cache",
        Lossy::SkippedLayers => "skipped_layers",
    }
}

/// How a place of reused state is called.
pub fn source(source: CacheSource) -> &'static str {
    match source {
        CacheSource::Ram => "ram",
        CacheSource::Disk => "disk",
    }
}

/// How a reason not to reuse more is called.
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
