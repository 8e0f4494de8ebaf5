//! One sequence's row of a step, and its results.

use std::ops::Range;

use kernels::SampleError;
use mlx::{Array, Dtype, PendingRead};

use super::sequence::Sequence;
use crate::{
    api::{FinishReason, ModelInfo, Pooling, RequestError, TokenLogprobs, TokenSet},
    masks::Masks,
    models::Model,
    prefix::{CopiedState, CopySource, PrefixCache, PrefixKey},
    sample::logprobs::Logprobs,
};

pub(super) struct StepRow {
    pub sequence: u64,
    /// Tokens of the row, drafted ones included.
    pub num_tokens: usize,
    /// Position after the row's last token.
    end: usize,
    /// The drafted tokens, the last of the row.
    pub draft: Vec<u32>,
    /// Tokens that the constraint allows after the known tokens and after each drafted one; `None`:
    /// all.
    pub masks: Option<Masks>,
    /// Whether it samples, after the known tokens and after each drafted one: `false` before the
    /// end of a prompt.
    pub samples: bool,
    /// The last hidden state, float32 `[1, hidden_size]`, where nothing is sampled: not finite if
    /// any number before it is not.
    last: Option<PendingRead>,
    /// Positions whose snapshots were due, whether or not there was anything to copy.
    snapshots: Vec<usize>,
    copied: Vec<CopiedState>,
    pub logprobs: Option<Logprobs>,
    /// Position of the row's first token, and log-probabilities of the prompt tokens after its
    /// tokens.
    prompt_logprobs: Option<(usize, Logprobs)>,
    /// Position of the first, and float32 logits `[n, vocab_size]`.
    logits: Option<(usize, Array)>,
    /// For drafters.
    hidden: Option<HiddenRow>,
    /// Float32 `[n, hidden_size]` for an embedding, and whether the prompt ends with them.
    pooled: Option<(Array, bool)>,
}

/// Hidden states of a row's prompt tokens, read back for an embedding.
pub(crate) struct PromptStates {
    pub num_tokens: usize,
    /// One state after the other.
    pub values: Vec<f32>,
    pub ends_prompt: bool,
}

/// Hidden states of a row's tokens, `[n, hidden_size]` each.
pub(crate) struct HiddenRow {
    /// Position of the first token.
    pub from: usize,
    /// After the final norm.
    pub last: Option<Array>,
    /// After some layers.
    pub layers: Vec<(usize, Array)>,
}

impl HiddenRow {
    /// Without the last `tokens`.
    fn without(&self, tokens: i32) -> HiddenRow {
        let cut = |x: &Array| x.slice(0, 0, x.dim(0) - tokens);
        let layers = self.layers.iter().map(|(layer, x)| (*layer, cut(x))).collect();
        HiddenRow { from: self.from, last: self.last.as_ref().map(cut), layers }
    }
}

impl StepRow {
    /// The row of `n` tokens that begin at `start` in `hidden`, with the logits of all of them if
    /// the request wants those.
    pub(super) fn build(
        model: &dyn Model,
        s: &mut Sequence,
        hidden: &Array,
        start: i32,
        n: usize,
    ) -> StepRow {
        let (at, draft) = (s.progress.num_computed_tokens, std::mem::take(&mut s.draft.tokens));
        s.progress.num_computed_tokens += n;
        let prompt = s.request.prompt.len();
        // Once a token is sent, so are the prompt's log-probabilities: a replay does not repeat
        // them.
        let scores_prompt = s.request.prompt_logprobs && at + 1 < prompt && s.generated() == 0;
        let mut row = StepRow {
            sequence: s.id,
            num_tokens: n,
            end: at + n,
            samples: s.samples_after(0),
            draft,
            masks: None,
            last: None,
            snapshots: vec![],
            copied: vec![],
            logprobs: None,
            prompt_logprobs: None,
            logits: None,
            hidden: None,
            pooled: None,
        };
        if let Some(pooling) = s.request.pooling {
            row.pooled = pooled(pooling, hidden, start..start + n as i32, at + n >= prompt);
            return row;
        }
        if !s.request.logits && !scores_prompt {
            return row;
        }
        let logits = model.logits(&hidden.slice(0, start, start + n as i32)).astype(Dtype::Float32);
        if scores_prompt {
            let next = &s.request.prompt[at + 1..(at + n + 1).min(prompt)];
            let scored = next.len() as i32;
            let chosen = Array::from_slice(next, &[scored]);
            let top = s.request.logprobs.unwrap_or(0);
            row.prompt_logprobs = Some((at + 1, Logprobs::of(&logits.slice(0, 0, scored), chosen, top)));
        }
        row.logits = s.request.logits.then_some((at, logits));
        row
    }

