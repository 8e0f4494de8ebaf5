//! Whether drafting is worth it, and how far: expected tokens per second from what steps cost and how often drafts are
//! right, both measured all the time. Pure bookkeeping.

use super::{Costs, GRADES, MAX_DEPTH};

/// What drafting must gain a row at least to be worth the change.
const WORTH: f64 = 0.02;
/// Share of a sequence's time that drafts may have cost it more than they brought.
const MOST_LOST: f64 = 0.015;
/// Share of a sequence's time that goes into finding out whether drafts have become worth it.
const PROBING: f64 = 0.008;
/// Tokens of a draft that is to find out.
const PROBE: usize = 2;

/// How often tokens of drafts are right, by their place in the draft, if those before them are.
#[derive(Clone, Debug, Default)]
pub struct Odds {
    /// Weights of tokens that were judged, and of those that were right.
    places: [(f64, f64); PLACES],
}

/// Places that are told apart; what lies behind is like the last of them.
const PLACES: usize = 8;

impl Odds {
    /// Of a draft of `drafted` tokens the first `accepted` were right; what was known before counts `memory` as much, however many
    /// of them share the last place: long drafts would have it forgotten that others were wrong.
    pub fn saw(&mut self, drafted: usize, accepted: usize, memory: f64) {
        for place in 0..drafted.min(accepted + 1) {
            let (judged, right) = &mut self.places[place.min(PLACES - 1)];
            let kept = if place < PLACES { memory } else { 1.0 };
            *judged = *judged * kept + 1.0;
            *right = *right * kept + f64::from(place < accepted);
        }
    }

    /// That the token at `place` is right, where `before` says so with the weight of `weight` tokens.
    fn right(&self, place: usize, before: f64, weight: f64) -> f64 {
        let (judged, right) = self.places[place.min(PLACES - 1)];
        (right + before * weight) / (judged + weight)
    }
}

/// What is known of a drafter, for each of its grades, and behind those for all of them together.
pub type Grades = [Odds; GRADES + 1];

/// Stands for a grade while a draft is not made yet.
pub const ANY_GRADE: usize = GRADES;

/// The controller's view of one sequence.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// By drafter.
    odds: Vec<Grades>,
    /// Milliseconds since it began to decode, and how many of them it would have saved without drafts.
    elapsed: f64,
    lost: f64,
    /// How many of those went into what drafts to come are to earn.
    invested: f64,
}

impl Pace {
    /// A drafter had to catch up first, which it does once: that its drafts have yet to earn this does not end them.
    pub fn invested(&mut self, ms: f64) {
        self.invested += ms;
    }
}

/// A draft that could be made.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub drafter: usize,
    pub grade: usize,
    /// Most tokens.
    pub most: usize,
    /// Milliseconds for each token, and for having any.
    pub cost: [f64; 2],
}

/// The other rows of the step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Others {
    pub rows: usize,
    /// Their tokens, drafted ones included.
    pub width: usize,
    /// Tokens they are expected to get.
    pub kept: f64,
}

/// What is to be drafted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub drafter: usize,
    pub depth: usize,
    /// Tokens that the row is expected to get.
    pub kept: f64,
}

pub struct Controller {
    pub costs: Costs,
    /// By drafter: how often it is right in anyone's hands, and what it is believed to be before anything is known.
    shared: Vec<(Grades, [f64; GRADES + 1])>,
    /// By drafter: which share of the last drafts it made.
    shares: Vec<f64>,
    /// Tokens of an answer, on average of the last ones, and of the last; 0 before the first.
    average_length: f64,
    last_length: f64,
    /// What drafts may cost a sequence beyond a share of its time, in plain steps, at most one: what others have left of their
    /// shares, and what drafts have brought them.
    purse: f64,
}

/// Weight of what other sequences have found, and of what is believed, beside what one finds itself.
const SHARED: f64 = 3.0;
const BELIEVED: f64 = 8.0;
/// How much of what was known counts behind each draft: for one sequence, and for all.
const OWN_MEMORY: f64 = 0.93;
const SHARED_MEMORY: f64 = 0.99;
/// Tokens that a draft brings with the one that is computed anyway, about.
const TOKENS_OF_ROUND: f64 = 2.0;
/// Weight of the latest answer's length.
const LATEST: f64 = 0.2;
/// Weight of the latest draft in the share that each drafter has of the last ones.
const LATEST_DRAFT: f64 = 0.02;
/// A share is no less, lest a drafter's turn never come.
const LEAST_SHARE: f64 = 0.05;
/// Plain steps that drafts have brought and may cost again.
const MOST_KEPT: f64 = 4.0;
/// Tokens of an answer that is not short.
const LONG: usize = 16;
/// So many times what a sequence has it is expected to get at most.
const FORESEEN: f64 = 4.0;

