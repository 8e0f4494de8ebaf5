//! Whether drafting is worth it, and how far: expected tokens per second from what steps cost and how often drafts are
//! right, both measured all the time. Pure bookkeeping.

use super::{
    CONFIDENCE_BINS, MAX_DEPTH, StepCosts,
    similar_prompts::{PastAnswer, SimilarPrompts},
};

/// What drafting must gain a row at least to be worth the change.
const WORTH: f64 = 0.02;
/// The same where the drafter has to catch up first, which a short answer does not earn back, and an answer to a similar prompt
/// says what to expect.
const WORTH_CATCHING_UP: f64 = 0.1;
/// Share of a sequence's time that drafts may have cost it more than they brought.
const MOST_LOST: f64 = 0.015;
/// Share of a plain step by which a draft of one token may exceed the allowance.
const FIRST: f64 = 0.5;
/// Share of an answer's expected time that catch-up may cost beyond the allowance.
const INVESTED: f64 = 0.03;
/// Share of all sequences' time that goes into finding out whether drafts have become worth it.
const PROBING: f64 = 0.005;
/// Lengths of drafts that are compared. Few, so that the cost of each is soon known: of many estimates the best one is too good
/// to be true.
const DEPTHS: [usize; 7] = [1, 2, 3, 5, 7, 15, 31];
/// Tokens of a draft that is to find out.
const PROBE: usize = 1;
/// Tokens that an answer has before a probe, if there were answers to similar prompts.
const PROBE_AFTER: usize = 48;

/// How often tokens of drafts are right, by their place in the draft, if those before them are.
#[derive(Clone, Debug, Default)]
pub struct AcceptanceRate {
    /// Weights of tokens that were judged, and of those that were right.
    places: [(f64, f64); POSITIONS],
}

/// Places that are told apart; what lies behind is like the last of them.
pub const POSITIONS: usize = 8;

impl AcceptanceRate {
    /// Of a draft of `drafted` tokens the first `accepted` were right; what was known before counts `memory` as much, however many
    /// of them share the last place: long drafts would have it forgotten that others were wrong.
    pub fn saw(&mut self, drafted: usize, accepted: usize, memory: f64) {
        for place in 0..drafted.min(accepted + 1) {
            let (judged, right) = &mut self.places[place.min(POSITIONS - 1)];
            let kept = if place < POSITIONS { memory } else { 1.0 };
            *judged = *judged * kept + 1.0;
            *right = *right * kept + f64::from(place < accepted);
        }
    }

    /// Weights of verified and of accepted first tokens.
    #[cfg(test)]
    pub fn first(&self) -> (f64, f64) {
        self.places[0]
    }

    /// The same data with less weight.
    fn lighter(&self, share: f64) -> AcceptanceRate {
        AcceptanceRate { places: self.places.map(|(judged, right)| (judged * share, right * share)) }
    }

    /// That the token at `place` is right, where `before` says so with the weight of `weight` tokens.
    fn right(&self, place: usize, before: f64, weight: f64) -> f64 {
        let (judged, right) = self.places[place.min(POSITIONS - 1)];
        (right + before * weight) / (judged + weight)
    }
}

/// What is known of a drafter, for each of its grades, and behind those for all of them together.
pub type AcceptanceByBin = [AcceptanceRate; CONFIDENCE_BINS + 1];

/// Stands for a grade while a draft is not made yet.
pub const ANY_BIN: usize = CONFIDENCE_BINS;

/// The controller's view of one sequence.
#[derive(Clone, Debug, Default)]
pub struct SequenceStats {
    /// By drafter.
    odds: Vec<AcceptanceByBin>,
    /// Milliseconds since it began to decode, and how many of them it would have saved without drafts.
    elapsed: f64,
    lost: f64,
    /// How many of those went into what drafts to come are to earn.
    invested: f64,
    /// Lengths of answers to similar prompts, if there were any.
    lengths: Option<[f64; 2]>,
}

