//! State on its way back from the disk: bytes that the reading thread has checked become arrays a few at a time, between
//! steps.

use std::collections::VecDeque;

use mlx::Array;

use super::{
    super::state::{Checkpoint, Run},
    file::{RawLayer, RawSection},
    reader::Section,
};
use crate::cache::Snapshot;

/// State of a sequence's tokens `from..end`, or a checkpoint behind `end`, to be put into memory's tree.
pub struct Restored {
    pub tokens: Vec<u32>,
    pub from: usize,
    pub end: usize,
    pub run: Option<Run>,
    pub checkpoint: Option<Checkpoint>,
}

/// What one sequence's state is being read for.
pub struct Restore {
    pub id: u64,
    /// Of the sequence that asked.
    pub tokens: Vec<u32>,
    pub limit: usize,
    /// Where it will be able to go on.
    pub position: usize,
    pub building: Option<Building>,
}

/// A layer's window, if it has one, and its arrays.
type Layer = (Option<[i32; 2]>, [Option<Array>; 2]);

/// A section that was read, and the arrays made of it so far.
pub struct Building {
    section: Section,
    raw: VecDeque<RawLayer>,
    lossy: bool,
    layers: Vec<Layer>,
}

impl Building {
    pub fn new(section: Section, raw: RawSection) -> Building {
        Building { section, raw: raw.layers.into(), lossy: raw.lossy, layers: vec![] }
    }

    /// Makes arrays until `left` bytes are copied; `true` once all are made.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn advance(&mut self, left: &mut usize) -> mlx::Result<bool> {
        while *left > 0 {
            let Some((window, sides)) = self.raw.pop_front() else { return Ok(true) };
            let bytes: usize = sides.iter().flatten().map(|side| side.bytes()).sum();
            let [first, second] = sides.map(|side| side.map(|side| side.into_array()).transpose());
            self.layers.push((window, [first?, second?]));
            *left = left.saturating_sub(bytes);
        }
        Ok(self.raw.is_empty())
    }

    /// What it was of a sequence of `tokens`, whose state behind `position` was asked for.
    pub fn into_restored(self, tokens: &[u32], position: usize) -> Restored {
        let tokens = tokens[..position].to_vec();
        match self.section {
            Section::Run { start, end, .. } => {
                let run = Run::new(self.layers.into_iter().map(|(_, sides)| sides).collect(), self.lossy);
                run.from_disk.set(true);
                Restored { tokens, from: start, end, run: Some(run), checkpoint: None }
            }
            Section::Checkpoint => {
                let layers =
                    self.layers.into_iter().map(|(window, sides)| Snapshot::from_parts(window, sides));
                let checkpoint =
                    Checkpoint { layers: layers.collect(), lossy: self.lossy, from_disk: true.into() };
                Restored { tokens, from: position, end: position, run: None, checkpoint: Some(checkpoint) }
            }
        }
    }
}
