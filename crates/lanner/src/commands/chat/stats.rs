//! Figures of `/stats`: those of the last answer, and sums of the chat.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    generate::Finish,
    model::Model,
    server::{
        miss_context,
        openai::usage::{CacheUsage, Usage},
    },
    terminal::one_line,
};

/// Figures of answers.
#[derive(Default)]
pub(super) struct Stats {
    last: Option<AnswerStats>,
    answers: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
}

/// Figures of one answer.
pub(super) struct AnswerStats {
    model: String,
    usage: Usage,
}

impl AnswerStats {
    /// Figures of an answer to the prompt `ids`.
    pub(super) fn new(model: &Model, ids: &[u32], finish: &Finish) -> AnswerStats {
        let mut usage = Usage::default();
        usage.add(finish, true, |at| miss_context(model, ids, at));
        AnswerStats { model: model.name.clone(), usage }
    }

    /// `usage` as responses have it.
    pub(super) fn usage(&self) -> Value {
        json!(self.usage)
    }

    /// `timings` as responses have it.
    pub(super) fn timings(&self) -> Value {
        json!(self.usage.timings())
    }

    fn show(&self) -> String {
        let Usage { prompt_tokens, completion_tokens, timing, lanner, .. } = &self.usage;
        let reasoning = match self.usage.completion_tokens_details.reasoning_tokens {
            0 => String::new(),
            tokens => format!(", {tokens} of them reasoning"),
        };
        let speed = self.usage.timings().predicted_per_second;
        let speed = speed.map_or("speed unknown".into(), |speed| format!("{speed:.1} tokens/s"));
        let mut lines = vec![
            format!(
                "{}: {prompt_tokens} prompt tokens, {completion_tokens} generated{reasoning}",
                self.model
            ),
            format!(
                "first token after {}, {} of it waiting; then {speed}",
                seconds(timing.waiting + timing.prompt),
                seconds(timing.waiting)
            ),
            format!("cache: {}", cache(&lanner.cache, *prompt_tokens)),
        ];
        let drafters = &lanner.speculation.by_drafter;
        let by_drafter = drafters.iter().map(|(name, one)| {
            format!("{name}: {} of {} drafted tokens accepted", one.accepted, one.drafted)
        });
        let by_drafter: Vec<String> = by_drafter.collect();
        lines.push(match by_drafter.is_empty() {
            true => "speculation: nothing was drafted".into(),
            false => format!("speculation: {}", by_drafter.join("; ")),
        });
        if !lanner.lossy.is_empty() {
            lines.push(format!("the answer may differ from the model's own: {}", lanner.lossy.join(", ")));
        }
        lines.join("\n")
    }
}

impl Stats {
    pub(super) fn add(&mut self, answer: AnswerStats) {
        self.answers += 1;
        self.add_step(answer);
    }

    /// Adds a step of an answer that goes on after calls of tools.
    pub(super) fn add_step(&mut self, answer: AnswerStats) {
        self.prompt_tokens += answer.usage.prompt_tokens;
        self.cached_tokens += answer.usage.prompt_tokens_details.cached_tokens;
        self.completion_tokens += answer.usage.completion_tokens;
        self.last = Some(answer);
    }

    pub(super) fn show(&self) -> String {
        let Some(last) = &self.last else { return "there is no answer yet".into() };
        let Stats { answers, prompt_tokens, cached_tokens, completion_tokens, .. } = self;
        let s = if *answers == 1 { "" } else { "s" };
        format!(
            "{}\nthis chat: {answers} answer{s}, {prompt_tokens} prompt tokens ({cached_tokens} from the cache), \
             {completion_tokens} generated",
            last.show()
        )
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// Reused part of the prompt, and why it is not larger.
fn cache(cache: &CacheUsage, prompt_tokens: usize) -> String {
    let place = match cache.source {
        Some("disk") => " (from the disk)",
        Some(_) => " (from memory)",
        None => "",
    };
    let reused = format!("{} of {prompt_tokens} prompt tokens reused{place}", cache.cached_tokens);
    let Some(miss) = &cache.miss else { return reused };
    let (at, text) = (miss.position, one_line(&miss.text));
    match miss.reason {
        "disabled" => format!("{reused}; the prefix cache is off"),
        "differs" => {
            format!("{reused}; the prompt differs from the stored one at token {at}, near \"{text}\"")
        }
        "evicted" => format!("{reused}; what follows token {at} was evicted"),
        "too_large" => format!("{reused}; what follows token {at} exceeds the prefix cache"),
        "no_checkpoint" => format!("{reused}; token {at} is the last one with a snapshot to resume from"),
        reason => format!("{reused}; not more at token {at}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::openai::usage::CacheMiss;

    #[test]
    fn cache_line_names_the_reason_of_a_miss() {
        let miss = |reason| {
            let text = "a\nb".into();
            Some(CacheMiss { reason, position: 7, text, volatile_line: None })
        };
        for (source, cached_tokens, miss, expected) in [
            (None, 0, None, "0 of 9 prompt tokens reused"),
            (Some("ram"), 8, None, "8 of 9 prompt tokens reused (from memory)"),
            (
                Some("disk"),
                7,
                miss("evicted"),
                "7 of 9 prompt tokens reused (from the disk); what follows token 7 was evicted",
            ),
            (None, 0, miss("disabled"), "0 of 9 prompt tokens reused; the prefix cache is off"),
            (
                Some("ram"),
                7,
                miss("differs"),
                "7 of 9 prompt tokens reused (from memory); the prompt differs from the stored one at token 7, near \"a b\"",
            ),
        ] {
            assert_eq!(cache(&CacheUsage { source, cached_tokens, miss }, 9), expected);
        }
    }
}