    /// Copies the sequence's state where a snapshot is due, up to `room` bytes; returns the bytes
    /// copied. `last` is the hidden state of its last token, `[1, hidden_size]`.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn snapshot(
        &mut self,
        s: &mut Sequence,
        last: &Array,
        prefix: &PrefixCache,
        room: usize,
    ) -> mlx::Result<usize> {
        if !self.samples {
            self.last = Some(last.astype(Dtype::Float32).start_read()?);
        }
        self.snapshots = s.take_due();
        let computed = s.progress.num_computed_tokens;
        let worth = computed <= s.exact_tokens().len()
            && prefix.is_worth_copying(s.prefix_key().first(computed), s.snapshots.copied);
        let here = (worth && !self.snapshots.contains(&computed)).then_some(computed);
        let mut taken = 0;
        for at in self.snapshots.iter().copied().chain(here) {
            let (key, caches, ahead) =
                (PrefixKey::of(&s.request, &s.keys()[..at]), &s.caches[..], computed - at);
            let source = CopySource { key, caches, ahead, lossy: s.reuse.lossy };
            let Some(copy) = prefix.start_copy(&source, s.snapshots.copied) else { continue };
            let copied = copy.at_once(&s.caches);
            let bytes: usize = copied.arrays().map(Array::nbytes).sum();
            // All rows of a step are copied at the same time.
            if taken + bytes > room {
                continue;
            }
            taken += bytes;
            let so_far = &mut s.snapshots.copied;
            so_far.copied = so_far.copied.max(copied.position());
            self.copied.push(copied);
        }
        Ok(taken)
    }

    /// Keeps the row's part of the step's hidden states for drafters; its last token ends at `end`.
    pub(super) fn capture(
        &mut self,
        s: &Sequence,
        last: Option<&Array>,
        layers: &[(usize, Array)],
        end: i32,
    ) {
        if !s.speculation.is_off() && (last.is_some() || !layers.is_empty()) {
            let own = |x: &Array| x.slice(0, end - self.num_tokens as i32, end);
            let layers = layers.iter().map(|(layer, x)| (*layer, own(x))).collect();
            let from = s.progress.num_computed_tokens - self.num_tokens;
            self.hidden = Some(HiddenRow { from, last: last.map(own), layers });
        }
    }

    /// The number of positions at which it samples.
    pub(super) fn num_sampled(&self) -> usize {
        if self.samples { 1 + self.draft.len() } else { 0 }
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let logprobs = [self.logprobs.as_ref(), self.prompt_logprobs.as_ref().map(|(_, l)| l)];
        let logprobs = logprobs.into_iter().flatten().flat_map(Logprobs::arrays);
        let copied = self.copied.iter().flat_map(CopiedState::arrays);
        let copied = copied.chain(self.last.as_ref().map(PendingRead::array));
        let logits = self.logits.as_ref().map(|(_, logits)| logits);
        let pooled = self.pooled.as_ref().map(|(states, _)| states);
        logits.into_iter().chain(pooled).chain(logprobs).chain(copied)
    }

    /// Reads the results; `sampled` are the tokens sampled after the known ones and after each
    /// drafted one, or why there is none.
    ///
    /// # Errors
    /// Computing the step failed.
    pub(super) fn read(self, sampled: Vec<Result<u32, SampleError>>) -> mlx::Result<RowOutput> {
        let prompt = |(at, logprobs): (usize, Logprobs)| Ok::<_, mlx::Error>((at, logprobs.read()?));
        let last = self.last.map(|last| last.to_vec::<f32>()).transpose()?;
        // A drafted token is right if the model samples the same one at its position.
        let right = self.draft.iter().zip(&sampled).take_while(|(drafted, chosen)| Ok(**drafted) == **chosen);
        let right = right.count();
        let finite = sampled.iter().take(1 + right).all(|chosen| *chosen != Err(SampleError::NonFinite));
        Ok(RowOutput {
            sequence: self.sequence,
            end: self.end,
            finite: finite && last.is_none_or(|last| last.iter().all(|x| x.is_finite())),
            snapshots: self.snapshots,
            copied: self.copied,
            drafted: self.draft.len(),
            right,
            sampled,
            masks: self.masks,
            hidden: self.hidden,
            logprobs: self.logprobs.map(Logprobs::read).transpose()?,
            prompt_logprobs: self.prompt_logprobs.map(prompt).transpose()?,
            logits: self
                .logits
                .map(|(at, l)| Ok::<_, mlx::Error>((at, l.dim(1), l.to_vec()?)))
                .transpose()?,
            pooled: self.pooled.map(|(states, ends)| PromptStates::read(&states, ends)).transpose()?,
        })
    }
}

