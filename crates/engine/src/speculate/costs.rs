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
    /// What such steps cost more, by the rows in them, whatever their width: each brings a past of its own.
    more: Vec<Option<f64>>,
    /// Of steps whose successor is built while they are computed, by the rows in them.
    plain: Vec<Option<f64>>,
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
        Costs { steps, more: vec![], plain: vec![] }
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
        let fewer = self.more.iter().take(rows + 1).rev().copied();
        let ms = self.step(width)? + fewer.flatten().next().unwrap_or(0.0);
        // What is believed of wide steps may be too much, and what rows cost beside it less than nothing.
        Some(ms.max(self.step(1)?))
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
            Ok(at) => blend(&mut self.steps[at].1, ms),
            Err(at) => self.steps.insert(at, (width, ms)),
        }
    }

    fn saw_batch(&mut self, rows: usize, width: usize, ms: f64) {
        let (Some(alone), known) = (self.step(width), self.batch(rows, width)) else { return };
        if self.more.len() <= rows {
            self.more.resize(rows + 1, None);
        }
        let mut known = self.more[rows].and(known).unwrap_or(ms);
        blend(&mut known, ms);
        self.more[rows] = Some(known - alone);
    }

    pub fn saw_plain(&mut self, rows: usize, ms: f64) {
        if self.plain.len() <= rows {
            self.plain.resize(rows + 1, None);
        }
        match &mut self.plain[rows] {
            Some(known) => blend(known, ms),
            none => *none = Some(ms),
        }
    }
}

fn blend(known: &mut f64, ms: f64) {
    *known += FRESH * (ms.clamp(*known / OUTLIER, *known * OUTLIER) - *known);
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
        // What rows cost beside their tokens is learnt from whatever width they had.
        assert_eq!(costs.batch(3, 8), costs.step(8));
        costs.saw_step(3, 3, costs.step(3).unwrap() + 2.0);
        assert_eq!(costs.batch(2, 8), costs.step(8));
        assert_eq!([3, 5].map(|rows| costs.batch(rows, 8)), [costs.step(8).map(|ms| ms + 2.0); 2]);
        assert_eq!(costs.plain(3), costs.step(3).map(|ms| ms + 2.0));
        // Never less than a step of one token.
        (0..3).for_each(|_| costs.saw_step(64, 64, 1e-3));
        assert_eq!(costs.batch(64, 2), costs.step(1));
        costs.saw_step(64, 2, 1.0);
        assert_eq!(costs.times().steps.iter().map(|(width, _)| *width).collect::<Vec<_>>(), [1, 4, 8]);
    }
}