impl SequenceStats {
    /// Sets the prior of a drafter's acceptance, by grade, from a replay of the prompt.
    pub fn set_prior(&mut self, drafter: usize, odds: &AcceptanceByBin) {
        *self.of(drafter) = std::array::from_fn(|grade| odds[grade].lighter(PROMPT));
    }

    /// Whether a drafter has no acceptance data yet.
    pub fn has_no_stats_of(&self, drafter: usize) -> bool {
        self.odds.len() <= drafter
    }

    fn of(&mut self, drafter: usize) -> &mut AcceptanceByBin {
        if self.odds.len() <= drafter {
            self.odds.resize(drafter + 1, AcceptanceByBin::default());
        }
        &mut self.odds[drafter]
    }
}

/// A draft that could be made.
#[derive(Clone, Copy, Debug)]
pub struct DraftOption {
    pub drafter: usize,
    pub grade: usize,
    /// Most tokens.
    pub most: usize,
    /// Milliseconds for each token, and for having any.
    pub cost: [f64; 2],
    /// Milliseconds that the drafter needs to catch up first.
    pub catch_up_cost: f64,
    /// Whether the draft exists already. Its acceptance is learnt even if it is not verified, so it is never probed.
    pub free: bool,
}

/// How long a sequence is.
#[derive(Clone, Copy, Debug)]
pub struct SequenceLength {
    /// Tokens generated.
    pub generated: usize,
    /// Most that may come.
    pub most: usize,
}

/// The other rows of the step.
#[derive(Clone, Copy, Debug, Default)]
pub struct OtherRows {
    pub rows: usize,
    /// Their tokens, drafted ones included.
    pub width: usize,
    /// Tokens they are expected to get.
    pub kept: f64,
}

/// What is to be drafted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftPlan {
    pub drafter: usize,
    pub depth: usize,
    /// Tokens that the row is expected to get.
    pub kept: f64,
    /// Milliseconds that it is expected to lose, if it is a probe.
    pub probe: f64,
}

pub struct Controller {
    pub costs: StepCosts,
    /// By drafter: how often it is right in anyone's hands, and what it is believed to be before anything is known.
    shared: Vec<(AcceptanceByBin, [f64; CONFIDENCE_BINS + 1])>,
    /// By drafter: which share of the last drafts it made.
    shares: Vec<f64>,
    /// Tokens of an answer, on average of the last ones, and of the last; `None` before the first.
    lengths: Option<[f64; 2]>,
    /// What drafts may cost a sequence beyond a share of its time, in plain steps: one that comes back with time, and what drafts
    /// have gained others, up to [`MOST_KEPT`].
    purse: f64,
    similar: SimilarPrompts,
    /// Milliseconds that probes may lose.
    to_probe: f64,
}

/// Weight of what other sequences have found, and of what is believed, beside what one finds itself.
const SHARED: f64 = 6.0;
const BELIEVED: f64 = 8.0;
/// How much of what was known counts behind each draft: for one sequence, and for all.
pub const OWN_MEMORY: f64 = 0.95;
const SHARED_MEMORY: f64 = 0.99;
/// Tokens that a draft brings with the one that is computed anyway, about.
const TOKENS_OF_ROUND: f64 = 2.0;
/// Assumed tokens of an answer before the first one has ended.
const FIRST_LENGTH: f64 = 32.0;
/// Weight of acceptance in the replayed prompt.
const PROMPT: f64 = 0.3;
/// Weight of the latest answer's length.
const LATEST: f64 = 0.2;
/// Weight of the latest draft in the share that each drafter has of the last ones.
const LATEST_DRAFT: f64 = 0.02;
/// A share is no less, lest a drafter's turn never come.
const LEAST_SHARE: f64 = 0.05;
/// Plain steps that drafts may cost before they have gained any.
const PURSE: f64 = 1.0;
/// Share of the usual answer to similar prompts that drafts may cost: short answers do not earn a drafter's catch-up back.
const MOST_OF_ANSWER: f64 = 0.1;
/// Plain steps that drafts have brought and may cost again.
const MOST_KEPT: f64 = 8.0;
/// Plain steps that probes may cost at a time.
const MOST_TO_PROBE: f64 = 4.0;
/// So many times what a sequence has it is expected to get at most.
const FORESEEN: f64 = 4.0;

