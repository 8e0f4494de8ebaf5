//! The events of a sequence. After a restart it computes some results again; each is sent once.

use super::submission::Submission;
use crate::{
    api::{CacheReport, Event, FinishReason, Lossy, RequestError, TokenLogprobs, Usage},
    speculate::SequenceSpeculation,
};

/// How a sequence ends.
pub(crate) enum End {
    Finished(FinishReason),
    Failed(RequestError),
}

pub(super) struct Delivery {
    submission: Submission,
    /// Report of the prefix cache when it first started.
    cache_report: Option<CacheReport>,
    /// Tokens of the prompt in the last report of progress.
    num_processed_sent: Option<usize>,
    /// Log-probabilities of the prompt tokens so far; the first has none.
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// Positions whose logits were sent.
    num_logits_sent: usize,
}

impl Delivery {
    pub(super) fn new(submission: Submission) -> Delivery {
        Delivery {
            submission,
            cache_report: None,
            num_processed_sent: None,
            prompt_logprobs: vec![None],
            num_logits_sent: 0,
        }
    }

    pub(super) fn submission(&self) -> &Submission {
        &self.submission
    }

    /// Records what the prefix cache did; later reports, after restarts, are ignored.
    pub(super) fn report_cache(&mut self, report: CacheReport) {
        if self.cache_report.is_none() {
            self.cache_report = Some(report);
            self.submission.meter.started(self.submission.request.prompt.len(), &report);
            self.send_progress(report.reused);
        }
    }

    /// Reports the progress of the prompt, if the request wants that; a replay repeats nothing.
    pub(super) fn send_progress(&mut self, processed: usize) {
        let is_new = self.num_processed_sent.is_none_or(|sent| sent < processed);
        if self.submission.request.prompt_progress && is_new {
            self.num_processed_sent = Some(processed);
            let cached = self.cache_report.map_or(0, |report| report.reused);
            self.submission.send(Event::PromptProgress { processed, cached });
        }
    }

    pub(super) fn add_prompt_logprobs(&mut self, at: usize, logprobs: Vec<TokenLogprobs>) {
        let known = self.prompt_logprobs.len() - at;
        self.prompt_logprobs.extend(logprobs.into_iter().skip(known).map(Some));
    }

    /// Sends logits after positions `at..` at once: they are large.
    pub(super) fn send_logits(&mut self, at: usize, values: &[f32], vocab_size: usize) {
        for (position, values) in (at..).zip(values.chunks(vocab_size)) {
            if position == self.num_logits_sent {
                self.num_logits_sent += 1;
                self.submission.send(Event::Logits { position, values: values.to_vec() });
            }
        }
    }

    pub(super) fn buffer_prompt(&mut self) {
        self.submission.buffer(Event::Prompt(std::mem::take(&mut self.prompt_logprobs)));
    }

    pub(super) fn buffer_embedding(&mut self, embedding: Vec<f32>) {
        self.submission.buffer(Event::Embedding(embedding));
    }

    pub(super) fn buffer_token(&mut self, id: u32, logprobs: Option<TokenLogprobs>) {
        self.submission.buffer(Event::Token { id, logprobs });
    }

    pub(super) fn flush(&mut self) {
        self.submission.flush();
    }

    /// Sends the final event; `lossy` if the sequence resumed from lossy state.
    pub(super) fn end(&mut self, end: End, generated: usize, speculation: &SequenceSpeculation, lossy: bool) {
        let event = match end {
            End::Failed(error) => Event::Failed(error),
            End::Finished(reason) => {
                let usage = self.usage(generated, speculation, lossy);
                Event::Finished { reason, usage }
            }
        };
        self.submission.send(event);
    }

    fn usage(&self, generated: usize, speculation: &SequenceSpeculation, lossy: bool) -> Usage {
        let cache = self.cache_report.unwrap_or_default();
        let compressed = lossy.then_some(Lossy::CompressedCache);
        let skipped = speculation.is_lossy().then_some(Lossy::SkippedLayers);
        Usage {
            prompt_tokens: self.submission.request.prompt.len(),
            completion_tokens: generated,
            cached_tokens: cache.reused,
            cache,
            speculation: speculation.report(),
            lossy: [compressed, skipped].into_iter().flatten().collect(),
        }
    }
}
