//! Measuring step costs: all at once when a model is loaded, or in slices between the steps of running requests; and the file that
//! keeps the results.

use std::{
    collections::VecDeque,
    fs,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use mlx::Array;
use serde::{Deserialize, Serialize};

use super::{Drafter, MAX_DEPTH, StepCosts};
use crate::{
    batch::{Batch, Part},
    models::Model,
    prefix::write_whole,
};

/// Name of the file, in the folder of the model's state.
pub const FILE: &str = "costs.json";
/// Target duration of a slice.
const SLICE: Duration = Duration::from_millis(20);
/// Widths of the steps that are measured first, most telling ones first; those always, and the others while there is
/// time.
const ALWAYS: [usize; 2] = [1, 4];
const WITH_TIME: [usize; 4] = [16, 2, 8, 32];
const TIME: Duration = Duration::from_millis(300);
const MOST_REPEATS: usize = 6;
/// Kept costs are used if a step takes the same time within this factor.
const HOLDS: f64 = 1.3;

/// Sizes slices of work so that each takes about [`SLICE`].
#[derive(Default)]
pub struct Pieces {
    /// Milliseconds per unit of work, once known.
    each: Option<f64>,
}

impl Pieces {
    /// Units of the next slice, of `left` remaining ones; at least one.
    pub fn next(&self, left: usize) -> usize {
        let fit = self.each.map_or(1, |each| (SLICE.as_secs_f64() * 1e3 / each) as usize);
        fit.clamp(1, left.max(1))
    }

    /// Runs `n` units of work and measures them.
    ///
    /// # Errors
    /// Those of the work.
    pub fn time<T>(&mut self, n: usize, work: impl FnOnce() -> mlx::Result<T>) -> mlx::Result<T> {
        let started = Instant::now();
        let result = work()?;
        self.took(n, started.elapsed().as_secs_f64() * 1e3);
        Ok(result)
    }

    fn took(&mut self, n: usize, ms: f64) {
        self.each = Some((ms / n.max(1) as f64).max(1e-6));
    }

    /// A unit will take up to `times` as long from now on.
    fn grow(&mut self, times: f64) {
        self.each = self.each.map(|each| each * times.max(1.0));
    }
}

/// Measures steps of several widths, a few layers per slice.
pub struct StepProfiler {
    /// Widths still to be measured; the first may be partly done.
    widths: VecDeque<usize>,
    found: Vec<(usize, f64)>,
    layers: usize,
    /// Layers of the first width that are done, and their milliseconds.
    layer: usize,
    ms: f64,
    pieces: Pieces,
    spent: f64,
}

impl StepProfiler {
    pub fn new(model: &dyn Model) -> StepProfiler {
        // The first pass only sizes the slices; the second one replaces its result.
        let widths = [1].into_iter().chain(ALWAYS).chain(WITH_TIME).collect();
        let layers = model.layers().max(1);
        StepProfiler {
            widths,
            found: vec![],
            layers,
            layer: 0,
            ms: 0.0,
            pieces: Pieces::default(),
            spent: 0.0,
        }
    }

    /// Computes the next slice; returns `false` after the last one.
    ///
    /// # Errors
    /// Computing it failed.
    #[track_caller]
    pub fn slice(&mut self, model: &dyn Model) -> mlx::Result<bool> {
        let Some(&width) = self.widths.front() else { return Ok(false) };
        let n = self.pieces.next(self.layers - self.layer);
        let group = self.layer..self.layer + n;
        let last = group.end == self.layers;
        let started = Instant::now();
        let left_out: Vec<usize> = (0..model.layers()).filter(|layer| !group.contains(layer)).collect();
        compute(model, width, &left_out, last)?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        self.pieces.took(n, ms);
        (self.layer, self.ms, self.spent) = (group.end, self.ms + ms, self.spent + ms);
        if last {
            self.measured(width);
        }
        Ok(!self.widths.is_empty())
    }

    /// Ends the measurement of a width.
    fn measured(&mut self, width: usize) {
        self.found.retain(|(known, _)| *known != width);
        self.found.push((width, self.ms));
        self.widths.pop_front();
        (self.layer, self.ms) = (0, 0.0);
        if let Some(&next) = self.widths.front() {
            self.pieces.grow(next as f64 / width as f64);
            if !ALWAYS.contains(&next) && self.spent > TIME.as_secs_f64() * 1e3 {
                self.widths.clear();
            }
        }
    }

    /// Widths and milliseconds.
    pub fn found(self) -> Vec<(usize, f64)> {
        self.found
    }
}

/// Computes a step of `width` tokens of a new sequence, all but the first as a draft, like a verification step.
#[track_caller]
fn compute(model: &dyn Model, width: usize, left_out: &[usize], logits: bool) -> mlx::Result<()> {
    let mut caches = model.make_caches();
    let tokens = Array::from_slice(&vec![0u32; width], &[width as i32]);
    let mut batch = Batch::new([Part { tokens: width, ahead: width - 1, past: 0, caches: &mut caches }]);
    batch.leave_out(left_out);
    let hidden = model.forward(&tokens, &mut batch);
    match logits {
        true => mlx::eval([&model.logits(&hidden).argmax(-1)]),
        false => mlx::eval([&hidden]),
    }
}

/// Computes steps of one sequence to see what they cost.
///
/// # Errors
/// Computing one failed.
pub fn measure(model: &dyn Model) -> mlx::Result<StepCosts> {
    let started = Instant::now();
    let mut meter = Whole::new(model);
    // Weights come into memory.
    meter.step(1)?;
    let mut steps = vec![];
    for width in ALWAYS.into_iter().chain(WITH_TIME) {
        if !ALWAYS.contains(&width) && started.elapsed() > TIME {
            break;
        }
        steps.push((width, meter.step(width)?));
    }
    // The least of several measurements, where steps are short: other programs can only make one longer.
    for _ in 0..MOST_REPEATS {
        for (width, least) in &mut steps {
            if started.elapsed() > TIME {
                break;
            }
            *least = least.min(meter.step(*width)?);
        }
    }
    Ok(StepCosts::at_load(steps))
}

/// Runs whole steps of one sequence.
struct Whole<'a> {
    model: &'a dyn Model,
    caches: Vec<crate::cache::Cache>,
    past: usize,
}