impl Controller {
    /// For drafters of which it is believed that so many of their tokens are right, by grade.
    pub fn new(costs: StepCosts, prior: Vec<[f64; CONFIDENCE_BINS]>) -> Controller {
        // Nobody knows how many drafts of each grade there are going to be.
        let any = |of: [f64; CONFIDENCE_BINS]| of.iter().sum::<f64>() / CONFIDENCE_BINS as f64;
        let with_any =
            |of: [f64; CONFIDENCE_BINS]| std::array::from_fn(|i| of.get(i).copied().unwrap_or(any(of)));
        let shares = vec![1.0; prior.len()];
        let shared = prior.into_iter().map(|of| (AcceptanceByBin::default(), with_any(of))).collect();
        Controller {
            costs,
            shared,
            shares,
            lengths: None,
            purse: PURSE,
            similar: SimilarPrompts::default(),
            to_probe: 0.0,
        }
    }

    /// Statistics of a new sequence: those of the last answer to a similar prompt, if there was one.
    pub fn begin(&self, prompt: &[u32]) -> SequenceStats {
        let known = |past: &PastAnswer| SequenceStats {
            odds: past.acceptance.clone(),
            lengths: Some(past.lengths),
            ..SequenceStats::default()
        };
        self.similar.find(prompt).map_or_else(SequenceStats::default, known)
    }

    /// Tokens that a row gets on average from drafts of one token, of two, and so on.
    pub fn kept(&self, stats: &SequenceStats, drafter: usize, grade: usize) -> impl Iterator<Item = f64> {
        let (shared, prior) = &self.shared[drafter];
        let own = stats.odds.get(drafter).map(|grades| &grades[grade]);
        // Of a place that was seldom judged the one before it says most.
        let (mut of_all, mut of_own) = (prior[grade], None);
        (0..MAX_DEPTH).scan((1.0, 1.0), move |(kept, all), place| {
            of_all = shared[grade].right(place, of_all, BELIEVED);
            let before = of_own.map_or(of_all, |before: f64| (before + of_all) / 2.0);
            let right = own.map_or(of_all, |own| own.right(place, before, SHARED));
            of_own = Some(right);
            *all *= right;
            *kept += *all;
            Some(*kept)
        })
    }

    /// The draft that brings the step most tokens per second, for a sequence of some length; `None` if that is none, or if it
    /// would cost too much should all of it be wrong.
    pub fn choose(
        &self,
        stats: &SequenceStats,
        candidates: &[DraftOption],
        others: OtherRows,
        length: SequenceLength,
    ) -> Option<DraftPlan> {
        let plain = self.beside(others)?;
        let may_lose = self.may_lose(stats, plain, length);
        if may_lose < 0.0 {
            return None;
        }
        // One row's draft cannot gain a batch more than its part.
        let worth = |worth: f64| (1.0 + worth / (others.rows + 1) as f64) * (others.kept + 1.0) / plain;
        let mut best: Option<(f64, DraftPlan)> = None;
        for candidate in candidates {
            let DraftOption { drafter, grade, most, cost: [each, any], catch_up_cost, .. } = *candidate;
            let first = self.costs.batch(others.rows + 1, others.width + 2)? + any + each - plain;
            if catch_up_cost > 0.0 && catch_up_cost + first > may_lose + self.may_invest(stats, plain, length)
            {
                continue;
            }
            let any = any + catch_up_cost / self.drafts_to_come(stats, drafter, length);
            let depths = (1..=most).zip(self.kept(stats, drafter, grade));
            for (depth, kept) in depths.filter(|(depth, _)| DEPTHS.contains(depth)) {
                let width = others.width + 1 + depth;
                let ms = self.costs.batch(others.rows + 1, width)? + any + each * depth as f64;
                // The first token is as likely as it gets.
                let first = if depth == 1 { FIRST * plain } else { 0.0 };
                if ms - plain > may_lose + first {
                    break;
                }
                let rate = (others.kept + kept) / ms;
                if rate
                    <= worth(if catch_up_cost > 0.0 && stats.lengths.is_some() {
                        WORTH_CATCHING_UP
                    } else {
                        WORTH
                    })
                {
                    continue;
                }
                if best.is_none_or(|(most, _)| rate > most) {
                    best = Some((rate, DraftPlan { drafter, depth, kept, probe: 0.0 }));
                }
            }
        }
        match best {
            Some((_, choice)) => Some(choice),
            None => self.probe(stats, candidates, others, length, [plain, may_lose]),
        }
    }

