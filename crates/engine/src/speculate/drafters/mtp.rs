//! Drafts by the checkpoint's own multi-token prediction head ([`Mtp`]): its context of each
//! sequence, and one pass over several sequences.

use std::{collections::VecDeque, rc::Rc, time::Instant};

use mlx::{Array, Dtype};

use crate::{
    batch::{Batch, BatchRow},
    cache::Cache,
    models::{Model, Mtp},
    sample::guess,
    speculate::{
        acceptance::CONFIDENCE_BINS,
        drafter::{
            Calibrated, Draft, DraftRequest, Drafter, DrafterInfo, DrafterState, HiddenObserver,
            HiddenSource, HiddenStates,
        },
        drafters::rows::{concatenated, pick, sampler},
    },
};

/// Maximum hidden states that wait for the head. Older ones are dropped and not given to the head,
/// so that a long prompt, or a long time without drafts, costs nothing; see
/// docs/adr/0015-mtp-head.md.
pub(crate) const MAX_PENDING: usize = 256;
/// Cost of a drafted token relative to a plain step of merlin: one layer of thirteen, and the
/// output head.
const RELATIVE_COST: f64 = 0.2;
/// Prior acceptance of a head's tokens: merlin's first ones have 0.9 (docs/adr/0015-mtp-head.md),
/// DeepSeek-V3 (2024) reports 0.85 to 0.9 for its own.
const PRIOR: f64 = 0.8;
/// Weight of the latest catch-up in its cost for each hidden state.
const NEW_WEIGHT: f64 = 0.3;
/// Hidden states in each measured pass; the first pass only allocates memory.
const MEASURED: [usize; 5] = [1, 1, 1, MANY, MANY];
const MANY: usize = 64;
/// Pending hidden states that need no catch-up: this many accumulate from one draft to the next.
const FEW: usize = 16;

pub(crate) struct MtpDrafter {
    model: Rc<dyn Model>,
    /// Measured milliseconds of a drafted token, and of catching up with one hidden state; 0
    /// before.
    latency: f64,
    catch_up: f64,
    /// Index of the next measurement in [`MEASURED`].
    measuring: Option<usize>,
    /// Whether a measurement was started.
    prepared: bool,
}

impl MtpDrafter {
    /// `None` if the model has no head.
    pub(crate) fn new(model: Rc<dyn Model>) -> Option<MtpDrafter> {
        model.mtp()?;
        Some(MtpDrafter { model, latency: 0.0, catch_up: 0.0, measuring: None, prepared: false })
    }

    /// Milliseconds of a draft of one token for a new sequence with `hidden` hidden states.
    fn time_draft(&self, hidden: usize) -> mlx::Result<f64> {
        let Some(mtp) = self.model.mtp() else { return Ok(0.0) };
        let tokens = vec![0; hidden + 1];
        let states = mtp.embedded(&Array::from_slice(&tokens[1..], &[hidden as i32]));
        mlx::eval([&states])?;
        let mut context = HeadContext::new(mtp);
        context.observe(0, &states);
        let started = Instant::now();
        let mut row = [HeadRow { context: &mut context, tokens: &tokens, depth: 1 }];
        let drafts = draft_rows(&*self.model, &mut row, &mut |logits, _| logits.argmax(-1));
        mlx::eval(drafts.iter().flatten())?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }
}

impl Drafter for MtpDrafter {
    fn info(&self) -> DrafterInfo {
        DrafterInfo {
            prior: [PRIOR; CONFIDENCE_BINS],
            relative_cost: RELATIVE_COST,
            latency: self.latency,
            ..DrafterInfo::new("mtp")
        }
    }

