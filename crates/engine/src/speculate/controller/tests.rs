use super::{
    simulation::{Machine, SimulatedDrafter, Simulation, Strategy},
    *,
};

/// A machine on which another token in a step costs a fifth of the first one.
const MACHINE: Machine = Machine { step: 1.0, token: 0.2, noise: 0.0, busy: 0.0 };

fn costs() -> StepCosts {
    StepCosts::new((1..=40).map(|width| (width, 0.8 + 0.2 * width as f64)).collect())
}

fn option(max_depth: usize, cost: [f64; 2]) -> DraftOption {
    DraftOption { drafter: 0, confidence_bin: 0, max_depth, cost, catch_up_cost: 0.0, is_free: false }
}

fn with_prior(prior: f64) -> Controller {
    Controller::new(costs(), vec![[prior; CONFIDENCE_BINS]])
}

const UNKNOWN_LENGTH: SequenceLength = SequenceLength { generated: 0, max_remaining: 0 };

/// A drafter whose drafts cost time.
fn head(right: f64, per_token: f64, catch_up_cost: f64) -> SimulatedDrafter {
    SimulatedDrafter { right: [right, right], prior: 0.8, per_token, catch_up_cost, draft_rate: 1.0 }
}

/// A free drafter that sometimes has a draft.
const NGRAM: SimulatedDrafter =
    SimulatedDrafter { right: [0.25, 0.4], prior: 0.4, per_token: 0.0, catch_up_cost: 0.0, draft_rate: 0.3 };

/// Answers of several lengths.
fn lengths() -> [Vec<usize>; 5] {
    [vec![100], vec![400], vec![6; 40], vec![16; 25], vec![50; 10]]
}

