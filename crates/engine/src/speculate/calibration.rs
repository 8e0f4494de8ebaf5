//! Measures step costs: all at once when a model is loaded, or in slices between the steps of
//! running requests.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use mlx::Array;

use super::step_costs::StepCosts;
use crate::{
    batch::{Batch, BatchRow},
    cache::Cache,
    models::Model,
};

/// Target duration of a slice.
const SLICE: Duration = Duration::from_millis(20);
/// Step widths that are always measured, and those that are measured while there is time, in this
/// order.
pub(super) const REQUIRED_WIDTHS: [usize; 2] = [1, 4];
const OPTIONAL_WIDTHS: [usize; 4] = [16, 2, 8, 32];
const TIME: Duration = Duration::from_millis(300);
const MAX_REPEATS: usize = 6;

/// Cuts work into slices that each take about [`SLICE`].
#[derive(Default)]
pub(super) struct SliceSizer {
    /// Milliseconds per unit of work, once known.
    per_unit: Option<f64>,
}

impl SliceSizer {
    /// Units of the next slice, at least one, of `remaining` units.
    pub(super) fn next(&self, remaining: usize) -> usize {
        let fit = self.per_unit.map_or(1, |ms| (SLICE.as_secs_f64() * 1e3 / ms) as usize);
        fit.clamp(1, remaining.max(1))
    }

    /// Runs `units` units of work and measures them.
    ///
    /// # Errors
    /// Those of the work.
    pub(super) fn time<T>(&mut self, units: usize, work: impl FnOnce() -> mlx::Result<T>) -> mlx::Result<T> {
        let started = Instant::now();
        let result = work()?;
        self.record(units, started.elapsed().as_secs_f64() * 1e3);
        Ok(result)
    }

    fn record(&mut self, units: usize, ms: f64) {
        self.per_unit = Some((ms / units.max(1) as f64).max(1e-6));
    }

    /// A unit takes up to `factor` times as long from now on.
    fn scale(&mut self, factor: f64) {
        self.per_unit = self.per_unit.map(|ms| ms * factor.max(1.0));
    }
}

/// Measures steps of several widths, a few layers per slice.
pub(super) struct StepProfiler {
    /// Widths still to be measured; the first may be partly done.
    widths: VecDeque<usize>,
    steps: Vec<(usize, f64)>,
    layers: usize,
    /// Layers of the first width that are done, and their milliseconds.
    layer: usize,
    ms: f64,
    slices: SliceSizer,
    spent: f64,
}

impl StepProfiler {
    pub(super) fn new(model: &dyn Model) -> StepProfiler {
        // The first pass only sizes the slices; the second one replaces its result.
        let widths = [1].into_iter().chain(REQUIRED_WIDTHS).chain(OPTIONAL_WIDTHS).collect();
        StepProfiler {
            widths,
            steps: vec![],
            layers: model.layers().max(1),
            layer: 0,
            ms: 0.0,
            slices: SliceSizer::default(),
            spent: 0.0,
        }
    }

    /// Computes the next slice; returns `false` after the last one.
    ///
    /// # Errors
    /// Computing it failed.
    #[track_caller]
    pub(super) fn slice(&mut self, model: &dyn Model) -> mlx::Result<bool> {
        let Some(&width) = self.widths.front() else { return Ok(false) };
        let n = self.slices.next(self.layers - self.layer);
        let group = self.layer..self.layer + n;
        let last = group.end == self.layers;
        let started = Instant::now();
        let skipped: Vec<usize> = (0..model.layers()).filter(|layer| !group.contains(layer)).collect();
        compute(model, width, &skipped, last)?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        self.slices.record(n, ms);
        (self.layer, self.ms, self.spent) = (group.end, self.ms + ms, self.spent + ms);
        if last {
            self.finish_width(width);
        }
        Ok(!self.widths.is_empty())
    }

    fn finish_width(&mut self, width: usize) {
        self.steps.retain(|(known, _)| *known != width);
        self.steps.push((width, self.ms));
        self.widths.pop_front();
        (self.layer, self.ms) = (0, 0.0);
        if let Some(&next) = self.widths.front() {
            self.slices.scale(next as f64 / width as f64);
            if !REQUIRED_WIDTHS.contains(&next) && self.spent > TIME.as_secs_f64() * 1e3 {
                self.widths.clear();
            }
        }
    }