impl Controller {
    /// For drafters of which it is believed that so many of their tokens are right, by grade.
    pub fn new(costs: Costs, believed: Vec<[f64; GRADES]>) -> Controller {
        // Nobody knows how many drafts of each grade there are going to be.
        let any = |of: [f64; GRADES]| of.iter().sum::<f64>() / GRADES as f64;
        let with_any = |of: [f64; GRADES]| std::array::from_fn(|i| of.get(i).copied().unwrap_or(any(of)));
        let shares = vec![1.0; believed.len()];
        let shared = believed.into_iter().map(|of| (Grades::default(), with_any(of))).collect();
        Controller { costs, shared, shares, average_length: 0.0, last_length: 0.0, purse: 1.0 }
    }

    /// Tokens that a row gets on average from drafts of one token, of two, and so on.
    pub fn kept(&self, pace: &Pace, drafter: usize, grade: usize) -> impl Iterator<Item = f64> {
        let (shared, believed) = &self.shared[drafter];
        let own = pace.odds.get(drafter).map(|grades| &grades[grade]);
        // Of a place that was seldom judged the one before it says most.
        let (mut of_all, mut of_own) = (believed[grade], None);
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

    /// The draft that brings the step most tokens per second, for a sequence that is expected to get `to_come` more tokens; `None`
    /// if that is none, or if it would cost too much should all of it be wrong.
    pub fn choose(
        &self,
        pace: &Pace,
        candidates: &[Candidate],
        others: Others,
        to_come: f64,
    ) -> Option<Choice> {
        let drafting = others.width > others.rows;
        // A batch in which somebody drafts is read first anyway.
        let plain = match drafting {
            true => self.costs.batch(others.rows + 1, others.width + 1),
            false => self.costs.plain(others.rows + 1),
        }?;
        let share = MOST_LOST * (pace.elapsed + to_come * plain);
        let may_lose = share + plain * self.purse.max(0.0) + pace.invested - pace.lost;
        if may_lose < 0.0 {
            return None;
        }
        let mut best: Option<(f64, Choice)> = None;
        for candidate in candidates {
            let Candidate { drafter, grade, most, cost: [each, any] } = *candidate;
            for (depth, kept) in (1..=most).zip(self.kept(pace, drafter, grade)) {
                let width = others.width + 1 + depth;
                let ms = self.costs.batch(others.rows + 1, width)? + any + each * depth as f64;
                // The first token is as likely as it gets, and what it costs was thought of.
                if depth > 1 && ms - plain > may_lose {
                    break;
                }
                let rate = (others.kept + kept) / ms;
                if best.is_none_or(|(most, _)| rate > most) {
                    best = Some((rate, Choice { drafter, depth, kept }));
                }
            }
        }
        let (rate, choice) = best?;
        // One row's draft cannot gain a batch more than its part.
        let worth = 1.0 + WORTH / (others.rows + 1) as f64;
        if rate > worth * (others.kept + 1.0) / plain {
            return Some(choice);
        }
        self.probe(pace, candidates, others, plain)
    }

    /// A short draft, now and then, where drafts seem not to be worth it: that may change.
    fn probe(&self, pace: &Pace, candidates: &[Candidate], others: Others, plain: f64) -> Option<Choice> {
        let Candidate { drafter, grade, most, cost: [each, any] } = *candidates.first()?;
        let depth = most.min(PROBE);
        let kept = self.kept(pace, drafter, grade).nth(depth.checked_sub(1)?)?;
        let ms = self.costs.batch(others.rows + 1, others.width + 1 + depth)? + any + each * depth as f64;
        let cost = ms - plain * (others.kept + kept) / (others.kept + 1.0);
        // All rows share the time, and what is lost.
        let may = PROBING * pace.elapsed / (others.rows + 1) as f64;
        (pace.lost.max(0.0) + cost < may).then_some(Choice { drafter, depth, kept })
    }

    /// Drafts that a sequence of so many tokens, which may get `most` more, is expected to ask a drafter for from here on. For
    /// these one that has to catch up first has to be worth it: neither a short answer waits for that, nor one that others draft
    /// most of.
    pub fn drafts_to_come(&self, drafter: usize, generated: usize, most: usize) -> f64 {
        let generated = generated as f64;
        // What has gone on for so long may go on as long.
        let tokens = (self.usual_length() - generated).max(generated).min(most as f64);
        (tokens / TOKENS_OF_ROUND * self.shares[drafter].max(LEAST_SHARE)).max(1.0)
    }

    /// Tokens that a sequence of so many, which may get `most` more, gets from here on if it is as long as usual; no more
    /// than so many times what it has.
    pub fn usually_to_come(&self, generated: usize, most: usize) -> f64 {
        let generated = generated as f64;
        (self.usual_length() - generated).clamp(0.0, (most as f64).min(FORESEEN * generated))
    }

    /// Where answers of several lengths come by turns, rather too short: drafts only begin a little later then.
    fn usual_length(&self) -> f64 {
        self.average_length.min(self.last_length)
    }

    /// Whether a sequence of so many tokens may let a drafter catch up: it may end before that is earned.
    pub fn may_invest(&self, generated: usize) -> bool {
        self.purse > 0.0 || generated >= LONG
    }

    /// An answer of so many tokens, which drafts were chosen for or might have been, has ended.
    pub fn ended(&mut self, pace: &Pace, tokens: usize) {
        if let Some(plain) = self.costs.plain(1).filter(|_| tokens > 0) {
            let left = (MOST_LOST * pace.elapsed - pace.lost) / plain;
            self.purse = (self.purse + left).clamp(-MOST_KEPT, 1.0);
        }
        let length = tokens as f64;
        let known = if self.average_length == 0.0 { length } else { self.average_length };
        self.average_length = known + LATEST * (length - known);
        self.last_length = length;
    }

    /// A draft was judged.
    pub fn judged(&mut self, pace: &mut Pace, drafter: usize, grade: usize, drafted: usize, accepted: usize) {
        if pace.odds.len() <= drafter {
            pace.odds.resize(drafter + 1, Grades::default());
        }
        for (other, share) in self.shares.iter_mut().enumerate() {
            *share += LATEST_DRAFT * (f64::from(other == drafter) - *share);
        }
        for grade in [grade, ANY_GRADE] {
            pace.odds[drafter][grade].saw(drafted, accepted, OWN_MEMORY);
            self.shared[drafter].0[grade].saw(drafted, accepted, SHARED_MEMORY);
        }
    }

    /// Each of so many rows got `kept` tokens, on average, from a step that took `ms`; with drafts or without.
    pub fn passed(&self, pace: &mut Pace, rows: usize, kept: f64, ms: f64, drafted: bool) {
        pace.elapsed += ms;
        if let Some(plain) = self.costs.plain(rows).filter(|_| drafted) {
            let most_won = MOST_KEPT * plain;
            pace.lost = (pace.lost + ms - plain * kept).max(-most_won);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a token more in a step costs a fifth of the first one.
    fn costs() -> Costs {
        Costs::new((1..=40).map(|width| (width, 0.8 + 0.2 * width as f64)).collect())
    }

    fn candidate(most: usize, cost: [f64; 2]) -> Candidate {
        Candidate { drafter: 0, grade: 0, most, cost }
    }

    /// Tokens per second beside plain decoding, of answers one after the other whose drafts are right so often, and tokens
    /// drafted.
    fn simulate(
        mut controller: Controller,
        right: f64,
        cost: [f64; 2],
        answers: usize,
        tokens: usize,
    ) -> (f64, usize) {
        let (mut ms, mut got, mut drafted, mut random) = (0.0, 0, 0, 1u64);
        let mut is_right = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) as f64) < right * (1u64 << 31) as f64
        };
        for _ in 0..answers {
            let (mut pace, mut length) = (Pace::default(), 0);
            while length < tokens {
                let to_come = controller.usually_to_come(length, tokens - length);
                let choice = controller.choose(&pace, &[candidate(16, cost)], Others::default(), to_come);
                let depth = choice.map_or(0, |choice| choice.depth);
                let accepted = (0..depth).take_while(|_| is_right()).count();
                let drafting = if depth > 0 { cost[1] + cost[0] * depth as f64 } else { 0.0 };
                let took = 0.8 + 0.2 * (1 + depth) as f64 + drafting;
                if depth > 0 {
                    controller.judged(&mut pace, 0, 0, depth, accepted);
                }
                controller.passed(&mut pace, 1, (1 + accepted) as f64, took, depth > 0);
                (ms, length, drafted) = (ms + took, length + 1 + accepted, drafted + depth);
            }
            controller.ended(&pace, length);
            got += length;
        }
        (got as f64 / ms, drafted)
    }

