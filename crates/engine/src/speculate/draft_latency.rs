//! Time per drafted token, by the number of sequences that are drafted for together.

/// A measurement counts as at most this many times the known latency.
const MAX_INCREASE: f64 = 3.0;
/// Weight of a new measurement.
const NEW_WEIGHT: f64 = 0.1;

/// Milliseconds of a drafted token, or of a block, for 1 sequence, for 2 or 3, for 4 to 7, and so
/// on; 0 if not measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DraftLatency([f64; 6]);

impl DraftLatency {
    /// A latency measured for one sequence.
    pub(super) fn new(ms: f64) -> DraftLatency {
        DraftLatency([ms, 0.0, 0.0, 0.0, 0.0, 0.0])
    }

    fn bucket(sequences: usize) -> usize {
        (sequences.max(1).ilog2() as usize).min(5)
    }

    /// For `sequences` sequences, or the nearest lower number that was measured.
    pub(super) fn get(&self, sequences: usize) -> Option<f64> {
        self.0[..=Self::bucket(sequences)].iter().rev().copied().find(|ms| *ms > 0.0)
    }

    /// Adds a measurement for `sequences` sequences; `prior` is the latency assumed without one.
    pub(super) fn record(&mut self, sequences: usize, ms: f64, prior: f64) {
        let before = self.get(sequences).unwrap_or(prior);
        let known = &mut self.0[Self::bucket(sequences)];
        // A drafter sometimes has other work to do, and the first time it allocates memory.
        let ms = if before > 0.0 { ms.min(MAX_INCREASE * before) } else { ms };
        *known = if *known > 0.0 { *known + NEW_WEIGHT * (ms - *known) } else { ms };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_kept_by_number_of_sequences() {
        let mut latency = DraftLatency::new(0.0);
        assert_eq!(latency.get(3), None);
        // The first time memory has to be allocated.
        latency.record(1, 90.0, 1.0);
        assert_eq!(latency.get(1), Some(3.0));
        (0..99).for_each(|_| latency.record(1, 1.0, 1.0));
        latency.record(4, 0.5, 1.0);
        assert!([1, 3].iter().all(|n| (latency.get(*n).unwrap() - 1.0).abs() < 1e-3));
        assert_eq!([4, 7, 400].map(|n| latency.get(n)), [Some(0.5); 3]);
    }
}
