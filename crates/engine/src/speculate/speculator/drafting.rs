//! Makes the drafts of a step.

use std::time::Instant;

use super::{FORCED, RegisteredDrafter, Speculator};
use crate::speculate::{
    MAX_DEPTH, MAX_STEP_DRAFT,
    acceptance::ANY_BIN,
    controller::{DraftChoice, DraftOption, OtherRows},
    draft_target::{DraftTarget, TargetView},
    drafter::{Draft, DraftRequest},
    sequence_speculation::{SpeculationMode, UnusedDraft},
};

/// One step in this many goes without drafts.
const PLAIN_STEP_EVERY: usize = 64;

/// A draft that is made together with those of other sequences. Ordered by drafter, then by
/// sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PlannedDraft {
    drafter: usize,
    /// Index of the running sequence.
    sequence: usize,
    depth: usize,
}

impl Speculator {
    /// Whether a draft after the unread token is likely enough to wait for that token. The step has
    /// `rows` rows.
    ///
    /// # Errors
    /// A drafter failed.
    pub(crate) fn wants_draft<T: DraftTarget>(&mut self, target: &mut T, rows: usize) -> mlx::Result<bool> {
        let view = target.view();
        let max_depth = view.max_draft.saturating_sub(1).min(MAX_DEPTH);
        if max_depth == 0 {
            return Ok(false);
        }
        match view.speculation.mode {
            SpeculationMode::Off | SpeculationMode::Lossy | SpeculationMode::Fixed { depth: 0, .. } => {
                Ok(false)
            }
            SpeculationMode::Fixed { drafter, depth } => {
                let free = self.drafters[drafter].drafter.info().is_free;
                if free {
                    return Ok(!self.propose(drafter, view, depth.min(max_depth))?.tokens.is_empty());
                }
                let request = view.draft_request(drafter, depth, false);
                Ok(self.drafters[drafter].drafter.catch_up_cost(&request).is_some())
            }
            SpeculationMode::Auto => {
                let others =
                    OtherRows { rows: rows - 1, width: rows - 1, expected_tokens: (rows - 1) as f64 };
                Ok(self.choose(target, max_depth, others)?.is_some())
            }
        }
    }

    /// Gives drafts to the sequences that [can take](DraftTarget::can_take_draft) one. `rows`
    /// sequences have started.
    ///
    /// # Errors
    /// A drafter failed.
    pub(crate) fn draft<T: DraftTarget>(&mut self, running: &mut [T], rows: usize) -> mlx::Result<()> {
        let mut step = OtherRows { rows, width: rows, expected_tokens: rows as f64 };
        let is_plain = self.is_plain_step();
        let mut planned: Vec<PlannedDraft> = vec![];
        for (i, target) in running.iter_mut().enumerate().filter(|(_, target)| target.can_take_draft()) {
            let view = target.view();
            let room = (MAX_STEP_DRAFT + rows).saturating_sub(step.width);
            let max_depth = view.max_draft.min(MAX_DEPTH).min(room);
            let mode = view.speculation.mode;
            if max_depth == 0 || view.speculation.is_off() {
                continue;
            }
            if !view.forced.is_empty() {
                let draft = self.propose(FORCED, view, max_depth)?;
                let length = take_draft(target, FORCED, draft);
                if length > 0 {
                    step.width += length;
                    continue;
                }
            }
            match mode {
                SpeculationMode::Fixed { depth: 0, .. } | SpeculationMode::Off | SpeculationMode::Lossy => {}
                SpeculationMode::Auto if is_plain => {}
                SpeculationMode::Fixed { drafter, depth } => {
                    planned.push(PlannedDraft { drafter, sequence: i, depth: depth.min(max_depth) });
                }
                SpeculationMode::Auto => {
                    let others = OtherRows {
                        rows: step.rows - 1,
                        width: step.width - 1,
                        expected_tokens: step.expected_tokens - 1.0,
                    };
                    let Some((choice, draft)) = self.choose(target, max_depth, others)? else { continue };
                    let DraftChoice { drafter, depth, .. } = choice;
                    step.expected_tokens += choice.expected_tokens - 1.0;
                    step.width += depth;
                    self.controller.charge_probe(choice.probe_cost);
                    match draft {
                        Some(draft) => _ = take_draft(target, drafter, draft),
                        None => planned.push(PlannedDraft { drafter, sequence: i, depth }),
                    }
                }
            }
        }
        planned.sort();
        planned
            .chunk_by(|a, b| a.drafter == b.drafter)
            .try_for_each(|of_one| self.draft_batch(running, of_one))
    }