    fn believing(believed: f64) -> Controller {
        Controller::new(costs(), vec![[believed; GRADES]])
    }

    #[test]
    fn tokens_that_share_the_last_place_are_forgotten_by_drafts() {
        let mut odds = Odds::default();
        // At the last place three right ones and a wrong one, then 24 right ones.
        odds.saw(31, PLACES + 2, 0.5);
        assert_eq!(odds.places[PLACES - 1], (4.0, 3.0));
        odds.saw(31, 31, 0.5);
        assert_eq!(odds.places[PLACES - 1], (26.0, 25.5));
        assert_eq!(odds.places[0], (1.5, 1.5));
    }

    #[test]
    fn short_answers_pay_once_for_drafts_that_are_wrong() {
        for right in [0.0, 0.3] {
            let (speed, drafted) = simulate(believing(0.7), right, [0.05, 0.0], 40, 9);
            assert!(speed >= 0.97 && drafted > 0, "{speed} with {drafted} tokens drafted, {right} right");
            // Each as if it were the first one.
            let alone: f64 = (0..40).map(|_| simulate(believing(0.7), right, [0.05, 0.0], 1, 9).0).sum();
            assert!(alone / 40.0 < 0.95, "{alone}");
        }
    }

    #[test]
    fn what_drafts_win_may_be_lost_again_and_what_they_lose_comes_back_with_time() {
        let mut controller = believing(0.5);
        let of = |elapsed, lost| Pace { elapsed, lost, ..Pace::default() };
        controller.ended(&of(10.0, 3.0), 10);
        assert!(!controller.may_invest(LONG - 1) && controller.may_invest(LONG));
        controller.ended(&of(100.0, 0.0), 100);
        assert!(!controller.may_invest(1));
        controller.ended(&of(100.0, 0.0), 100);
        assert!(controller.may_invest(1));
        controller.ended(&of(10.0, -50.0), 10);
        assert_eq!(controller.purse, 1.0);
    }