    /// Widths and milliseconds.
    pub(super) fn into_steps(self) -> Vec<(usize, f64)> {
        self.steps
    }
}

/// Computes a step of `width` tokens of a new sequence, all but the first as a draft, like a
/// verification step.
#[track_caller]
fn compute(model: &dyn Model, width: usize, skipped: &[usize], logits: bool) -> mlx::Result<()> {
    let mut caches = model.make_caches();
    let tokens = Array::from_slice(&vec![0u32; width], &[width as i32]);
    let mut batch = Batch::new([BatchRow {
        num_tokens: width,
        num_draft: width - 1,
        num_computed: 0,
        caches: &mut caches,
    }]);
    batch.skip_layers(skipped);
    let hidden = model.forward(&tokens, &mut batch);
    match logits {
        true => mlx::eval([&model.logits(&hidden).argmax(-1)]),
        false => mlx::eval([&hidden]),
    }
}

/// Measures steps of one sequence, all at once.
///
/// # Errors
/// Computing one failed.
pub(crate) fn measure_step_costs(model: &dyn Model) -> mlx::Result<StepCosts> {
    let mut timer = StepTimer::new(model);
    timer.step(1)?;
    let started = Instant::now();
    let mut steps = vec![];
    for width in REQUIRED_WIDTHS.into_iter().chain(OPTIONAL_WIDTHS) {
        if !REQUIRED_WIDTHS.contains(&width) && started.elapsed() > TIME {
            break;
        }
        steps.push((width, timer.step(width)?));
    }
    // Other programs can only make a step slower, so short steps are repeated and the fastest
    // counts.
    for _ in 0..MAX_REPEATS {
        for (width, least) in &mut steps {
            if started.elapsed() > TIME {
                break;
            }
            *least = least.min(timer.step(*width)?);
        }
    }
    Ok(StepCosts::at_load(steps))
}

/// Computes a token: brings the weights into memory and, on MLX's GPUs, tries calls of products
/// and compiles kernels, so that no request waits for that.
///
/// # Errors
/// Computing it failed.
pub(crate) fn warm_up(model: &dyn Model) -> mlx::Result<()> {
    StepTimer::new(model).step(1).map(drop)
}

/// Times whole steps of one sequence.
pub(super) struct StepTimer<'a> {
    model: &'a dyn Model,
    caches: Vec<Cache>,
    past: usize,
}

impl<'a> StepTimer<'a> {
    pub(super) fn new(model: &'a dyn Model) -> StepTimer<'a> {
        StepTimer { model, caches: model.make_caches(), past: 0 }
    }

    /// Milliseconds of a step of `width` tokens.
    ///
    /// # Errors
    /// Computing it failed.
    pub(super) fn step(&mut self, width: usize) -> mlx::Result<f64> {
        let started = Instant::now();
        let tokens = Array::from_slice(&vec![0u32; width], &[width as i32]);
        // A draft of all but the first token, like a verification step.
        let row = BatchRow {
            num_tokens: width,
            num_draft: width - 1,
            num_computed: self.past,
            caches: &mut self.caches,
        };
        let mut batch = Batch::new([row]);
        let chosen = self.model.logits(&self.model.forward(&tokens, &mut batch)).argmax(-1);
        mlx::eval([&chosen])?;
        self.caches.iter_mut().for_each(|cache| cache.rewind(width - 1).unwrap_or_else(|e| panic!("{e:?}")));
        self.past += 1;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_size_follows_from_the_measured_time() {
        let mut slices = SliceSizer::default();
        assert_eq!(slices.next(100), 1, "nothing is measured");
        slices.record(1, 2.0);
        assert_eq!((slices.next(100), slices.next(4)), (10, 4));
        slices.scale(4.0);
        assert_eq!(slices.next(100), 2, "four times the width takes at most four times as long");
        slices.record(2, 500.0);
        assert_eq!(slices.next(100), 1, "no less than one");
        slices.record(10, 0.0);
        assert_eq!(slices.next(7), 7);
    }
}
