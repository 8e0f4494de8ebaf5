//! Owns the drafters and the controller: calibration, hidden states, and learning from steps.

mod drafting;

use std::{path::PathBuf, rc::Rc, sync::Arc};

use mlx::Array;

use super::{
    LAYER_SKIP, MAX_DEPTH,
    calibration::StepProfiler,
    controller::Controller,
    costs_file::save_costs,
    draft_latency::DraftLatency,
    draft_target::TargetView,
    drafter::{Drafter, DrafterState, HiddenSource, HiddenStates},
    drafters::{forced::ForcedDrafter, ngram::NgramDrafter},
    sequence_speculation::{SequenceSpeculation, SpeculationMode},
    step_costs::{StepCosts, StepTimes},
};
use crate::{
    api::{Drafted, Drafts, Options, Request, Speculate},
    models::Model,
    prefix::PrefixKey,
};

pub(crate) struct Speculator {
    drafters: Vec<RegisteredDrafter>,
    controller: Controller,
    default: Speculate,
    /// Metrics by drafter.
    drafts: Rc<[Arc<Drafts>]>,
    /// Steps since the last one that went without drafts on purpose.
    since_plain: usize,
    /// The measurement of step costs in progress.
    profiler: Option<StepProfiler>,
    /// Where measured costs are saved.
    costs_file: Option<PathBuf>,
}

struct RegisteredDrafter {
    drafter: Box<dyn Drafter>,
    latency: DraftLatency,
}

/// Hidden states to capture for drafters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HiddenCapture {
    /// After the final norm.
    pub last: bool,
    pub layers: Vec<usize>,
}

/// Index of the drafter for tokens that a constraint forces; it goes before all others.
const FORCED: usize = 0;
/// Depth where the user names a drafter without one.
const DEFAULT_DEPTH: usize = 4;

impl Speculator {
    /// With `drafters` besides those that every model has.
    ///
    /// # Errors
    /// The options name an unknown drafter.
    pub(crate) fn new(
        options: &Options,
        drafters: Vec<Box<dyn Drafter>>,
        costs: StepCosts,
    ) -> Result<Speculator, String> {
        let mut all: Vec<Box<dyn Drafter>> =
            vec![Box::new(ForcedDrafter), Box::new(NgramDrafter::new(options.ngram_table.clone()))];
        all.extend(drafters);
        let drafts = all.iter().map(|drafter| options.metrics.drafts_of(drafter.info().name)).collect();
        let controller = Controller::new(costs, all.iter().map(|drafter| drafter.info().prior).collect());
        let register = |drafter: Box<dyn Drafter>| {
            let latency = DraftLatency::new(drafter.info().latency);
            RegisteredDrafter { drafter, latency }
        };
        let speculator = Speculator {
            drafters: all.into_iter().map(register).collect(),
            controller,
            default: options.speculate.clone(),
            drafts,
            since_plain: 0,
            profiler: None,
            costs_file: None,
        };
        match speculator.mode(&speculator.default) {
            Some(_) => Ok(speculator),
            None => Err(format!(
                "there is no drafter `{}`; there are auto, off, {}",
                speculator.default,
                speculator.names().join(", ")
            )),
        }
    }

    /// Saves costs that are measured from now on in `file`.
    pub(crate) fn set_costs_file(&mut self, file: Option<PathBuf>) {
        self.costs_file = file;
    }

