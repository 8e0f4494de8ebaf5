//! Decides whether to draft, and how many tokens: expected tokens per second, from step costs and
//! acceptance rates that are both measured all the time. Holds no arrays.

use super::{
    MAX_DEPTH,
    acceptance::{ANY_BIN, AcceptanceByBin, CONFIDENCE_BINS, DrafterRecord, FIRST_DEPTH, SEQUENCE_DECAY},
    similar_prompts::{PastAnswer, SimilarPrompts},
    step_costs::StepCosts,
};
use crate::{api::CacheSalt, prefix::PrefixKey};

/// Minimum relative gain of a row for which a draft is made.
const MIN_GAIN: f64 = 0.02;
/// Minimum relative gain if the drafter has to catch up first and a past answer to a similar prompt
/// is known: short answers do not earn catch-up back.
const MIN_GAIN_WITH_CATCH_UP: f64 = 0.1;
/// Share of a sequence's time that drafts may cost more than they save.
const MAX_LOSS: f64 = 0.015;
/// Share of a plain step by which a draft of one token may exceed the allowance, unless past
/// answers lost more than theirs; a draft of two tokens only after everything lost is regained.
/// Where one token does not pay, a second one may. Not in a process's first answer: a short one
/// does not earn it back.
const SHORT_DRAFT_EXCESS: f64 = 0.5;
/// Share of an answer's expected time that catch-up may cost beyond the allowance.
const MAX_CATCH_UP: f64 = 0.03;
/// Share of all sequences' time that is spent on probes.
const PROBE_SHARE: f64 = 0.005;
/// Draft lengths that are compared. Few, so that the cost of each is soon known: the best of many
/// estimates is biased.
const DEPTHS: [usize; 7] = [1, 2, 3, 5, 7, 15, 31];
/// Tokens of a probe.
const PROBE_DEPTH: usize = 1;
/// Tokens of an answer before its first probe, if an answer to a similar prompt is known.
const PROBE_AFTER: usize = 48;
/// Weight, in tokens or drafts, of the statistics of all sequences beside those of one sequence,
/// and of a prior.
const SHARED_WEIGHT: f64 = 6.0;
const PRIOR_WEIGHT: f64 = 8.0;
/// Weight of past drafts of all sequences when another one is verified.
const SHARED_DECAY: f64 = 0.99;
/// Approximate tokens that a step with a draft generates.
const TOKENS_PER_DRAFT: f64 = 2.0;
/// Assumed tokens of an answer before the first one has finished.
const DEFAULT_LENGTH: f64 = 32.0;
/// Weight of acceptance in the replayed prompt.
const PROMPT_WEIGHT: f64 = 0.3;
/// Weight of the latest answer in the average length.
const LENGTH_WEIGHT: f64 = 0.2;
/// Weight of the latest draft in each drafter's share of recent drafts.
const SHARE_WEIGHT: f64 = 0.02;
/// Minimum share of a drafter, so that drafters without recent drafts are still considered.
const MIN_SHARE: f64 = 0.05;
/// Plain steps that drafts may cost before they have saved any.
const INITIAL_SLACK: f64 = 1.0;
/// Maximum saved plain steps that drafts may cost again.
const MAX_SLACK: f64 = 8.0;
/// Share of an answer's expected time that past gains let its drafts cost at their maximum
/// ([`MAX_SLACK`]), and less in proportion below it: short answers do not earn catch-up back, and
/// the gain of one answer says little about the next one.
const MAX_SHARE_OF_ANSWER: f64 = 0.1;
/// Maximum plain steps that probes may cost at a time.
const MAX_PROBE_BUDGET: f64 = 4.0;
/// A sequence is expected to become at most this many times as long as it is.
const MAX_GROWTH: f64 = 4.0;

/// The controller's statistics of one sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct SequenceStats {
    /// By drafter.
    records: Vec<DrafterRecord>,
    /// Milliseconds since decoding started, and how many fewer it would have been without drafts.
    elapsed: f64,
    lost: f64,
    /// Part of the loss that future drafts are to earn back.
    upfront_cost: f64,
    /// Average and last length of answers to similar prompts, if there were any.
    lengths: Option<[f64; 2]>,
    /// Only answers under the same salt count as similar.
    salt: Option<CacheSalt>,
}

