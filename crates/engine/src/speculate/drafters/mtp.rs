//! Drafts by the checkpoint's own head ([`Mtp`]): what it keeps of each sequence, and one pass over several of them.

use std::{
    collections::{HashMap, VecDeque},
    rc::Rc,
    time::Instant,
};

use mlx::{Array, Dtype};

use crate::{
    batch::{Batch, Part},
    cache::Cache,
    models::{Model, Mtp},
    sample::{Sampler, guess},
    speculate::{CONFIDENCE_BINS, Draft, DraftRequest, Drafter, HiddenSource, HiddenStates},
};

/// Most hidden states that wait for the head to see them. Those before are dropped and the head does without, so that a
/// long prompt, or a long time without drafts, costs nothing; see docs/adr/0015-mtp-head.md.
pub const MAX_PENDING: usize = 256;

/// Proposes what the head predicts.
pub struct MtpDrafter {
    model: Rc<dyn Model>,
    sequences: HashMap<u64, HeadContext>,
    /// Measured milliseconds of a draft token, and of catching up with one hidden state; 0 before.
    each: f64,
    catching_up: f64,
    /// Index of the next measurement in [`MEASURED`].
    measuring: Option<usize>,
    /// Whether a measurement was started.
    prepared: bool,
}

/// Of what a token takes the model, at merlin: a layer of thirteen, and the output head.
const SHARE: f64 = 0.2;
/// Prior acceptance of a head's tokens: merlin's first ones have 0.9 (docs/adr/0015-mtp-head.md), DeepSeek-V3 (2024) reports 0.85
/// to 0.9 for its own.
const RIGHT: f64 = 0.8;
/// Hidden states in each measured pass; the first pass only allocates memory.
const MEASURED: [usize; 5] = [1, 1, 1, MANY, MANY];
const MANY: usize = 64;

/// Hidden states that are no debt: so many wait from one draft to the next.
const FEW: usize = 16;

impl MtpDrafter {
    /// `None` if the model has no head.
    pub fn new(model: Rc<dyn Model>) -> Option<MtpDrafter> {
        model.mtp()?;
        Some(MtpDrafter {
            model,
            sequences: HashMap::new(),
            each: 0.0,
            catching_up: 0.0,
            measuring: None,
            prepared: false,
        })
    }

    fn sampler(&self, asked: &DraftRequest) -> Sampler {
        let (prompt, generated) = asked.tokens.split_at(asked.prompt);
        Sampler::new(asked.sampling, self.model.vocab_size(), prompt, generated)
    }

    /// Milliseconds of a draft of one token for a new sequence with `hidden` hidden states.
    fn rehearse(&self, hidden: usize) -> mlx::Result<f64> {
        let Some(mtp) = self.model.mtp() else { return Ok(0.0) };
        let tokens = vec![0; hidden + 1];
        let seen = mtp.embedded(&Array::from_slice(&tokens[1..], &[hidden as i32]));
        mlx::eval([&seen])?;
        let mut context = HeadContext::new(mtp);
        context.observe(0, &seen);
        let started = Instant::now();
        let mut row = [HeadRow { context: &mut context, tokens: &tokens, depth: 1 }];
        let proposed = propose(&*self.model, &mut row, &mut |logits, _| logits.argmax(-1));
        mlx::eval(proposed.iter().flatten())?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }
}