    /// Drafters that requests can name.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.drafters.iter().skip(FORCED + 1).map(|entry| entry.drafter.info().name).collect()
    }

    /// The speculation state of a new sequence.
    pub(crate) fn new_sequence(&self, request: &Request) -> SequenceSpeculation {
        let wanted = request.speculation.as_ref().unwrap_or(&self.default);
        SequenceSpeculation {
            // Names were validated with the request.
            mode: self.mode(wanted).unwrap_or(SpeculationMode::Off),
            source: (FORCED, 0),
            counts: self.drafters.iter().map(|entry| Drafted::of(entry.drafter.info().name)).collect(),
            drafts: self.drafts.clone(),
            verified: None,
            num_reported: 0,
            stats: self.controller.new_sequence(PrefixKey::of(request, &request.prompt)),
            unused: None,
            skipped_layers: None,
            states: self.drafters.iter().map(|_| DrafterState::default()).collect(),
            caches_in_use: false,
        }
    }

    fn mode(&self, wanted: &Speculate) -> Option<SpeculationMode> {
        Some(match wanted {
            Speculate::Off => SpeculationMode::Off,
            Speculate::Auto => SpeculationMode::Auto,
            Speculate::Lossy if self.names().contains(&LAYER_SKIP) => SpeculationMode::Lossy,
            Speculate::Lossy => return None,
            Speculate::Fixed { drafter, depth } => {
                let drafter = FORCED + 1 + self.names().iter().position(|name| name == drafter)?;
                SpeculationMode::Fixed { drafter, depth: depth.unwrap_or(DEFAULT_DEPTH).min(MAX_DEPTH) }
            }
        })
    }

    /// The layers that lossy sequences skip; `None` while they are being measured.
    pub(crate) fn skippable_layers(&mut self) -> Option<Rc<[usize]>> {
        let selection = self.drafters.iter_mut().find_map(|entry| entry.drafter.layer_selection());
        Some(selection?.skippable_layers()?.into())
    }

    /// Sets the tokens of a short text for drafters that measure layers.
    pub(crate) fn set_calibration_text(&mut self, text: &[u32]) {
        let selections = self.drafters.iter_mut().filter_map(|entry| entry.drafter.layer_selection());
        selections.for_each(|selection| selection.set_calibration_text(text));
    }

    /// Schedules missing measurements: an `auto` request runs.
    pub(crate) fn prepare(&mut self, model: &dyn Model) {
        if self.profiler.is_none() && !self.controller.costs.are_measured() {
            self.profiler = Some(StepProfiler::new(model));
        }
        let calibrated = self.drafters.iter_mut().filter_map(|entry| entry.drafter.calibrated());
        calibrated.for_each(|calibrated| calibrated.prepare());
    }

    /// Whether measurements are in progress.
    pub(crate) fn is_measuring(&mut self) -> bool {
        let mut calibrated = self.drafters.iter_mut().filter_map(|entry| entry.drafter.calibrated());
        self.profiler.is_some() || calibrated.any(|calibrated| calibrated.is_measuring())
    }

    /// Computes the next slice of measurements: about 20 ms, or the least possible.
    ///
    /// # Errors
    /// Computing it failed; the measurement is not repeated.
    pub(crate) fn measure_slice(&mut self, model: &dyn Model) -> mlx::Result<()> {
        let result = self.measure_next(model);
        if !self.is_measuring() && self.controller.costs.are_measured() {
            let drafters = self.drafters.iter_mut().map(|entry| &mut *entry.drafter);
            save_costs(self.controller.costs.times().steps, drafters, self.costs_file.as_deref());
        }
        result
    }

    fn measure_next(&mut self, model: &dyn Model) -> mlx::Result<()> {
        // Taken out, so that a failure or a panic ends the measurement.
        if let Some(mut profiler) = self.profiler.take() {
            self.controller.costs.add_measured(vec![]);
            match profiler.slice(model)? {
                true => self.profiler = Some(profiler),
                false => self.controller.costs.add_measured(profiler.into_steps()),
            }
            return Ok(());
        }
        for RegisteredDrafter { drafter, latency } in &mut self.drafters {
            let Some(calibrated) = drafter.calibrated().filter(|calibrated| calibrated.is_measuring()) else {
                continue;
            };
            calibrated.measure()?;
            if !calibrated.is_measuring() {
                *latency = DraftLatency::new(drafter.info().latency);
            }
            break;
        }
        Ok(())
    }

    /// The hidden states that drafters read.
    pub(crate) fn hidden_capture(&mut self) -> HiddenCapture {
        let mut capture = HiddenCapture::default();
        for observer in self.drafters.iter_mut().filter_map(|entry| entry.drafter.hidden_observer()) {
            match observer.source() {
                HiddenSource::Final => capture.last = true,
                HiddenSource::Layers(layers) => capture.layers.extend(layers),
            }
        }
        capture.layers.sort();
        capture.layers.dedup();
        capture
    }

    /// Passes hidden states of tokens `from..` to the drafters that read them: after the final
    /// norm, if captured, and after layers, `[n, hidden_size]` each.
    pub(crate) fn observe(
        &mut self,
        view: TargetView,
        from: usize,
        last: Option<&Array>,
        layers: &[(usize, Array)],
    ) {
        let TargetView { tokens, speculation, .. } = view;
        if speculation.is_off() {
            return;
        }
        for (entry, state) in self.drafters.iter_mut().zip(&mut speculation.states) {
            let Some(observer) = entry.drafter.hidden_observer() else { continue };
            let after =
                |layer: &usize| layers.iter().find(|(known, _)| known == layer).map(|(_, x)| x.clone());
            let hidden: Vec<Array> = match observer.source() {
                HiddenSource::Final => last.cloned().into_iter().collect(),
                HiddenSource::Layers(layers) => layers.iter().filter_map(after).collect(),
            };
            observer.observe(&HiddenStates { tokens, from, hidden }, state);
        }
    }

    /// Learns from a step that was read: the tokens of the decoding sequences, and its milliseconds
    /// if all rows decoded, with all layers.
    pub(crate) fn on_step<'a>(
        &mut self,
        running: impl Iterator<Item = TargetView<'a>>,
        rows: usize,
        ms: Option<f64>,
        drafted: bool,
    ) {
        let decoding: Vec<TargetView> = running.filter(|view| view.generated() > 0).collect();
        let new = |view: &TargetView| view.generated() - view.speculation.num_reported;
        let tokens: usize = decoding.iter().map(new).sum();
        let tokens = tokens as f64 / decoding.len().max(1) as f64;
        for view in decoding {
            let generated = view.generated();
            let speculation = view.speculation;
            // Fixed drafters draft everywhere; that says nothing about the positions that `auto`
            // chooses.
            if let Some((drafted, accepted)) = speculation.verified.take()
                && speculation.is_auto()
            {
                let (drafter, bin) = speculation.source;
                self.controller.on_verified(&mut speculation.stats, drafter, bin, drafted, accepted);
            }
            if let Some(ms) = ms {
                self.controller.on_step(&mut speculation.stats, rows, tokens, ms, drafted);
            }
            speculation.num_reported = generated;
        }
    }

    /// Measured times of steps and drafts.
    pub(crate) fn times(&self) -> StepTimes {
        let drafters = self.drafters.iter().skip(FORCED + 1);
        let latency =
            |entry: &RegisteredDrafter| (entry.drafter.info().name, entry.latency.get(1).unwrap_or(0.0));
        StepTimes { drafters: drafters.map(latency).collect(), ..self.controller.costs.times() }
    }

    pub(crate) fn costs(&mut self) -> &mut StepCosts {
        &mut self.controller.costs
    }

    /// Learns from a finished sequence. [Release](Speculator::release) it too.
    pub(crate) fn on_finished(
        &mut self,
        speculation: &SequenceSpeculation,
        prompt: &[u32],
        generated: usize,
    ) {
        if speculation.is_auto() {
            self.controller.on_finished(&speculation.stats, prompt, generated);
        }
    }

    /// Drops what drafters keep of a sequence that ended or restarts, or lets them reuse it.
    pub(crate) fn release(&mut self, speculation: &mut SequenceSpeculation) {
        for (entry, state) in self.drafters.iter_mut().zip(&mut speculation.states) {
            let state = std::mem::take(state);
            if let Some(store) = entry.drafter.state_store() {
                store.store(state);
            }
        }
    }
}
