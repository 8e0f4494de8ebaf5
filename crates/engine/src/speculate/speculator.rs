//! Asks drafters for drafts, sequence by sequence, as far as that is wanted and worth it.

use std::{rc::Rc, sync::Arc, time::Instant};

use mlx::Array;

use super::{
    Asked, Costs, Draft, Drafter, Hidden, MAX_AHEAD, MAX_DEPTH, SELF, Seen, StepTimes,
    controller::{ANY_GRADE, Candidate, Choice, Controller, Others, Pace},
    each::Each,
    forced::Forced,
    ngram::Ngram,
};
use crate::{
    Options,
    cache::Lent,
    metrics::Drafts,
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
}

struct Entry {
    drafter: Box<dyn Drafter>,
    /// Milliseconds for each token of a draft, or for a draft that is made in one.
    each: Each,
}

impl Entry {
    /// Milliseconds for each token of a draft, as long as nothing was measured.
    fn believed(&self, costs: &Costs) -> f64 {
        self.drafter.share() * costs.plain(1).unwrap_or(0.0)
    }
}

/// A sequence's part in it.
#[derive(Debug)]
pub struct Speculating {
    mode: Mode,
    /// Who made the draft that is on its way, and of what grade.
    source: (usize, usize),
    /// By drafter: tokens drafted, and accepted.
    counts: Vec<Drafted>,
    /// The same of all sequences.
    drafts: Rc<[Arc<Drafts>]>,
    /// Tokens drafted and accepted in the last step, which the controller has not heard of.
    judged: Option<(usize, usize)>,
    /// Tokens generated when the controller last heard of it.
    counted: usize,
    pace: Pace,
    /// Layers that the sequence goes without behind its prompt; only if it is lossy.
    left_out: Rc<[usize]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off,
    Auto,
    Fixed {
        drafter: usize,
        depth: usize,
    },
    /// Nobody drafts, and some layers are left out.
    Lossy,
}

