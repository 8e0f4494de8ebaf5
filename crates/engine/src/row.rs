//! One sequence's row of a step: what it asked to have read back, and what the sequence gets of that.

use kernels::SampleError;
use mlx::{Array, Dtype};

use crate::{
    constrain::TokenSet,
    logprobs::Logprobs,
    models::Model,
    prefix::{CopiedState, CopySource, PrefixCache},
    request::{FinishReason, ModelInfo, RequestError, TokenLogprobs},
    sequence::Sequence,
};

pub struct Row {
    pub sequence: u64,
    /// Tokens of the row, those of the draft among them.
    pub tokens: usize,
    /// The last of them, which somebody proposed.
    pub draft: Vec<u32>,
    /// What may be chosen behind what is known and behind each token of the draft; empty: anything.
    pub allowed: Vec<TokenSet>,
    /// Whether the row is at the end of what is known, and so samples behind that and behind each token of the draft;
    /// `false` for a part of a prompt that is not its end.
    pub samples: bool,
    /// Sum of the last hidden state, float32 scalar, where nothing is sampled: not finite if a number before it is not.
    sum: Option<Array>,
    /// Positions at which the sequence's state was to be copied, whether or not there was anything to copy.
    keeps: Vec<usize>,
    copied: Vec<CopiedState>,
    pub logprobs: Option<Logprobs>,
    /// Position of the row's first token, and log-probabilities of the prompt tokens behind its tokens.
    prompt_logprobs: Option<(usize, Logprobs)>,
    /// Position of the first, and float32 logits `[n, vocab_size]`.
    logits: Option<(usize, Array)>,
    /// What drafters want to see of the row.
    hidden: Option<HiddenRow>,
}

