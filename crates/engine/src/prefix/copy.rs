//! Copies of a sequence's state on their way into the cache, made at once or in slices.

use mlx::Array;

use super::state::{Checkpoint, Run};
use crate::cache::Cache;

/// What is to be copied of a sequence's state, and the copies so far.
pub struct StateCopy {
    /// Tokens of the runs to come, the next one last.
    spans: Vec<[usize; 2]>,
    lossy: bool,
    /// Layers of the first of `spans`.
    layers: Vec<[Option<Array>; 2]>,
    copied: CopiedState,
}

/// State that is to be stored once it has been evaluated.
#[derive(Default)]
pub struct CopiedState {
    length: usize,
    position: usize,
    /// Each with the position of its first token, one behind the other.
    pub(super) runs: Vec<(usize, Run)>,
    pub(super) checkpoint: Option<Checkpoint>,
}

impl StateCopy {
    /// Of the state behind the first `position` of `length` tokens: runs of tokens and, if asked for, a checkpoint, `back`
    /// tokens before the end of what `caches` hold.
    pub fn new(
        [length, position]: [usize; 2],
        spans: Vec<[usize; 2]>,
        checkpoint: bool,
        caches: &[Cache],
        back: usize,
        lossy: bool,
    ) -> StateCopy {
        let checkpoint = checkpoint.then(|| Checkpoint::keep(caches, back, lossy));
        let copied = CopiedState { length, position, runs: vec![], checkpoint };
        StateCopy { spans: spans.into_iter().rev().collect(), lossy, layers: vec![], copied }
    }

    /// All of it, to be evaluated with a step.
    #[track_caller]
    pub fn at_once(mut self, caches: &[Cache]) -> CopiedState {
        while let Some([from, to]) = self.spans.pop() {
            self.copied.runs.push((from, Run::copy(caches, [from, to], self.lossy)));
        }
        self.copied
    }

    /// Copies and evaluates until `left` bytes are copied, at least one layer; `true` once all is.
    ///
    /// # Errors
    /// There is no memory for it.
    #[track_caller]
    pub fn advance(&mut self, caches: &[Cache], left: &mut usize) -> mlx::Result<bool> {
        mlx::eval(self.copied.checkpoint.iter().flat_map(Checkpoint::arrays))?;
        let growing: Vec<_> = caches.iter().filter_map(Cache::as_full_attention).collect();
        while let Some(&[from, to]) = self.spans.last() {
            let Some(kv) = growing.get(self.layers.len()) else {
                let layers = std::mem::take(&mut self.layers);
                self.copied.runs.push((from, Run::new(layers, self.lossy)));
                self.spans.pop();
                continue;
            };
            if *left == 0 {
                return Ok(false);
            }
            let sides = kv.copy(from as i32, to as i32);
            mlx::eval(sides.iter().flatten())?;
            *left = left.saturating_sub(sides.iter().flatten().map(Array::nbytes).sum());
            self.layers.push(sides);
        }
        Ok(true)
    }

    pub fn into_state(self) -> CopiedState {
        self.copied
    }
}

impl CopiedState {
    /// Tokens of the sequence; of those behind [`position`](CopiedState::position) it is known that they do not fit.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The end of what is stored with it.
    pub fn position(&self) -> usize {
        self.position
    }

    /// To be evaluated before they are stored.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let runs = self.runs.iter().flat_map(|(_, run)| run.arrays());
        runs.chain(self.checkpoint.iter().flat_map(Checkpoint::arrays))
    }
}
