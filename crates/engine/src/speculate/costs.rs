//! What steps cost by the tokens in them: measured when a model is loaded, and by every step from then on.

use std::time::{Duration, Instant};

use mlx::Array;

use crate::{
    batch::{Batch, Part},
    models::Model,
};

/// Weight of a new measurement of a step.
const FRESH: f64 = 0.15;
/// A measurement this many times off is somebody else using the machine.
const OUTLIER: f64 = 2.5;
/// A drafted token of a batch costs between so many times what it costs one row.
const LEAST_DEARER: f64 = 0.1;
const MOST_DEARER: f64 = 10.0;
/// Widths of the steps that are measured first, most telling ones first; those always, and the others while there is
/// time.
const ALWAYS: [usize; 2] = [1, 4];
const WITH_TIME: [usize; 4] = [16, 2, 8, 32];
const TIME: Duration = Duration::from_millis(300);

/// What steps cost, in milliseconds, by the tokens in them.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Of steps of one row that are read before the next is built: width and milliseconds, rising.
    steps: Vec<(usize, f64)>,
    /// Of such steps of more rows, by the rows in them.
    batches: Vec<Rows>,
    /// Of steps whose successor is built while they are computed, by the rows in them.
    plain: Vec<Option<f64>>,
}

/// What steps of so many rows cost: each row brings a past of its own, so width alone does not tell.
#[derive(Clone, Copy, Debug, Default)]
struct Rows {
    /// Milliseconds without drafts.
    bare: Option<f64>,
    /// What a drafted token costs, as a share of what it would cost one row.
    dearer: Option<f64>,
}

/// What steps and drafts have taken so far, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Of steps that are read before the next is built, by the tokens in them; rising.
    pub steps: Vec<(usize, f64)>,
    /// Of steps without drafts, by the rows in them.
    pub plain: Vec<(usize, f64)>,
    /// Of each token that a drafter proposes, by its name.
    pub drafters: Vec<(&'static str, f64)>,
}

impl Costs {
    /// From measured steps of one sequence: widths and milliseconds.
    pub fn new(mut steps: Vec<(usize, f64)>) -> Costs {
        steps.sort_by_key(|(width, _)| *width);
        steps.dedup_by_key(|(width, _)| *width);
        Costs { steps, batches: vec![], plain: vec![] }
    }

    /// Whether nothing was ever measured.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Of a step of `width` tokens of one row that has to be read before the next is built; `None` if nothing was ever
    /// measured.
    pub fn step(&self, width: usize) -> Option<f64> {
        let at = self.steps.partition_point(|(known, _)| *known < width);
        let (right, left) = (self.steps.get(at), at.checked_sub(1).map(|i| self.steps[i]));
        match (left, right.copied()) {
            (_, Some((known, ms))) if known == width => Some(ms),
            (Some((a, low)), Some((b, high))) => {
                Some(low + (high - low) * (width - a) as f64 / (b - a) as f64)
            }
            // In proportion is too much for wide steps, which makes them unlikely, and no less for narrow ones.
            (Some((a, low)), None) => Some(low * width as f64 / a as f64),
            (None, right) => right.map(|(_, ms)| ms),
        }
    }

    /// Of a step of `width` tokens of so many rows that has to be read before the next is built.
    pub fn batch(&self, rows: usize, width: usize) -> Option<f64> {
        if rows == 1 {
            return self.step(width);
        }
        let dearer = self.nearest(rows, |rows| rows.dearer).map_or(1.0, |(_, dearer)| dearer);
        Some(self.bare(rows)? + dearer * self.ahead(rows, width)?)
    }

    /// Of so many rows without drafts: as measured, or what is known of the nearest number and the difference in width.
    fn bare(&self, rows: usize) -> Option<f64> {
        let nearest = self.nearest(rows, |rows| rows.bare);
        let (near, ms) = nearest.or(Some((1, self.step(1)?)))?;
        Some((ms + self.step(rows)? - self.step(near)?).max(self.step(1)?))
    }

    /// Milliseconds that one row would need more for `width` tokens than for `rows`.
    fn ahead(&self, rows: usize, width: usize) -> Option<f64> {
        Some((self.step(width)? - self.step(rows)?).max(0.0))
    }

    /// What is known of so many rows, or of as nearly as many as possible: rather of fewer.
    fn nearest(&self, rows: usize, what: impl Fn(&Rows) -> Option<f64>) -> Option<(usize, f64)> {
        let known = self.batches.iter().enumerate().filter_map(|(n, of)| Some((n, what(of)?)));
        known.min_by_key(|(n, _)| (n.abs_diff(rows), *n))
    }

    /// Of a step in which so many rows decode without drafts.
    pub fn plain(&self, rows: usize) -> Option<f64> {
        self.plain.get(rows).copied().flatten().or_else(|| self.batch(rows, rows))
    }

    /// All that is known of steps; of drafters somebody else knows.
    pub fn times(&self) -> StepTimes {
        let plain = self.plain.iter().enumerate().filter_map(|(rows, ms)| ms.map(|ms| (rows, ms)));
        StepTimes { steps: self.steps.clone(), plain: plain.collect(), drafters: vec![] }
    }

    pub fn saw_step(&mut self, rows: usize, width: usize, ms: f64) {
        if rows > 1 {
            return self.saw_batch(rows, width, ms);
        }
        match self.steps.binary_search_by_key(&width, |(known, _)| *known) {
            Ok(at) => self.steps[at].1 = blended(Some(self.steps[at].1), ms),
            Err(at) => self.steps.insert(at, (width, ms)),
        }
    }