    fn catch_up_cost(&self, request: &DraftRequest) -> Option<f64> {
        let pending = request.state.get().map_or(0, HeadContext::pending);
        Some(if pending > FEW { self.catch_up * pending as f64 } else { 0.0 })
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let started = Instant::now();
        let mut drafts = vec![Draft::default(); requests.len()];
        let (mut indices, mut samplers, mut rows) = (vec![], vec![], vec![]);
        for (i, request) in requests.iter_mut().enumerate() {
            let sampler = sampler(request, self.model.vocab_size());
            if let Some(context) = request.state.get_mut() {
                indices.push(i);
                samplers.push(sampler);
                rows.push(HeadRow { context, tokens: request.tokens, depth: request.depth });
            }
        }
        let alone = if let [row] = &rows[..] { row.context.pending() } else { 0 };
        let proposed = draft_rows(&*self.model, &mut rows, &mut |logits, at| {
            // Both are in the order of the rows.
            let own = samplers.iter_mut().enumerate().filter_map(|(row, sampler)| {
                let at = at.iter().find(|at| at.row == row)?.position;
                Some((sampler, at..at + 1))
            });
            guess(logits, own)
        });
        mlx::eval(proposed.iter().flatten())?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        for (i, draft) in indices.into_iter().zip(&proposed) {
            drafts[i].tokens = draft.as_ref().map_or(Ok(vec![]), Array::to_vec)?;
        }
        let drafted: usize = drafts.iter().map(|draft| draft.tokens.len()).sum();
        if alone > FEW && drafted > 0 {
            // The passes that draft are no catch-up.
            let catch_up = (ms - self.latency * drafted as f64).max(0.0) / alone as f64;
            let weight = if self.catch_up > 0.0 { NEW_WEIGHT } else { 1.0 };
            self.catch_up += weight * (catch_up - self.catch_up);
        }
        Ok(drafts)
    }

    fn hidden_observer(&mut self) -> Option<&mut dyn HiddenObserver> {
        Some(self)
    }

    fn calibrated(&mut self) -> Option<&mut dyn Calibrated> {
        Some(self)
    }
}

impl HiddenObserver for MtpDrafter {
    fn source(&self) -> HiddenSource<'_> {
        HiddenSource::Final
    }

    fn observe(&mut self, states: &HiddenStates, state: &mut DrafterState) {
        let (Some(mtp), [hidden]) = (self.model.mtp(), &states.hidden[..]) else { return };
        state.get_or_insert_with(|| HeadContext::new(mtp)).observe(states.from, hidden);
    }
}

impl Calibrated for MtpDrafter {
    fn prepare(&mut self) {
        if self.latency == 0.0 && !self.prepared {
            (self.measuring, self.prepared) = (Some(0), true);
        }
    }

    fn is_measuring(&self) -> bool {
        self.measuring.is_some()
    }

    fn measure(&mut self) -> mlx::Result<()> {
        let Some(at) = self.measuring.take() else { return Ok(()) };
        let ms = self.time_draft(MEASURED[at])?;
        let catch_up = (ms - self.latency).max(0.0) / (MANY - 1) as f64;
        match at {
            0 => {}
            1 => self.latency = ms,
            2 => self.latency = self.latency.min(ms),
            3 => self.catch_up = catch_up,
            _ => self.catch_up = self.catch_up.min(catch_up),
        }
        self.measuring = Some(at + 1).filter(|next| *next < MEASURED.len());
        Ok(())
    }

    fn measurements(&self) -> Vec<f64> {
        if self.latency > 0.0 { vec![self.latency, self.catch_up] } else { vec![] }
    }

    fn restore(&mut self, measurements: &[f64]) {
        if let [latency, catch_up] = *measurements {
            (self.latency, self.catch_up) = (latency, catch_up);
        }
    }
}

/// The head's state of one sequence: caches computed from the model's hidden states, never from the
/// head's own.
pub(crate) struct HeadContext {
    caches: Vec<Cache>,
    /// Hidden states of consecutive positions that the head has not computed, `[n, hidden_size]`
    /// each.
    pending: VecDeque<Array>,
    /// Position of the first of them.
    from: usize,
    /// Position after the last of them.
    to: usize,
}

/// A sequence to draft for.
pub(crate) struct HeadRow<'a> {
    pub context: &'a mut HeadContext,
    /// All known tokens: the hidden states of all but the last were observed.
    pub tokens: &'a [u32],
    /// Maximum tokens to draft.
    pub depth: usize,
}

