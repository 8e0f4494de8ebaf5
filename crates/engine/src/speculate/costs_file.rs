//! The file with measured costs of a model, kept from one load to the next.

use std::{io::Write, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    MAX_DEPTH,
    calibration::{REQUIRED_WIDTHS, StepTimer, measure_step_costs},
    drafter::Drafter,
    step_costs::StepCosts,
};
use crate::{models::Model, prefix::write_atomic};

/// Name of the file, in the folder of the model's state.
pub(crate) const COSTS_FILE: &str = "costs.json";
/// Saved costs are used if a step takes the same time within this factor.
const TOLERANCE: f64 = 1.3;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct SavedCosts {
    /// Compute threads.
    threads: usize,
    /// Widths of steps, and milliseconds.
    steps: Vec<(usize, f64)>,
    /// Each drafter's own measurements, by name.
    drafters: Vec<(String, Vec<f64>)>,
}

/// Costs from `file`, or measured now if `auto` needs them; restores the drafters' measurements.
///
/// # Errors
/// Computing a step failed.
pub(crate) fn load_or_measure_costs(
    model: &dyn Model,
    drafters: &mut [Box<dyn Drafter>],
    file: Option<&Path>,
    auto: bool,
) -> mlx::Result<StepCosts> {
    match file.and_then(SavedCosts::open) {
        // A fixed drafter needs no costs; a later `auto` request has them measured.
        None if !auto => return Ok(StepCosts::new(vec![])),
        Some(saved) if !auto || saved.holds(model)? => return Ok(saved.restore(drafters)),
        _ => {}
    }
    let costs = measure_step_costs(model)?;
    for calibrated in drafters.iter_mut().filter_map(|drafter| drafter.calibrated()) {
        calibrated.prepare();
        while calibrated.is_measuring() {
            calibrated.measure()?;
        }
    }
    save_costs(costs.times().steps, drafters.iter_mut().map(|drafter| &mut **drafter), file);
    Ok(costs)
}

/// Writes measured costs to `file`, if there is one.
pub(super) fn save_costs<'a>(
    steps: Vec<(usize, f64)>,
    drafters: impl Iterator<Item = &'a mut (dyn Drafter + 'static)>,
    file: Option<&Path>,
) {
    if let Some(Err(error)) = file.map(|file| SavedCosts::of(steps, drafters).save(file)) {
        tracing::warn!("measured step costs cannot be saved: {error}");
    }
}

impl SavedCosts {
    fn of<'a>(
        steps: Vec<(usize, f64)>,
        drafters: impl Iterator<Item = &'a mut (dyn Drafter + 'static)>,
    ) -> SavedCosts {
        let own = drafters.filter_map(|drafter| {
            let name = drafter.info().name.to_owned();
            Some((name, drafter.calibrated()?.measurements()))
        });
        let drafters = own.filter(|(_, measurements)| !measurements.is_empty()).collect();
        SavedCosts { threads: nn::threads(), steps, drafters }
    }

    /// Reads a file; `None` if it is broken or was measured with another number of threads.
    fn open(path: &Path) -> Option<SavedCosts> {
        let saved: SavedCosts = serde_json::from_slice(&files::read(path, files::SETTINGS).ok()?).ok()?;
        let times = saved.drafters.iter().flat_map(|(_, measurements)| measurements.iter().copied());
        let mut times = times.chain(saved.steps.iter().map(|(_, ms)| *ms));
        let is_valid = times.all(|ms| ms.is_finite() && ms >= 0.0)
            && saved.threads == nn::threads()
            && saved.steps.iter().all(|&(width, ms)| (1..=2 * MAX_DEPTH).contains(&width) && ms > 0.0)
            && REQUIRED_WIDTHS.iter().all(|width| saved.steps.iter().any(|(known, _)| known == width));
        is_valid.then_some(saved)
    }

    /// # Errors
    /// The file cannot be written; no partial file is left.
    fn save(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self)?;
        write_atomic(path, |file| file.write_all(&text))
    }

    fn restore(self, drafters: &mut [Box<dyn Drafter>]) -> StepCosts {
        for drafter in drafters {
            let name = drafter.info().name;
            if let Some((_, measurements)) = self.drafters.iter().find(|(known, _)| known == name)
                && let Some(calibrated) = drafter.calibrated()
            {
                calibrated.restore(measurements);
            }
        }
        StepCosts::at_load(self.steps)
    }

    /// Whether a step takes the same time now: the folder may come from another machine, or the
    /// machine may be busy.
    fn holds(&self, model: &dyn Model) -> mlx::Result<bool> {
        let mut timer = StepTimer::new(model);
        timer.step(1)?;
        let now = timer.step(1)?.min(timer.step(1)?);
        let saved = self.steps.iter().find(|(width, _)| *width == 1).map_or(0.0, |(_, ms)| *ms);
        Ok(now < TOLERANCE * saved && saved < TOLERANCE * now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_costs_that_are_broken_or_from_other_threads_are_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(COSTS_FILE);
        let steps = vec![(1, 2.0), (4, 3.5)];
        let saved =
            SavedCosts { threads: nn::threads(), steps, drafters: vec![("mtp".into(), vec![0.5, 0.1])] };
        assert_eq!(SavedCosts::open(&path), None);
        saved.save(&path).expect("is written");
        assert_eq!(SavedCosts::open(&path), Some(saved.clone()));
        for wrong in [
            SavedCosts { threads: saved.threads + 1, ..saved.clone() },
            SavedCosts { steps: vec![(1, 2.0)], ..saved.clone() },
            SavedCosts { steps: vec![(1, 2.0), (4, -1.0)], ..saved.clone() },
            SavedCosts { steps: vec![(0, 1.0), (1, 2.0), (4, 3.0)], ..saved.clone() },
            SavedCosts { drafters: vec![("mtp".into(), vec![-0.5])], ..saved },
        ] {
            wrong.save(&path).expect("is written");
            assert_eq!(SavedCosts::open(&path), None, "{wrong:?}");
        }
    }
}