/// Which hidden states anybody wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Behind the final norm.
    pub last: bool,
    pub layers: Vec<usize>,
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
    pub fn new(options: &Options, more: Vec<Box<dyn Drafter>>, costs: Costs) -> Result<Speculator, String> {
        let mut drafters: Vec<Box<dyn Drafter>> =
            vec![Box::new(Forced), Box::new(Ngram::new(options.ngram_table.clone()))];
        drafters.extend(more);
        let drafts = drafters.iter().map(|drafter| options.metrics.drafts_of(drafter.name())).collect();
        let believed = drafters.iter().map(|drafter| drafter.believed()).collect();
        let drafters = drafters
            .into_iter()
            .map(|drafter| Entry { each: Each::alone(drafter.each()), drafter })
            .collect();
        let (controller, usual) = (Controller::new(costs, believed), options.speculate.clone());
        let speculator = Speculator { drafters, controller, usual, drafts, since_compared: 0 };
        match speculator.mode(&speculator.usual) {
            Some(_) => Ok(speculator),
            None => Err(format!(
                "there is no drafter `{}`; there are auto, off, {}",
                speculator.usual,
                speculator.names().join(", ")
            )),
        }
    }

    /// Drafters that can be asked for by name.
    pub fn names(&self) -> Vec<&'static str> {
        self.drafters.iter().skip(FORCED + 1).map(|entry| entry.drafter.name()).collect()
    }

    /// How a request that begins is going to be speculated on.
    pub fn begin(&self, request: &Request) -> Speculating {
        let asked = request.speculation.as_ref().unwrap_or(&self.usual);
        Speculating {
            // Names were checked when it came in.
            mode: self.mode(asked).unwrap_or(Mode::Off),
            source: (FORCED, 0),
            counts: self.drafters.iter().map(|entry| Drafted::of(entry.drafter.name())).collect(),
            drafts: self.drafts.clone(),
            judged: None,
            counted: 0,
            pace: Pace::default(),
            left_out: Rc::default(),
        }
    }

    /// The layers that the model can best do without, which may have to be measured first. Not a second time, if that
    /// fails.
    pub fn spared(&mut self) -> Rc<[usize]> {
        self.drafters.iter_mut().find_map(|entry| entry.drafter.spared()).unwrap_or_default().into()
    }

    fn mode(&self, asked: &Speculate) -> Option<Mode> {
        Some(match asked {
            Speculate::Off => Mode::Off,
            Speculate::Auto => Mode::Auto,
            Speculate::Lossy if self.names().contains(&SELF) => Mode::Lossy,
            Speculate::Lossy => return None,
            Speculate::Fixed { drafter, depth } => {
                let named = |entry: &Entry| entry.drafter.name() == drafter;
                let drafter = FORCED + 1 + self.drafters.iter().skip(FORCED + 1).position(named)?;
                Mode::Fixed { drafter, depth: depth.unwrap_or(USUAL_DEPTH).min(MAX_DEPTH) }
            }
        })
    }

    /// Which hidden states drafters want to see.
    pub fn watched(&self) -> Watched {
        let mut watched = Watched::default();
        for entry in &self.drafters {
            match entry.drafter.hidden() {
                Hidden::None => {}
                Hidden::Final => watched.last = true,
                Hidden::Layers(layers) => watched.layers.extend(layers),
            }
        }
        watched.layers.sort();
        watched.layers.dedup();
        watched
    }

    /// Shows drafters what tokens `from..` of a sequence look like: the hidden states behind the final norm, if those are
    /// watched, and behind layers, `[n, hidden_size]` each.
    pub fn see(&mut self, s: &Sequence, from: usize, last: Option<&Array>, layers: &[(usize, Array)]) {
        for entry in self.drafters.iter_mut().filter(|_| !s.speculating.is_off()) {
            let behind =
                |layer: &usize| layers.iter().find(|(known, _)| known == layer).map(|(_, x)| x.clone());
            let hidden: Vec<Array> = match entry.drafter.hidden() {
                Hidden::None => continue,
                Hidden::Final => last.cloned().into_iter().collect(),
                Hidden::Layers(layers) => layers.iter().filter_map(behind).collect(),
            };
            entry.drafter.see(&Seen { sequence: s.id, tokens: &s.tokens, from, hidden });
        }
    }

    /// Whether a draft behind the token that is being computed is likely enough to wait for that token.
    ///
    /// # Errors
    /// A drafter failed.
    pub fn wants(&mut self, s: &Sequence, rows: usize) -> mlx::Result<bool> {
        let room = s.most_drafted().saturating_sub(1).min(MAX_DEPTH);
        if room == 0 {
            return Ok(false);
        }
        match s.speculating.mode {
            Mode::Off | Mode::Lossy => Ok(false),
            Mode::Fixed { depth: 0, .. } => Ok(false),
            Mode::Fixed { drafter, depth } => match &self.drafters[drafter].drafter {
                free if free.is_free() => Ok(!self.propose(drafter, s, depth.min(room))?.tokens.is_empty()),
                other => Ok(other.debt(&asked(s, depth)).is_some()),
            },
            Mode::Auto => {
                let others = Others { rows: rows - 1, width: rows - 1, kept: (rows - 1) as f64 };
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
        let mut others = Others { rows, width: rows, kept: rows as f64 };
        let compare = self.compares();
        let mut later: Vec<(usize, usize, usize)> = vec![];
        for (i, s) in running.iter_mut().enumerate().filter(|(_, s)| s.is_read()) {
            let room = s.most_drafted().min(MAX_DEPTH).min((MAX_AHEAD + rows).saturating_sub(others.width));
            if room == 0 || s.speculating.is_off() {
                continue;
            }
            if s.request.constraint.is_some() {
                let draft = self.propose(FORCED, s, room)?;
                take(s, FORCED, draft);
            }
            if s.draft.is_empty() {
                // Without itself.
                let beside =
                    Others { rows: others.rows - 1, width: others.width - 1, kept: others.kept - 1.0 };
                match s.speculating.mode {
                    Mode::Fixed { depth: 0, .. } | Mode::Off | Mode::Lossy => {}
                    Mode::Auto if compare => {}
                    Mode::Fixed { drafter, depth } => later.push((drafter, i, depth.min(room))),
                    Mode::Auto => {
                        let Some((choice, draft)) = self.choose(s, room, beside)? else { continue };
                        others.kept += choice.kept - 1.0;
                        others.width += choice.depth;
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
            let owes =
                |&(_, i, depth): &(usize, usize, usize)| entry.drafter.debt(&asked(&running[i], depth));
            let owing: Vec<usize> = of_one
                .iter()
                .filter(|asked| owes(asked).is_some_and(|ms| ms > 0.0))
                .map(|asked| asked.1)
                .collect();
            let started = Instant::now();
            let drafts = match entry.drafter.borrows() {
                true => propose_on(&mut *entry.drafter, running, of_one)?,
                false => {
                    let asked = of_one.iter().map(|&(_, i, depth)| asked(&running[i], depth));
                    entry.drafter.propose(&asked.collect::<Vec<Asked>>())?
                }
            };
            let in_one = entry.drafter.in_one().is_some();
            let passes = |draft: &Draft| if in_one { draft.tokens.len().min(1) } else { draft.tokens.len() };
            let passes: usize = drafts.iter().map(passes).sum();
            let ms = started.elapsed().as_secs_f64() * 1e3;
            if passes > 0 && owing.is_empty() && !entry.drafter.is_free() {
                let believed = entry.believed(&self.controller.costs);
                entry.each.saw(of_one.len(), ms / passes as f64, believed);
            }
            for i in owing {
                running[i].speculating.pace.invested(ms);
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
        s: &Sequence,
        room: usize,
        others: Others,
    ) -> mlx::Result<Option<(Choice, Option<Draft>)>> {
        // On a GPU a batch builds its next step while this one is computed, and all would have to wait for a draft (ADR 14).
        if others.rows > 0 && mlx::on_gpu() {
            return Ok(None);
        }
        let (mut candidates, mut drafts) = (vec![], vec![]);
        for drafter in FORCED + 1..self.drafters.len() {
            let entry = &self.drafters[drafter];
            if !entry.drafter.is_ready() {
                continue;
            }
            let believed = || entry.believed(&self.controller.costs);
            let mut cost = [entry.each.of(others.rows + 1).unwrap_or_else(believed), 0.0];
            if !entry.drafter.is_free() {
                let Some(debt) = entry.drafter.debt(&asked(s, room)) else { continue };
                if debt > 0.0 && !self.controller.may_invest(s.generated()) {
                    continue;
                }
                cost[1] = debt / self.controller.drafts_to_come(drafter, s.generated(), s.most_drafted());
                let mut most = room;
                if let Some(in_one) = entry.drafter.in_one() {
                    (most, cost) = (room.min(in_one), [0.0, cost[0] + cost[1]]);
                }
                candidates.push(Candidate { drafter, grade: ANY_GRADE, most, cost });
                continue;
            }
            let draft = self.propose(drafter, s, room)?;
            if !draft.tokens.is_empty() {
                candidates.push(Candidate { drafter, grade: draft.grade, most: draft.tokens.len(), cost });
                drafts.push((drafter, draft));
            }
        }
        if candidates.is_empty() {
            return Ok(None);
        }
        let to_come = self.controller.usually_to_come(s.generated(), s.most_drafted());
        let chosen = self.controller.choose(&s.speculating.pace, &candidates, others, to_come);
        Ok(chosen.map(|choice| {
            let draft = drafts.into_iter().find(|(drafter, _)| *drafter == choice.drafter);
            let cut = |(_, mut draft): (usize, Draft)| {
                draft.tokens.truncate(choice.depth);
                draft
            };
            (choice, draft.map(cut))
        }))
    }

    /// Takes in what a step brought the sequences that decode, and that it took `ms`, if nothing else was in it.
    pub fn passed(&mut self, running: &mut [Sequence], rows: usize, ms: Option<f64>, drafted: bool) {
        let decoding = || running.iter().filter(|s| s.generated() > 0);
        let tokens: usize = decoding().map(|s| s.generated() - s.speculating.counted).sum();
        let kept = tokens as f64 / decoding().count().max(1) as f64;
        for s in running.iter_mut().filter(|s| s.generated() > 0) {
            let generated = s.generated();
            let own = &mut s.speculating;
            // Who drafts whatever there is tells nothing of places that are chosen.
            if let Some((drafted, accepted)) = own.judged.take()
                && own.is_auto()
            {
                let (drafter, grade) = own.source;
                self.controller.judged(&mut own.pace, drafter, grade, drafted, accepted);
            }
            if let Some(ms) = ms {
                self.controller.passed(&mut own.pace, rows, kept, ms, drafted);
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

    /// Takes what steps cost, as measured, and tells the drafters.
    pub fn steps_take(&mut self, costs: Costs) {
        self.drafters.iter_mut().for_each(|entry| entry.drafter.steps_take(&costs));
        self.controller.costs = costs;
    }

    /// What steps cost.
    pub fn costs(&mut self) -> &mut Costs {
        &mut self.controller.costs
    }

    /// Gives drafters a short text to measure themselves by.
    pub fn read(&mut self, text: &[u32]) {
        self.drafters.iter_mut().for_each(|entry| entry.drafter.read(text));
    }

    /// A sequence has ended; it is to be [forgotten](Speculator::forget) too.
    pub fn learn_from(&mut self, s: &Sequence) {
        if s.speculating.is_auto() {
            self.controller.ended(&s.speculating.pace, s.generated());
        }
    }

    /// A sequence begins again, or has failed.
    pub fn forget(&mut self, sequence: u64) {
        self.drafters.iter_mut().for_each(|entry| entry.drafter.forget(sequence));
    }
}

impl Speculating {
    /// Of a draft so many tokens were accepted.
    pub fn judged(&mut self, drafted: usize, accepted: usize) {
        let counts = &mut self.counts[self.source.0];
        (counts.drafted, counts.accepted) = (counts.drafted + drafted, counts.accepted + accepted);
        let drafts = &self.drafts[self.source.0];
        drafts.drafted.add(drafted);
        drafts.accepted.add(accepted);
        self.judged = Some((drafted, accepted));
    }

    /// Never again: a drafter has failed.
    pub fn stop(&mut self) {
        if !self.is_lossy() {
            self.mode = Mode::Off;
        }
    }

    /// Whether layers are left out behind the prompt.
    pub fn is_lossy(&self) -> bool {
        self.mode == Mode::Lossy
    }

    /// Which ones; set once, before the sequence begins, so that it says the same if it has to begin again.
    pub fn leave_out(&mut self, layers: Rc<[usize]>) {
        self.left_out = layers;
    }

    pub fn left_out(&self) -> &[usize] {
        &self.left_out
    }

    /// Whether measurements decide.
    pub fn is_auto(&self) -> bool {
        self.mode == Mode::Auto
    }

    /// Whether nobody drafts.
    pub fn is_off(&self) -> bool {
        matches!(self.mode, Mode::Off | Mode::Lossy)
    }

    /// What was drafted, by those who drafted something.
    pub fn report(&self) -> Vec<Drafted> {
        self.counts.iter().filter(|counts| counts.drafted > 0).copied().collect()
    }
}

fn asked(s: &Sequence, depth: usize) -> Asked<'_> {
    ask(s.id, &s.tokens, &s.request, depth)
}

fn ask<'a>(sequence: u64, tokens: &'a [u32], request: &'a Request, depth: usize) -> Asked<'a> {
    let (sampling, constraint) = (&request.sampling, request.constraint.as_deref());
    Asked { sequence, tokens, prompt: request.prompt.len(), depth, sampling, constraint }
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
    let (asked, caches): (Vec<Asked>, Vec<Lent>) = own.iter_mut().map(|(s, depth)| lend(s, *depth)).unzip();
    let drafts = drafter.propose_on(&asked, caches)?;
    own.into_iter().for_each(|(s, _)| s.lent = false);
    Ok(drafts)
}

fn lend(s: &mut Sequence, depth: usize) -> (Asked<'_>, Lent<'_>) {
    let Sequence { id, tokens, request, caches, .. } = s;
    (ask(*id, tokens, request, depth), Lent::new(caches))
}

/// Gives a sequence its draft.
fn take(s: &mut Sequence, drafter: usize, draft: Draft) {
    s.speculating.source = (drafter, draft.grade);
    s.take_draft(draft.tokens);
}
