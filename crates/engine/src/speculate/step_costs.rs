//! Step costs by width: from a first measurement, then updated by every step. No arrays.

/// Weight of a new measurement of a batch, or of a step whose successor is built meanwhile.
const FRESH: f64 = 0.15;
/// Weight of a new measurement of one row's step in the machine's speed, for a width that steps have all the time.
const SPEED: f64 = 0.25;
/// Its weight in the width's own cost: at least, more for each step of another width since the last one, more while there are few
/// measurements, and at most.
const OWN: f64 = 0.05;
const RARE: f64 = 0.01;
const FEW: f64 = 0.8;
const MOST_OWN: f64 = 0.4;
/// Share of a drafted token's cost that counts until a step of its width has run: other programs can only have made the
/// measurement at load too large, and a draft that turns out to be dearer is within the allowance.
const UNPROVED: f64 = 0.75;
/// Most by which a step that ran makes those of wider steps dearer that did not: it may have run beside other programs.
const MOST_CORRECTED: f64 = 1.1;
/// A measurement this many times off is somebody else using the machine.
const OUTLIER: f64 = 2.5;
/// A drafted token of a batch costs between so many times what it costs one row.
const LEAST_DEARER: f64 = 0.1;
const MOST_DEARER: f64 = 10.0;

/// What steps cost, in milliseconds, by the tokens in them.
#[derive(Clone, Debug)]
pub struct StepCosts {
    /// Of steps of one row that are read before the next is built, by rising width.
    steps: Vec<WidthCost>,
    /// Factor of all of these: other programs slow down steps of every width alike, and which of them is measured at such a time
    /// must not decide whether to draft.
    speed: f64,
    /// Number of measurements of any width.
    count: u64,
    /// Of such steps of more rows, by the rows in them.
    batches: Vec<BatchCost>,
    /// Of steps whose successor is built while they are computed, by the rows in them.
    plain: Vec<Option<f64>>,
    /// Whether several widths were measured: one width says nothing about the others.
    measured: bool,
    /// Share of what a width that has not run yet costs beyond the first one.
    unproved: f64,
}

/// What is known of steps of a width.
#[derive(Clone, Copy, Debug)]
struct WidthCost {
    width: usize,
    /// Milliseconds, at a speed of 1.
    ms: f64,
    /// Milliseconds of the first measurement.
    first: f64,
    /// Number of measurements in steps that ran, and [`Costs::count`] at the last one.
    seen: f64,
    last: u64,
}

/// What steps of so many rows cost: each row brings a past of its own, so width alone does not tell.
#[derive(Clone, Copy, Debug, Default)]
struct BatchCost {
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

impl StepCosts {
    /// From measured steps of one sequence: widths and milliseconds.
    pub fn new(mut steps: Vec<(usize, f64)>) -> StepCosts {
        steps.sort_by_key(|(width, _)| *width);
        steps.dedup_by_key(|(width, _)| *width);
        // Other programs can only make a step take longer, and it takes no longer than a wider one.
        for i in (1..steps.len()).rev() {
            steps[i - 1].1 = steps[i - 1].1.min(steps[i].1);
        }
        let measured = !steps.is_empty();
        let steps = steps
            .into_iter()
            .map(|(width, ms)| WidthCost { width, ms, first: ms, seen: 0.0, last: 0 })
            .collect();
        StepCosts { steps, speed: 1.0, count: 0, batches: vec![], plain: vec![], measured, unproved: 1.0 }
    }

    /// Like [`new`](Costs::new), from measurements that other programs may have disturbed.
    pub fn at_load(steps: Vec<(usize, f64)>) -> StepCosts {
        StepCosts { unproved: UNPROVED, ..StepCosts::new(steps) }
    }

    /// Whether several widths were measured, not only those of steps that ran.
    pub fn are_measured(&self) -> bool {
        self.measured
    }