impl Drafter for MtpDrafter {
    fn name(&self) -> &'static str {
        "mtp"
    }

    fn hidden(&self) -> HiddenSource<'_> {
        HiddenSource::Final
    }

    fn observe(&mut self, seen: &HiddenStates) {
        let (Some(mtp), [hidden]) = (self.model.mtp(), &seen.hidden[..]) else { return };
        self.sequences
            .entry(seen.sequence)
            .or_insert_with(|| HeadContext::new(mtp))
            .observe(seen.from, hidden);
    }

    fn prior(&self) -> [f64; CONFIDENCE_BINS] {
        [RIGHT; CONFIDENCE_BINS]
    }

    fn relative_cost(&self) -> f64 {
        SHARE
    }

    fn each(&self) -> f64 {
        self.each
    }

    fn prepare(&mut self) {
        if self.each == 0.0 && !self.prepared {
            (self.measuring, self.prepared) = (Some(0), true);
        }
    }

    fn is_measuring(&self) -> bool {
        self.measuring.is_some()
    }

    fn measure(&mut self) -> mlx::Result<()> {
        let Some(at) = self.measuring.take() else { return Ok(()) };
        let ms = self.rehearse(MEASURED[at])?;
        let catching_up = (ms - self.each).max(0.0) / (MANY - 1) as f64;
        match at {
            0 => {}
            1 => self.each = ms,
            2 => self.each = self.each.min(ms),
            3 => self.catching_up = catching_up,
            _ => self.catching_up = self.catching_up.min(catching_up),
        }
        self.measuring = Some(at + 1).filter(|next| *next < MEASURED.len());
        Ok(())
    }

    fn measured(&self) -> Vec<f64> {
        if self.each > 0.0 { vec![self.each, self.catching_up] } else { vec![] }
    }

    fn restore(&mut self, found: &[f64]) {
        if let [each, catching_up] = *found {
            (self.each, self.catching_up) = (each, catching_up);
        }
    }

    fn catch_up_cost(&self, asked: &DraftRequest) -> Option<f64> {
        let waiting = self.sequences.get(&asked.sequence).map_or(0, HeadContext::waiting);
        Some(if waiting > FEW { self.catching_up * waiting as f64 } else { 0.0 })
    }

    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let started = Instant::now();
        let mut drafts = vec![Draft::default(); asked.len()];
        let mut samplers: Vec<Sampler> = asked.iter().map(|asked| self.sampler(asked)).collect();
        let wanted = |sequence: &u64| asked.iter().position(|asked| asked.sequence == *sequence);
        let mut rows: Vec<(usize, HeadRow)> = self
            .sequences
            .iter_mut()
            .filter_map(|(sequence, context)| {
                let i = wanted(sequence)?;
                Some((i, HeadRow { context, tokens: asked[i].tokens, depth: asked[i].depth }))
            })
            .collect();
        let alone = if let [(_, row)] = &rows[..] { row.context.waiting() } else { 0 };
        rows.sort_by_key(|(i, _)| *i);
        let (places, mut rows): (Vec<usize>, Vec<HeadRow>) = rows.into_iter().unzip();
        let proposed = propose(&*self.model, &mut rows, &mut |logits, at| {
            // Both are in the order of the sequences.
            let own = samplers.iter_mut().enumerate().filter_map(|(i, sampler)| {
                let place = at.iter().find(|place| places[place.row] == i)?;
                Some((sampler, place.position..place.position + 1))
            });
            guess(logits, own)
        });
        mlx::eval(proposed.iter().flatten())?;
        if alone > FEW && proposed.iter().any(Option::is_some) {
            self.catching_up = started.elapsed().as_secs_f64() * 1e3 / alone as f64;
        }
        for (place, draft) in places.iter().zip(&proposed) {
            drafts[*place].tokens = draft.as_ref().map_or(Ok(vec![]), Array::to_vec)?;
        }
        Ok(drafts)
    }

    fn forget(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }
}

/// What the head keeps of one sequence: entries made of the model's own hidden states, never of its own.
pub struct HeadContext {
    caches: Vec<Cache>,
    /// Hidden states behind consecutive positions that the head has not seen, `[n, hidden_size]` each.
    waiting: VecDeque<Array>,
    /// Position of the first of them.
    from: usize,
    /// Behind the last of them.
    to: usize,
}

/// A sequence that drafts are made for.
pub struct HeadRow<'a> {
    pub context: &'a mut HeadContext,
    /// All that is known: hidden states of all but the last were observed.
    pub tokens: &'a [u32],
    /// Most tokens to draft.
    pub depth: usize,
}

