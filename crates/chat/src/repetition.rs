//! Detects text that repeats itself while it is generated: exact loops, and blocks that come back
//! with small changes. Knows nothing of text or of what follows from a detection.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Longest period of an exact loop, in tokens.
pub const MAX_PERIOD: usize = 512;
/// Occurrences of a block, one after the other, that are a loop.
const MIN_OCCURRENCES: usize = 4;
/// Shortest loop: rulers, indentation and rows of zeros repeat a few tokens this long.
const MIN_LOOP: usize = 96;
/// Tokens of an n-gram; a repeated one suggests a period.
const NGRAM: usize = 12;
/// A token is stale if the n-gram that it ends occurred this often before, the last time at most
/// [`MAX_PERIOD`] tokens ago.
const STALE: u32 = 3;
/// Tokens over which stale ones are counted.
const WINDOW: usize = 384;
/// Most tokens in a window that are not stale. A changed token makes [`NGRAM`] tokens fresh.
const MAX_FRESH: usize = 3 * NGRAM;
/// Periods that are followed at a time.
const NUM_RUNS: usize = 4;

/// Watches one block of tokens, such as the thinking of an answer.
///
/// A loop is a block of at most [`MAX_PERIOD`] tokens that occurs four times in a row and fills at
/// least 96 tokens. Text that repeats with small changes is reported once 348 of the last 384
/// tokens end n-grams of 12 tokens that all occurred three times before, the last time not long
/// ago: lists, tables and JSON have more new tokens than that.
///
/// The work per token is constant, amortised: a table of n-grams suggests periods, and only four of
/// them are followed.
#[derive(Clone, Debug, Default)]
pub struct Repetition {
    tokens: Vec<u32>,
    /// By n-gram: the position of its last occurrence, and the number of all.
    ngrams: HashMap<u64, (u32, u32), BuildHasherDefault<Identity>>,
    /// After each token.
    states: Vec<State>,
    /// Tokens after which the repetition was reported.
    detected_at: Option<usize>,
}

/// The state after one token; earlier ones are kept so that tokens can be removed again.
#[derive(Clone, Copy, Debug)]
struct State {
    runs: [Run; NUM_RUNS],
    /// Tokens of the last [`WINDOW`] that are not stale.
    fresh: u16,
    is_fresh: bool,
    /// The last occurrence of its n-gram before it; `u32::MAX`: none.
    previous: u32,
}

/// Tokens at the end, all equal to those one period before them.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// 0: none.
    period: u16,
    length: u16,
}

impl Repetition {
    /// A detector before the first token.
    pub fn new() -> Repetition {
        Repetition::default()
    }

    /// Appends a token; `true` if the text repeats itself with it, which is reported once.
    pub fn push(&mut self, token: u32) -> bool {
        let at = self.tokens.len();
        self.tokens.push(token);
        let mut runs = self.states.last().map(|state| state.runs).unwrap_or_default();
        runs.iter_mut().for_each(|run| self.extend(run));
        let (previous, occurrences) = self.record_ngram();
        let is_near = previous.is_some_and(|previous| at - previous <= MAX_PERIOD);
        if let Some(previous) = previous.filter(|_| is_near) {
            self.follow(&mut runs, at - previous);
        }
        let is_fresh = !is_near || occurrences < STALE;
        let leaving = at.checked_sub(WINDOW).is_some_and(|first| self.states[first].is_fresh);
        let fresh = self.states.last().map_or(0, |state| state.fresh);
        let fresh = fresh + u16::from(is_fresh) - u16::from(leaving);
        let previous = previous.map_or(u32::MAX, |previous| previous as u32);
        self.states.push(State { runs, fresh, is_fresh, previous });
        let repeats = at + 1 >= WINDOW && usize::from(fresh) <= MAX_FRESH;
        if self.detected_at.is_some() || !(repeats || runs.iter().any(Run::is_loop)) {
            return false;
        }
        self.detected_at = Some(at + 1);
        true
    }

    /// Removes the last `tokens` tokens; all, if there are fewer.
    pub fn rewind(&mut self, tokens: usize) {
        for _ in 0..tokens.min(self.tokens.len()) {
            let ngram = self.ngram();
            self.tokens.pop();
            let state = self.states.pop();
            let (Some(ngram), Some(state)) = (ngram, state) else { continue };
            if let Some((last, occurrences)) = self.ngrams.get_mut(&ngram) {
                (*last, *occurrences) = (state.previous, occurrences.saturating_sub(1));
                if *occurrences == 0 {
                    self.ngrams.remove(&ngram);
                }
            }
        }
        self.detected_at = self.detected_at.filter(|at| *at <= self.tokens.len());
    }

    /// Whether a repetition has been reported.
    pub fn detected(&self) -> bool {
        self.detected_at.is_some()
    }

    /// A hash of the last [`NGRAM`] tokens; `None`: there are fewer.
    fn ngram(&self) -> Option<u64> {
        let last = self.tokens.last_chunk::<NGRAM>()?;
        let mix = |hash: u64, token: &u32| {
            (hash.rotate_left(23) ^ u64::from(*token)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        };
        Some(last.iter().fold(0, mix))
    }

    /// Records the n-gram at the end; returns its last occurrence and their number before it.
    fn record_ngram(&mut self) -> (Option<usize>, u32) {
        let at = self.tokens.len() as u32 - 1;
        let Some(ngram) = self.ngram() else { return (None, 0) };
        let mut before = (None, 0);
        let record = |(last, occurrences): &mut (u32, u32)| {
            before = (Some(*last as usize), *occurrences);
            (*last, *occurrences) = (at, *occurrences + 1);
        };
        self.ngrams.entry(ngram).and_modify(record).or_insert((at, 1));
        before
    }

    /// Extends a run by the last token, or ends it.
    fn extend(&self, run: &mut Run) {
        let last = self.tokens.len() - 1;
        let before = last.checked_sub(usize::from(run.period));
        let matches = before.is_some_and(|before| self.tokens[before] == self.tokens[last]);
        *run = match matches && run.period > 0 {
            true => Run { length: run.length.saturating_add(1), ..*run },
            false => Run::default(),
        };
    }

    /// Follows a period too, instead of that of the shortest run.
    fn follow(&self, runs: &mut [Run; NUM_RUNS], period: usize) {
        if runs.iter().any(|run| usize::from(run.period) == period) {
            return;
        }
        let (now, before) = (self.tokens.iter().rev(), self.tokens.iter().rev().skip(period));
        let length = now.zip(before).take(loop_length(period)).take_while(|(a, b)| a == b).count();
        if let Some(shortest) = runs.iter_mut().min_by_key(|run| run.length) {
            *shortest = Run { period: period as u16, length: length as u16 };
        }
    }
}

impl Run {
    fn is_loop(&self) -> bool {
        let period = usize::from(self.period);
        period > 0 && period + usize::from(self.length) >= loop_length(period)
    }
}

/// Tokens of the shortest loop with a period.
fn loop_length(period: usize) -> usize {
    (MIN_OCCURRENCES * period).max(MIN_LOOP)
}

/// The keys are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