/// Hidden states of a row's tokens, `[n, hidden_size]` each.
pub struct HiddenRow {
    /// Position of the first token.
    pub from: usize,
    /// Behind the final norm.
    pub last: Option<Array>,
    /// Behind layers.
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

impl Row {
    /// Logits of all the row's tokens, if they are wanted, and whether it samples. The row's `n` tokens begin at `start`
    /// in `hidden`.
    pub fn build(model: &dyn Model, s: &mut Sequence, hidden: &Array, start: i32, n: usize) -> Row {
        let (at, draft) = (s.computed, std::mem::take(&mut s.draft));
        s.computed += n;
        let prompt = s.request.prompt.len();
        // Once a token is out, so are the prompt's log-probabilities: a replay does not bring them again.
        let scores_prompt = s.request.prompt_logprobs && at + 1 < prompt && s.generated() == 0;
        let mut row = Row {
            sequence: s.id,
            tokens: n,
            samples: s.computed >= s.tokens.len(),
            draft,
            allowed: vec![],
            sum: None,
            keeps: vec![],
            copied: vec![],
            logprobs: None,
            prompt_logprobs: None,
            logits: None,
            hidden: None,
        };
        if row.samples {
            row.allowed = std::mem::take(&mut s.allowed);
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

    /// Copies the sequence's state if that is due, and if it takes no more than `room` bytes; returns what it takes. `last`
    /// is the hidden state behind its last token, `[1, hidden_size]`.
    pub fn keep(&mut self, s: &mut Sequence, last: &Array, prefix: &PrefixCache, room: usize) -> usize {
        if !self.samples {
            self.sum = Some(last.astype(Dtype::Float32).sum(-1, false));
        }
        self.keeps = s.due();
        let worth = s.computed <= s.exact_tokens().len()
            && prefix.is_worth_copying(&s.exact_tokens()[..s.computed], s.copied);
        let here = (worth && !self.keeps.contains(&s.computed)).then_some(s.computed);
        let mut taken = 0;
        for at in self.keeps.iter().copied().chain(here) {
            let ahead = s.computed - at;
            let source = CopySource { tokens: &s.tokens[..at], caches: &s.caches, ahead, lossy: s.lossy };
            let Some(copy) = prefix.start_copy(&source, s.copied) else { continue };
            let copied = copy.at_once(&s.caches);
            let bytes: usize = copied.arrays().map(Array::nbytes).sum();
            // Rows of one step are copied together.
            if taken + bytes > room {
                continue;
            }
            taken += bytes;
            s.copied.copied = s.copied.copied.max(copied.position());
            self.copied.push(copied);
        }
        taken
    }

    /// Keeps what drafters want to see: of the step's hidden states those of the row, whose last token ends at `end`.
    pub fn show(&mut self, s: &Sequence, last: Option<&Array>, layers: &[(usize, Array)], end: i32) {
        if !s.speculation.is_off() && (last.is_some() || !layers.is_empty()) {
            let own = |x: &Array| x.slice(0, end - self.tokens as i32, end);
            let layers = layers.iter().map(|(layer, x)| (*layer, own(x))).collect();
            let from = s.computed - self.tokens;
            self.hidden = Some(HiddenRow { from, last: last.map(own), layers });
        }
    }

    /// So many positions it samples at.
    pub fn sampled(&self) -> usize {
        if self.samples { 1 + self.draft.len() } else { 0 }
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let logprobs = [self.logprobs.as_ref(), self.prompt_logprobs.as_ref().map(|(_, l)| l)];
        let logprobs = logprobs.into_iter().flatten().flat_map(Logprobs::arrays);
        let copied = self.copied.iter().flat_map(CopiedState::arrays).chain(&self.sum);
        self.logits.as_ref().map(|(_, logits)| logits).into_iter().chain(logprobs).chain(copied)
    }

    /// `sampled` are the tokens chosen after what is known and after each of the draft, or why there
    /// is none.
    ///
    /// # Errors
    /// Computing the step failed.
    pub fn read(self, sampled: Vec<Result<u32, SampleError>>) -> mlx::Result<ReadRow> {
        let prompt = |(at, logprobs): (usize, Logprobs)| Ok::<_, mlx::Error>((at, logprobs.read()?));
        let sum = self.sum.map(|sum| sum.to_vec::<f32>()).transpose()?;
        // A token of the draft is right if it is the one chosen where it stands.
        let right = self.draft.iter().zip(&sampled).take_while(|(drafted, chosen)| Ok(**drafted) == **chosen);
        let right = right.count();
        let finite = sampled.iter().take(1 + right).all(|chosen| *chosen != Err(SampleError::NonFinite));
        Ok(ReadRow {
            sequence: self.sequence,
            finite: finite && sum.is_none_or(|sum| sum[0].is_finite()),
            keeps: self.keeps,
            copied: self.copied,
            drafted: self.draft.len(),
            right,
            sampled,
            hidden: self.hidden,
            logprobs: self.logprobs.map(Logprobs::read).transpose()?,
            prompt_logprobs: self.prompt_logprobs.map(prompt).transpose()?,
            logits: self
                .logits
                .map(|(at, l)| Ok::<_, mlx::Error>((at, l.dim(1), l.to_vec()?)))
                .transpose()?,
        })
    }
}

/// A row on the host.
pub struct ReadRow {
    pub sequence: u64,
    /// Whether what the row looked at was numbers.
    finite: bool,
    keeps: Vec<usize>,
    copied: Vec<CopiedState>,
    /// Tokens of the draft, and how many of them plain decoding would have chosen.
    drafted: usize,
    right: usize,
    sampled: Vec<Result<u32, SampleError>>,
    hidden: Option<HiddenRow>,
    logprobs: Option<Vec<TokenLogprobs>>,
    prompt_logprobs: Option<(usize, Vec<TokenLogprobs>)>,
    logits: Option<(usize, i32, Vec<f32>)>,
}

impl ReadRow {
    /// The state to store, if it is sound: the tokens that it stands behind, and copies.
    pub fn take_copied(&mut self, s: &mut Sequence) -> Vec<(Vec<u32>, CopiedState)> {
        s.sound &= self.finite;
        let copied = std::mem::take(&mut self.copied);
        s.keeping.retain(|at| !self.keeps.contains(at));
        let copied = copied.into_iter().filter(|_| s.sound);
        let with_tokens = copied.map(|copied| {
            s.copied.stored = s.copied.stored.max(copied.position());
            (s.tokens[..copied.length()].to_vec(), copied)
        });
        with_tokens.collect()
    }

    /// What drafters are to see: the hidden states of tokens that are there to stay.
    pub fn hidden(&self) -> Option<HiddenRow> {
        let wrong = self.drafted - self.right;
        self.hidden.as_ref().map(|hidden| hidden.without(wrong as i32))
    }

    /// A sequence that has ended takes nothing of a draft.
    pub fn drop_draft(&self, s: &mut Sequence) {
        s.rewind(self.drafted);
    }

    /// Hands the sequence what it gets; returns why it ends with that, if it does.
    ///
    /// # Errors
    /// The logits behind a token that it gets were not finite, or there was nothing to choose from.
    pub fn deliver(self, s: &mut Sequence, info: &ModelInfo) -> Result<Option<FinishReason>, RequestError> {
        if let Some((at, vocab_size, values)) = self.logits {
            let wrong = self.drafted - self.right;
            let values = &values[..values.len() - wrong * vocab_size as usize];
            s.logits(at, values, vocab_size as usize);
        }
        if let Some((at, logprobs)) = self.prompt_logprobs {
            s.prompt_logprobs(at, logprobs);
        }
        if self.sampled.is_empty() {
            return Ok(None);
        }
        s.unread -= 1;
        let mut logprobs = self.logprobs.unwrap_or_default().into_iter();
        let (mut taken, mut reason) = (0, None);
        for chosen in self.sampled.into_iter().take(1 + self.right) {
            let token = chosen.map_err(|unchosen| match unchosen {
                SampleError::NonFinite => RequestError::NotFinite,
                SampleError::NoCandidate => RequestError::NoCandidate { generated: s.generated() },
            })?;
            s.suspect = false;
            taken += 1;
            reason = s.push(token, logprobs.next(), info);
            if reason.is_some() {
                break;
            }
        }
        if self.drafted > 0 {
            // The one that ended it may have been drafted; the one behind the draft was not.
            let accepted = taken.min(self.right);
            s.on_verified(self.drafted, accepted);
        }
        Ok(reason)
    }
}
