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
pub struct Source {
    /// Acceptance of its first token, and of tokens after an accepted one; and the prior.
    pub right: [f64; 2],
    pub believed: f64,
    /// Milliseconds for each token of a draft, and for catch-up before an answer's first draft.
    pub each: f64,
    pub debt: f64,
    /// Probability that it has a draft; below 1, its drafts are free.
    pub ideas: f64,
}

/// How drafts are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Auto,
    Fixed { drafter: usize, depth: usize },
}

const MOST: usize = 16;

pub struct World {
    pub machine: Machine,
    pub sources: Vec<Source>,
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
    pub fn costs(self) -> Costs {
        Costs::at_load([1, 2, 4, 8, 16, 32].map(|width| (width, self.of(width))).to_vec())
    }
}

impl World {
    pub fn new(machine: Machine, sources: &[Source]) -> World {
        let believed = sources.iter().map(|source| [source.believed; GRADES]).collect();
        let controller = Controller::new(machine.costs(), believed);
        World { machine, sources: sources.to_vec(), controller, answers: 0, steps: 0, drafted: 0 }
    }

    /// A pseudorandom number between 0 and 1, a function of the answer and the arguments.
    fn chance(&self, what: u64, at: usize) -> f64 {
        let mut hash = DefaultHasher::new();
        (self.answers, what, at).hash(&mut hash);
        hash.finish() as f64 / u64::MAX as f64
    }

    /// Whether a drafter's token at a position is accepted, after `before` accepted ones.
    fn is_right(&self, drafter: usize, at: usize, before: usize) -> bool {
        self.chance(2 * drafter as u64 + 1, at) < self.sources[drafter].right[before.min(1)]
    }

    /// How many times as long everything takes now. It changes every 20 steps.
    fn slowed(&self) -> f64 {
        let mut hash = DefaultHasher::new();
        (self.steps / 20).hash(&mut hash);
        let chance = hash.finish() as f64 / u64::MAX as f64;
        if chance < self.machine.busy { 1.3 + 0.7 * chance / self.machine.busy } else { 1.0 }
    }

    /// Milliseconds for an answer of `tokens` tokens; `most` are allowed.
    pub fn answer(&mut self, way: Way, tokens: usize, most: usize) -> f64 {
        let (mut pace, mut length, mut elapsed, mut steps) = (Pace::default(), 1, 0.0, 0);
        self.answers += 1;
        let mut debts: Vec<f64> = self.sources.iter().map(|source| source.debt).collect();
        while length < tokens {
            let of = Length { generated: length, most: most - length };
            let has: Vec<bool> = (0..)
                .zip(&self.sources)
                .map(|(drafter, source)| self.chance(2 * drafter, length) < source.ideas)
                .collect();
            let candidates: Vec<Candidate> = (self.sources.iter().enumerate())
                .filter(|(i, _)| has[*i])
                .map(|(drafter, source)| Candidate {
                    drafter,
                    grade: ANY_GRADE,
                    most: MOST.min(of.most.max(1)),
                    cost: [source.each, 0.0],
                    debt: debts[drafter],
                    free: source.ideas < 1.0,
                })
                .collect();
            let chosen = match way {
                Way::Auto => self.controller.choose(&pace, &candidates, Others::default(), of),
                Way::Fixed { drafter, depth } if has.get(drafter) == Some(&true) => {
                    Some(Choice { drafter, depth: depth.min(MOST), kept: 1.0, probe: 0.0 })
                }
                Way::Fixed { .. } => None,
            }
            .filter(|choice| choice.depth > 0)
            // Plain steps are measured now and then.
            .filter(|_| !matches!(way, Way::Auto) || !self.steps.is_multiple_of(64));
            self.controller.probed(chosen.map_or(0.0, |choice| choice.probe));
            let drafting = chosen.map_or(0.0, |Choice { drafter, depth, .. }| {
                let debt = std::mem::take(&mut debts[drafter]);
                if debt > 0.0 {
                    self.controller.invested(&mut pace, debt, of);
                }
                debt + self.sources[drafter].each * depth as f64
            });
            let mut accepted = 0;
            // A free draft is compared with the answer even if it is not verified.
            for (drafter, source) in self.sources.clone().into_iter().enumerate() {
                let used = chosen.filter(|choice| choice.drafter == drafter);
                let depth =
                    used.map_or(if has[drafter] && source.ideas < 1.0 { 4 } else { 0 }, |of| of.depth);
                let mut right = 0;
                while right < depth && self.is_right(drafter, length + right, right) {
                    right += 1;
                }
                if used.is_some() {
                    accepted = right;
                    self.drafted += depth;
                    self.controller.judged(&mut pace, drafter, ANY_GRADE, depth, right);
                } else if depth > 0 {
                    self.controller.learnt(&mut pace, drafter, ANY_GRADE, depth, right);
                }
            }
            let depth = chosen.map_or(0, |choice| choice.depth);
            let slowed = self.slowed();
            let drafting = slowed * drafting;
            let took = slowed
                * self.machine.of(1 + depth)
                * (1.0 + self.machine.noise * (2.0 * self.chance(99, steps) - 1.0));
            self.steps += 1;
            self.controller.costs.saw_step(1, 1 + depth, took);
            self.controller.passed(&mut pace, 1, (1 + accepted) as f64, took + drafting, depth > 0);
            (elapsed, length, steps) = (elapsed + took + drafting, length + 1 + accepted, steps + 1);
        }
        self.controller.ended(&pace, &[], length);
        // Tokens past the end do not count.
        elapsed * (tokens - 1) as f64 / (length - 1) as f64
    }

    /// Speed relative to plain decoding for consecutive answers of these lengths.
    pub fn speed(&mut self, way: Way, answers: &[usize]) -> f64 {
        let ms: f64 = answers.iter().map(|&tokens| self.answer(way, tokens, tokens + 1000)).sum();
        let tokens: usize = answers.iter().map(|tokens| tokens - 1).sum();
        tokens as f64 * self.machine.step / ms
    }

    /// The best relative speed of any fixed drafter and depth, or of plain decoding.
    pub fn best(machine: Machine, sources: &[Source], answers: &[usize]) -> f64 {
        let ways = (0..sources.len()).flat_map(|drafter| [1, 2, 3, 5, 7, 15].map(|depth| (drafter, depth)));
        let speed =
            |(drafter, depth)| World::new(machine, sources).speed(Way::Fixed { drafter, depth }, answers);
        ways.map(speed).fold(1.0, f64::max)
    }
}