    #[test]
    fn a_draft_is_no_longer_than_may_be_lost() {
        let mut controller = believing(1.0);
        let depth = |controller: &Controller, pace: &Pace| {
            controller
                .choose(pace, &[candidate(16, [0.0; 2])], Others::default(), 0.0)
                .map(|choice| choice.depth)
        };
        assert_eq!(depth(&controller, &Pace::default()), Some(5), "a fifth of a plain step each");
        controller.purse = 0.0;
        assert_eq!(depth(&controller, &Pace::default()), Some(1));
        assert_eq!(depth(&controller, &Pace { lost: -4.0, ..Pace::default() }), Some(16));
        let mut pace = Pace { lost: 2.0, ..Pace::default() };
        assert_eq!(depth(&controller, &pace), None);
        pace.invested(2.0);
        assert_eq!(depth(&controller, &pace), Some(1), "what it went into is still to come");
    }

    #[test]
    fn whatever_the_drafts_are_it_is_never_much_slower_than_without() {
        for believed in [0.1, 0.5, 0.9] {
            for cost in [[0.0, 0.0], [0.1, 0.05], [0.5, 0.5]] {
                for right in [0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0] {
                    for tokens in [100, 400, 3000] {
                        let (speed, _) = simulate(believing(believed), right, cost, 1, tokens);
                        assert!(
                            speed >= 0.97,
                            "{speed} for {right} believed {believed}, {cost:?}, {tokens} tokens"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn good_drafts_are_used_nearly_as_well_as_they_can_be() {
        for (right, cost) in [(0.5, [0.0, 0.0]), (0.8, [0.0, 0.0]), (0.8, [0.1, 0.05]), (1.0, [0.0, 0.0])] {
            let best = |depth: usize| {
                let kept: f64 = (0..=depth).map(|place| f64::powi(right, place as i32)).sum();
                kept / (0.8 + 0.2 * (1 + depth) as f64 + cost[1] + cost[0] * depth as f64)
            };
            let best = (0..=16).map(best).fold(0.0, f64::max);
            for believed in [0.3, 0.7] {
                let (speed, _) = simulate(believing(believed), right, cost, 1, 3000);
                assert!(speed >= 0.9 * best, "{speed} of {best} for {right} believed {believed}");
            }
        }
    }

    #[test]
    fn a_draft_that_is_not_made_yet_is_as_good_as_those_before() {
        let mut believed = [0.95; GRADES];
        believed[0] = 0.2;
        let mut controller = Controller::new(costs(), vec![believed]);
        let depth = |controller: &Controller, grade| {
            let candidate = Candidate { grade, ..candidate(8, [0.1, 0.0]) };
            let choice = controller.choose(&Pace::default(), &[candidate], Others::default(), 0.0);
            choice.map_or(0, |choice| choice.depth)
        };
        assert!(depth(&controller, ANY_GRADE) >= 2 && depth(&controller, 0) == 0, "as is believed of most");
        for _ in 0..100 {
            controller.judged(&mut Pace::default(), 0, 5, 2, 0);
        }
        assert_eq!(depth(&controller, ANY_GRADE), 0, "wrong ones count whatever their grade was");
    }

    #[test]
    fn drafts_that_become_good_are_found() {
        let mut controller = Controller::new(costs(), vec![[0.4; GRADES]]);
        let mut pace = Pace::default();
        for _ in 0..30 {
            controller.judged(&mut pace, 0, 0, 2, 0);
        }
        let mut found = None;
        for step in 0..3000 {
            let choice = controller.choose(&pace, &[candidate(8, [0.0; 2])], Others::default(), 0.0);
            let depth = choice.map_or(0, |choice| choice.depth);
            if depth > 2 {
                found = Some(step);
                break;
            }
            if depth > 0 {
                controller.judged(&mut pace, 0, 0, depth, depth);
            }
            controller.passed(&mut pace, 1, (1 + depth) as f64, 0.8 + 0.2 * (1 + depth) as f64, depth > 0);
        }
        assert!(found.is_some_and(|step| step > 20), "{found:?}");
    }

    #[test]
    fn a_batch_pays_for_every_row() {
        let controller = Controller::new(costs(), vec![[0.6; GRADES]]);
        let depth = |rows: usize| {
            let others = Others { rows, width: rows, kept: rows as f64 };
            let choice = controller.choose(&Pace::default(), &[candidate(16, [0.0; 2])], others, 0.0);
            choice.map_or(0, |choice| choice.depth)
        };
        assert!(depth(0) >= 2, "alone {}", depth(0));
        assert!(depth(30) < depth(0), "{} beside thirty", depth(30));
    }

    #[test]
    fn who_has_to_catch_up_is_asked_where_answers_are_long_enough() {
        let check = |usual: f64, generated: usize, most: usize, expected: f64| {
            let controller = Controller { average_length: usual, last_length: usual, ..believing(0.5) };
            let drafts = controller.drafts_to_come(0, generated, most);
            assert_eq!(drafts, expected, "{usual} {generated} {most}");
        };
        // Nobody knows yet how long answers are.
        check(0.0, 1, 1000, 1.0);
        check(0.0, 40, 1000, 20.0);
        check(200.0, 1, 1000, 99.5);
        check(200.0, 150, 1000, 75.0);
        // No more than there may be.
        check(200.0, 1, 10, 5.0);
        check(6.0, 1, 1000, 2.5);
        check(6.0, 5, 0, 1.0);
        // Another one makes most of the drafts.
        let mut controller = Controller::new(costs(), vec![[0.5; GRADES]; 2]);
        (0..200).for_each(|_| controller.judged(&mut Pace::default(), 1, 0, 4, 4));
        assert_eq!([0, 1].map(|drafter| controller.drafts_to_come(drafter, 200, 1000)), [5.0, 100.0]);
    }
}