/// Row and position of a drafted token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftPosition {
    pub row: usize,
    pub position: usize,
}

/// Picks tokens, uint32 `[n]`, from float32 logits `[n, vocab_size]`, one for each position: what
/// the sequences' own samplers would pick. Drafts with the same noise are accepted more often.
pub(crate) type Choose<'a> = dyn FnMut(&Array, &[DraftPosition]) -> Array + 'a;

impl HeadContext {
    pub(crate) fn new(mtp: &Mtp) -> HeadContext {
        HeadContext { caches: mtp.make_caches(), pending: VecDeque::new(), from: 0, to: 0 }
    }

    /// Takes the model's hidden states `[n, hidden_size]`, after its final norm, of positions
    /// `at..at + n`, whose tokens are certain. The head does without skipped positions.
    ///
    /// # Panics
    /// If they were observed before, which is a bug.
    #[track_caller]
    pub(crate) fn observe(&mut self, at: usize, hidden: &Array) {
        assert!(at >= self.to, "positions from {at} on were observed before, up to {}", self.to);
        if at > self.to {
            self.pending.clear();
        }
        if self.pending.is_empty() {
            self.from = at;
        }
        self.pending.push_back(hidden.clone());
        self.to = at + hidden.dim(0) as usize;
        self.drop_oldest();
    }

    /// Number of hidden states that the head has not computed.
    fn pending(&self) -> usize {
        self.to - self.from
    }

    /// The position that comes next.
    #[cfg(test)]
    pub(crate) fn observed(&self) -> usize {
        self.to
    }

    /// Drops hidden states beyond [`MAX_PENDING`].
    fn drop_oldest(&mut self) {
        while self.pending() > MAX_PENDING {
            let excess = (self.pending() - MAX_PENDING) as i32;
            let Some(first) = self.pending.front_mut() else { return };
            let n = first.dim(0);
            if n <= excess {
                self.pending.pop_front();
            } else {
                *first = first.slice(0, excess, n);
            }
            self.from += n.min(excess) as usize;
        }
    }

    /// Removes the first `n` pending hidden states, `[n, hidden_size]`, and returns them with the
    /// tokens after each, `[n]`.
    fn take(&mut self, tokens: &[u32], n: usize) -> (Array, Array) {
        let all = concatenated(&self.pending.drain(..).collect::<Vec<Array>>());
        let own = all.slice(0, 0, n as i32);
        if (n as i32) < all.dim(0) {
            self.pending.push_back(all.slice(0, n as i32, all.dim(0)));
        }
        let tokens = &tokens[self.from + 1..=self.from + n];
        self.from += n;
        (own, Array::from_slice(tokens, &[n as i32]))
    }

    /// Removes the head's own hidden states of `drafts` drafted tokens from the caches.
    fn rewind(&mut self, drafts: usize, mtp: &Mtp) {
        if self.caches.iter_mut().any(|cache| cache.rewind(drafts).is_err()) {
            self.caches = mtp.make_caches();
        }
    }
}

impl HeadRow<'_> {
    /// Whether drafts are wanted, and the head has new hidden states to start from.
    fn is_ready(&self) -> bool {
        self.depth > 0 && !self.context.pending.is_empty() && self.context.to + 1 == self.tokens.len()
    }
}

