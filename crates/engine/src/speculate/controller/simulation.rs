//! A simulated machine, drafters and answers, on which `auto` decides the same on every computer.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

/// Step costs: milliseconds of a step of one token, and of each further token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub step: f64,
    pub token: f64,
    /// Largest relative error of a measured step.
    pub noise: f64,
    /// Share of its time in which other programs slow it down, by up to two times.
    pub busy: f64,
}

/// A drafter.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedDrafter {
    /// Acceptance of its first token, and of tokens after an accepted one; and the prior.
    pub right: [f64; 2],
    pub prior: f64,
    /// Milliseconds for each token of a draft, and for catch-up before an answer's first draft.
    pub per_token: f64,
    pub catch_up_cost: f64,
    /// Probability that it has a draft; below 1, its drafts are free.
    pub draft_rate: f64,
}

/// How drafts are chosen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Strategy {
    Auto,
    Fixed { drafter: usize, depth: usize },
}

const MAX_DRAFT: usize = 16;

pub(super) struct Simulation {
    pub machine: Machine,
    pub drafters: Vec<SimulatedDrafter>,
    pub controller: Controller,
    /// Number of answers so far; seeds the next one.
    pub answers: u64,
    /// Number of steps so far.
    steps: u64,
    /// Tokens drafted in all answers.
    pub drafted: usize,
}

impl Machine {
    pub(super) fn of(self, width: usize) -> f64 {
        self.step + self.token * (width - 1) as f64
    }

    /// The costs measured at load.
    pub(super) fn costs(self) -> StepCosts {
        StepCosts::at_load([1, 2, 4, 8, 16, 32].map(|width| (width, self.of(width))).to_vec())
    }
}

impl Simulation {
    pub(super) fn new(machine: Machine, drafters: &[SimulatedDrafter]) -> Simulation {
        let prior = drafters.iter().map(|simulated| [simulated.prior; CONFIDENCE_BINS]).collect();
        let controller = Controller::new(machine.costs(), prior);
        Simulation { machine, drafters: drafters.to_vec(), controller, answers: 0, steps: 0, drafted: 0 }
    }

    /// A pseudorandom number between 0 and 1, a function of the answer and the arguments.
    fn chance(&self, what: u64, at: usize) -> f64 {
        let mut hash = DefaultHasher::new();
        (self.answers, what, at).hash(&mut hash);
        hash.finish() as f64 / u64::MAX as f64
    }

    /// Whether a drafter's token at a position is accepted, after `before` accepted ones.
    fn is_right(&self, drafter: usize, at: usize, before: usize) -> bool {
        self.chance(2 * drafter as u64 + 1, at) < self.drafters[drafter].right[before.min(1)]
    }

    /// The current slowdown factor; it changes every 20 steps.
    fn slowed(&self) -> f64 {
        let mut hash = DefaultHasher::new();
        (self.steps / 20).hash(&mut hash);
        let chance = hash.finish() as f64 / u64::MAX as f64;
        if chance < self.machine.busy { 1.3 + 0.7 * chance / self.machine.busy } else { 1.0 }
    }

