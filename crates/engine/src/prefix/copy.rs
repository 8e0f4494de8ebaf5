//! Copies of a sequence's state on their way into the prefix cache, made at once or in slices.

use mlx::Array;

use super::{
    key::PrefixKey,
    state::{KvSpan, StateSnapshot},
};
use crate::{api::CacheSalt, cache::Cache};

/// Tokens of a stored span of keys and values: the unit of eviction where any token can be resumed.
pub(super) const SPAN: usize = 256;

/// The state to copy: that after the key's tokens.
pub(crate) struct CopySource<'a> {
    pub key: PrefixKey<'a>,
    /// Hold those tokens, then `ahead` more that the last step may rewind.
    pub caches: &'a [Cache],
    pub ahead: usize,
    /// Whether the state was computed from lossy state.
    pub lossy: bool,
}

/// How much of a sequence was copied, so that nothing is copied twice while a copy is in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyProgress {
    /// Tokens that the sequence knows to be stored.
    pub stored: usize,
    /// Those, and tokens of copies in flight.
    pub copied: usize,
}

/// A planned copy, and the part of it that is done.
pub(crate) struct StateCopy {
    /// Token ranges of the spans still to copy, the next one last.
    ranges: Vec<[usize; 2]>,
    lossy: bool,
    /// Layers copied so far of the next range.
    layers: Vec<[Option<Array>; 2]>,
    copied: CopiedState,
}

/// State to be stored once it is evaluated.
#[derive(Default)]
pub(crate) struct CopiedState {
    pub salt: Option<CacheSalt>,
    length: usize,
    position: usize,
    /// Consecutive spans, each with the position of its first token.
    pub(super) spans: Vec<(usize, KvSpan)>,
    pub(super) snapshot: Option<StateSnapshot>,
}

impl StateCopy {
    /// Copies `ranges`, and a snapshot if wanted, of the first `position` of `length` tokens.
    pub(crate) fn new(
        [length, position]: [usize; 2],
        ranges: Vec<[usize; 2]>,
        snapshot: bool,
        source: &CopySource,
    ) -> StateCopy {
        let CopySource { key, caches, ahead, lossy } = *source;
        let snapshot = snapshot.then(|| StateSnapshot::new(caches, ahead, lossy));
        let copied = CopiedState { salt: key.salt, length, position, spans: vec![], snapshot };
        StateCopy { ranges: ranges.into_iter().rev().collect(), lossy, layers: vec![], copied }
    }

    /// Copies everything, to be evaluated with a step.
    #[track_caller]
    pub(crate) fn at_once(mut self, caches: &[Cache]) -> CopiedState {
        while let Some([from, to]) = self.ranges.pop() {
            self.copied.spans.push((from, KvSpan::copy(caches, [from, to], self.lossy)));
        }
        self.copied
    }

    /// Copies and evaluates up to `budget` bytes, at least one layer; `true` once everything is
    /// copied.
    ///
    /// # Errors
    /// Out of memory.
    #[track_caller]
    pub(crate) fn advance(&mut self, caches: &[Cache], budget: &mut usize) -> mlx::Result<bool> {
        mlx::eval(self.copied.snapshot.iter().flat_map(StateSnapshot::arrays))?;
        let full_attention: Vec<_> = caches.iter().filter_map(Cache::as_full_attention).collect();
        while let Some(&[from, to]) = self.ranges.last() {
            let Some(kv) = full_attention.get(self.layers.len()) else {
                let layers = std::mem::take(&mut self.layers);
                self.copied.spans.push((from, KvSpan::new(layers, self.lossy)));
                self.ranges.pop();
                continue;
            };
            if *budget == 0 {
                return Ok(false);
            }
            let sides = kv.copy(from as i32, to as i32);
            mlx::eval(sides.iter().flatten())?;
            *budget = budget.saturating_sub(sides.iter().flatten().map(Array::nbytes).sum());
            self.layers.push(sides);
        }
        Ok(true)
    }

    pub(crate) fn into_state(self) -> CopiedState {
        self.copied
    }
}

impl CopiedState {
    /// Tokens of the sequence; those after [`position`](CopiedState::position) do not fit.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// End of the stored state.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Arrays to evaluate before the state is stored.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let spans = self.spans.iter().flat_map(|(_, span)| span.arrays());
        spans.chain(self.snapshot.iter().flat_map(StateSnapshot::arrays))
    }
}

/// Splits tokens `from..to` at multiples of [`SPAN`].
pub(super) fn span_ranges(from: usize, to: usize) -> Vec<[usize; 2]> {
    let mut ranges = vec![];
    let mut at = from;
    while at < to {
        let end = (at / SPAN * SPAN + SPAN).min(to);
        ranges.push([at, end]);
        at = end;
    }
    ranges
}