    /// Adds measured steps; values from steps that ran take precedence.
    pub fn add_measured(&mut self, steps: Vec<(usize, f64)>) {
        for (width, ms) in steps {
            if let Err(at) = self.steps.binary_search_by_key(&width, |step| step.width) {
                let ms = ms / self.speed;
                self.steps.insert(at, WidthCost { width, ms, first: ms, seen: 0.0, last: 0 });
            }
        }
        (self.measured, self.unproved) = (true, UNPROVED);
    }

    /// Of a step of `width` tokens of one row that has to be read before the next is built; `None` if nothing was ever
    /// measured.
    pub fn step(&self, width: usize) -> Option<f64> {
        let at = self.steps.partition_point(|step| step.width < width);
        let first = self.steps.first()?.ms;
        // Where drafted tokens turned out to be dearer than at load, or cheaper, those of wider steps are as well.
        let proved = self.steps[..at].iter().rev().find(|step| step.seen > 0.0 && step.width > 1);
        let corrected =
            proved.map_or(self.unproved, |step| (step.ms / step.first).clamp(self.unproved, MOST_CORRECTED));
        let prior = |step: &WidthCost| match step.seen {
            0.0 => WidthCost {
                ms: (first + corrected * (step.ms - first)).max(proved.map_or(0.0, |step| step.ms)),
                ..*step
            },
            _ => *step,
        };
        let right = self.steps.get(at).map(prior);
        let left = at.checked_sub(1).map(|i| prior(&self.steps[i]));
        let ms = match (left, right) {
            (_, Some(known)) if known.width == width => known.ms,
            (Some(a), Some(b)) => {
                a.ms + (b.ms - a.ms) * (width - a.width) as f64 / (b.width - a.width) as f64
            }
            // In proportion is too much for wide steps, which makes them unlikely, and no less for narrow ones.
            (Some(a), None) => a.ms * width as f64 / a.width as f64,
            (None, right) => right?.ms,
        };
        Some(self.speed * ms)
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
    fn nearest(&self, rows: usize, what: impl Fn(&BatchCost) -> Option<f64>) -> Option<(usize, f64)> {
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
        let steps = self.steps.iter().map(|step| (step.width, self.speed * step.ms)).collect();
        StepTimes { steps, plain: plain.collect(), drafters: vec![] }
    }

    pub fn record_step(&mut self, rows: usize, width: usize, ms: f64) {
        if rows > 1 {
            return self.saw_batch(rows, width, ms);
        }
        self.count += 1;
        match self.steps.binary_search_by_key(&width, |step| step.width) {
            Ok(at) => self.saw_known(at, ms),
            Err(at) => {
                let ms = ms / self.speed;
                self.steps.insert(at, WidthCost { width, ms, first: ms, seen: 1.0, last: self.count });
            }
        }
    }

    /// Splits the deviation of a measurement: a width that is measured all the time shows the machine's speed, and one that is
    /// measured rarely, right after others, its own cost.
    fn saw_known(&mut self, at: usize, ms: f64) {
        let step = &mut self.steps[at];
        let others = (self.count - step.last).saturating_sub(1) as f64;
        let own = (OWN + RARE * others).max(FEW / (step.seen + 1.0)).min(MOST_OWN);
        let off = |speed: f64, step: &WidthCost| (ms / (speed * step.ms)).clamp(1.0 / OUTLIER, OUTLIER) - 1.0;
        self.speed *= 1.0 + SPEED * (1.0 - own / MOST_OWN) * off(self.speed, step);
        step.ms *= 1.0 + own * off(self.speed, step);
        (step.seen, step.last) = (step.seen + 1.0, self.count);
    }

    fn saw_batch(&mut self, rows: usize, width: usize, ms: f64) {
        let (Some(bare), Some(ahead)) = (self.bare(rows), self.ahead(rows, width)) else { return };
        if self.batches.len() <= rows {
            self.batches.resize(rows + 1, BatchCost::default());
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

    pub fn record_plain(&mut self, rows: usize, ms: f64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_between_measurements_lie_between_them() {
        let mut costs = StepCosts::new(vec![(8, 4.0), (1, 1.0), (4, 2.0)]);
        assert_eq!(
            [1, 2, 4, 6, 8, 16].map(|width| costs.step(width).unwrap()),
            [1.0, 4.0 / 3.0, 2.0, 3.0, 4.0, 8.0]
        );
        assert_eq!(costs.plain(1), Some(1.0));
        costs.record_plain(1, 0.9);
        (0..100).for_each(|_| costs.record_step(1, 4, 3.0));
        assert_eq!(costs.plain(1), Some(0.9));
        assert!((costs.step(4).unwrap() - 3.0).abs() < 1e-3);
        // A pause of the whole machine is no measurement.
        costs.record_step(1, 1, 500.0);
        assert!(costs.step(1).unwrap() < 1.7, "{:?}", costs.step(1));
        assert_eq!(StepCosts::new(vec![]).step(3), None);
        let disturbed = StepCosts::new(vec![(1, 1.0), (4, 5.0), (8, 3.5)]);
        assert_eq!([1, 4, 8].map(|width| disturbed.step(width)), [Some(1.0), Some(3.5), Some(3.5)]);
        assert_eq!(costs.times().plain, [(1, 0.9)]);
    }

    #[test]
    fn slower_machine_scales_steps_of_every_width() {
        let mut costs = StepCosts::new(vec![(1, 1.0), (2, 1.2), (4, 1.6)]);
        (0..40).for_each(|_| costs.record_step(1, 2, 1.2));
        (0..20).for_each(|_| costs.record_step(1, 2, 2.4));
        let [one, two] = [1, 2].map(|width| costs.step(width).unwrap());
        assert!(two > 2.2 && (1.7..2.1).contains(&one), "{one} and {two}");
        // A width that was not seen since load is corrected itself.
        let mut costs = StepCosts::new(vec![(1, 1.0), (2, 1.2), (4, 1.6)]);
        (0..40).for_each(|_| costs.record_step(1, 1, 1.0));
        (0..20).for_each(|_| costs.record_step(1, 2, 2.4));
        (0..10).for_each(|_| costs.record_step(1, 1, 1.0));
        let [one, two] = [1, 2].map(|width| costs.step(width).unwrap());
        assert!(two > 1.8 && one < 1.2, "{one} and {two}");
    }

    #[test]
    fn a_batch_is_known_by_its_rows() {
        // 1 and a fifth of a millisecond for each token.
        let mut costs = StepCosts::new((1..=40).map(|width| (width, 0.8 + 0.2 * width as f64)).collect());
        let batch = |costs: &StepCosts, rows: usize, width: usize| {
            (costs.batch(rows, width).unwrap() * 1000.0).round() / 1000.0
        };
        assert_eq!(batch(&costs, 3, 8), 2.4, "like one row's, until something is known");
        costs.record_step(4, 4, 3.6);
        assert_eq!(batch(&costs, 4, 4), 3.6);
        assert_eq!([batch(&costs, 3, 3), batch(&costs, 6, 6)], [3.4, 4.0], "by the nearest");
        assert_eq!(batch(&costs, 4, 9), 4.6);
        // Drafted tokens cost half of what they cost one row.
        costs.record_step(4, 8, 4.0);
        assert_eq!([batch(&costs, 4, 4), batch(&costs, 4, 8), batch(&costs, 4, 14)], [3.6, 4.0, 4.6]);
        assert_eq!(batch(&costs, 6, 16), 5.0, "there as well");
        (0..99).for_each(|_| costs.record_step(4, 8, 4.4));
        assert_eq!(batch(&costs, 4, 8), 4.4);
        assert_eq!(costs.plain(4), costs.batch(4, 4));
        // Never less than a step of one token.
        costs.record_step(64, 64, 1e-3);
        assert!(costs.batch(64, 66) >= costs.step(1) && costs.batch(30, 30) >= costs.step(1));
        assert_eq!(costs.times().steps.len(), 40);
    }
}