    /// Milliseconds for an answer of `tokens` tokens; `max_tokens` are allowed.
    pub(super) fn answer(&mut self, strategy: Strategy, tokens: usize, max_tokens: usize) -> f64 {
        let (mut stats, mut length, mut elapsed, mut steps) = (SequenceStats::default(), 1, 0.0, 0);
        self.answers += 1;
        let mut catch_up: Vec<f64> = self.drafters.iter().map(|simulated| simulated.catch_up_cost).collect();
        while length < tokens {
            let of = SequenceLength { generated: length, max_remaining: max_tokens - length };
            let has: Vec<bool> = (0..)
                .zip(&self.drafters)
                .map(|(drafter, simulated)| self.chance(2 * drafter, length) < simulated.draft_rate)
                .collect();
            let chosen = match strategy {
                Strategy::Auto => {
                    let options = self.options(&has, &catch_up, of);
                    self.controller.choose(&stats, &options, OtherRows::default(), of)
                }
                Strategy::Fixed { drafter, depth } => has.get(drafter).filter(|has| **has).map(|_| {
                    let depth = depth.min(MAX_DRAFT);
                    DraftChoice { drafter, depth, expected_tokens: 1.0, probe_cost: 0.0 }
                }),
            }
            .filter(|choice| choice.depth > 0)
            // Plain steps are measured now and then.
            .filter(|_| !matches!(strategy, Strategy::Auto) || !self.steps.is_multiple_of(64));
            self.controller.charge_probe(chosen.map_or(0.0, |choice| choice.probe_cost));
            let drafting = chosen.map_or(0.0, |DraftChoice { drafter, depth, .. }| {
                let catch_up = std::mem::take(&mut catch_up[drafter]);
                if catch_up > 0.0 {
                    self.controller.on_catch_up(&mut stats, catch_up, of);
                }
                catch_up + self.drafters[drafter].per_token * depth as f64
            });
            let accepted = self.verify(&mut stats, chosen, &has, length);
            let depth = chosen.map_or(0, |choice| choice.depth);
            let slowed = self.slowed();
            let drafting = slowed * drafting;
            let took = slowed
                * self.machine.of(1 + depth)
                * (1.0 + self.machine.noise * (2.0 * self.chance(99, steps) - 1.0));
            self.steps += 1;
            self.controller.costs.record_step(1, 1 + depth, took);
            self.controller.on_step(&mut stats, 1, (1 + accepted) as f64, took + drafting, depth > 0);
            (elapsed, length, steps) = (elapsed + took + drafting, length + 1 + accepted, steps + 1);
        }
        self.controller.on_finished(&stats, &[], length);
        // Tokens past the end do not count.
        elapsed * (tokens - 1) as f64 / (length - 1) as f64
    }

    fn options(&self, has: &[bool], catch_up: &[f64], of: SequenceLength) -> Vec<DraftOption> {
        let option = |(drafter, simulated): (usize, &SimulatedDrafter)| DraftOption {
            drafter,
            confidence_bin: ANY_BIN,
            max_depth: MAX_DRAFT.min(of.max_remaining.max(1)),
            cost: [simulated.per_token, 0.0],
            catch_up_cost: catch_up[drafter],
            is_free: simulated.draft_rate < 1.0,
        };
        self.drafters.iter().enumerate().filter(|(i, _)| has[*i]).map(option).collect()
    }

    /// Accepted tokens of the chosen draft. Free drafts are compared with the answer even if they
    /// are not verified.
    fn verify(
        &mut self,
        stats: &mut SequenceStats,
        chosen: Option<DraftChoice>,
        has: &[bool],
        length: usize,
    ) -> usize {
        let mut accepted = 0;
        for (drafter, simulated) in self.drafters.clone().into_iter().enumerate() {
            let used = chosen.filter(|choice| choice.drafter == drafter);
            let unused = if has[drafter] && simulated.draft_rate < 1.0 { 4 } else { 0 };
            let depth = used.map_or(unused, |choice| choice.depth);
            let mut right = 0;
            while right < depth && self.is_right(drafter, length + right, right) {
                right += 1;
            }
            if used.is_some() {
                accepted = right;
                self.drafted += depth;
                self.controller.on_verified(stats, drafter, ANY_BIN, depth, right);
            } else if depth > 0 {
                self.controller.learn(stats, drafter, ANY_BIN, depth, right);
            }
        }
        accepted
    }

    /// Speed relative to plain decoding for consecutive answers of these lengths.
    pub(super) fn speed(&mut self, strategy: Strategy, answers: &[usize]) -> f64 {
        let ms: f64 = answers.iter().map(|&tokens| self.answer(strategy, tokens, tokens + 1000)).sum();
        let tokens: usize = answers.iter().map(|tokens| tokens - 1).sum();
        tokens as f64 * self.machine.step / ms
    }

    /// The best relative speed of any fixed drafter and depth, or of plain decoding.
    pub(super) fn best(machine: Machine, drafters: &[SimulatedDrafter], answers: &[usize]) -> f64 {
        let ways = (0..drafters.len()).flat_map(|drafter| [1, 2, 3, 5, 7, 15].map(|depth| (drafter, depth)));
        let speed = |(drafter, depth)| {
            Simulation::new(machine, drafters).speed(Strategy::Fixed { drafter, depth }, answers)
        };
        ways.map(speed).fold(1.0, f64::max)
    }
}
