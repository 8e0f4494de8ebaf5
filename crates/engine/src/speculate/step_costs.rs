//! Step costs by width: from a first measurement, then updated by every step. Holds no arrays.

/// Weight of a new measurement of a batch, or of a pipelined step.
const NEW_WEIGHT: f64 = 0.15;
/// Weight of a new measurement in the machine's speed, for a width that is measured all the time.
const SPEED_WEIGHT: f64 = 0.25;
/// Relative deviation that counts in the speed although the last two measurements deviated less:
/// one slow step, in which another program had the processor, says little about the next.
const MAX_SURPRISE: f64 = 0.1;
/// Share of the speed's deviation from 1 that each step adds to its width's own cost instead: a
/// deviation that lasts is not the machine's speed.
const SPEED_RETURN: f64 = 0.001;
/// Weight of a new measurement in the width's own cost: the first constant, or the second divided
/// by the number of measurements, at most the third. It must not depend on which width ran before:
/// the first step of a width after others is slow, and if it counted as the width's own cost more
/// than the faster steps after it do, these would lower the speed without end, and with it the
/// costs of widths that seldom run.
const MIN_OWN_WEIGHT: f64 = 0.05;
const EARLY_WEIGHT: f64 = 0.8;
const MAX_OWN_WEIGHT: f64 = 0.4;
/// Share of a drafted token's cost that counts until a step of its width has run: other programs
/// can only have made the measurement at load too large, and a draft that costs more after all is
/// within the allowance.
const UNVERIFIED_SHARE: f64 = 0.75;
/// Maximum factor by which a step that ran raises the cost of wider steps that did not: it may have
/// run beside other programs.
const MAX_CORRECTION: f64 = 1.1;
/// A measurement this many times off shows other programs on the machine.
const OUTLIER: f64 = 2.5;
/// Minimum and maximum cost of a drafted token in a batch relative to its cost in a step of one
/// row.
const MIN_BATCH_RATIO: f64 = 0.1;
const MAX_BATCH_RATIO: f64 = 10.0;

/// Milliseconds of steps, by the tokens in them.
#[derive(Clone, Debug)]
pub(crate) struct StepCosts {
    /// Steps of one row that are read before the next is built, by ascending width.
    steps: Vec<WidthCost>,
    /// Factor of all these: other programs slow down steps of every width alike, and which width is
    /// measured at such a time must not decide whether to draft.
    speed: f64,
    /// Relative deviations of the last two measurements.
    last_deviations: [f64; 2],
    /// The same for steps of several rows, by number of rows.
    batches: Vec<BatchCost>,
    /// Pipelined steps, whose successor is built while they are computed, by number of rows.
    plain: Vec<Option<f64>>,
    /// Whether several widths were measured: one width says nothing about the others.
    measured: bool,
    /// Share of the cost beyond the first token that counts for widths that have not run yet.
    unverified_share: f64,
}

/// Cost of steps of one width.
#[derive(Clone, Copy, Debug)]
struct WidthCost {
    width: usize,
    /// Milliseconds, at a speed of 1.
    ms: f64,
    /// Milliseconds of the first measurement.
    first: f64,
    /// Number of measurements in steps that ran.
    num_runs: f64,
}

/// Cost of steps of one number of rows. Each row has a past of its own, so width alone does not
/// determine it.
#[derive(Clone, Copy, Debug, Default)]
struct BatchCost {
    /// Milliseconds without drafts.
    without_drafts: Option<f64>,
    /// Cost of a drafted token relative to its cost in a step of one row.
    draft_ratio: Option<f64>,
}

/// Measured times of steps and drafts, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Steps that are read before the next is built, by the tokens in them; ascending.
    pub steps: Vec<(usize, f64)>,
    /// Steps without drafts, by the rows in them.
    pub plain: Vec<(usize, f64)>,
    /// Each token that a drafter proposes, by its name.
    pub drafters: Vec<(&'static str, f64)>,
}

impl StepCosts {
    /// From measured steps of one sequence: widths and milliseconds.
    pub(crate) fn new(mut steps: Vec<(usize, f64)>) -> StepCosts {
        steps.sort_by_key(|(width, _)| *width);
        steps.dedup_by_key(|(width, _)| *width);
        // Other programs can only make a step slower, so none takes longer than a wider one.
        for i in (1..steps.len()).rev() {
            steps[i - 1].1 = steps[i - 1].1.min(steps[i].1);
        }
        let measured = !steps.is_empty();
        let steps =
            steps.into_iter().map(|(width, ms)| WidthCost { width, ms, first: ms, num_runs: 0.0 }).collect();
        StepCosts {
            steps,
            speed: 1.0,
            last_deviations: [0.0; 2],
            batches: vec![],
            plain: vec![],
            measured,
            unverified_share: 1.0,
        }
    }

