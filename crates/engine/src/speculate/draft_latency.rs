//! What drafts take, by how many are made at once.

/// So many times what is known of a drafter a measurement of it may be.
const MOST_DEARER: f64 = 3.0;

/// What a token of a draft takes, by the sequences that are drafted for at once: of 1, of 2 or 3, of 4 to 7, and so on; 0
/// until it was measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftLatency([f64; 6]);

impl DraftLatency {
    pub fn alone(ms: f64) -> DraftLatency {
        DraftLatency([ms, 0.0, 0.0, 0.0, 0.0, 0.0])
    }

    fn place(sequences: usize) -> usize {
        (sequences.max(1).ilog2() as usize).min(5)
    }

    /// For so many sequences, or the nearest number below that something is known of.
    pub fn of(&self, sequences: usize) -> Option<f64> {
        self.0[..=Self::place(sequences)].iter().rev().copied().find(|ms| *ms > 0.0)
    }

    /// Measured for so many sequences, where so much was believed before.
    pub fn saw(&mut self, sequences: usize, ms: f64, prior: f64) {
        let before = self.of(sequences).unwrap_or(prior);
        let known = &mut self.0[Self::place(sequences)];
        // Once in a while a drafter has more to do than to draft, and the first time it may have to find memory.
        let usual = if before > 0.0 { ms.min(MOST_DEARER * before) } else { ms };
        *known = if *known > 0.0 { *known + 0.1 * (usual - *known) } else { usual };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_draft_takes_is_known_by_how_many_are_drafted_for() {
        let mut each = DraftLatency::alone(0.0);
        assert_eq!(each.of(3), None);
        // The first time memory has to be found.
        each.saw(1, 90.0, 1.0);
        assert_eq!(each.of(1), Some(3.0));
        (0..99).for_each(|_| each.saw(1, 1.0, 1.0));
        each.saw(4, 0.5, 1.0);
        assert!([1, 3].iter().all(|n| (each.of(*n).unwrap() - 1.0).abs() < 1e-3));
        assert_eq!([4, 7, 400].map(|n| each.of(n)), [Some(0.5); 3]);
    }
}