    /// Milliseconds of the step without this row's draft.
    fn beside(&self, others: OtherRows) -> Option<f64> {
        // A batch with drafts is read before the next step is built anyway.
        match others.width > others.rows {
            true => self.costs.batch(others.rows + 1, others.width + 1),
            false => self.costs.plain(others.rows + 1),
        }
    }

    /// Allowance: milliseconds that drafting may still cost a sequence. A share of its time, plus a step from the purse, minus
    /// net losses so far.
    fn may_lose(&self, stats: &SequenceStats, plain: f64, length: SequenceLength) -> f64 {
        let share = MOST_LOST * (stats.elapsed + self.usually_to_come(stats, length) * plain);
        let most = stats.lengths.map_or(f64::INFINITY, |_| MOST_OF_ANSWER * self.usual_length(stats));
        share + plain * self.purse.max(0.0).min(most) + stats.invested - stats.lost
    }

    /// Milliseconds that catch-up may cost beyond the allowance, where answers are long enough to earn it back.
    fn may_invest(&self, stats: &SequenceStats, plain: f64, length: SequenceLength) -> f64 {
        let to_come = (self.usual_length(stats) - length.generated as f64).clamp(0.0, length.most as f64);
        if self.purse > 0.0 && self.lengths.is_some() { INVESTED * to_come * plain } else { 0.0 }
    }

    /// A short draft, now and then, where drafts seem not to be worth it: that may change.
    fn probe(
        &self,
        stats: &SequenceStats,
        candidates: &[DraftOption],
        others: OtherRows,
        length: SequenceLength,
        [plain, may_lose]: [f64; 2],
    ) -> Option<DraftPlan> {
        // The last answer to a similar prompt said enough, for a while.
        if stats.lengths.is_some() && length.generated < PROBE_AFTER {
            return None;
        }
        let costs = candidates.iter().filter(|candidate| !candidate.free).filter_map(|candidate| {
            let DraftOption { drafter, grade, most, cost: [each, any], catch_up_cost, .. } = *candidate;
            let depth = most.min(PROBE);
            let kept = self.kept(stats, drafter, grade).nth(depth.checked_sub(1)?)?;
            let width = others.width + 1 + depth;
            let ms = self.costs.batch(others.rows + 1, width)? + any + each * depth as f64;
            let cost = ms + catch_up_cost - plain * (others.kept + kept) / (others.kept + 1.0);
            (ms + catch_up_cost - plain <= may_lose)
                .then_some((cost, DraftPlan { drafter, depth, kept, probe: cost.max(0.0) }))
        });
        let (cost, choice) = costs.min_by(|(a, _), (b, _)| a.total_cmp(b))?;
        (cost < self.to_probe).then_some(choice)
    }

    /// Drafts that a sequence is expected to ask a drafter for from here on. Catch-up has to pay off over these: short answers, and
    /// answers that other drafters mostly draft for, do not wait for it.
    fn drafts_to_come(
        &self,
        stats: &SequenceStats,
        drafter: usize,
        SequenceLength { generated, most }: SequenceLength,
    ) -> f64 {
        let generated = generated as f64;
        // An answer this long may get twice as long.
        let tokens = (self.usual_length(stats) - generated).max(generated).min(most as f64);
        (tokens / TOKENS_OF_ROUND * self.shares[drafter].max(LEAST_SHARE)).max(1.0)
    }