    fn saw_batch(&mut self, rows: usize, width: usize, ms: f64) {
        let (Some(bare), Some(ahead)) = (self.bare(rows), self.ahead(rows, width)) else { return };
        if self.batches.len() <= rows {
            self.batches.resize(rows + 1, Rows::default());
        }
        let known = &mut self.batches[rows];
        if width == rows {
            return known.bare = Some(blended(known.bare, ms));
        }
        // Wider than what is known to differ in cost tells nothing.
        if ahead > 0.0 {
            known.dearer =
                Some(blended(known.dearer, ((ms - bare) / ahead).clamp(LEAST_DEARER, MOST_DEARER)));
        }
    }

    pub fn saw_plain(&mut self, rows: usize, ms: f64) {
        if self.plain.len() <= rows {
            self.plain.resize(rows + 1, None);
        }
        self.plain[rows] = Some(blended(self.plain[rows], ms));
    }
}

/// What is known when a new measurement has come.
fn blended(known: Option<f64>, new: f64) -> f64 {
    let known = known.unwrap_or(new);
    known + FRESH * (new.clamp(known / OUTLIER, known * OUTLIER) - known)
}

/// Computes steps of one sequence to see what they cost.
///
/// # Errors
/// Computing one failed.
pub fn measure(model: &dyn Model) -> mlx::Result<Costs> {
    let started = Instant::now();
    let mut caches = model.make_caches();
    let mut past = 0;
    let mut run = |width: usize| {
        let started = Instant::now();
        let tokens = Array::from_slice(&vec![0u32; width], &[width as i32]);
        // As a draft, so that what takes that into account does.
        let part = Part { tokens: width, ahead: width - 1, past, caches: &mut caches };
        let mut batch = Batch::new([part]);
        let chosen = model.logits(&model.forward(&tokens, &mut batch)).argmax(-1);
        mlx::eval([&chosen])?;
        caches.iter_mut().for_each(|cache| cache.rewind(width - 1).unwrap_or_else(|e| panic!("{e:?}")));
        past += 1;
        Ok::<_, mlx::Error>(started.elapsed().as_secs_f64() * 1e3)
    };
    // Weights come into memory.
    run(1)?;
    let mut steps = vec![];
    for width in ALWAYS.into_iter().chain(WITH_TIME) {
        if !ALWAYS.contains(&width) && started.elapsed() > TIME {
            break;
        }
        let first = run(width)?;
        steps.push((width, if started.elapsed() > TIME { first } else { first.min(run(width)?) }));
    }
    Ok(Costs::new(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_between_measurements_lie_between_them() {
        let mut costs = Costs::new(vec![(8, 4.0), (1, 1.0), (4, 2.0)]);
        assert_eq!(
            [1, 2, 4, 6, 8, 16].map(|width| costs.step(width).unwrap()),
            [1.0, 4.0 / 3.0, 2.0, 3.0, 4.0, 8.0]
        );
        assert_eq!(costs.plain(1), Some(1.0));
        costs.saw_plain(1, 0.9);
        (0..100).for_each(|_| costs.saw_step(1, 4, 3.0));
        assert_eq!(costs.plain(1), Some(0.9));
        assert!((costs.step(4).unwrap() - 3.0).abs() < 1e-3);
        // A pause of the whole machine is no measurement.
        costs.saw_step(1, 1, 500.0);
        assert!(costs.step(1).unwrap() < 1.3);
        assert_eq!(Costs::new(vec![]).step(3), None);
        assert_eq!(costs.times().plain, [(1, 0.9)]);
    }

    #[test]
    fn a_batch_is_known_by_its_rows() {
        // 1 and a fifth of a millisecond for each token.
        let mut costs = Costs::new((1..=40).map(|width| (width, 0.8 + 0.2 * width as f64)).collect());
        let batch = |costs: &Costs, rows: usize, width: usize| {
            (costs.batch(rows, width).unwrap() * 1000.0).round() / 1000.0
        };
        assert_eq!(batch(&costs, 3, 8), 2.4, "like one row's, until something is known");
        costs.saw_step(4, 4, 3.6);
        assert_eq!(batch(&costs, 4, 4), 3.6);
        assert_eq!([batch(&costs, 3, 3), batch(&costs, 6, 6)], [3.4, 4.0], "by the nearest");
        assert_eq!(batch(&costs, 4, 9), 4.6);
        // Drafted tokens cost half of what they cost one row.
        costs.saw_step(4, 8, 4.0);
        assert_eq!([batch(&costs, 4, 4), batch(&costs, 4, 8), batch(&costs, 4, 14)], [3.6, 4.0, 4.6]);
        assert_eq!(batch(&costs, 6, 16), 5.0, "there as well");
        (0..99).for_each(|_| costs.saw_step(4, 8, 4.4));
        assert_eq!(batch(&costs, 4, 8), 4.4);
        assert_eq!(costs.plain(4), costs.batch(4, 4));
        // Never less than a step of one token.
        costs.saw_step(64, 64, 1e-3);
        assert!(costs.batch(64, 66) >= costs.step(1) && costs.batch(30, 30) >= costs.step(1));
        assert_eq!(costs.times().steps.len(), 40);
    }
}