impl SequenceStats {
    /// Sets the prior of a drafter's acceptance from a replay of the prompt.
    pub(super) fn set_prior(&mut self, drafter: usize, acceptance: &AcceptanceByBin) {
        self.of(drafter).acceptance = std::array::from_fn(|bin| acceptance[bin].scaled(PROMPT_WEIGHT));
    }

    /// Whether there are statistics of a drafter.
    pub(super) fn knows(&self, drafter: usize) -> bool {
        drafter < self.records.len()
    }

    fn of(&mut self, drafter: usize) -> &mut DrafterRecord {
        if self.records.len() <= drafter {
            self.records.resize_with(drafter + 1, DrafterRecord::default);
        }
        &mut self.records[drafter]
    }

    fn depth_limit(&self, drafter: usize) -> usize {
        self.records.get(drafter).map_or(FIRST_DEPTH, |record| record.depth_limit)
    }

    /// Tokens still to come if the answer ends where those to similar prompts did; infinite if it
    /// is longer already, or none is known. Tokens drafted beyond the end are lost.
    fn tokens_left(&self, length: SequenceLength) -> f64 {
        let usual = self.lengths.map_or(0.0, |[average, last]| average.max(last));
        let left = usual - length.generated as f64;
        if left > 0.0 { left.max(1.0) } else { f64::INFINITY }
    }
}

/// A draft that could be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftOption {
    pub drafter: usize,
    pub confidence_bin: usize,
    pub max_depth: usize,
    /// Milliseconds for each token, and for the whole draft.
    pub cost: [f64; 2],
    /// Milliseconds of catching up before the draft.
    pub catch_up_cost: f64,
    /// Whether the draft exists already. Its acceptance is learned even if it is not verified, so
    /// it is never probed.
    pub is_free: bool,
}

/// Length of a sequence in generated tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequenceLength {
    pub generated: usize,
    /// Maximum tokens still to come.
    pub max_remaining: usize,
}

/// The other rows of the step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OtherRows {
    pub rows: usize,
    /// Their tokens, including drafted ones.
    pub width: usize,
    /// Tokens that they are expected to generate.
    pub expected_tokens: f64,
}

/// The draft to make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DraftChoice {
    pub drafter: usize,
    pub depth: usize,
    /// Tokens that the row is expected to generate.
    pub expected_tokens: f64,
    /// Milliseconds that it is expected to lose, if it is a probe.
    pub probe_cost: f64,
}

pub(super) struct Controller {
    pub costs: StepCosts,
    /// By drafter: acceptance in all sequences, and its prior.
    shared: Vec<(AcceptanceByBin, [f64; CONFIDENCE_BINS + 1])>,
    /// By drafter: share of recent drafts.
    shares: Vec<f64>,
    /// Average and last length of answers; `None` before the first.
    lengths: Option<[f64; 2]>,
    /// Plain steps that drafts may cost a sequence beyond a share of its time. Losses are regained
    /// with time, gains are kept up to [`MAX_SLACK`].
    slack: f64,
    similar: SimilarPrompts,
    /// Milliseconds that probes may lose.
    probe_budget: f64,
}

impl Controller {
    /// `priors` are acceptance rates of each drafter by confidence bin.
    pub(super) fn new(costs: StepCosts, priors: Vec<[f64; CONFIDENCE_BINS]>) -> Controller {
        // The distribution of drafts over bins is not known in advance.
        let any = |of: [f64; CONFIDENCE_BINS]| of.iter().sum::<f64>() / CONFIDENCE_BINS as f64;
        let with_any =
            |of: [f64; CONFIDENCE_BINS]| std::array::from_fn(|i| of.get(i).copied().unwrap_or(any(of)));
        let shares = vec![1.0; priors.len()];
        let shared = priors.into_iter().map(|of| (AcceptanceByBin::default(), with_any(of))).collect();
        Controller {
            costs,
            shared,
            shares,
            lengths: None,
            slack: INITIAL_SLACK,
            similar: SimilarPrompts::default(),
            probe_budget: 0.0,
        }
    }