impl<'a> Whole<'a> {
    fn new(model: &'a dyn Model) -> Whole<'a> {
        Whole { model, caches: model.make_caches(), past: 0 }
    }

    /// Milliseconds of a step of `width` tokens.
    fn step(&mut self, width: usize) -> mlx::Result<f64> {
        let started = Instant::now();
        let tokens = Array::from_slice(&vec![0u32; width], &[width as i32]);
        // As a draft, like a verification step.
        let part = Part { tokens: width, ahead: width - 1, past: self.past, caches: &mut self.caches };
        let mut batch = Batch::new([part]);
        let chosen = self.model.logits(&self.model.forward(&tokens, &mut batch)).argmax(-1);
        mlx::eval([&chosen])?;
        self.caches.iter_mut().for_each(|cache| cache.rewind(width - 1).unwrap_or_else(|e| panic!("{e:?}")));
        self.past += 1;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }
}

/// Measured costs, kept from one load to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Compute threads.
    threads: usize,
    /// Widths of steps, and milliseconds.
    steps: Vec<(usize, f64)>,
    /// Each drafter's own measurements, by name.
    drafters: Vec<(String, Vec<f64>)>,
}

impl Measured {
    pub fn of<'a>(steps: Vec<(usize, f64)>, drafters: impl Iterator<Item = &'a dyn Drafter>) -> Measured {
        let own = drafters.map(|drafter| (drafter.name().to_owned(), drafter.measured()));
        let own = own.filter(|(_, found)| !found.is_empty()).collect();
        Measured { threads: mlx::threads(), steps, drafters: own }
    }

    /// Reads a file; `None` if it is broken or was measured with another number of threads.
    pub fn open(path: &Path) -> Option<Measured> {
        let measured: Measured = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let times = measured.drafters.iter().flat_map(|(_, found)| found.iter().copied());
        let mut times = times.chain(measured.steps.iter().map(|(_, ms)| *ms));
        let is_sound = times.all(|ms| ms.is_finite() && ms >= 0.0)
            && measured.threads == mlx::threads()
            && measured.steps.iter().all(|&(width, ms)| (1..=2 * MAX_DEPTH).contains(&width) && ms > 0.0)
            && ALWAYS.iter().all(|width| measured.steps.iter().any(|(known, _)| known == width));
        is_sound.then_some(measured)
    }

    /// # Errors
    /// The file cannot be written; no partial file is left.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self)?;
        write_whole(path, |file| file.write_all(&text))
    }

    /// Restores the drafters' measurements and returns the step costs.
    pub fn restore<'a>(self, drafters: impl Iterator<Item = &'a mut Box<dyn Drafter>>) -> StepCosts {
        for drafter in drafters {
            if let Some((_, found)) = self.drafters.iter().find(|(name, _)| name == drafter.name()) {
                drafter.restore(found);
            }
        }
        StepCosts::at_load(self.steps)
    }

    /// Whether a step takes the same time now: the folder may come from another machine, or a busy one.
    fn holds(&self, model: &dyn Model) -> mlx::Result<bool> {
        let mut meter = Whole::new(model);
        meter.step(1)?;
        let now = meter.step(1)?.min(meter.step(1)?);
        let known = self.steps.iter().find(|(width, _)| *width == 1).map_or(0.0, |(_, ms)| *ms);
        Ok(now < HOLDS * known && known < HOLDS * now)
    }
}

