//! One request on its way: its tokens, its caches, its sampler.

use crate::{
    cache::Cache,
    handle::Submission,
    models::Model,
    request::{Event, FinishReason, ModelInfo, Request, TokenLogprobs, Usage},
    sample::Sampler,
    schedule::Want,
    step::Last,
};

pub struct Sequence {
    pub id: u64,
    pub request: Request,
    submission: Submission,
    /// Prompt and output, as far as read back.
    pub tokens: Vec<u32>,
    /// Tokens whose state is in the caches, or will be once the launched steps have run.
    pub computed: usize,
    pub caches: Vec<Cache>,
    pub sampler: Sampler,
    /// The token sampled last; the next one to compute.
    pub last: Option<Last>,
    /// Tokens sampled but not read back yet.
    pub unread: usize,
    /// Most tokens to generate.
    limit: usize,
    /// A step with this sequence in it failed; it runs alone until it has proved itself.
    pub suspect: bool,
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// Positions whose logits were reported.
    logits_reported: usize,
}

impl Sequence {
    pub fn new(id: u64, submission: Submission, model: &dyn Model, info: &ModelInfo) -> Sequence {
        let request = submission.request.clone();
        let room = info.context_length - request.prompt.len();
        Sequence {
            id,
            tokens: request.prompt.clone(),
            computed: 0,
            caches: model.make_caches(),
            sampler: Sampler::new(&request.sampling, info.vocab_size, &request.prompt, &[]),
            last: None,
            unread: 0,
            limit: request.max_tokens.min(room),
            suspect: false,
            prompt_logprobs: vec![None],
            logits_reported: 0,
            request,
            submission,
        }
    }

    /// What the sequence could do in the next step.
    pub fn wants(&self) -> Want {
        if self.computed < self.tokens.len() {
            Want::Prefill(self.tokens.len() - self.computed)
        } else if self.generated() + self.unread < self.limit {
            Want::Decode
        } else {
            Want::Nothing
        }
    }

    /// Tokens generated and read back.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    pub fn cancel(&self) {
        self.submission.cancel();
    }

    pub fn is_cancelled(&self) -> bool {
        self.submission.is_cancelled()
    }

    /// Forgets all state and computes prompt and output again: after a failed step nothing else is certain. What
    /// comes next is the same token as before, because output depends on the request alone.
    pub fn restart(&mut self, model: &dyn Model, info: &ModelInfo) {
        self.suspect = true;
        (self.computed, self.unread, self.last) = (0, 0, None);
        self.caches = model.make_caches();
        let (prompt, generated) = self.tokens.split_at(self.request.prompt.len());
        self.sampler = Sampler::new(&self.request.sampling, info.vocab_size, prompt, generated);
    }

    /// Takes in log-probabilities of prompt tokens `at..`; a replay brings some a second time.
    pub fn prompt_logprobs(&mut self, at: usize, logprobs: Vec<TokenLogprobs>) {
        let have = self.prompt_logprobs.len();
        self.prompt_logprobs.extend(logprobs.into_iter().skip(have - at).map(Some));
    }

    /// Takes in logits behind positions `at..`, `vocab_size` each; a replay brings some a second time.
    pub fn logits(&mut self, at: usize, values: &[f32], vocab_size: usize) {
        for (position, values) in (at..).zip(values.chunks(vocab_size)) {
            if position == self.logits_reported {
                self.logits_reported += 1;
                self.emit(Event::Logits { position, values: values.to_vec() });
            }
        }
    }

    /// Takes in a token read back; returns why the sequence ends with it, if it does.
    pub fn push(
        &mut self,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        info: &ModelInfo,
    ) -> Option<FinishReason> {
        self.unread -= 1;
        if self.request.prompt_logprobs && self.generated() == 0 {
            let all = std::mem::take(&mut self.prompt_logprobs);
            self.emit(Event::Prompt(all));
        }
        self.tokens.push(id);
        if info.eos_ids.contains(&id) && !self.request.ignore_eos {
            return Some(FinishReason::Eos(id));
        }
        self.emit(Event::Token { id, logprobs });
        (self.generated() == self.limit).then_some(FinishReason::Length)
    }

    pub fn finish(&mut self, reason: FinishReason) {
        let usage = Usage {
            prompt_tokens: self.request.prompt.len(),
            completion_tokens: self.generated(),
            cached_tokens: 0,
        };
        self.emit(Event::Finished { reason, usage });
    }

    pub fn emit(&mut self, event: Event) {
        self.submission.emit(event);
    }
}