/// Drafts tokens after each row's own: uint32 `[depth]`, unevaluated; `None` where the head has
/// nothing to start from. All rows go through the head together, and each gets the draft that it
/// would get alone.
#[track_caller]
pub(crate) fn draft_rows(model: &dyn Model, rows: &mut [HeadRow], choose: &mut Choose) -> Vec<Option<Array>> {
    let mut drafts: Vec<Vec<Array>> = rows.iter().map(|_| vec![]).collect();
    let mut going: Vec<usize> = (0..rows.len()).filter(|&i| rows[i].is_ready()).collect();
    if let (Some(mtp), false) = (model.mtp(), going.is_empty()) {
        let mut hidden = catch_up(mtp, rows, &going);
        let started = going.clone();
        for step in 0.. {
            let position = |&row: &usize| DraftPosition { row, position: rows[row].tokens.len() + step };
            let positions: Vec<DraftPosition> = going.iter().map(position).collect();
            let chosen = choose(&model.logits(&hidden).astype(Dtype::Float32), &positions);
            for (i, &row) in (0..).zip(&going) {
                drafts[row].push(chosen.slice(0, i, i + 1));
            }
            let deeper: Vec<i32> =
                (0..).zip(&going).filter(|(_, row)| rows[**row].depth > step + 1).map(|(i, _)| i).collect();
            if deeper.is_empty() {
                break;
            }
            let (before, tokens) = (pick(&hidden, &deeper), pick(&chosen, &deeper));
            going = deeper.iter().map(|&i| going[i as usize]).collect();
            let mut batch = batch(rows, &going, |row| (1, row.tokens.len() - 1 + step));
            hidden = mtp.forward(&before, &tokens, &mut batch);
        }
        started.iter().for_each(|&i| rows[i].context.rewind(drafts[i].len() - 1, mtp));
    }
    drafts.into_iter().map(|draft| (!draft.is_empty()).then(|| concatenated(&draft))).collect()
}

/// Feeds the head the pending hidden states of the rows `going`; returns its hidden state after the
/// last of each, `[n, hidden_size]`.
#[track_caller]
fn catch_up(mtp: &Mtp, rows: &mut [HeadRow], going: &[usize]) -> Array {
    // Only the last position predicts a token; the others only need keys and values.
    let many: Vec<usize> = going.iter().copied().filter(|&i| rows[i].context.pending() > FEW).collect();
    if !many.is_empty() {
        let Pending { hidden, tokens, sizes } = take_pending(rows, &many, 1);
        mtp.observe(&hidden, &tokens, &mut batch_of_taken(rows, &many, &sizes));
    }
    let Pending { hidden, tokens, sizes } = take_pending(rows, going, 0);
    let out = mtp.forward(&hidden, &tokens, &mut batch_of_taken(rows, going, &sizes));
    let ends = sizes.iter().scan(0, |end, &n| {
        *end += n as i32;
        Some(*end - 1)
    });
    pick(&out, &ends.collect::<Vec<i32>>())
}

/// Hidden states that were pending, the tokens after them, and the number of each row.
struct Pending {
    hidden: Array,
    tokens: Array,
    sizes: Vec<usize>,
}

/// Takes the pending hidden states of the rows `going`, without the last `left` of each row.
fn take_pending(rows: &mut [HeadRow], going: &[usize], left: usize) -> Pending {
    let (mut hidden, mut tokens, mut sizes) = (vec![], vec![], vec![]);
    for &i in going {
        let row = &mut rows[i];
        let n = row.context.pending() - left;
        let (own, next) = row.context.take(row.tokens, n);
        hidden.push(own);
        tokens.push(next);
        sizes.push(n);
    }
    Pending { hidden: concatenated(&hidden), tokens: concatenated(&tokens), sizes }
}

/// A batch of the hidden states that were just taken from the rows `going`.
fn batch_of_taken<'a>(rows: &'a mut [HeadRow], going: &[usize], sizes: &[usize]) -> Batch<'a> {
    let mut sizes = sizes.iter();
    batch(rows, going, |row| {
        let n = sizes.next().copied().unwrap_or_default();
        (n, row.context.from - n)
    })
}

/// A batch of the rows `going`; `part` returns the number of hidden states of each, and the
/// position of the first.
fn batch<'a>(
    rows: &'a mut [HeadRow],
    going: &[usize],
    mut part: impl FnMut(&HeadRow) -> (usize, usize),
) -> Batch<'a> {
    let chosen = rows.iter_mut().enumerate().filter(|(i, _)| going.contains(i));
    Batch::new(chosen.map(|(_, row)| {
        let (tokens, past) = part(row);
        BatchRow { num_tokens: tokens, num_draft: 0, num_computed: past, caches: &mut row.context.caches }
    }))
}

#[cfg(test)]
mod tests;