/// Step costs and drafters' costs, from `file` or measured now if `auto` needs them.
///
/// # Errors
/// Computing a step failed.
pub fn at_load(
    model: &dyn Model,
    drafters: &mut [Box<dyn Drafter>],
    file: Option<&Path>,
    auto: bool,
) -> mlx::Result<StepCosts> {
    let known = file.and_then(Measured::open);
    match known {
        // A fixed drafter needs no costs; a later `auto` request has them measured.
        None if !auto => return Ok(StepCosts::new(vec![])),
        Some(known) if !auto || known.holds(model)? => return Ok(known.restore(drafters.iter_mut())),
        _ => {}
    }
    let costs = measure(model)?;
    for drafter in drafters.iter_mut() {
        drafter.prepare();
        while drafter.is_measuring() {
            drafter.measure()?;
        }
    }
    keep(costs.times().steps, drafters.iter().map(|drafter| &**drafter), file);
    Ok(costs)
}

/// Writes the measured costs to `file` for the next load.
pub fn keep<'a>(
    steps: Vec<(usize, f64)>,
    drafters: impl Iterator<Item = &'a dyn Drafter>,
    file: Option<&Path>,
) {
    if let Some(Err(error)) = file.map(|file| Measured::of(steps, drafters).save(file)) {
        tracing::warn!("what steps cost cannot be kept: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_size_follows_from_the_measured_time() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.next(100), 1, "nothing is known");
        pieces.took(1, 2.0);
        assert_eq!((pieces.next(100), pieces.next(4)), (10, 4));
        pieces.grow(4.0);
        assert_eq!(pieces.next(100), 2, "four times the width takes at most four times as long");
        pieces.took(2, 500.0);
        assert_eq!(pieces.next(100), 1, "no less than one");
        pieces.took(10, 0.0);
        assert_eq!(pieces.next(7), 7);
    }

    #[test]
    fn kept_costs_that_are_broken_or_from_other_threads_are_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let steps = vec![(1, 2.0), (4, 3.5)];
        let measured =
            Measured { threads: mlx::threads(), steps, drafters: vec![("mtp".into(), vec![0.5, 0.1])] };
        assert_eq!(Measured::open(&path), None);
        measured.save(&path).expect("is written");
        assert_eq!(Measured::open(&path), Some(measured.clone()));
        for wrong in [
            Measured { threads: measured.threads + 1, ..measured.clone() },
            Measured { steps: vec![(1, 2.0)], ..measured.clone() },
            Measured { steps: vec![(1, 2.0), (4, -1.0)], ..measured.clone() },
            Measured { steps: vec![(0, 1.0), (1, 2.0), (4, 3.0)], ..measured.clone() },
            Measured { drafters: vec![("mtp".into(), vec![-0.5])], ..measured },
        ] {
            wrong.save(&path).expect("is written");
            assert_eq!(Measured::open(&path), None, "{wrong:?}");
        }
    }
}