    /// Whether a step goes without drafts, to measure what drafts are compared with: a machine's
    /// speed changes.
    fn is_plain_step(&mut self) -> bool {
        self.since_plain = (self.since_plain + 1) % PLAIN_STEP_EVERY;
        self.since_plain == 0
    }

    /// Lets one drafter make the planned drafts.
    fn draft_batch<T: DraftTarget>(
        &mut self,
        running: &mut [T],
        planned: &[PlannedDraft],
    ) -> mlx::Result<()> {
        let RegisteredDrafter { drafter, latency } = &mut self.drafters[planned[0].drafter];
        let info = drafter.info();
        let catches_up = |plan: &&PlannedDraft| {
            let request = running[plan.sequence].view().draft_request(plan.drafter, plan.depth, false);
            drafter.catch_up_cost(&request).is_some_and(|ms| ms > 0.0)
        };
        let catching_up: Vec<usize> = planned.iter().filter(catches_up).map(|plan| plan.sequence).collect();
        let started = Instant::now();
        let mut requests = draft_requests(running, planned, info.uses_target_cache);
        let drafts = drafter.propose(&mut requests)?;
        drop(requests);
        let passes = |draft: &Draft| match info.block_size {
            Some(_) => draft.tokens.len().min(1),
            None => draft.tokens.len(),
        };
        let passes: usize = drafts.iter().map(passes).sum();
        let ms = started.elapsed().as_secs_f64() * 1e3;
        if passes > 0 && catching_up.is_empty() && !info.is_free {
            latency.record(
                planned.len(),
                ms / passes as f64,
                info.relative_cost * self.controller.plain_step(),
            );
        }
        for i in catching_up {
            let view = running[i].view();
            let length = view.length();
            self.controller.on_catch_up(&mut view.speculation.stats, ms, length);
        }
        for (plan, mut draft) in planned.iter().zip(drafts) {
            let target = &mut running[plan.sequence];
            target.view().speculation.caches_in_use = false;
            draft.tokens.truncate(plan.depth);
            take_draft(target, plan.drafter, draft);
        }
        Ok(())
    }

    fn propose(&mut self, drafter: usize, view: TargetView, depth: usize) -> mlx::Result<Draft> {
        let mut requests = [view.draft_request(drafter, depth, false)];
        let mut draft = self.drafters[drafter].drafter.propose(&mut requests)?.pop().unwrap_or_default();
        draft.tokens.truncate(depth);
        Ok(draft)
    }

    /// The best draft for a sequence, if one pays; with its tokens if the drafter is free.
    fn choose<T: DraftTarget>(
        &mut self,
        target: &mut T,
        max_depth: usize,
        others: OtherRows,
    ) -> mlx::Result<Option<(DraftChoice, Option<Draft>)>> {
        // On a GPU a batch builds its next step during this one; a draft would make all of it wait
        // (ADR 14).
        if others.rows > 0 && mlx::runs_ahead() {
            return Ok(None);
        }
        self.learn_from_unused(target.view());
        let (mut options, mut drafts) = (vec![], vec![]);
        for drafter in FORCED + 1..self.drafters.len() {
            if let Some((option, draft)) = self.option(target, drafter, max_depth, others)? {
                options.push(option);
                drafts.extend(draft.map(|draft| (drafter, draft)));
            }
        }
        if options.is_empty() {
            return Ok(None);
        }
        let view = target.view();
        let length = view.length();
        let speculation = view.speculation;
        let choice = self.controller.choose(&speculation.stats, &options, others, length);
        let used = drafts.iter().position(|(drafter, _)| choice.is_some_and(|it| it.drafter == *drafter));
        let used = used.map(|at| drafts.swap_remove(at).1);
        speculation.remember_unused(used.is_some(), drafts, view.tokens.len());
        Ok(choice.map(|choice| {
            let cut = |mut draft: Draft| {
                draft.tokens.truncate(choice.depth);
                draft
            };
            (choice, used.map(cut))
        }))
    }

