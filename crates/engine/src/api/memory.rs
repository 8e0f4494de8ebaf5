//! A model's memory use, and which requests fit into a limit.

use super::{StateSize, image::Image, request::Request, request_error::RequestError};

/// Buffers of keys and values grow by a quarter, and by at least this many tokens.
const STEP: usize = 256;

/// A model's memory use in bytes: upper bounds, except `step`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Maximum for everything together; `None`: the machine's memory.
    pub limit: Option<usize>,
    /// All weights.
    pub weights: usize,
    /// Memory of a step beside weights and state: measured under a limit, else
    /// estimated.
    pub step: usize,
    /// State for each token of a sequence.
    pub token: usize,
    /// The part of `token` that may exist twice while buffers grow.
    pub growing: usize,
    /// For each window cache: bytes per token, and the maximum tokens of its buffer.
    pub windows: Vec<(usize, usize)>,
    /// State of a sequence independent of its length.
    pub sequence: usize,
    /// Logits of a step's prompt tokens, for requests that want them.
    pub prompt_logits: usize,
    /// Features of each token of an image.
    pub image_token: usize,
    /// Memory of the vision tower and of a step for each token of an image; images are computed one
    /// at a time and whole.
    pub image_step: usize,
    /// Size of a sequence's stored state; `None`: not known before one has run.
    pub stored: Option<StateSize>,
    /// Maximum for the prefix cache, if running sequences leave that much.
    pub prefix_cache: usize,
    /// Maximum for the state of past sequences in a draft model.
    pub draft_cache: usize,
}

impl Memory {
    /// Maximum bytes of state of a sequence of `tokens`.
    pub fn state(&self, tokens: usize) -> usize {
        let room = |tokens: usize| (tokens + tokens / 4 + STEP).next_multiple_of(STEP);
        let windows = self.windows.iter().map(|(token, most)| token * room(tokens.min(*most)));
        self.sequence + (self.token + self.growing) * room(tokens) + windows.sum::<usize>()
    }

    /// Bytes for the state of sequences, running and past, under the limit.
    pub fn room(&self) -> Option<usize> {
        self.limit.map(|limit| limit.saturating_sub(self.weights + self.step))
    }

    /// The longest sequence that fits by itself, at most `context` tokens.
    pub fn most_tokens(&self, context: usize) -> usize {
        let Some(room) = self.room() else { return context };
        let (mut fits, mut beyond) = (0, context + 1);
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            *(if self.state(middle) <= room { &mut fits } else { &mut beyond }) = middle;
        }
        fits
    }

    /// Maximum bytes that a request takes while it runs, in a context of `context` tokens.
    pub(crate) fn needs(&self, request: &Request, context: usize) -> usize {
        self.needs_of(request, request.prompt.len().saturating_add(request.max_tokens).min(context))
    }

    /// Maximum bytes that a request takes until its prompt and output have `tokens` tokens.
    pub(crate) fn needs_of(&self, request: &Request, tokens: usize) -> usize {
        let logits = if request.wants_prompt_logits() { self.prompt_logits } else { 0 };
        self.state(tokens) + logits + self.images(request)
    }

    /// Maximum bytes that a request's images take.
    fn images(&self, request: &Request) -> usize {
        let held = |image: &Image| image.bytes() + self.image_token * image.num_tokens();
        let largest = request.images.iter().map(Image::num_tokens).max().unwrap_or(0);
        request.images.iter().map(held).sum::<usize>() + self.image_step * largest
    }

    /// # Errors
    /// [`RequestError::NeverFits`]: not even by itself.
    pub(crate) fn check(&self, request: &Request, context: usize) -> Result<(), RequestError> {
        let (needs, room) = (self.needs(request, context), self.room().unwrap_or(usize::MAX));
        if needs <= room {
            return Ok(());
        }
        Err(RequestError::NeverFits {
            prompt: request.prompt.len(),
            max_tokens: request.max_tokens,
            needs,
            room,
            most: self.most_tokens(context),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(limit: usize) -> Memory {
        Memory {
            limit: Some(limit),
            weights: 1000,
            step: 500,
            token: 3,
            growing: 1,
            sequence: 100,
            ..Memory::default()
        }
    }

    #[test]
    fn state_of_any_length_is_rounded_up_as_buffers_are() {
        let memory = memory(0);
        assert_eq!(memory.state(0), 100 + 4 * 256);
        assert_eq!(memory.state(1000), 100 + 4 * 1536);
        let windows = Memory { windows: vec![(2, 1000)], ..memory };
        assert_eq!(windows.state(1000) - 2 * 1536, 100 + 4 * 1536);
        assert_eq!(windows.state(9000) - windows.state(8000), 4 * (11520 - 10496), "a window is full");
    }

    #[test]
    fn most_tokens_under_a_limit_is_the_longest_sequence_that_fits() {
        let context = 5000;
        for limit in [0, 1500, 2623, 2624, 5000, 9000, 100_000] {
            let memory = memory(limit);
            let (most, room) = (memory.most_tokens(context), memory.room().unwrap());
            assert!(most == 0 || memory.state(most) <= room, "{limit}");
            assert!(most == context || memory.state(most + 1) > room, "{limit}: {most} is not the most");
            let request = |max_tokens| Request::new(vec![0; 10], max_tokens);
            assert_eq!(memory.check(&request(1), context).is_ok(), most >= 11, "{limit}");
            assert_eq!(memory.check(&request(usize::MAX), context).is_ok(), most == context, "{limit}");
        }
        let free = Memory { limit: None, ..memory(0) };
        assert_eq!((free.most_tokens(context), free.room()), (context, None));
    }
}
