//! Turns bytes from the reader's thread into arrays, in slices between steps.

use std::collections::VecDeque;

use mlx::Array;

use super::{
    reader::Section,
    segment::{RawLayer, RawSection},
};
use crate::{
    cache::Snapshot,
    prefix::{
        key::{OwnedPrefixKey, PrefixKey},
        state::{KvSpan, StateSnapshot},
    },
};

/// State of tokens `from..end`, or a snapshot at `end`, to be stored in memory.
pub(crate) struct LoadedState {
    pub key: OwnedPrefixKey,
    pub from: usize,
    pub end: usize,
    pub span: Option<KvSpan>,
    pub snapshot: Option<StateSnapshot>,
}

/// A load of one sequence's state.
pub(super) struct Load {
    pub id: u64,
    pub key: OwnedPrefixKey,
    pub limit: usize,
    /// Position that can be resumed once everything is loaded.
    pub position: usize,
    pub builder: Option<ArrayBuilder>,
}

/// First position and end of a layer's window, and its arrays.
type LoadedLayer = (Option<[i32; 2]>, [Option<Array>; 2]);

/// Builds the arrays of a section.
pub(super) struct ArrayBuilder {
    section: Section,
    raw: VecDeque<RawLayer>,
    lossy: bool,
    layers: Vec<LoadedLayer>,
}

impl ArrayBuilder {
    pub(super) fn new(section: Section, raw: RawSection) -> ArrayBuilder {
        ArrayBuilder { section, raw: raw.layers.into(), lossy: raw.lossy, layers: vec![] }
    }

    /// Builds arrays within `budget` bytes; `true` once all are built.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn advance(&mut self, budget: &mut usize) -> mlx::Result<bool> {
        while *budget > 0 {
            let Some((window, sides)) = self.raw.pop_front() else { return Ok(true) };
            let bytes: usize = sides.iter().flatten().map(|side| side.bytes()).sum();
            let [first, second] = sides.map(|side| side.map(|side| side.into_array()).transpose());
            self.layers.push((window, [first?, second?]));
            *budget = budget.saturating_sub(bytes);
        }
        Ok(self.raw.is_empty())
    }

    /// The state of a sequence that was loaded up to the last token of `key`.
    pub(super) fn into_state(self, key: PrefixKey) -> LoadedState {
        let (position, key) = (key.tokens.len(), key.into());
        match self.section {
            Section::Span { start, end, .. } => {
                let span = KvSpan::new(self.layers.into_iter().map(|(_, sides)| sides).collect(), self.lossy);
                span.from_disk.set(true);
                LoadedState { key, from: start, end, span: Some(span), snapshot: None }
            }
            Section::Snapshot => {
                let layers =
                    self.layers.into_iter().map(|(window, sides)| Snapshot::from_parts(window, sides));
                let snapshot =
                    StateSnapshot { layers: layers.collect(), lossy: self.lossy, from_disk: true.into() };
                LoadedState { key, from: position, end: position, span: None, snapshot: Some(snapshot) }
            }
        }
    }
}
