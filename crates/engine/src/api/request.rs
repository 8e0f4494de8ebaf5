//! What callers hand to the engine: token ids and numbers, never text or arrays.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use super::{constraint::Constraint, options::Speculate};

/// One generation or embedding: prompt token ids in, [`Event`](crate::Event)s out.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt token ids; at least one, each below the model's vocabulary size.
    pub prompt: Vec<u32>,
    /// Upper bound on new tokens; at least one. With `pooling` none is generated.
    pub max_tokens: usize,
    pub sampling: Sampling,
    /// Go on after an end-of-sequence token (parity checks, benchmarks).
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
    pub priority: Priority,
    /// When the request fails with [`RequestError::TimeIsUp`](crate::RequestError::TimeIsUp) if it
    /// has not ended, waiting or running.
    pub deadline: Option<Instant>,
    /// Positions in the prompt from which later requests are likely to go on another way (the end
    /// of a system message, of a conversation before the start of the answer): state is kept there.
    /// At most the prompt's length, each.
    pub cache_breakpoints: Vec<usize>,
    /// Drafts; `None`: as the engine's options say.
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
    /// That of the last token. Stored prefixes are reused.
    Last,
    /// Their mean, so every token is computed.
    Mean,
}

impl Request {
    /// A greedy request with nothing else asked for.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Request {
        Request {
            prompt,
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

    pub fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// How urgent a request is: when it is admitted, and how much of a step its prompt gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// A user watches the output.
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
/// The choice is a pure function of the logits, the tokens so far and these values: random numbers
/// are keyed by `(seed, position)`, so the same request gives the same text whatever else is
/// running.
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
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 means
    /// off.
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