    /// Tokens still to come if the sequence gets as long as usual; at most [`FORESEEN`] times the tokens it has.
    fn usually_to_come(
        &self,
        stats: &SequenceStats,
        SequenceLength { generated, most }: SequenceLength,
    ) -> f64 {
        let generated = generated as f64;
        (self.usual_length(stats) - generated).clamp(0.0, (most as f64).min(FORESEEN * generated))
    }

    /// The shorter of average and last answer: an estimate that is too short only delays drafting.
    fn usual_length(&self, stats: &SequenceStats) -> f64 {
        stats.lengths.or(self.lengths).map_or(FIRST_LENGTH, |[average, last]| average.min(last))
    }

    /// A drafter has caught up with the sequence in `ms`. The part beyond the allowance does not count as a loss, so that drafting
    /// can go on and earn it back.
    pub fn invested(&self, stats: &mut SequenceStats, ms: f64, length: SequenceLength) {
        if let Some(plain) = self.costs.plain(1) {
            stats.invested += (ms - self.may_lose(stats, plain, length)).clamp(0.0, ms);
        }
    }

    /// An answer of `tokens` tokens has ended, which drafts were or might have been made for.
    pub fn ended(&mut self, stats: &SequenceStats, prompt: &[u32], tokens: usize) {
        if let Some(plain) = self.costs.plain(1).filter(|_| tokens > 0) {
            let back = (MOST_LOST * stats.elapsed / plain).min((PURSE - self.purse).max(0.0));
            self.purse = (self.purse + back - stats.lost / plain).clamp(-MOST_KEPT, MOST_KEPT);
        }
        let average =
            |known: Option<f64>, new: f64| known.map_or(new, |known| known + LATEST * (new - known));
        let length = tokens as f64;
        self.lengths = Some([average(self.lengths.map(|[average, _]| average), length), length]);
        self.similar.add(prompt, stats.odds.clone(), length, average);
    }

    /// Charges a probe with the milliseconds that it is expected to lose.
    pub fn probed(&mut self, ms: f64) {
        self.to_probe -= ms;
    }

    /// A draft was verified.
    pub fn judged(
        &mut self,
        stats: &mut SequenceStats,
        drafter: usize,
        grade: usize,
        drafted: usize,
        accepted: usize,
    ) {
        for (other, share) in self.shares.iter_mut().enumerate() {
            *share += LATEST_DRAFT * (f64::from(other == drafter) - *share);
        }
        self.learnt(stats, drafter, grade, drafted, accepted);
    }

    /// Learns acceptance from a draft, verified or compared with the tokens that followed.
    pub fn learnt(
        &mut self,
        stats: &mut SequenceStats,
        drafter: usize,
        grade: usize,
        drafted: usize,
        accepted: usize,
    ) {
        for grade in [grade, ANY_BIN] {
            stats.of(drafter)[grade].saw(drafted, accepted, OWN_MEMORY);
            self.shared[drafter].0[grade].saw(drafted, accepted, SHARED_MEMORY);
        }
    }

    /// Each of so many rows got `kept` tokens, on average, from a step that took `ms`; with drafts or without.
    pub fn passed(&mut self, stats: &mut SequenceStats, rows: usize, kept: f64, ms: f64, drafted: bool) {
        stats.elapsed += ms;
        let most = MOST_TO_PROBE * self.costs.plain(1).unwrap_or(0.0);
        self.to_probe = (self.to_probe + PROBING * ms / rows as f64).min(most);
        if let Some(plain) = self.costs.plain(rows).filter(|_| drafted) {
            let most_won = MOST_KEPT * plain;
            stats.lost = (stats.lost + ms - plain * kept).max(-most_won);
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