#[test]
fn auto_with_any_head_is_not_slower_than_plain_from_the_first_answer() {
    for (token, per_token) in [(0.05, 0.05), (0.1, 0.05), (0.25, 0.2), (0.5, 0.2), (0.9, 0.3)] {
        for catch_up_cost in [0.0, 0.4, 1.2, 3.0, 20.0] {
            for right in [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0] {
                let machine = Machine { step: 1.0, token, noise: 0.0, busy: 0.0 };
                for answers in lengths() {
                    for drafters in [
                        vec![head(right, per_token, catch_up_cost)],
                        vec![NGRAM, head(right, per_token, catch_up_cost)],
                    ] {
                        let speed = Simulation::new(machine, &drafters).speed(Strategy::Auto, &answers);
                        assert!(
                            speed >= 0.969,
                            "{speed} for {} answers of {}, {token} a token, {drafters:?}",
                            answers.len(),
                            answers[0]
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn answer_of_any_length_loses_at_most_its_allowance() {
    for right in [0.0, 0.2, 0.5, 0.7, 0.9] {
        for (token, per_token, catch_up_cost) in
            [(0.1, 0.05, 0.4), (0.25, 0.2, 0.4), (0.25, 0.2, 1.2), (0.5, 0.2, 0.4)]
        {
            let machine = Machine { step: 1.0, token, noise: 0.0, busy: 0.0 };
            let mut world = Simulation::new(machine, &[NGRAM, head(right, per_token, catch_up_cost)]);
            for (i, &tokens) in [6, 40, 9, 200, 7, 7, 30, 8, 500, 12].iter().cycle().take(100).enumerate() {
                let usual = world.controller.expected_length(&SequenceStats::default());
                let slack = world.controller.slack.max(0.0);
                let (ms, plain) = (world.answer(Strategy::Auto, tokens, 1000), (tokens - 1) as f64);
                assert!(
                    ms <= plain * (1.0 + MAX_LOSS + PROBE_SHARE)
                        + slack
                        + SHORT_DRAFT_EXCESS
                        + MAX_CATCH_UP * usual,
                    "{ms} for answer {i} of {tokens} tokens, {right} right, {token} {per_token} {catch_up_cost}"
                );
            }
        }
    }
}

#[test]
fn auto_after_500_tokens_reaches_95_percent_of_the_best_fixed_choice() {
    for (token, per_token, catch_up_cost) in
        [(0.05, 0.02, 0.2), (0.1, 0.05, 0.4), (0.25, 0.2, 0.4), (0.5, 0.2, 0.4)]
    {
        for right in [0.0, 0.2, 0.4, 0.85, 0.95] {
            for length in [100, 250] {
                let machine = Machine { step: 1.0, token, noise: 0.0, busy: 0.0 };
                let drafters = [NGRAM, head(right, per_token, catch_up_cost)];
                let mut world = Simulation::new(machine, &drafters);
                world.speed(Strategy::Auto, &vec![length; 500usize.div_ceil(length)]);
                let answers = vec![length; 3000 / length];
                let auto = world.speed(Strategy::Auto, &answers);
                let best = Simulation::best(machine, &drafters, &answers);
                assert!(
                    auto >= 0.95 * best,
                    "{auto} of {best} for {right} right, {token} {per_token} {catch_up_cost}, answers of {length}"
                );
            }
        }
    }
}

#[test]
fn first_short_answers_with_any_drafters_lose_at_most_three_percent() {
    for (token, per_token, catch_up_cost) in
        [(0.1, 0.05, 0.4), (0.25, 0.2, 0.5), (0.25, 0.2, 1.2), (0.35, 0.25, 0.8), (0.5, 0.2, 0.4)]
    {
        let machine = Machine { step: 1.0, token, noise: 0.0, busy: 0.0 };
        for right in [0.0, 0.2, 0.4, 0.6, 0.8] {
            for ngram in [0.0, 0.1, 0.25] {
                let ngram = SimulatedDrafter { right: [ngram; 2], ..NGRAM };
                let drafters = [ngram, head(right, per_token, catch_up_cost)];
                for texts in 0..20 {
                    let mut world = Simulation::new(machine, &drafters);
                    world.answers = texts * 100;
                    let speed = world.speed(Strategy::Auto, &[8; 15]);
                    assert!(speed >= 0.97, "{speed} with texts {texts}, {token} a token, {drafters:?}");
                }
            }
        }
    }
}

#[test]
fn good_head_drafts_in_the_first_answer() {
    // Acceptance and cost of merlin's head on two cores of Zen 4.
    let drafters = [NGRAM, head(0.88, 0.2, 0.5)];
    let mut world = Simulation::new(Machine { step: 1.0, token: 0.25, noise: 0.0, busy: 0.0 }, &drafters);
    let speed = world.speed(Strategy::Auto, &[60]);
    assert!(speed > 1.15, "{speed}");
}

#[test]
fn first_draft_is_verified_if_the_replayed_prompt_accepts_it() {
    let controller = with_prior(0.25);
    let depth = |right: bool| {
        let mut replayed = AcceptanceByBin::default();
        (0..20).for_each(|_| replayed[0].record(4, if right { 4 } else { 0 }, SEQUENCE_DECAY));
        let mut stats = SequenceStats::default();
        stats.set_prior(0, &replayed);
        let is_free = DraftOption { is_free: true, ..option(4, [0.0; 2]) };
        controller
            .choose(&stats, &[is_free], OtherRows::default(), UNKNOWN_LENGTH)
            .map_or(0, |choice| choice.depth)
    };
    assert!(depth(true) > 0 && depth(false) == 0, "{} and {}", depth(true), depth(false));
}

#[test]
fn free_drafts_are_never_probed() {
    let mut controller = with_prior(0.4);
    let mut stats = SequenceStats::default();
    controller.on_step(&mut stats, 1, 1.0, 1e6, false);
    (0..50).for_each(|_| controller.learn(&mut stats, 0, 0, 2, 0));
    let choose = |is_free: bool| {
        let option = DraftOption { is_free, ..option(4, [0.0; 2]) };
        controller.choose(&stats, &[option], OtherRows::default(), UNKNOWN_LENGTH)
    };
    assert!(choose(true).is_none() && choose(false).is_some_and(|choice| choice.probe_cost > 0.0));
    (0..50).for_each(|_| controller.learn(&mut stats, 0, 0, 2, 2));
    let is_free = DraftOption { is_free: true, ..option(4, [0.0; 2]) };
    assert!(
        controller.choose(&stats, &[is_free], OtherRows::default(), UNKNOWN_LENGTH).is_some(),
        "acceptance has risen"
    );
}

#[test]
fn short_answers_pay_once_for_rejected_drafts() {
    for right in [0.0, 0.3] {
        let simulated = SimulatedDrafter { prior: 0.9, ..head(right, 0.05, 0.0) };
        let mut world = Simulation::new(MACHINE, &[simulated]);
        let speed = world.speed(Strategy::Auto, &[9; 40]);
        assert!(
            speed >= 0.97 && world.drafted > 0,
            "{speed} with {} tokens drafted, {right} right",
            world.drafted
        );
        // Each as if it were the first answer.
        let first = |answers| {
            let mut world = Simulation::new(MACHINE, &[simulated]);
            world.answers = answers;
            world.speed(Strategy::Auto, &[9])
        };
        let alone: f64 = (0..40).map(first).sum();
        assert!(alone / 40.0 < 0.95, "{alone}");
    }
}

/// Plain steps that drafts may cost a new sequence.
fn allowance(controller: &Controller) -> f64 {
    controller.allowance(&SequenceStats::default(), 1.0, UNKNOWN_LENGTH)
}

#[test]
fn slack_grows_with_gains_and_losses_are_regained_with_time() {
    let mut controller = with_prior(0.5);
    let of = |elapsed, lost| SequenceStats { elapsed, lost, ..SequenceStats::default() };
    assert_eq!(allowance(&controller), 1.0, "one step");
    controller.on_finished(&of(10.0, 3.0), &[], 10);
    assert_eq!(allowance(&controller), 0.0);
    controller.on_finished(&of(50.0, 0.0), &[], 50);
    assert_eq!(allowance(&controller), 0.0, "the loss is not regained yet");
    controller.on_finished(&of(150.0, 0.0), &[], 150);
    assert!(allowance(&controller) > 0.0);
    controller.on_finished(&of(1e6, 0.0), &[], 1000);
    assert_eq!(controller.slack, INITIAL_SLACK, "time alone restores the initial slack");
    controller.on_finished(&of(10.0, -50.0), &[], 10);
    assert_eq!(controller.slack, MAX_SLACK);
    assert_eq!(allowance(&controller), 1.0, "a tenth of an answer");
}

#[test]
fn what_one_answer_gained_is_not_lost_in_the_next() {
    let mut controller = with_prior(0.5);
    let answer = |lost| SequenceStats { elapsed: 13.0, lost, ..SequenceStats::default() };
    controller.on_finished(&answer(-1.4), &[], 13);
    assert_eq!(controller.slack, 2.4);
    let after_one = allowance(&controller);
    assert!((after_one - 0.1 * 13.0 * 2.4 / 8.0).abs() < 1e-9, "{after_one}");
    (0..4).for_each(|_| controller.on_finished(&answer(-1.4), &[], 13));
    let after_five = allowance(&controller);
    assert!((after_five - 0.1 * 13.0).abs() < 1e-9, "{after_five}");
}

#[test]
fn similar_prompt_starts_with_the_statistics_of_the_last_answer() {
    let mut controller = with_prior(0.9);
    let (prompt, other) = ([7; 20], [8; 20]);
    let mut stats = SequenceStats::default();
    (0..30).for_each(|_| controller.learn(&mut stats, 0, 0, 1, 0));
    // In other sequences all drafts are accepted.
    (0..50).for_each(|_| controller.learn(&mut SequenceStats::default(), 0, 0, 1, 1));
    controller.on_finished(&stats, &prompt, 9);
    controller.on_finished(&SequenceStats::default(), &other, 400);
    let depth = |prompt: &[u32]| {
        let stats = controller.new_sequence(PrefixKey { salt: None, tokens: prompt });
        let length = SequenceLength { generated: 1, max_remaining: 1000 };
        let choice = controller.choose(&stats, &[option(8, [0.1, 0.0])], OtherRows::default(), length);
        (choice.map_or(0, |choice| choice.depth), stats.lengths)
    };
    assert_eq!(depth(&prompt), (0, Some([9.0; 2])));
    assert!(depth(&[9; 20]).0 > 0 && depth(&[9; 20]).1.is_none(), "{:?}", depth(&[9; 20]));
    assert_eq!(depth(&other).1, Some([400.0; 2]));
}

#[test]
fn catch_up_with_a_long_prompt_needs_long_answers() {
    let drafter = DraftOption { catch_up_cost: 6.0, ..option(4, [0.05, 0.0]) };
    let depth = |controller: &Controller| {
        let length = SequenceLength { generated: 1, max_remaining: 1000 };
        controller
            .choose(&SequenceStats::default(), &[drafter], OtherRows::default(), length)
            .map_or(0, |of| of.depth)
    };
    let mut controller = with_prior(0.9);
    assert_eq!(depth(&controller), 0, "lengths of answers are unknown");
    controller.on_finished(&SequenceStats { elapsed: 200.0, ..SequenceStats::default() }, &[], 200);
    assert!(depth(&controller) > 0);
    controller.on_finished(&SequenceStats { elapsed: 20.0, ..SequenceStats::default() }, &[], 20);
    assert_eq!(depth(&controller), 0, "the last answer was short");
    // Catch-up uses up the allowance; the rest of it does not count as a loss.
    let mut controller = with_prior(0.9);
    let mut stats = SequenceStats::default();
    controller.on_catch_up(&mut stats, 6.0, UNKNOWN_LENGTH);
    controller.on_step(&mut stats, 1, 1.0, 7.0, true);
    let left = controller.allowance(&stats, 1.0, UNKNOWN_LENGTH);
    assert!((left - MAX_LOSS * 7.0).abs() < 1e-9, "{left}");
}

#[test]
fn draft_depth_is_limited_by_the_allowance() {
    let mut controller = with_prior(1.0);
    let depth = |controller: &Controller, stats: &SequenceStats| {
        let choice = controller.choose(stats, &[option(16, [0.0; 2])], OtherRows::default(), UNKNOWN_LENGTH);
        choice.map(|choice| choice.depth)
    };
    assert_eq!(depth(&controller, &SequenceStats::default()), Some(5), "a fifth of a plain step each");
    let spent = SequenceStats { lost: 1.0, ..SequenceStats::default() };
    assert_eq!(depth(&controller, &spent), None, "no excess in the first answer");
    controller.lengths = Some([DEFAULT_LENGTH; 2]);
    assert_eq!(depth(&controller, &spent), None, "no answer has gained what this one lost");
    let lost = MAX_SHARE_OF_ANSWER * DEFAULT_LENGTH / MAX_SLACK;
    let spent = SequenceStats { lost, ..SequenceStats::default() };
    assert_eq!(depth(&controller, &spent), Some(2), "one token may exceed the allowance, or two");
    controller.slack = 0.0;
    assert_eq!(depth(&controller, &SequenceStats::default()), Some(1));
    controller.slack = -0.1;
    assert_eq!(depth(&controller, &SequenceStats::default()), None, "past answers lost too much");
    controller.slack = 0.0;
    assert_eq!(depth(&controller, &SequenceStats { lost: -4.0, ..SequenceStats::default() }), Some(15));
    let stats = SequenceStats { lost: 2.0, ..SequenceStats::default() };
    assert_eq!(depth(&controller, &stats), None);
    let stats = SequenceStats { lost: 2.0, upfront_cost: 2.0, ..SequenceStats::default() };
    assert_eq!(depth(&controller, &stats), Some(1), "the upfront cost is still to be earned back");
}

#[test]
fn auto_with_any_prior_is_not_much_slower_than_plain() {
    for prior in [0.1, 0.5, 0.9] {
        for per_token in [0.0, 0.1, 0.5] {
            for right in [0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0] {
                for tokens in [100, 400, 3000] {
                    let simulated = SimulatedDrafter { prior, ..head(right, per_token, 0.0) };
                    let speed = Simulation::new(MACHINE, &[simulated]).speed(Strategy::Auto, &[tokens]);
                    assert!(speed >= 0.97, "{speed} for {right} prior {prior}, {per_token}, {tokens} tokens");
                }
            }
        }
    }
}

#[test]
fn auto_with_good_drafts_is_near_the_best_fixed_depth() {
    for (right, per_token) in [(0.5, 0.0), (0.8, 0.0), (0.8, 0.1), (1.0, 0.0)] {
        for prior in [0.3, 0.7] {
            let simulated = SimulatedDrafter { prior, ..head(right, per_token, 0.0) };
            let speed = Simulation::new(MACHINE, &[simulated]).speed(Strategy::Auto, &[3000]);
            let best = Simulation::best(MACHINE, &[simulated], &[3000]);
            assert!(speed >= 0.93 * best, "{speed} of {best} for {right} prior {prior}");
        }
    }
}

#[test]
fn draft_of_unknown_confidence_has_the_mean_acceptance() {
    let mut prior = [0.95; CONFIDENCE_BINS];
    prior[0] = 0.2;
    let mut controller = Controller::new(costs(), vec![prior]);
    let depth = |controller: &Controller, bin| {
        let option = DraftOption { confidence_bin: bin, ..option(8, [0.1, 0.0]) };
        let choice =
            controller.choose(&SequenceStats::default(), &[option], OtherRows::default(), UNKNOWN_LENGTH);
        choice.map_or(0, |choice| choice.depth)
    };
    assert!(depth(&controller, ANY_BIN) >= 2 && depth(&controller, 0) == 0, "as the prior says of most");
    for _ in 0..100 {
        controller.on_verified(&mut SequenceStats::default(), 0, 5, 2, 0);
    }
    assert_eq!(depth(&controller, ANY_BIN), 0, "rejected drafts count whatever their bin");
}

#[test]
fn probes_find_drafts_that_have_become_good() {
    let mut controller = with_prior(0.4);
    let mut stats = SequenceStats::default();
    for _ in 0..30 {
        controller.on_verified(&mut stats, 0, 0, 2, 0);
    }
    let mut found = None;
    for step in 0..3000 {
        let choice = controller.choose(&stats, &[option(8, [0.0; 2])], OtherRows::default(), UNKNOWN_LENGTH);
        let depth = choice.map_or(0, |choice| choice.depth);
        if depth > 2 {
            found = Some(step);
            break;
        }
        if let Some(choice) = choice {
            controller.charge_probe(choice.probe_cost);
            controller.on_verified(&mut stats, 0, 0, depth, depth);
        }
        controller.on_step(&mut stats, 1, (1 + depth) as f64, 0.8 + 0.2 * (1 + depth) as f64, depth > 0);
    }
    assert!(found.is_some_and(|step| step > 20), "{found:?}");
}

#[test]
fn draft_depth_shrinks_with_the_rows_of_a_batch() {
    let controller = with_prior(0.6);
    let depth = |rows: usize| {
        let others = OtherRows { rows, width: rows, expected_tokens: rows as f64 };
        let choice =
            controller.choose(&SequenceStats::default(), &[option(16, [0.0; 2])], others, UNKNOWN_LENGTH);
        choice.map_or(0, |choice| choice.depth)
    };
    assert!(depth(0) >= 2, "alone {}", depth(0));
    assert!(depth(30) < depth(0), "{} beside thirty", depth(30));
}

#[test]
fn expected_drafts_follow_from_answer_lengths_and_shares() {
    let check = |usual: Option<f64>, generated: usize, max_remaining: usize, expected: f64| {
        let controller = Controller { lengths: usual.map(|usual| [usual; 2]), ..with_prior(0.5) };
        let drafts = controller.expected_drafts(
            &SequenceStats::default(),
            0,
            SequenceLength { generated, max_remaining },
        );
        assert_eq!(drafts, expected, "{usual:?} {generated} {max_remaining}");
    };
    // No answer has finished yet.
    check(None, 2, 1000, 15.0);
    check(None, 40, 1000, 20.0);
    check(Some(200.0), 1, 1000, 99.5);
    check(Some(200.0), 150, 1000, 75.0);
    // No more than there may be.
    check(Some(200.0), 1, 10, 5.0);
    check(Some(6.0), 1, 1000, 2.5);
    check(Some(6.0), 5, 0, 1.0);
    // Another drafter makes most drafts.
    let mut controller = Controller::new(costs(), vec![[0.5; CONFIDENCE_BINS]; 2]);
    (0..200).for_each(|_| controller.on_verified(&mut SequenceStats::default(), 1, 0, 4, 4));
    let length = SequenceLength { generated: 200, max_remaining: 1000 };
    assert_eq!(
        [0, 1].map(|drafter| controller.expected_drafts(&SequenceStats::default(), drafter, length)),
        [5.0, 100.0]
    );
    // But not in answers to a similar prompt.
    let mut stats = SequenceStats::default();
    (0..30).for_each(|_| controller.on_verified(&mut stats, 0, 0, 2, 2));
    (0..200).for_each(|_| controller.on_verified(&mut SequenceStats::default(), 1, 0, 4, 4));
    controller.on_finished(&stats, &[7; 20], 200);
    let similar = controller.new_sequence(PrefixKey { salt: None, tokens: &[7; 20] });
    let drafts = controller.expected_drafts(&similar, 0, length);
    assert!((75.0..90.0).contains(&drafts), "{drafts}");
}

#[test]
fn auto_beside_other_programs_stays_near_the_best_choice() {
    for (token, per_token, catch_up_cost) in [(0.1, 0.05, 0.4), (0.25, 0.2, 0.4), (0.5, 0.2, 0.4)] {
        for right in [0.0, 0.3, 0.7, 0.9] {
            for busy in [0.3, 0.6] {
                let machine = Machine { step: 1.0, token, noise: 0.2, busy };
                let drafters = [NGRAM, head(right, per_token, catch_up_cost)];
                let speed = |strategy| Simulation::new(machine, &drafters).speed(strategy, &[60; 80]);
                let fixed = [0, 1, 2, 3, 5].map(|depth| speed(Strategy::Fixed { drafter: 1, depth }));
                let (plain, best) = (fixed[0], fixed.into_iter().fold(0.0, f64::max));
                let auto = speed(Strategy::Auto);
                assert!(
                    auto >= 0.97 * plain && auto >= 0.85 * best,
                    "{auto}: plain {plain}, best {best} for {right} right, {token} {per_token} {catch_up_cost}, {busy}"
                );
            }
        }
    }
}

#[test]
fn wrong_costs_at_load_are_corrected_within_the_allowance() {
    for wrong in [0.85, 1.0, 1.2] {
        for right in [0.0, 0.3, 0.7, 0.9] {
            let machine = Machine { step: 1.0, token: 0.4, noise: 0.0, busy: 0.0 };
            let drafters = [NGRAM, head(right, 0.2, 0.4)];
            let mut world = Simulation::new(machine, &drafters);
            let measured = [1, 2, 4, 8, 16, 32].map(|width| (width, machine.of(width)));
            let off = measured.map(|(width, ms)| (width, if width == 1 { ms } else { wrong * ms }));
            world.controller.costs = StepCosts::at_load(off.to_vec());
            let speed = world.speed(Strategy::Auto, &[60; 10]);
            let best = Simulation::best(machine, &drafters, &[60; 10]);
            assert!(
                speed >= 0.97 && speed >= 0.9 * best,
                "{speed} of {best} for {right} right, {wrong} measured"
            );
        }
    }
}

#[test]
fn free_drafts_lengthen_with_what_the_sequence_accepted() {
    let mut controller = with_prior(1.0);
    (controller.slack, controller.lengths) = (MAX_SLACK, Some([200.0; 2]));
    let mut stats = SequenceStats::default();
    let mut after = |controller: &mut Controller, accepted: usize| {
        let option = DraftOption { is_free: true, ..option(31, [0.0; 2]) };
        let choice = controller.choose(&stats, &[option], OtherRows::default(), UNKNOWN_LENGTH).unwrap();
        controller.on_verified(&mut stats, 0, 0, choice.depth, accepted.min(choice.depth));
        choice.depth
    };
    // In other sequences all drafts are accepted.
    (0..50).for_each(|_| controller.learn(&mut SequenceStats::default(), 0, 0, 31, 31));
    assert_eq!([31, 31, 31, 31, 31].map(|accepted| after(&mut controller, accepted)), [3, 7, 15, 31, 31]);
    assert!(after(&mut controller, 0) == 31 && after(&mut controller, 0) <= 15);
}

#[test]
fn tokens_after_the_usual_end_are_not_drafted() {
    let mut controller = with_prior(1.0);
    let prompt = PrefixKey { salt: None, tokens: &[7; 20] };
    controller.on_finished(&SequenceStats::default(), prompt.tokens, 20);
    controller.slack = MAX_SLACK;
    let stats = controller.new_sequence(prompt);
    let depth = |generated: usize| {
        let length = SequenceLength { generated, max_remaining: 1000 };
        let choice = controller.choose(&stats, &[option(3, [0.0; 2])], OtherRows::default(), length);
        choice.map_or(0, |choice| choice.depth)
    };
    assert_eq!([10, 18, 19].map(depth), [3, 1, 0]);
    assert_eq!(depth(20), 3, "it is longer than usual");
}
