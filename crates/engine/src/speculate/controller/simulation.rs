//! A simulated machine, drafters and answers: what `auto` does with them is the same on every computer.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

/// Step costs: milliseconds of a step of one token, and of each further token.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub step: f64,
    pub token: f64,
    /// Largest relative error of a measured step.
    pub noise: f64,
    /// Share of its time in which other programs slow it down, by up to two times.
    pub busy: f64,
}

/// A drafter.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedDrafter {
    /// Acceptance of its first token, and of tokens after an accepted one; and the prior.
    pub right: [f64; 2],
    pub prior: f64,
    /// Milliseconds for each token of a draft, and for catch-up before an answer's first draft.
    pub each: f64,
    pub catch_up_cost: f64,
    /// Probability that it has a draft; below 1, its drafts are free.
    pub ideas: f64,
}

/// How drafts are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Strategy {
    Auto,
    Fixed { drafter: usize, depth: usize },
}

const MOST: usize = 16;

pub struct Simulation {
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
    pub fn of(self, width: usize) -> f64 {
        self.step + self.token * (width - 1) as f64
    }

    /// What is measured at load.
    pub fn costs(self) -> StepCosts {
        StepCosts::at_load([1, 2, 4, 8, 16, 32].map(|width| (width, self.of(width))).to_vec())
    }
}

impl Simulation {
    pub fn new(machine: Machine, drafters: &[SimulatedDrafter]) -> Simulation {
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

    /// How many times as long everything takes now. It changes every 20 steps.
    fn slowed(&self) -> f64 {
        let mut hash = DefaultHasher::new();
        (self.steps / 20).hash(&mut hash);
        let chance = hash.finish() as f64 / u64::MAX as f64;
        if chance < self.machine.busy { 1.3 + 0.7 * chance / self.machine.busy } else { 1.0 }
    }

    /// Milliseconds for an answer of `tokens` tokens; `most` are allowed.
    pub fn answer(&mut self, strategy: Strategy, tokens: usize, most: usize) -> f64 {
        let (mut stats, mut length, mut elapsed, mut steps) = (SequenceStats::default(), 1, 0.0, 0);
        self.answers += 1;
        let mut debts: Vec<f64> = self.drafters.iter().map(|simulated| simulated.catch_up_cost).collect();
        while length < tokens {
            let of = SequenceLength { generated: length, most: most - length };
            let has: Vec<bool> = (0..)
                .zip(&self.drafters)
                .map(|(drafter, simulated)| self.chance(2 * drafter, length) < simulated.ideas)
                .collect();
            let candidates: Vec<DraftOption> = (self.drafters.iter().enumerate())
                .filter(|(i, _)| has[*i])
                .map(|(drafter, simulated)| DraftOption {
                    drafter,
                    grade: ANY_BIN,
                    most: MOST.min(of.most.max(1)),
                    cost: [simulated.each, 0.0],
                    catch_up_cost: debts[drafter],
                    free: simulated.ideas < 1.0,
                })
                .collect();
            let chosen = match strategy {
                Strategy::Auto => self.controller.choose(&stats, &candidates, OtherRows::default(), of),
                Strategy::Fixed { drafter, depth } if has.get(drafter) == Some(&true) => {
                    Some(DraftPlan { drafter, depth: depth.min(MOST), kept: 1.0, probe: 0.0 })
                }
                Strategy::Fixed { .. } => None,
            }
            .filter(|choice| choice.depth > 0)
            // Plain steps are measured now and then.
            .filter(|_| !matches!(strategy, Strategy::Auto) || !self.steps.is_multiple_of(64));
            self.controller.probed(chosen.map_or(0.0, |choice| choice.probe));
            let drafting = chosen.map_or(0.0, |DraftPlan { drafter, depth, .. }| {
                let catch_up_cost = std::mem::take(&mut debts[drafter]);
                if catch_up_cost > 0.0 {
                    self.controller.invested(&mut stats, catch_up_cost, of);
                }
                catch_up_cost + self.drafters[drafter].each * depth as f64
            });
            let mut accepted = 0;
            // A free draft is compared with the answer even if it is not verified.
            for (drafter, simulated) in self.drafters.clone().into_iter().enumerate() {
                let used = chosen.filter(|choice| choice.drafter == drafter);
                let depth =
                    used.map_or(if has[drafter] && simulated.ideas < 1.0 { 4 } else { 0 }, |of| of.depth);
                let mut right = 0;
                while right < depth && self.is_right(drafter, length + right, right) {
                    right += 1;
                }
                if used.is_some() {
                    accepted = right;
                    self.drafted += depth;
                    self.controller.judged(&mut stats, drafter, ANY_BIN, depth, right);
                } else if depth > 0 {
                    self.controller.learnt(&mut stats, drafter, ANY_BIN, depth, right);
                }
            }
            let depth = chosen.map_or(0, |choice| choice.depth);
            let slowed = self.slowed();
            let drafting = slowed * drafting;
            let took = slowed
                * self.machine.of(1 + depth)
                * (1.0 + self.machine.noise * (2.0 * self.chance(99, steps) - 1.0));
            self.steps += 1;
            self.controller.costs.record_step(1, 1 + depth, took);
            self.controller.passed(&mut stats, 1, (1 + accepted) as f64, took + drafting, depth > 0);
            (elapsed, length, steps) = (elapsed + took + drafting, length + 1 + accepted, steps + 1);
        }
        self.controller.ended(&stats, &[], length);
        // Tokens past the end do not count.
        elapsed * (tokens - 1) as f64 / (length - 1) as f64
    }

    /// Speed relative to plain decoding for consecutive answers of these lengths.
    pub fn speed(&mut self, strategy: Strategy, answers: &[usize]) -> f64 {
        let ms: f64 = answers.iter().map(|&tokens| self.answer(strategy, tokens, tokens + 1000)).sum();
        let tokens: usize = answers.iter().map(|tokens| tokens - 1).sum();
        tokens as f64 * self.machine.step / ms
    }

    /// The best relative speed of any fixed drafter and depth, or of plain decoding.
    pub fn best(machine: Machine, drafters: &[SimulatedDrafter], answers: &[usize]) -> f64 {
        let ways = (0..drafters.len()).flat_map(|drafter| [1, 2, 3, 5, 7, 15].map(|depth| (drafter, depth)));
        let speed = |(drafter, depth)| {
            Simulation::new(machine, drafters).speed(Strategy::Fixed { drafter, depth }, answers)
        };
        ways.map(speed).fold(1.0, f64::max)
    }
}