/// Where a drafted token goes: which of the rows, and its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftPosition {
    pub row: usize,
    pub position: usize,
}

/// Tokens, uint32 `[n]`, by float32 logits `[n, vocab_size]` for so many places: what the sequences' own samplers would
/// pick. Drafts that share their noise are right more often.
pub type Choose<'a> = dyn FnMut(&Array, &[DraftPosition]) -> Array + 'a;

impl HeadContext {
    pub fn new(mtp: &Mtp) -> HeadContext {
        HeadContext { caches: mtp.make_caches(), waiting: VecDeque::new(), from: 0, to: 0 }
    }

    /// Takes in the model's hidden states `[n, hidden_size]`, after its final norm, behind positions `at..at + n`, whose
    /// tokens are certain. Positions that were left out, the head does without.
    ///
    /// # Panics
    /// If they were observed before: a bug of ours.
    #[track_caller]
    pub fn observe(&mut self, at: usize, hidden: &Array) {
        assert!(at >= self.to, "positions from {at} on were observed before, up to {}", self.to);
        if at > self.to {
            self.waiting.clear();
        }
        if self.waiting.is_empty() {
            self.from = at;
        }
        self.waiting.push_back(hidden.clone());
        self.to = at + hidden.dim(0) as usize;
        self.forget();
    }

    /// Hidden states that the head has not seen.
    fn waiting(&self) -> usize {
        self.to - self.from
    }

    /// The position that comes next.
    #[cfg(test)]
    pub fn observed(&self) -> usize {
        self.to
    }

    /// Drops what lies behind the window.
    fn forget(&mut self) {
        while self.waiting() > MAX_PENDING {
            let excess = (self.waiting() - MAX_PENDING) as i32;
            let Some(first) = self.waiting.front_mut() else { return };
            let n = first.dim(0);
            if n <= excess {
                self.waiting.pop_front();
            } else {
                *first = first.slice(0, excess, n);
            }
            self.from += n.min(excess) as usize;
        }
    }

    /// Removes the first `n` waiting hidden states, `[n, hidden_size]`, and returns them with the tokens after each, `[n]`.
    fn take(&mut self, tokens: &[u32], n: usize) -> (Array, Array) {
        let all = joined(&self.waiting.drain(..).collect::<Vec<Array>>());
        let own = all.slice(0, 0, n as i32);
        if (n as i32) < all.dim(0) {
            self.waiting.push_back(all.slice(0, n as i32, all.dim(0)));
        }
        let tokens = &tokens[self.from + 1..=self.from + n];
        self.from += n;
        (own, Array::from_slice(tokens, &[n as i32]))
    }

    /// Forgets drafts: entries made of so many of the head's own hidden states.
    fn rewind(&mut self, drafts: usize, mtp: &Mtp) {
        if self.caches.iter_mut().any(|cache| cache.rewind(drafts).is_err()) {
            self.caches = mtp.make_caches();
        }
    }
}

impl HeadRow<'_> {
    /// Whether drafts are wanted, and the head has something new to go by.
    fn is_ready(&self) -> bool {
        self.depth > 0 && !self.context.waiting.is_empty() && self.context.to + 1 == self.tokens.len()
    }
}