    /// Statistics of a new sequence: those of the last answer to a similar prompt, if there is one.
    pub(super) fn new_sequence(&self, prompt: PrefixKey) -> SequenceStats {
        let known = |past: &PastAnswer| SequenceStats {
            records: past.records.iter().map(DrafterRecord::aged).collect(),
            lengths: Some(past.lengths),
            ..SequenceStats::default()
        };
        let stats = self.similar.find(prompt).map_or_else(SequenceStats::default, known);
        SequenceStats { salt: prompt.salt, ..stats }
    }

    /// Expected tokens of a step with a draft of one token, of two, and so on.
    pub(super) fn expected_tokens(
        &self,
        stats: &SequenceStats,
        drafter: usize,
        bin: usize,
    ) -> impl Iterator<Item = f64> {
        let (shared, priors) = &self.shared[drafter];
        let own = stats.records.get(drafter).map(|record| &record.acceptance[bin]);
        // The prior of a position is the estimate of the one before.
        let (mut shared_rate, mut own_rate) = (priors[bin], None);
        (0..MAX_DEPTH).scan((1.0, 1.0), move |(expected, all_accepted), position| {
            shared_rate = shared[bin].estimate(position, shared_rate, PRIOR_WEIGHT);
            let prior = own_rate.map_or(shared_rate, |rate: f64| (rate + shared_rate) / 2.0);
            let rate = own.map_or(shared_rate, |own| own.estimate(position, prior, SHARED_WEIGHT));
            own_rate = Some(rate);
            *all_accepted *= rate;
            *expected += *all_accepted;
            Some(*expected)
        })
    }

    /// The draft with the most expected tokens per second; `None` if plain decoding has more, or if
    /// the draft would cost too much should all of it be rejected.
    pub(super) fn choose(
        &self,
        stats: &SequenceStats,
        options: &[DraftOption],
        others: OtherRows,
        length: SequenceLength,
    ) -> Option<DraftChoice> {
        let plain = self.step_without_draft(others)?;
        let allowance = self.allowance(stats, plain, length);
        if allowance < 0.0 {
            return None;
        }
        // One row's draft cannot gain a batch more than its part.
        let min_rate =
            |gain: f64| (1.0 + gain / (others.rows + 1) as f64) * (others.expected_tokens + 1.0) / plain;
        let left = stats.tokens_left(length);
        let mut best: Option<(f64, DraftChoice)> = None;
        for option in options {
            let DraftOption { drafter, confidence_bin, max_depth, cost: [per_token, fixed], .. } = *option;
            let catch_up = option.catch_up_cost;
            let one_token = self.costs.batch(others.rows + 1, others.width + 2)? + fixed + per_token - plain;
            if catch_up > 0.0
                && catch_up + one_token > allowance + self.catch_up_allowance(stats, plain, length)
            {
                continue;
            }
            let with_catch_up = catch_up > 0.0 && stats.lengths.is_some();
            let min_gain = if with_catch_up { MIN_GAIN_WITH_CATCH_UP } else { MIN_GAIN };
            let fixed = fixed + catch_up / self.expected_drafts(stats, drafter, length);
            // How much a text repeats is its own property; heads and draft models err alike in all.
            let max_depth =
                if option.is_free { max_depth.min(stats.depth_limit(drafter)) } else { max_depth };
            let depths = (1..=max_depth).zip(self.expected_tokens(stats, drafter, confidence_bin));
            for (depth, expected_tokens) in depths.filter(|(depth, _)| DEPTHS.contains(depth)) {
                let width = others.width + 1 + depth;
                let ms = self.costs.batch(others.rows + 1, width)? + fixed + per_token * depth as f64;
                let expected_tokens = expected_tokens.min(left);
                // The first tokens are the most likely ones.
                let may_exceed = match depth {
                    1 => self.slack >= 0.0 && self.lengths.is_some(),
                    2 => self.slack >= INITIAL_SLACK,
                    _ => false,
                };
                let excess = if may_exceed { SHORT_DRAFT_EXCESS * plain } else { 0.0 };
                if ms - plain > allowance + excess {
                    break;
                }
                let rate = (others.expected_tokens + expected_tokens) / ms;
                if rate > min_rate(min_gain) && best.is_none_or(|(most, _)| rate > most) {
                    best = Some((rate, DraftChoice { drafter, depth, expected_tokens, probe_cost: 0.0 }));
                }
            }
        }
        match best {
            Some((_, choice)) => Some(choice),
            None => self.probe(stats, options, others, length, [plain, allowance]),
        }
    }