    /// The option that a drafter offers for a sequence; with the draft if the drafter is free.
    fn option<T: DraftTarget>(
        &mut self,
        target: &mut T,
        drafter: usize,
        max_depth: usize,
        others: OtherRows,
    ) -> mlx::Result<Option<(DraftOption, Option<Draft>)>> {
        let entry = &mut self.drafters[drafter];
        if entry.drafter.calibrated().is_some_and(|calibrated| !calibrated.is_ready()) {
            return Ok(None);
        }
        let info = entry.drafter.info();
        let prior_latency = || info.relative_cost * self.controller.plain_step();
        let latency = entry.latency.get(others.rows + 1).unwrap_or_else(prior_latency);
        let option = DraftOption {
            drafter,
            confidence_bin: ANY_BIN,
            max_depth,
            cost: [latency, 0.0],
            catch_up_cost: 0.0,
            is_free: info.is_free,
        };
        if !info.is_free {
            let request = target.view().draft_request(drafter, max_depth, false);
            let Some(catch_up_cost) = entry.drafter.catch_up_cost(&request) else { return Ok(None) };
            let option = match info.block_size {
                Some(size) => DraftOption { max_depth: max_depth.min(size), cost: [0.0, latency], ..option },
                None => option,
            };
            return Ok(Some((DraftOption { catch_up_cost, ..option }, None)));
        }
        let draft = self.propose(drafter, target.view(), max_depth)?;
        let speculation = target.view().speculation;
        if !speculation.stats.knows(drafter)
            && let Some(replay) = self.drafters[drafter].drafter.prompt_replay()
            && let Some(acceptance) = replay.acceptance(&speculation.states[drafter])
        {
            speculation.stats.set_prior(drafter, acceptance);
        }
        let (confidence_bin, max_depth) = (draft.confidence_bin, draft.tokens.len());
        let option = DraftOption { confidence_bin, max_depth, ..option };
        Ok((max_depth > 0).then_some((option, Some(draft))))
    }

    /// Learns from an unused draft once the tokens that followed show how much of it was right.
    fn learn_from_unused(&mut self, view: TargetView) {
        let speculation = view.speculation;
        let Some(UnusedDraft { drafter, draft, position }) = &speculation.unused else { return };
        let followed = view.tokens.get(*position..).unwrap_or_default();
        let accepted = draft.tokens.iter().zip(followed).take_while(|(a, b)| a == b).count();
        let drafted = draft.tokens.len();
        if accepted == drafted || accepted < followed.len() {
            self.controller.learn(&mut speculation.stats, *drafter, draft.confidence_bin, drafted, accepted);
            speculation.unused = None;
        }
    }
}

/// The requests of planned drafts, which are in the order of the sequences.
fn draft_requests<'a, T: DraftTarget>(
    running: &'a mut [T],
    planned: &[PlannedDraft],
    with_caches: bool,
) -> Vec<DraftRequest<'a>> {
    let mut planned = planned.iter().peekable();
    let mut requests = vec![];
    for (i, target) in running.iter_mut().enumerate() {
        if let Some(plan) = planned.next_if(|plan| plan.sequence == i) {
            requests.push(target.view().draft_request(plan.drafter, plan.depth, with_caches));
        }
    }
    requests
}

/// Gives a sequence its draft; returns the length of the part that it took.
fn take_draft<T: DraftTarget>(target: &mut T, drafter: usize, draft: Draft) -> usize {
    target.view().speculation.source = (drafter, draft.confidence_bin);
    target.take_draft(draft.tokens)
}
