//! Asks drafters for drafts, sequence by sequence, as far as that is wanted and worth it.

use std::{path::PathBuf, rc::Rc, sync::Arc, time::Instant};

use mlx::Array;

use super::{
    Draft, DraftRequest, Drafter, HiddenCapture, HiddenSource, HiddenStates, LAYER_SKIP, MAX_DEPTH,
    MAX_STEP_DRAFT, StepCosts, StepProfiler, StepTimes,
    calibration::keep,
    controller::{ANY_BIN, Controller, DraftOption, DraftPlan, OtherRows, SequenceLength},
    draft_latency::DraftLatency,
    drafters::{forced::ForcedDrafter, ngram::NgramDrafter},
    sequence_speculation::{Mode, SequenceSpeculation, Unused},
};
use crate::{
    Options,
    cache::Lent,
    metrics::Drafts,
    models::Model,
    options::Speculate,
    request::{Drafted, Request},
    sequence::Sequence,
};

pub struct Speculator {
    drafters: Vec<Entry>,
    controller: Controller,
    usual: Speculate,
    /// Where drafts are counted, by drafter.
    drafts: Rc<[Arc<Drafts>]>,
    /// Steps since one was to go without drafts.
    since_compared: usize,
    /// The measurement of step costs, if it was not made at load and is in progress.
    meter: Option<StepProfiler>,
    /// Where measured costs are kept, if anywhere.
    file: Option<PathBuf>,
}

struct Entry {
    drafter: Box<dyn Drafter>,
    /// Milliseconds for each token of a draft, or for a draft that is made in one.
    each: DraftLatency,
}

impl Entry {
    /// Milliseconds for each token of a draft, as long as nothing was measured.
    fn prior(&self, costs: &StepCosts) -> f64 {
        self.drafter.relative_cost() * costs.plain(1).unwrap_or(0.0)
    }
}

/// Drafts tokens where a constraint leaves no choice; goes before all others.
const FORCED: usize = 0;
/// Of so many steps one goes without drafts.
const COMPARE: usize = 64;
/// Tokens of a draft where the user names a drafter alone.
const USUAL_DEPTH: usize = 4;

impl Speculator {
    /// With `more` drafters than every model has.
    ///
    /// # Errors
    /// The options name a drafter that there is none of.
    pub fn new(
        options: &Options,
        more: Vec<Box<dyn Drafter>>,
        costs: StepCosts,
    ) -> Result<Speculator, String> {
        let mut drafters: Vec<Box<dyn Drafter>> =
            vec![Box::new(ForcedDrafter), Box::new(NgramDrafter::new(options.ngram_table.clone()))];
        drafters.extend(more);
        let drafts = drafters.iter().map(|drafter| options.metrics.drafts_of(drafter.name())).collect();
        let prior = drafters.iter().map(|drafter| drafter.prior()).collect();
        let drafters = drafters
            .into_iter()
            .map(|drafter| Entry { each: DraftLatency::alone(drafter.each()), drafter })
            .collect();
        let (controller, usual) = (Controller::new(costs, prior), options.speculate.clone());
        let speculator =
            Speculator { drafters, controller, usual, drafts, since_compared: 0, meter: None, file: None };
        match speculator.mode(&speculator.usual) {
            Some(_) => Ok(speculator),
            None => Err(format!(
                "there is no drafter `{}`; there are auto, off, {}",
                speculator.usual,
                speculator.names().join(", ")
            )),
        }
    }

    /// Keeps costs that are measured from now on in `file`.
    pub fn keep_in(&mut self, file: Option<PathBuf>) {
        self.file = file;
    }