    /// Like [`new`](StepCosts::new), from measurements that other programs may have disturbed.
    pub(crate) fn at_load(steps: Vec<(usize, f64)>) -> StepCosts {
        StepCosts { unverified_share: UNVERIFIED_SHARE, ..StepCosts::new(steps) }
    }

    /// Whether several widths were measured, not only those of steps that ran.
    pub(crate) fn are_measured(&self) -> bool {
        self.measured
    }

    /// Adds measured steps; values from steps that ran take precedence.
    pub(crate) fn add_measured(&mut self, steps: Vec<(usize, f64)>) {
        for (width, ms) in steps {
            if let Err(at) = self.steps.binary_search_by_key(&width, |step| step.width) {
                let ms = ms / self.speed;
                self.steps.insert(at, WidthCost { width, ms, first: ms, num_runs: 0.0 });
            }
        }
        (self.measured, self.unverified_share) = (true, UNVERIFIED_SHARE);
    }

    /// A step of `width` tokens of one row that has to be read before the next is built; `None` if
    /// nothing was ever measured.
    pub(crate) fn step(&self, width: usize) -> Option<f64> {
        let at = self.steps.partition_point(|step| step.width < width);
        let first = self.steps.first()?.ms;
        // Drafted tokens that proved cheaper or dearer than at load are assumed to be so in wider
        // steps as well.
        let proved = self.steps[..at].iter().rev().find(|step| step.num_runs > 0.0 && step.width > 1);
        let share = self.unverified_share;
        let correction = proved.map_or(share, |step| (step.ms / step.first).clamp(share, MAX_CORRECTION));
        let estimate = |step: &WidthCost| match step.num_runs {
            0.0 => WidthCost {
                ms: (first + correction * (step.ms - first)).max(proved.map_or(0.0, |step| step.ms)),
                ..*step
            },
            _ => *step,
        };
        let right = self.steps.get(at).map(estimate);
        let left = at.checked_sub(1).map(|i| estimate(&self.steps[i]));
        let ms = match (left, right) {
            (_, Some(known)) if known.width == width => known.ms,
            (Some(a), Some(b)) => {
                a.ms + (b.ms - a.ms) * (width - a.width) as f64 / (b.width - a.width) as f64
            }
            // Proportional to the width: right for narrow steps, too much for wide ones, which
            // makes those unlikely.
            (Some(a), None) => a.ms * width as f64 / a.width as f64,
            (None, right) => right?.ms,
        };
        Some(self.speed * ms)
    }

    /// A step of `width` tokens in `rows` rows that has to be read before the next is built.
    pub(crate) fn batch(&self, rows: usize, width: usize) -> Option<f64> {
        if rows == 1 {
            return self.step(width);
        }
        let ratio = self.nearest(rows, |batch| batch.draft_ratio).map_or(1.0, |(_, ratio)| ratio);
        Some(self.without_drafts(rows)? + ratio * self.drafted_part(rows, width)?)
    }

    /// `rows` rows without drafts: as measured, or the nearest number of rows plus the difference
    /// in width.
    fn without_drafts(&self, rows: usize) -> Option<f64> {
        let nearest = self.nearest(rows, |batch| batch.without_drafts);
        let (near, ms) = nearest.or(Some((1, self.step(1)?)))?;
        Some((ms + self.step(rows)? - self.step(near)?).max(self.step(1)?))
    }

    /// Milliseconds that one row would take longer for `width` tokens than for `rows`.
    fn drafted_part(&self, rows: usize, width: usize) -> Option<f64> {
        Some((self.step(width)? - self.step(rows)?).max(0.0))
    }

    /// The measured value for the number of rows nearest to `rows`; the lower one of two.
    fn nearest(&self, rows: usize, value: impl Fn(&BatchCost) -> Option<f64>) -> Option<(usize, f64)> {
        let known = self.batches.iter().enumerate().filter_map(|(n, batch)| Some((n, value(batch)?)));
        known.min_by_key(|(n, _)| (n.abs_diff(rows), *n))
    }

    /// A step in which `rows` rows decode without drafts.
    pub(crate) fn plain(&self, rows: usize) -> Option<f64> {
        self.plain.get(rows).copied().flatten().or_else(|| self.batch(rows, rows))
    }

    /// All measured steps; without the times of drafters.
    pub(crate) fn times(&self) -> StepTimes {
        let plain = self.plain.iter().enumerate().filter_map(|(rows, ms)| ms.map(|ms| (rows, ms)));
        let steps = self.steps.iter().map(|step| (step.width, self.speed * step.ms)).collect();
        StepTimes { steps, plain: plain.collect(), drafters: vec![] }
    }

    /// Adds a step that was read before the next was built.
    pub(crate) fn record_step(&mut self, rows: usize, width: usize, ms: f64) {
        if rows > 1 {
            return self.record_batch(rows, width, ms);
        }
        match self.steps.binary_search_by_key(&width, |step| step.width) {
            Ok(at) => self.record_width(at, ms),
            Err(at) => {
                let ms = ms / self.speed;
                self.steps.insert(at, WidthCost { width, ms, first: ms, num_runs: 1.0 });
            }
        }
    }