    /// Milliseconds of a plain step of one row; 0 if not measured.
    pub(super) fn plain_step(&self) -> f64 {
        self.costs.plain(1).unwrap_or(0.0)
    }

    /// Milliseconds of the step without this row's draft.
    fn step_without_draft(&self, others: OtherRows) -> Option<f64> {
        // A batch with drafts is read before the next step is built anyway.
        match others.width > others.rows {
            true => self.costs.batch(others.rows + 1, others.width + 1),
            false => self.costs.plain(others.rows + 1),
        }
    }

    /// Milliseconds that drafting may still cost a sequence: a share of its time, plus the slack,
    /// minus net losses so far.
    fn allowance(&self, stats: &SequenceStats, plain: f64, length: SequenceLength) -> f64 {
        let share = MAX_LOSS * (stats.elapsed + self.expected_remaining(stats, length) * plain);
        let slack = self.slack.max(0.0);
        let gained = self.lengths.map_or(1.0, |_| slack / MAX_SLACK);
        let most = MAX_SHARE_OF_ANSWER * gained * self.possible_length(stats, length);
        share + plain * slack.min(most) + stats.upfront_cost - stats.lost
    }

    /// Milliseconds that catch-up may cost beyond the allowance, if answers are long enough to earn
    /// it back.
    fn catch_up_allowance(&self, stats: &SequenceStats, plain: f64, length: SequenceLength) -> f64 {
        let remaining = self.expected_length(stats) - length.generated as f64;
        let remaining = remaining.clamp(0.0, length.max_remaining as f64);
        if self.slack > 0.0 && self.lengths.is_some() { MAX_CATCH_UP * remaining * plain } else { 0.0 }
    }

    /// A short draft now and then although drafts do not pay: their acceptance may have changed.
    fn probe(
        &self,
        stats: &SequenceStats,
        options: &[DraftOption],
        others: OtherRows,
        length: SequenceLength,
        [plain, allowance]: [f64; 2],
    ) -> Option<DraftChoice> {
        // The last answer to a similar prompt is recent enough.
        if stats.lengths.is_some() && length.generated < PROBE_AFTER {
            return None;
        }
        let costs = options.iter().filter(|option| !option.is_free).filter_map(|option| {
            let DraftOption { drafter, confidence_bin, max_depth, cost: [per_token, fixed], .. } = *option;
            let depth = max_depth.min(PROBE_DEPTH);
            let expected_tokens =
                self.expected_tokens(stats, drafter, confidence_bin).nth(depth.checked_sub(1)?)?;
            let width = others.width + 1 + depth;
            let ms = self.costs.batch(others.rows + 1, width)? + fixed + per_token * depth as f64;
            let cost = ms + option.catch_up_cost
                - plain * (others.expected_tokens + expected_tokens) / (others.expected_tokens + 1.0);
            let choice = DraftChoice { drafter, depth, expected_tokens, probe_cost: cost.max(0.0) };
            (ms + option.catch_up_cost - plain <= allowance).then_some((cost, choice))
        });
        let (cost, choice) = costs.min_by(|(a, _), (b, _)| a.total_cmp(b))?;
        (cost < self.probe_budget).then_some(choice)
    }

    /// Drafts that a sequence is expected to want from a drafter from now on. Catch-up has to pay
    /// off over these: it is not worth it for short answers, nor if other drafters make most
    /// drafts.
    fn expected_drafts(&self, stats: &SequenceStats, drafter: usize, length: SequenceLength) -> f64 {
        let remaining = self.possible_length(stats, length) - length.generated as f64;
        let tokens = remaining.min(length.max_remaining as f64);
        (tokens / TOKENS_PER_DRAFT * self.share(stats, drafter)).max(1.0)
    }

    /// Share of a drafter in the drafts to come: its recent share in all sequences, and in this one
    /// and answers to similar prompts.
    fn share(&self, stats: &SequenceStats, drafter: usize) -> f64 {
        let num_drafts: f64 = stats.records.iter().map(|record| record.num_drafts).sum();
        let own = stats.records.get(drafter).map_or(0.0, |record| record.num_drafts);
        let shared = self.shares[drafter].max(MIN_SHARE);
        shared + (own - shared * num_drafts) / (num_drafts + SHARED_WEIGHT)
    }