    /// Drafters that can be asked for by name.
    pub fn names(&self) -> Vec<&'static str> {
        self.drafters.iter().skip(FORCED + 1).map(|entry| entry.drafter.name()).collect()
    }

    /// How a request that begins is going to be speculated on.
    pub fn begin(&self, request: &Request) -> SequenceSpeculation {
        let asked = request.speculation.as_ref().unwrap_or(&self.usual);
        SequenceSpeculation {
            // Names were checked when it came in.
            mode: self.mode(asked).unwrap_or(Mode::Off),
            source: (FORCED, 0),
            counts: self.drafters.iter().map(|entry| Drafted::of(entry.drafter.name())).collect(),
            drafts: self.drafts.clone(),
            judged: None,
            counted: 0,
            stats: self.controller.begin(&request.prompt),
            unused: None,
            skipped_layers: None,
        }
    }

    /// The layers that the model can best skip; `None` while they are being measured.
    pub fn skippable_layers(&mut self) -> Option<Rc<[usize]>> {
        let drafter = self.drafters.iter_mut().find(|entry| entry.drafter.name() == LAYER_SKIP);
        Some(drafter?.drafter.skippable_layers()?.into())
    }

    /// Told that an `auto` request runs: missing costs of steps and drafters are measured from now on.
    pub fn prepare(&mut self, model: &dyn Model) {
        if self.meter.is_none() && !self.controller.costs.are_measured() {
            self.meter = Some(StepProfiler::new(model));
        }
        self.drafters.iter_mut().for_each(|entry| entry.drafter.prepare());
    }

    /// Whether measurements are in progress.
    pub fn is_measuring(&self) -> bool {
        self.meter.is_some() || self.drafters.iter().any(|entry| entry.drafter.is_measuring())
    }

    /// Makes the next slice of them: about 20 ms, or the least that can be computed.
    ///
    /// # Errors
    /// Computing it failed; the measurement is not repeated.
    pub fn measure_some(&mut self, model: &dyn Model) -> mlx::Result<()> {
        let result = self.measure_next(model);
        if !self.is_measuring() && self.controller.costs.are_measured() {
            let drafters = self.drafters.iter().map(|entry| &*entry.drafter);
            keep(self.controller.costs.times().steps, drafters, self.file.as_deref());
        }
        result
    }

    fn measure_next(&mut self, model: &dyn Model) -> mlx::Result<()> {
        // Taken out, so that a failure or a panic ends the measurement.
        if let Some(mut meter) = self.meter.take() {
            self.controller.costs.add_measured(vec![]);
            match meter.slice(model)? {
                true => self.meter = Some(meter),
                false => self.controller.costs.add_measured(meter.found()),
            }
            return Ok(());
        }
        let Some(entry) = self.drafters.iter_mut().find(|entry| entry.drafter.is_measuring()) else {
            return Ok(());
        };
        entry.drafter.measure()?;
        if !entry.drafter.is_measuring() {
            entry.each = DraftLatency::alone(entry.drafter.each());
        }
        Ok(())
    }

    fn mode(&self, asked: &Speculate) -> Option<Mode> {
        Some(match asked {
            Speculate::Off => Mode::Off,
            Speculate::Auto => Mode::Auto,
            Speculate::Lossy if self.names().contains(&LAYER_SKIP) => Mode::Lossy,
            Speculate::Lossy => return None,
            Speculate::Fixed { drafter, depth } => {
                let named = |entry: &Entry| entry.drafter.name() == drafter;
                let drafter = FORCED + 1 + self.drafters.iter().skip(FORCED + 1).position(named)?;
                Mode::Fixed { drafter, depth: depth.unwrap_or(USUAL_DEPTH).min(MAX_DEPTH) }
            }
        })
    }

    /// Which hidden states drafters want to see.
    pub fn hidden_capture(&self) -> HiddenCapture {
        let mut hidden_capture = HiddenCapture::default();
        for entry in &self.drafters {
            match entry.drafter.hidden() {
                HiddenSource::None => {}
                HiddenSource::Final => hidden_capture.last = true,
                HiddenSource::Layers(layers) => hidden_capture.layers.extend(layers),
            }
        }
        hidden_capture.layers.sort();
        hidden_capture.layers.dedup();
        hidden_capture
    }

    /// Shows drafters what tokens `from..` of a sequence look like: the hidden states behind the final norm, if those are
    /// watched, and behind layers, `[n, hidden_size]` each.
    pub fn observe(&mut self, s: &Sequence, from: usize, last: Option<&Array>, layers: &[(usize, Array)]) {
        for entry in self.drafters.iter_mut().filter(|_| !s.speculation.is_off()) {
            let behind =
                |layer: &usize| layers.iter().find(|(known, _)| known == layer).map(|(_, x)| x.clone());
            let hidden: Vec<Array> = match entry.drafter.hidden() {
                HiddenSource::None => continue,
                HiddenSource::Final => last.cloned().into_iter().collect(),
                HiddenSource::Layers(layers) => layers.iter().filter_map(behind).collect(),
            };
            entry.drafter.observe(&HiddenStates { sequence: s.id, tokens: &s.tokens, from, hidden });
        }
    }

    /// Whether a draft behind the token that is being computed is likely enough to wait for that token.
    ///
    /// # Errors
    /// A drafter failed.
    pub fn wants(&mut self, s: &mut Sequence, rows: usize) -> mlx::Result<bool> {
        let room = s.most_drafted().saturating_sub(1).min(MAX_DEPTH);
        if room == 0 {
            return Ok(false);
        }
        match s.speculation.mode {
            Mode::Off | Mode::Lossy => Ok(false),
            Mode::Fixed { depth: 0, .. } => Ok(false),
            Mode::Fixed { drafter, depth } => match &self.drafters[drafter].drafter {
                free if free.is_free() => Ok(!self.propose(drafter, s, depth.min(room))?.tokens.is_empty()),
                other => Ok(other.catch_up_cost(&asked(s, depth)).is_some()),
            },
            Mode::Auto => {
                let others = OtherRows { rows: rows - 1, width: rows - 1, kept: (rows - 1) as f64 };
                Ok(self.choose(s, room, others)?.is_some())
            }
        }
    }

    /// Puts drafts into those of the sequences that are [read](Sequence::is_read).
    ///
    /// # Errors
    /// A drafter failed.
    pub fn draft(&mut self, running: &mut [Sequence]) -> mlx::Result<()> {
        let rows = running.iter().filter(|s| s.begun).count();
        let mut others = OtherRows { rows, width: rows, kept: rows as f64 };
        let compare = self.compares();
        let mut later: Vec<(usize, usize, usize)> = vec![];
        for (i, s) in running.iter_mut().enumerate().filter(|(_, s)| s.is_read()) {
            let room =
                s.most_drafted().min(MAX_DEPTH).min((MAX_STEP_DRAFT + rows).saturating_sub(others.width));
            if room == 0 || s.speculation.is_off() {
                continue;
            }
            if s.request.constraint.is_some() {
                let draft = self.propose(FORCED, s, room)?;
                take(s, FORCED, draft);
            }
            if s.draft.is_empty() {
                // Without itself.
                let beside =
                    OtherRows { rows: others.rows - 1, width: others.width - 1, kept: others.kept - 1.0 };
                match s.speculation.mode {
                    Mode::Fixed { depth: 0, .. } | Mode::Off | Mode::Lossy => {}
                    Mode::Auto if compare => {}
                    Mode::Fixed { drafter, depth } => later.push((drafter, i, depth.min(room))),
                    Mode::Auto => {
                        let Some((choice, draft)) = self.choose(s, room, beside)? else { continue };
                        others.kept += choice.kept - 1.0;
                        others.width += choice.depth;
                        self.controller.probed(choice.probe);
                        match draft {
                            Some(draft) => take(s, choice.drafter, draft),
                            None => later.push((choice.drafter, i, choice.depth)),
                        }
                        continue;
                    }
                }
            }
            others.width += s.draft.len();
        }
        self.draft_later(running, later)
    }

    /// Whether a step goes without drafts, so that what drafts are compared with is measured: machines get slower and faster.
    fn compares(&mut self) -> bool {
        self.since_compared = (self.since_compared + 1) % COMPARE;
        self.since_compared == 0
    }

    /// Asks drafters for drafts of several sequences at once: (drafter, index of the sequence, depth) each.
    fn draft_later(
        &mut self,
        running: &mut [Sequence],
        mut later: Vec<(usize, usize, usize)>,
    ) -> mlx::Result<()> {
        later.sort();
        for of_one in later.chunk_by(|a, b| a.0 == b.0) {
            let entry = &mut self.drafters[of_one[0].0];
            let owes = |&(_, i, depth): &(usize, usize, usize)| {
                entry.drafter.catch_up_cost(&asked(&running[i], depth))
            };
            let owing: Vec<usize> = of_one
                .iter()
                .filter(|asked| owes(asked).is_some_and(|ms| ms > 0.0))
                .map(|asked| asked.1)
                .collect();
            let started = Instant::now();
            let drafts = match entry.drafter.uses_target_cache() {
                true => propose_on(&mut *entry.drafter, running, of_one)?,
                false => {
                    let asked = of_one.iter().map(|&(_, i, depth)| asked(&running[i], depth));
                    entry.drafter.propose(&asked.collect::<Vec<DraftRequest>>())?
                }
            };
            let block_size = entry.drafter.block_size().is_some();
            let passes =
                |draft: &Draft| if block_size { draft.tokens.len().min(1) } else { draft.tokens.len() };
            let passes: usize = drafts.iter().map(passes).sum();
            let ms = started.elapsed().as_secs_f64() * 1e3;
            if passes > 0 && owing.is_empty() && !entry.drafter.is_free() {
                let prior = entry.prior(&self.controller.costs);
                entry.each.saw(of_one.len(), ms / passes as f64, prior);
            }
            for i in owing {
                let length = length(&running[i]);
                self.controller.invested(&mut running[i].speculation.stats, ms, length);
            }
            for (&(drafter, i, depth), mut draft) in of_one.iter().zip(drafts) {
                draft.tokens.truncate(depth);
                take(&mut running[i], drafter, draft);
            }
        }
        Ok(())
    }

    fn propose(&mut self, drafter: usize, s: &Sequence, depth: usize) -> mlx::Result<Draft> {
        let mut draft = self.drafters[drafter].drafter.propose(&[asked(s, depth)])?.pop().unwrap_or_default();
        draft.tokens.truncate(depth);
        Ok(draft)
    }

    /// The best draft for a sequence, if any is worth it; the draft itself where it cost nothing to see it.
    fn choose(
        &mut self,
        s: &mut Sequence,
        room: usize,
        others: OtherRows,
    ) -> mlx::Result<Option<(DraftPlan, Option<Draft>)>> {
        // On a GPU a batch builds its next step while this one is computed, and all would have to wait for a draft (ADR 14).
        if others.rows > 0 && mlx::on_gpu() {
            return Ok(None);
        }
        self.learn_from_unused(s);
        let length = length(s);
        let (mut candidates, mut drafts) = (vec![], vec![]);
        for drafter in FORCED + 1..self.drafters.len() {
            let entry = &self.drafters[drafter];
            if !entry.drafter.is_ready() {
                continue;
            }
            let prior = || entry.prior(&self.controller.costs);
            let mut cost = [entry.each.of(others.rows + 1).unwrap_or_else(prior), 0.0];
            if !entry.drafter.is_free() {
                let Some(catch_up_cost) = entry.drafter.catch_up_cost(&asked(s, room)) else { continue };
                let mut most = room;
                if let Some(block_size) = entry.drafter.block_size() {
                    (most, cost) = (room.min(block_size), [0.0, cost[0]]);
                }
                candidates.push(DraftOption {
                    drafter,
                    grade: ANY_BIN,
                    most,
                    cost,
                    catch_up_cost,
                    free: false,
                });
                continue;
            }
            let draft = self.propose(drafter, s, room)?;
            if s.speculation.stats.has_no_stats_of(drafter)
                && let Some(prompt_acceptance) = self.drafters[drafter].drafter.prompt_acceptance(s.id)
            {
                s.speculation.stats.set_prior(drafter, prompt_acceptance);
            }
            if !draft.tokens.is_empty() {
                let (grade, most) = (draft.grade, draft.tokens.len());
                candidates.push(DraftOption { drafter, grade, most, cost, catch_up_cost: 0.0, free: true });
                drafts.push((drafter, draft));
            }
        }
        if candidates.is_empty() {
            return Ok(None);
        }
        let chosen = self.controller.choose(&s.speculation.stats, &candidates, others, length);
        let used = drafts.iter().position(|(drafter, _)| chosen.is_some_and(|it| it.drafter == *drafter));
        let used = used.map(|at| drafts.swap_remove(at).1);
        s.speculation.leave_unused(used.is_some(), drafts, s.tokens.len());
        Ok(chosen.map(|choice| {
            let cut = |mut draft: Draft| {
                draft.tokens.truncate(choice.depth);
                draft
            };
            (choice, used.map(cut))
        }))
    }

    /// Learns from an unused draft once the tokens that followed show how far it was right.
    fn learn_from_unused(&mut self, s: &mut Sequence) {
        let own = &mut s.speculation;
        let Some(Unused { drafter, draft, at }) = &own.unused else { return };
        let came = s.tokens.get(*at..).unwrap_or_default();
        let right = draft.tokens.iter().zip(came).take_while(|(drafted, came)| drafted == came).count();
        let drafted = draft.tokens.len();
        if right == drafted || right < came.len() {
            self.controller.learnt(&mut own.stats, *drafter, draft.grade, drafted, right);
            own.unused = None;
        }
    }

    /// Takes in what a step brought the sequences that decode, and that it took `ms`, if nothing else was in it.
    pub fn passed(&mut self, running: &mut [Sequence], rows: usize, ms: Option<f64>, drafted: bool) {
        let decoding = || running.iter().filter(|s| s.generated() > 0);
        let tokens: usize = decoding().map(|s| s.generated() - s.speculation.counted).sum();
        let kept = tokens as f64 / decoding().count().max(1) as f64;
        for s in running.iter_mut().filter(|s| s.generated() > 0) {
            let generated = s.generated();
            let own = &mut s.speculation;
            // Who drafts whatever there is tells nothing of places that are chosen.
            if let Some((drafted, accepted)) = own.judged.take()
                && own.is_auto()
            {
                let (drafter, grade) = own.source;
                self.controller.judged(&mut own.stats, drafter, grade, drafted, accepted);
            }
            if let Some(ms) = ms {
                self.controller.passed(&mut own.stats, rows, kept, ms, drafted);
            }
            own.counted = generated;
        }
    }

    /// What steps and drafts have taken so far.
    pub fn times(&self) -> StepTimes {
        let drafters = self.drafters.iter().skip(FORCED + 1);
        let drafters =
            drafters.map(|entry| (entry.drafter.name(), entry.each.of(1).unwrap_or(0.0))).collect();
        StepTimes { drafters, ..self.controller.costs.times() }
    }

    /// What steps cost.
    pub fn costs(&mut self) -> &mut StepCosts {
        &mut self.controller.costs
    }

    /// Gives drafters a short text to measure themselves by.
    pub fn read(&mut self, text: &[u32]) {
        self.drafters.iter_mut().for_each(|entry| entry.drafter.read(text));
    }

    /// A sequence has ended; it is to be [forgotten](Speculator::forget) too.
    pub fn on_finished(&mut self, s: &Sequence) {
        if s.speculation.is_auto() {
            self.controller.ended(&s.speculation.stats, &s.request.prompt, s.generated());
        }
    }

    /// A sequence begins again, or has failed.
    pub fn forget(&mut self, sequence: u64) {
        self.drafters.iter_mut().for_each(|entry| entry.drafter.forget(sequence));
    }
}