/// Drafts what follows each row's tokens: uint32 `[depth]`, on their way; `None` where there is nothing to go by. All rows
/// go through the head together, and each gets what it would alone.
#[track_caller]
pub fn propose(model: &dyn Model, rows: &mut [HeadRow], choose: &mut Choose) -> Vec<Option<Array>> {
    let mut drafts: Vec<Vec<Array>> = rows.iter().map(|_| vec![]).collect();
    let mut going: Vec<usize> = (0..rows.len()).filter(|&i| rows[i].is_ready()).collect();
    if let (Some(mtp), false) = (model.mtp(), going.is_empty()) {
        let mut hidden = catch_up(mtp, rows, &going);
        let started = going.clone();
        for step in 0.. {
            let place = |&row: &usize| DraftPosition { row, position: rows[row].tokens.len() + step };
            let places: Vec<DraftPosition> = going.iter().map(place).collect();
            let chosen = choose(&model.logits(&hidden).astype(Dtype::Float32), &places);
            for (i, &row) in (0..).zip(&going) {
                drafts[row].push(chosen.slice(0, i, i + 1));
            }
            let on: Vec<i32> =
                (0..).zip(&going).filter(|(_, row)| rows[**row].depth > step + 1).map(|(i, _)| i).collect();
            if on.is_empty() {
                break;
            }
            let (before, tokens) = (pick(&hidden, &on), pick(&chosen, &on));
            going = on.iter().map(|&i| going[i as usize]).collect();
            hidden = mtp.forward(
                &before,
                &tokens,
                &mut batch(rows, &going, |row| (1, row.tokens.len() - 1 + step)),
            );
        }
        started.iter().for_each(|&i| rows[i].context.rewind(drafts[i].len() - 1, mtp));
    }
    drafts.into_iter().map(|draft| (!draft.is_empty()).then(|| joined(&draft))).collect()
}

/// Shows the head what the rows `going` have observed; its hidden state behind the last of each, `[n, hidden_size]`.
#[track_caller]
fn catch_up(mtp: &Mtp, rows: &mut [HeadRow], going: &[usize]) -> Array {
    // Only the last position predicts a token; the others only need keys and values.
    let many: Vec<usize> = going.iter().copied().filter(|&i| rows[i].context.waiting() > FEW).collect();
    if !many.is_empty() {
        let (hidden, tokens, sizes) = take(rows, &many, 1);
        let mut each = sizes.iter();
        let mut batch = batch(rows, &many, |row| {
            let n = each.next().copied().unwrap_or_default();
            (n, row.context.from - n)
        });
        mtp.observe(&hidden, &tokens, &mut batch);
    }
    let (hidden, tokens, sizes) = take(rows, going, 0);
    let mut each = sizes.iter();
    let mut batch = batch(rows, going, |row| {
        let n = each.next().copied().unwrap_or_default();
        (n, row.context.from - n)
    });
    let out = mtp.forward(&hidden, &tokens, &mut batch);
    let ends = sizes.iter().scan(0, |end, &n| {
        *end += n as i32;
        Some(*end - 1)
    });
    pick(&out, &ends.collect::<Vec<i32>>())
}

/// Waiting hidden states of the rows `going`, without the last `left` of each row; the tokens after them; the number per row.
fn take(rows: &mut [HeadRow], going: &[usize], left: usize) -> (Array, Array, Vec<usize>) {
    let (mut hidden, mut tokens, mut sizes) = (vec![], vec![], vec![]);
    for &i in going {
        let row = &mut rows[i];
        let n = row.context.waiting() - left;
        let (own, next) = row.context.take(row.tokens, n);
        hidden.push(own);
        tokens.push(next);
        sizes.push(n);
    }
    (joined(&hidden), joined(&tokens), sizes)
}

/// Of the rows `going`: how many hidden states of each, and the position of the first.
fn batch<'a>(
    rows: &'a mut [HeadRow],
    going: &[usize],
    mut part: impl FnMut(&HeadRow) -> (usize, usize),
) -> Batch<'a> {
    let chosen = rows.iter_mut().enumerate().filter(|(i, _)| going.contains(i));
    Batch::new(chosen.map(|(_, row)| {
        let (tokens, past) = part(row);
        Part { tokens, ahead: 0, past, caches: &mut row.context.caches }
    }))
}

/// Rows `indices`, ascending, of `x`.
pub fn pick(x: &Array, indices: &[i32]) -> Array {
    match *indices {
        _ if indices.len() as i32 == x.dim(0) => x.clone(),
        [index] => x.slice(0, index, index + 1),
        _ => x.take(&Array::from_slice(indices, &[indices.len() as i32]), 0),
    }
}

pub fn joined(parts: &[Array]) -> Array {
    match parts {
        [one] => one.clone(),
        _ => Array::concatenate(parts, 0),
    }
}
