//! Random requests, and their answers bit by bit.

use std::sync::mpsc::{self, Receiver};

use lanner_engine::*;

use super::constraints::{limited, winding};

const VOCABULARY: u64 = 250;

pub(crate) struct Running {
    pub handle: RequestHandle,
    pub events: Receiver<Event>,
    /// Events that were already received.
    pub early: Vec<Event>,
}

pub(crate) fn submit(engine: &Engine, request: Request) -> Running {
    let (sender, events) = mpsc::channel();
    let handle = engine.submit(request, move |event| drop(sender.send(event))).expect("valid");
    Running { handle, events, early: vec![] }
}

/// Tokens with the bits of their log-probabilities, and the finish reason.
#[derive(Debug)]
pub(crate) struct Answer {
    pub tokens: Vec<(u32, Vec<u32>)>,
    pub reason: FinishReason,
    pub usage: Usage,
}

impl Answer {
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|(id, _)| *id).collect()
    }
}

pub(crate) fn answer(Running { handle, events, early }: Running) -> Answer {
    let mut tokens = vec![];
    let bits = |logprobs: Option<TokenLogprobs>| {
        let logprobs = logprobs.expect("requested");
        let top = logprobs.top.iter().flat_map(|(id, value)| [*id, value.to_bits()]);
        [logprobs.logprob.to_bits()].into_iter().chain(top).collect()
    };
    for event in early.into_iter().chain(events) {
        match event {
            Event::Token { id, logprobs } => tokens.push((id, bits(logprobs))),
            Event::Finished { reason, usage } => return Answer { tokens, reason, usage },
            Event::Failed(error) => panic!("{error}"),
            Event::Logits { .. } | Event::Prompt(_) | Event::Embedding(_) | Event::PromptProgress { .. } => {}
        }
    }
    drop(handle);
    panic!("no final event");
}

pub(crate) fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { ignore_eos: true, logprobs: Some(2), ..Request::new(prompt, max_tokens) }
}

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| 3 + (self.next() % (VOCABULARY - 3)) as u32).collect()
    }
}

/// A prompt that may begin like an earlier one; some are long enough for windows to move.
pub(crate) fn prompt(random: &mut Random, before: &[Vec<u32>]) -> Vec<u32> {
    let mut prompt = vec![];
    if !before.is_empty() && !random.one_in(4) {
        let other = &before[random.below(before.len())];
        let whole = random.one_in(3);
        prompt = other[..if whole { other.len() } else { random.below(other.len()) + 1 }].to_vec();
    }
    if prompt.is_empty() || !random.one_in(6) {
        let length = random.choose(&[1, 3, 20, 60, 200, 700]);
        let more = random.below(length) + 1;
        prompt.extend(random.tokens(more));
    }
    prompt.truncate(1500);
    prompt
}

pub(crate) fn any_request(random: &mut Random, before: &[Vec<u32>]) -> Request {
    let prompt = prompt(random, before);
    let marks = random.below(3);
    let cache_breakpoints = (0..marks).map(|_| random.below(prompt.len() + 1)).collect();
    let max_tokens = random.below(12) + 1;
    let sampling = match random.one_in(2) {
        true => Sampling { temperature: 1.0, seed: random.next(), ..Sampling::default() },
        false => Sampling::default(),
    };
    let logits = random.one_in(12);
    // Tiny models repeat themselves, so that there is something to look up.
    let lookup = Speculate::Fixed { drafter: "ngram".into(), depth: Some(random.below(7) + 1) };
    let speculation = [None, Some(Speculate::Off), Some(lookup)][random.below(3)].clone();
    let constraint = match random.below(8) {
        0 => winding(),
        1 | 2 => limited(),
        _ => None,
    };
    Request { cache_breakpoints, sampling, logits, speculation, constraint, ..request(prompt, max_tokens) }
}