fn length(s: &Sequence) -> SequenceLength {
    SequenceLength { generated: s.generated(), most: s.most_drafted() }
}

fn asked(s: &Sequence, depth: usize) -> DraftRequest<'_> {
    ask(s.id, &s.tokens, &s.request, depth)
}

fn ask<'a>(sequence: u64, tokens: &'a [u32], request: &'a Request, depth: usize) -> DraftRequest<'a> {
    let (sampling, constraint) = (&request.sampling, request.constraint.as_deref());
    DraftRequest { sequence, tokens, prompt: request.prompt.len(), depth, sampling, constraint }
}

/// Has a drafter draft on the caches of sequences: (_, index, depth) each, by index.
fn propose_on(
    drafter: &mut dyn Drafter,
    running: &mut [Sequence],
    of_one: &[(usize, usize, usize)],
) -> mlx::Result<Vec<Draft>> {
    let mut depths = of_one.iter().map(|&(_, i, depth)| (i, depth)).peekable();
    let mut own = vec![];
    for (i, s) in running.iter_mut().enumerate() {
        own.extend(depths.next_if(|(next, _)| *next == i).map(|(_, depth)| (s, depth)));
    }
    own.iter_mut().for_each(|(s, _)| s.lent = true);
    let (asked, caches): (Vec<DraftRequest>, Vec<Lent>) =
        own.iter_mut().map(|(s, depth)| lend(s, *depth)).unzip();
    let drafts = drafter.propose_on(&asked, caches)?;
    own.into_iter().for_each(|(s, _)| s.lent = false);
    Ok(drafts)
}

fn lend(s: &mut Sequence, depth: usize) -> (DraftRequest<'_>, Lent<'_>) {
    let Sequence { id, tokens, request, caches, .. } = s;
    (ask(*id, tokens, request, depth), Lent::new(caches))
}

/// Gives a sequence its draft.
fn take(s: &mut Sequence, drafter: usize, draft: Draft) {
    s.speculation.source = (drafter, draft.grade);
    s.take_draft(draft.tokens);
}
