//! Requests to the engine: token ids and numbers, never text or arrays.

use std::{sync::Arc, time::Instant};

use super::{
    cache_salt::CacheSalt, constraint::Constraint, image::Image, options::Speculate, sampling::Sampling,
};

/// One generation or embedding: prompt token ids in, [`Event`](crate::Event)s out.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt token ids; at least one, each below the model's vocabulary size.
    pub prompt: Vec<u32>,
    /// Images in the prompt, in its order.
    pub images: Vec<Image>,
    /// Upper bound on new tokens; at least one. With `pooling` none is generated.
    pub max_tokens: usize,
    /// How each token is chosen.
    pub sampling: Sampling,
    /// Continue after an end-of-sequence token (parity checks, benchmarks).
    pub ignore_eos: bool,
    /// Tokens that end the answer as end-of-sequence tokens do, also with `ignore_eos`.
    pub stop_token_ids: Vec<u32>,
    /// `Some(n)`: report each token's log-probability and the `n` likeliest tokens beside it.
    pub logprobs: Option<usize>,
    /// Report the prompt's own log-probabilities too, in one
    /// [`Event::Prompt`](crate::Event::Prompt).
    pub prompt_logprobs: bool,
    /// Report the progress of the prompt, in
    /// [`Event::PromptProgress`](crate::Event::PromptProgress).
    pub prompt_progress: bool,
    /// Report raw float32 logits of every prompt position and step (parity checks).
    pub logits: bool,
    /// Its urgency among the waiting and running requests.
    pub priority: Priority,
    /// When the request fails with [`RequestError::TimeIsUp`](crate::RequestError::TimeIsUp) if it
    /// has not ended, waiting or running.
    pub deadline: Option<Instant>,
    /// Prompt positions at which later requests are likely to diverge, such as the end of a system
    /// message and the start of the answer: state is stored there. Each is at most the prompt's
    /// length.
    pub cache_breakpoints: Vec<usize>,
    /// Only requests with the same salt share stored prefixes.
    pub cache_salt: Option<CacheSalt>,
    /// Speculation; `None`: the engine's default.
    pub speculation: Option<Speculate>,
    /// Which tokens may come next; `None`: all.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Report an embedding of the prompt, in one
    /// [`Event::Embedding`](crate::Event::Embedding), instead of generating.
    pub pooling: Option<Pooling>,
}

/// How the hidden states of a prompt become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The hidden state of the last token. Stored prefixes are reused.
    Last,
    /// The mean of all, so every token is computed.
    Mean,
}

impl Request {
    /// A greedy request without further options.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Request {
        Request {
            prompt,
            images: vec![],
            max_tokens,
            sampling: Sampling::default(),
            ignore_eos: false,
            stop_token_ids: vec![],
            logprobs: None,
            prompt_logprobs: false,
            prompt_progress: false,
            logits: false,
            priority: Priority::default(),
            deadline: None,
            cache_breakpoints: vec![],
            cache_salt: None,
            speculation: None,
            constraint: None,
            pooling: None,
        }
    }

    /// A request for the prompt's embedding.
    pub fn embedding(prompt: Vec<u32>, pooling: Pooling) -> Request {
        Request { speculation: Some(Speculate::Off), pooling: Some(pooling), ..Request::new(prompt, 0) }
    }

    /// Whether logits of every prompt token are reported.
    pub fn wants_prompt_logits(&self) -> bool {
        self.prompt_logprobs || self.logits
    }

    /// Whether every prompt token has to be computed, so that no stored prefix is of use.
    pub fn computes_whole_prompt(&self) -> bool {
        self.wants_prompt_logits() || self.pooling == Some(Pooling::Mean)
    }

    /// The start of the image that `position` lies inside; `position` if it is in none.
    pub(crate) fn outside_images(&self, position: usize) -> usize {
        let spans = self.images.iter().map(Image::span);
        let inside = spans.filter(|span| span.start < position && position < span.end);
        inside.map(|span| span.start).min().unwrap_or(position)
    }

    /// The end of the image that `position` lies inside; `position` if it is in none.
    pub(crate) fn past_images(&self, position: usize) -> usize {
        let spans = self.images.iter().map(Image::span);
        let inside = spans.filter(|span| span.start < position && position < span.end);
        inside.map(|span| span.end).max().unwrap_or(position)
    }

    /// Whether the deadline has passed at `now`.
    pub fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// How urgent a request is: when it is admitted, and how much of a step its prompt gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// A user watches the output.
    Interactive,
    /// The default.
    #[default]
    Normal,
    /// Gets the rest, and a small share so that it does not starve.
    Background,
}

impl Priority {
    /// Most urgent first.
    pub const ALL: [Priority; 3] = [Priority::Interactive, Priority::Normal, Priority::Background];

    /// Relative share of a resource.
    pub fn weight(self) -> usize {
        [16, 4, 1][self as usize]
    }

    /// Relative time between turns: the inverse of the weight.
    pub fn stride(self) -> usize {
        16 / self.weight()
    }
}