/// The states `range` of a step's hidden states that an embedding needs.
fn pooled(pooling: Pooling, hidden: &Array, range: Range<i32>, ends: bool) -> Option<(Array, bool)> {
    let start = match pooling {
        Pooling::Mean => range.start,
        Pooling::Last if ends => range.end - 1,
        Pooling::Last => return None,
    };
    Some((hidden.slice(0, start, range.end).astype(Dtype::Float32), ends))
}

impl PromptStates {
    fn read(states: &Array, ends_prompt: bool) -> mlx::Result<PromptStates> {
        Ok(PromptStates { num_tokens: states.dim(0) as usize, values: states.to_vec()?, ends_prompt })
    }
}

/// The results of a row, read back.
pub(super) struct RowOutput {
    pub sequence: u64,
    /// Position after the row's last token.
    end: usize,
    /// Whether its numbers were finite.
    finite: bool,
    snapshots: Vec<usize>,
    copied: Vec<CopiedState>,
    /// Tokens of the draft, and how many of them the model sampled as well.
    drafted: usize,
    right: usize,
    sampled: Vec<Result<u32, SampleError>>,
    masks: Option<Masks>,
    hidden: Option<HiddenRow>,
    logprobs: Option<Vec<TokenLogprobs>>,
    prompt_logprobs: Option<(usize, Vec<TokenLogprobs>)>,
    logits: Option<(usize, i32, Vec<f32>)>,
    pooled: Option<PromptStates>,
}

impl RowOutput {
    /// Copies to store, with their tokens; none if a number of the sequence was not finite.
    pub(super) fn take_copied(&mut self, s: &mut Sequence) -> Vec<(Vec<u32>, CopiedState)> {
        let snapshots = &mut s.snapshots;
        snapshots.all_finite &= self.finite;
        snapshots.in_flight.retain(|at| !self.snapshots.contains(at));
        let all_finite = snapshots.all_finite;
        let copied = std::mem::take(&mut self.copied).into_iter().filter(|_| all_finite);
        let with_tokens = copied.map(|copied| {
            snapshots.copied.stored = snapshots.copied.stored.max(copied.position());
            (s.images.keys(&s.tokens)[..copied.length()].to_vec(), copied)
        });
        with_tokens.collect()
    }

    /// Hidden states of the accepted tokens.
    pub(super) fn hidden(&self) -> Option<HiddenRow> {
        let wrong = self.drafted - self.right;
        self.hidden.as_ref().map(|hidden| hidden.without(wrong as i32))
    }

    /// Rewinds the draft of a sequence that has ended.
    pub(super) fn rewind_draft(&self, s: &mut Sequence) {
        s.rewind(self.drafted);
    }

    /// Hands its results to the sequence; returns why the sequence ends, if it does.
    ///
    /// # Errors
    /// The logits after an accepted token were not finite, or left no token to choose.
    pub(super) fn deliver(
        self,
        s: &mut Sequence,
        info: &ModelInfo,
    ) -> Result<Option<FinishReason>, RequestError> {
        if let Some((at, vocab_size, values)) = self.logits {
            let wrong = self.drafted - self.right;
            s.deliver_logits(at, &values[..values.len() - wrong * vocab_size as usize]);
        }
        if let Some((at, logprobs)) = self.prompt_logprobs {
            s.deliver_prompt_logprobs(at, logprobs);
        }
        if let Some(states) = self.pooled {
            return s.deliver_hidden(&states);
        }
        if self.sampled.is_empty() {
            s.deliver_progress(self.end);
            return Ok(None);
        }
        s.progress.num_unread -= 1;
        let mut logprobs = self.logprobs.unwrap_or_default().into_iter();
        let (mut delivered, mut reason) = (0, None);
        for (position, chosen) in self.sampled.into_iter().take(1 + self.right).enumerate() {
            let token = chosen.map_err(|unchosen| match unchosen {
                SampleError::NonFinite => RequestError::NotFinite,
                SampleError::NoCandidate => no_candidate(self.masks.as_ref(), position, s.generated()),
            })?;
            s.quarantined = false;
            delivered += 1;
            reason = s.deliver_token(token, logprobs.next(), info);
            if reason.is_some() {
                break;
            }
        }
        if self.drafted > 0 {
            // The last token may be a drafted one if it ended the sequence; else the model sampled
            // it after the draft.
            let accepted = delivered.min(self.right);
            s.on_verified(self.drafted, accepted);
        }
        Ok(reason)
    }
}

/// Why no token could be sampled at this position of a row.
fn no_candidate(masks: Option<&Masks>, position: usize, generated: usize) -> RequestError {
    let is_empty = masks.and_then(|masks| masks.sets.get(position)).is_some_and(TokenSet::is_empty);
    match masks.and_then(|masks| masks.error.clone()) {
        Some(message) if is_empty => RequestError::Constraint { generated, message },
        _ if is_empty => RequestError::NothingAllowed { generated },
        _ => RequestError::NoCandidate { generated },
    }
}