    /// Splits the deviation of a measurement between the width's own cost and the machine's speed:
    /// the first few of a width show its cost, the others mostly the speed.
    fn record_width(&mut self, at: usize, ms: f64) {
        let step = &mut self.steps[at];
        let own = (EARLY_WEIGHT / (step.num_runs + 1.0)).clamp(MIN_OWN_WEIGHT, MAX_OWN_WEIGHT);
        let deviation =
            |speed: f64, step: &WidthCost| (ms / (speed * step.ms)).clamp(1.0 / OUTLIER, OUTLIER) - 1.0;
        let [older, old] = self.last_deviations;
        let new = deviation(self.speed, step);
        self.last_deviations = [old, new];
        let most = older.abs().max(old.abs()).max(MAX_SURPRISE);
        self.speed *= 1.0 + SPEED_WEIGHT * (1.0 - own / MAX_OWN_WEIGHT) * new.clamp(-most, most);
        step.ms *= 1.0 + own * deviation(self.speed, step);
        let lasting = self.speed.powf(SPEED_RETURN);
        step.ms *= lasting;
        self.speed /= lasting;
        step.num_runs += 1.0;
    }

    fn record_batch(&mut self, rows: usize, width: usize, ms: f64) {
        let (Some(without_drafts), Some(drafted_part)) =
            (self.without_drafts(rows), self.drafted_part(rows, width))
        else {
            return;
        };
        if self.batches.len() <= rows {
            self.batches.resize(rows + 1, BatchCost::default());
        }
        let known = &mut self.batches[rows];
        if width == rows {
            return known.without_drafts = Some(blended(known.without_drafts, ms));
        }
        // A width with no known extra cost says nothing about the ratio.
        if drafted_part > 0.0 {
            let ratio = ((ms - without_drafts) / drafted_part).clamp(MIN_BATCH_RATIO, MAX_BATCH_RATIO);
            known.draft_ratio = Some(blended(known.draft_ratio, ratio));
        }
    }

    /// Adds a pipelined step without drafts.
    pub(crate) fn record_plain(&mut self, rows: usize, ms: f64) {
        if self.plain.len() <= rows {
            self.plain.resize(rows + 1, None);
        }
        self.plain[rows] = Some(blended(self.plain[rows], ms));
    }
}

/// The known value, updated by a new measurement.
fn blended(known: Option<f64>, new: f64) -> f64 {
    let known = known.unwrap_or(new);
    known + NEW_WEIGHT * (new.clamp(known / OUTLIER, known * OUTLIER) - known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_cost_between_measured_widths_is_interpolated() {
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
        // A width that has not run since load is corrected itself.
        let mut costs = StepCosts::new(vec![(1, 1.0), (2, 1.2), (4, 1.6)]);
        (0..40).for_each(|_| costs.record_step(1, 1, 1.0));
        (0..20).for_each(|_| costs.record_step(1, 2, 2.4));
        (0..10).for_each(|_| costs.record_step(1, 1, 1.0));
        let [one, two] = [1, 2].map(|width| costs.step(width).unwrap());
        assert!(two > 1.8 && one < 1.2, "{one} and {two}");
    }

    #[test]
    fn one_slow_step_is_not_the_machines_speed() {
        let mut costs = StepCosts::new(vec![(1, 1.0), (4, 2.0)]);
        (0..40).for_each(|_| costs.record_step(1, 1, 1.0));
        costs.record_step(1, 1, 5.0);
        let [one, four] = [1, 4].map(|width| costs.step(width).unwrap());
        assert!(one < 1.12 && four < 2.1, "{one} and {four}");
    }

    #[test]
    fn slow_first_steps_of_each_width_leave_costs_of_rare_widths_alone() {
        let mut costs = StepCosts::new(vec![(1, 1.0), (3, 2.0), (8, 4.0)]);
        let run = |costs: &mut StepCosts, width: usize, ms: f64, steps: usize| {
            costs.record_step(1, width, 1.1 * ms);
            (1..steps).for_each(|_| costs.record_step(1, width, ms));
        };
        for answer in 0..500 {
            run(&mut costs, 1, 1.0, 20);
            run(&mut costs, 3, 2.0, 12);
            if answer % 50 == 0 {
                run(&mut costs, 8, 4.0, 1);
            }
            let known = [1, 3, 8].map(|width| costs.step(width).unwrap());
            let good = known.iter().zip([1.0, 2.0, 4.0]).all(|(ms, own)| (0.95..1.13).contains(&(ms / own)));
            assert!(good, "{known:?} after {answer} answers");
        }
    }

    #[test]
    fn batch_cost_depends_on_the_number_of_rows() {
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