    /// Tokens still to come if the sequence reaches the expected length; at most [`MAX_GROWTH`]
    /// times the tokens it has.
    fn expected_remaining(&self, stats: &SequenceStats, length: SequenceLength) -> f64 {
        let generated = length.generated as f64;
        let most = (length.max_remaining as f64).min(MAX_GROWTH * generated);
        (self.expected_length(stats) - generated).clamp(0.0, most)
    }

    /// The expected length of a sequence in tokens; a longer one may become twice as long as it is.
    fn possible_length(&self, stats: &SequenceStats, length: SequenceLength) -> f64 {
        self.expected_length(stats).max(2.0 * length.generated as f64)
    }

    /// The shorter of the average and the last answer: an estimate that is too short only delays
    /// drafting.
    fn expected_length(&self, stats: &SequenceStats) -> f64 {
        stats.lengths.or(self.lengths).map_or(DEFAULT_LENGTH, |[average, last]| average.min(last))
    }

    /// A drafter has caught up with the sequence in `ms`. The part beyond the allowance does not
    /// count as a loss, so that drafting can go on and earn it back.
    pub(super) fn on_catch_up(&self, stats: &mut SequenceStats, ms: f64, length: SequenceLength) {
        if let Some(plain) = self.costs.plain(1) {
            stats.upfront_cost += (ms - self.allowance(stats, plain, length)).clamp(0.0, ms);
        }
    }

    /// An answer of `tokens` tokens in `auto` mode has finished.
    pub(super) fn on_finished(&mut self, stats: &SequenceStats, prompt: &[u32], tokens: usize) {
        if let Some(plain) = self.costs.plain(1).filter(|_| tokens > 0) {
            let regained = (MAX_LOSS * stats.elapsed / plain).min((INITIAL_SLACK - self.slack).max(0.0));
            self.slack = (self.slack + regained - stats.lost / plain).clamp(-MAX_SLACK, MAX_SLACK);
        }
        let average =
            |known: Option<f64>, new: f64| known.map_or(new, |known| known + LENGTH_WEIGHT * (new - known));
        let length = tokens as f64;
        self.lengths = Some([average(self.lengths.map(|[average, _]| average), length), length]);
        let prompt = PrefixKey { salt: stats.salt, tokens: prompt };
        self.similar.add(prompt, stats.records.clone(), length, average);
    }

    /// Charges a probe with the milliseconds that it is expected to lose.
    pub(super) fn charge_probe(&mut self, ms: f64) {
        self.probe_budget -= ms;
    }

    /// A draft was verified.
    pub(super) fn on_verified(
        &mut self,
        stats: &mut SequenceStats,
        drafter: usize,
        bin: usize,
        drafted: usize,
        accepted: usize,
    ) {
        for (other, share) in self.shares.iter_mut().enumerate() {
            *share += SHARE_WEIGHT * (f64::from(other == drafter) - *share);
        }
        stats.of(drafter).on_verified(drafted, accepted);
        self.learn(stats, drafter, bin, drafted, accepted);
    }

    /// Learns acceptance from a draft that was verified, or compared with the tokens that followed.
    pub(super) fn learn(
        &mut self,
        stats: &mut SequenceStats,
        drafter: usize,
        bin: usize,
        drafted: usize,
        accepted: usize,
    ) {
        for bin in [bin, ANY_BIN] {
            stats.of(drafter).acceptance[bin].record(drafted, accepted, SEQUENCE_DECAY);
            self.shared[drafter].0[bin].record(drafted, accepted, SHARED_DECAY);
        }
    }

    /// Each of `rows` rows generated `tokens` tokens, on average, in a step of `ms`; with drafts or
    /// without.
    pub(super) fn on_step(
        &mut self,
        stats: &mut SequenceStats,
        rows: usize,
        tokens: f64,
        ms: f64,
        drafted: bool,
    ) {
        stats.elapsed += ms;
        let most = MAX_PROBE_BUDGET * self.plain_step();
        self.probe_budget = (self.probe_budget + PROBE_SHARE * ms / rows as f64).min(most);
        if let Some(plain) = self.costs.plain(rows).filter(|_| drafted) {
            let max_gain = MAX_SLACK * plain;
            stats.lost = (stats.lost + ms - plain * tokens).max(-max_gain);
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
