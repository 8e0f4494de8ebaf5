//! Turns arrays into bytes for the writer's thread, in slices between steps.

use mlx::Array;

use super::segment::{Payload, Segment};
use crate::prefix::state::{KvSpan, StateSnapshot};

pub(super) struct WriteJob {
    segment: Segment,
    span: Option<KvSpan>,
    snapshot: Option<StateSnapshot>,
    payload: Payload,
}

impl WriteJob {
    pub(super) fn new(segment: Segment, span: Option<KvSpan>, snapshot: Option<StateSnapshot>) -> WriteJob {
        WriteJob { segment, span, snapshot, payload: Payload::default() }
    }

    /// Bytes of all arrays in memory.
    pub(super) fn bytes(&self) -> usize {
        self.segment.memory_bytes().iter().sum()
    }

    /// Copies arrays within `budget` bytes; `true` once all are copied.
    ///
    /// # Errors
    /// Evaluating the arrays failed.
    pub(super) fn advance(&mut self, budget: &mut usize) -> mlx::Result<bool> {
        let span_arrays: Vec<&Array> = self.span.iter().flat_map(KvSpan::arrays).collect();
        let snapshot_arrays: Vec<&Array> = self.snapshot.iter().flat_map(StateSnapshot::arrays).collect();
        let Payload { span, snapshot } = &mut self.payload;
        for (arrays, bytes) in [(span_arrays, span), (snapshot_arrays, snapshot)] {
            while let Some(array) = arrays.get(bytes.len()) {
                if *budget == 0 {
                    return Ok(false);
                }
                *budget = budget.saturating_sub(array.nbytes());
                bytes.push(array.to_bytes()?);
            }
        }
        Ok(true)
    }

    pub(super) fn into_parts(self) -> (Segment, Payload) {
        (self.segment, self.payload)
    }
}
