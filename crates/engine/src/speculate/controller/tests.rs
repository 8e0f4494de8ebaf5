use super::{
    simulation::{Machine, SimulatedDrafter, Simulation, Strategy},
    *,
};

/// A machine on which a token more in a step costs a fifth of the first one.
const FIFTH: Machine = Machine { step: 1.0, token: 0.2, noise: 0.0, busy: 0.0 };

fn costs() -> StepCosts {
    StepCosts::new((1..=40).map(|width| (width, 0.8 + 0.2 * width as f64)).collect())
}

fn candidate(most: usize, cost: [f64; 2]) -> DraftOption {
    DraftOption { drafter: 0, grade: 0, most, cost, catch_up_cost: 0.0, free: false }
}

fn believing(prior: f64) -> Controller {
    Controller::new(costs(), vec![[prior; CONFIDENCE_BINS]])
}

/// Of a sequence whose length says nothing.
const NOWHERE: SequenceLength = SequenceLength { generated: 0, most: 0 };

/// A drafter whose drafts cost time.
fn head(right: f64, each: f64, catch_up_cost: f64) -> SimulatedDrafter {
    SimulatedDrafter { right: [right, right], prior: 0.8, each, catch_up_cost, ideas: 1.0 }
}

/// A free drafter that sometimes has a draft.
const LOOKUP: SimulatedDrafter =
    SimulatedDrafter { right: [0.25, 0.4], prior: 0.4, each: 0.0, catch_up_cost: 0.0, ideas: 0.3 };

/// Answers of several lengths.
fn lengths() -> [Vec<usize>; 5] {
    [vec![100], vec![400], vec![6; 40], vec![16; 25], vec![50; 10]]
}

#[test]
fn auto_with_any_head_is_not_slower_than_plain_from_the_first_answer() {
    for (token, each) in [(0.05, 0.05), (0.1, 0.05), (0.25, 0.2), (0.5, 0.2), (0.9, 0.3)] {
        for catch_up_cost in [0.0, 0.4, 1.2, 3.0, 20.0] {
            for right in [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0] {
                let machine = Machine { step: 1.0, token, noise: 0.0, busy: 0.0 };
                for answers in lengths() {
                    for drafters in [
                        vec![head(right, each, catch_up_cost)],
                        vec![LOOKUP, head(right, each, catch_up_cost)],
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
        for (token, each, catch_up_cost) in
            [(0.1, 0.05, 0.4), (0.25, 0.2, 0.4), (0.25, 0.2, 1.2), (0.5, 0.2, 0.4)]
        {
            let machine = Machine { step: 1.0, token, noise: 0.0, busy: 0.0 };
            let mut world = Simulation::new(machine, &[LOOKUP, head(right, each, catch_up_cost)]);
            for (i, &tokens) in [6, 40, 9, 200, 7, 7, 30, 8, 500, 12].iter().cycle().take(100).enumerate() {
                let usual = world.controller.usual_length(&SequenceStats::default());
                let purse = world.controller.purse.max(0.0);
                let (ms, plain) = (world.answer(Strategy::Auto, tokens, 1000), (tokens - 1) as f64);
                assert!(
                    ms <= plain * (1.0 + MOST_LOST + PROBING) + purse + FIRST + INVESTED * usual,
                    "{ms} for answer {i} of {tokens} tokens, {right} right, {token} {each} {catch_up_cost}"
                );
            }
        }
    }
}

#[test]
fn auto_after_500_tokens_reaches_95_percent_of_the_best_fixed_choice() {
    for (token, each, catch_up_cost) in
        [(0.05, 0.02, 0.2), (0.1, 0.05, 0.4), (0.25, 0.2, 0.4), (0.5, 0.2, 0.4)]
    {
        for right in [0.0, 0.2, 0.4, 0.85, 0.95] {
            for length in [100, 250] {
                let machine = Machine { step: 1.0, token, noise: 0.0, busy: 0.0 };
                let drafters = [LOOKUP, head(right, each, catch_up_cost)];
                let mut world = Simulation::new(machine, &drafters);
                world.speed(Strategy::Auto, &vec![length; 500usize.div_ceil(length)]);
                let answers = vec![length; 3000 / length];
                let auto = world.speed(Strategy::Auto, &answers);
                let best = Simulation::best(machine, &drafters, &answers);
                assert!(
                    auto >= 0.95 * best,
                    "{auto} of {best} for {right} right, {token} {each} {catch_up_cost}, answers of {length}"
                );
            }
        }
    }
}

#[test]
fn good_head_drafts_in_the_first_answer() {
    // What merlin's head is, and costs, on two cores of Zen 4.
    let drafters = [LOOKUP, head(0.88, 0.2, 0.5)];
    let mut world = Simulation::new(Machine { step: 1.0, token: 0.25, noise: 0.0, busy: 0.0 }, &drafters);
    let speed = world.speed(Strategy::Auto, &[60]);
    assert!(speed > 1.15, "{speed}");
}

#[test]
fn replayed_prompt_decides_whether_the_first_draft_is_verified() {
    let controller = believing(0.25);
    let depth = |right: bool| {
        let mut prompt_acceptance = AcceptanceByBin::default();
        (0..20).for_each(|_| prompt_acceptance[0].saw(4, if right { 4 } else { 0 }, OWN_MEMORY));
        let mut stats = SequenceStats::default();
        stats.set_prior(0, &prompt_acceptance);
        let free = DraftOption { free: true, ..candidate(4, [0.0; 2]) };
        controller.choose(&stats, &[free], OtherRows::default(), NOWHERE).map_or(0, |choice| choice.depth)
    };
    assert!(depth(true) > 0 && depth(false) == 0, "{} and {}", depth(true), depth(false));
}

#[test]
fn free_drafts_are_never_probed() {
    let mut controller = believing(0.4);
    let mut stats = SequenceStats::default();
    controller.passed(&mut stats, 1, 1.0, 1e6, false);
    (0..50).for_each(|_| controller.learnt(&mut stats, 0, 0, 2, 0));
    let choose = |free| {
        let candidate = DraftOption { free, ..candidate(4, [0.0; 2]) };
        controller.choose(&stats, &[candidate], OtherRows::default(), NOWHERE)
    };
    assert!(choose(true).is_none() && choose(false).is_some_and(|choice| choice.probe > 0.0));
    (0..50).for_each(|_| controller.learnt(&mut stats, 0, 0, 2, 2));
    let free = DraftOption { free: true, ..candidate(4, [0.0; 2]) };
    assert!(
        controller.choose(&stats, &[free], OtherRows::default(), NOWHERE).is_some(),
        "it has become good"
    );
}

#[test]
fn tokens_that_share_the_last_place_are_forgotten_by_drafts() {
    let mut odds = AcceptanceRate::default();
    // At the last place three right ones and a wrong one, then 24 right ones.
    odds.saw(31, POSITIONS + 2, 0.5);
    assert_eq!(odds.places[POSITIONS - 1], (4.0, 3.0));
    odds.saw(31, 31, 0.5);
    assert_eq!(odds.places[POSITIONS - 1], (26.0, 25.5));
    assert_eq!(odds.places[0], (1.5, 1.5));
}

#[test]
fn short_answers_pay_once_for_drafts_that_are_wrong() {
    for right in [0.0, 0.3] {
        let simulated = SimulatedDrafter { prior: 0.9, ..head(right, 0.05, 0.0) };
        let mut world = Simulation::new(FIFTH, &[simulated]);
        let speed = world.speed(Strategy::Auto, &[9; 40]);
        assert!(
            speed >= 0.97 && world.drafted > 0,
            "{speed} with {} tokens drafted, {right} right",
            world.drafted
        );
        // Each as if it were the first one.
        let first = |answers| {
            let mut world = Simulation::new(FIFTH, &[simulated]);
            world.answers = answers;
            world.speed(Strategy::Auto, &[9])
        };
        let alone: f64 = (0..40).map(first).sum();
        assert!(alone / 40.0 < 0.95, "{alone}");
    }
}

#[test]
fn what_drafts_win_may_be_lost_again_and_what_they_lose_comes_back_with_time() {
    let mut controller = believing(0.5);
    let of = |elapsed, lost| SequenceStats { elapsed, lost, ..SequenceStats::default() };
    let may_lose = |controller: &Controller| controller.may_lose(&SequenceStats::default(), 1.0, NOWHERE);
    assert_eq!(may_lose(&controller), 1.0, "a step, once");
    controller.ended(&of(10.0, 3.0), &[], 10);
    assert_eq!(may_lose(&controller), 0.0);
    controller.ended(&of(50.0, 0.0), &[], 50);
    assert_eq!(may_lose(&controller), 0.0, "what was lost is not back yet");
    controller.ended(&of(150.0, 0.0), &[], 150);
    assert!(may_lose(&controller) > 0.0);
    controller.ended(&of(1e6, 0.0), &[], 1000);
    assert_eq!(controller.purse, PURSE, "time alone brings back what there was at first");
    controller.ended(&of(10.0, -50.0), &[], 10);
    assert_eq!(controller.purse, MOST_KEPT);
}

#[test]
fn similar_prompt_begins_with_the_acceptance_and_length_of_the_last_answer() {
    let mut controller = believing(0.9);
    let (prompt, other) = ([7; 20], [8; 20]);
    let mut stats = SequenceStats::default();
    (0..30).for_each(|_| controller.learnt(&mut stats, 0, 0, 1, 0));
    // Others are right all the time.
    (0..50).for_each(|_| controller.learnt(&mut SequenceStats::default(), 0, 0, 1, 1));
    controller.ended(&stats, &prompt, 9);
    controller.ended(&SequenceStats::default(), &other, 400);
    let depth = |prompt: &[u32]| {
        let stats = controller.begin(prompt);
        let length = SequenceLength { generated: 1, most: 1000 };
        let choice = controller.choose(&stats, &[candidate(8, [0.1, 0.0])], OtherRows::default(), length);
        (choice.map_or(0, |choice| choice.depth), stats.lengths)
    };
    assert_eq!(depth(&prompt), (0, Some([9.0; 2])));
    assert!(depth(&[9; 20]).0 > 0 && depth(&[9; 20]).1.is_none(), "{:?}", depth(&[9; 20]));
    assert_eq!(depth(&other).1, Some([400.0; 2]));
}

#[test]
fn catch_up_with_a_long_prompt_needs_answers_known_to_be_long() {
    let drafter = DraftOption { catch_up_cost: 6.0, ..candidate(4, [0.05, 0.0]) };
    let depth = |controller: &Controller| {
        let length = SequenceLength { generated: 1, most: 1000 };
        controller
            .choose(&SequenceStats::default(), &[drafter], OtherRows::default(), length)
            .map_or(0, |of| of.depth)
    };
    let mut controller = believing(0.9);
    assert_eq!(depth(&controller), 0, "lengths of answers are not known");
    controller.ended(&SequenceStats { elapsed: 200.0, ..SequenceStats::default() }, &[], 200);
    assert!(depth(&controller) > 0);
    controller.ended(&SequenceStats { elapsed: 20.0, ..SequenceStats::default() }, &[], 20);
    assert_eq!(depth(&controller), 0, "the last answer was short");
    // The allowance is used up, and the rest of the catch-up does not count.
    let mut controller = believing(0.9);
    let mut stats = SequenceStats::default();
    controller.invested(&mut stats, 6.0, NOWHERE);
    controller.passed(&mut stats, 1, 1.0, 7.0, true);
    let left = controller.may_lose(&stats, 1.0, NOWHERE);
    assert!((left - MOST_LOST * 7.0).abs() < 1e-9, "{left}");
}

#[test]
fn a_draft_is_no_longer_than_may_be_lost() {
    let mut controller = believing(1.0);
    let depth = |controller: &Controller, stats: &SequenceStats| {
        let choice = controller.choose(stats, &[candidate(16, [0.0; 2])], OtherRows::default(), NOWHERE);
        choice.map(|choice| choice.depth)
    };
    assert_eq!(depth(&controller, &SequenceStats::default()), Some(5), "a fifth of a plain step each");
    controller.purse = 0.0;
    assert_eq!(depth(&controller, &SequenceStats::default()), Some(1));
    assert_eq!(depth(&controller, &SequenceStats { lost: -4.0, ..SequenceStats::default() }), Some(15));
    let stats = SequenceStats { lost: 2.0, ..SequenceStats::default() };
    assert_eq!(depth(&controller, &stats), None);
    let stats = SequenceStats { lost: 2.0, invested: 2.0, ..SequenceStats::default() };
    assert_eq!(depth(&controller, &stats), Some(1), "what it went into is still to come");
}

#[test]
fn whatever_is_believed_of_drafts_it_is_never_much_slower_than_without() {
    for prior in [0.1, 0.5, 0.9] {
        for each in [0.0, 0.1, 0.5] {
            for right in [0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0] {
                for tokens in [100, 400, 3000] {
                    let simulated = SimulatedDrafter { prior, ..head(right, each, 0.0) };
                    let speed = Simulation::new(FIFTH, &[simulated]).speed(Strategy::Auto, &[tokens]);
                    assert!(speed >= 0.97, "{speed} for {right} prior {prior}, {each}, {tokens} tokens");
                }
            }
        }
    }
}

#[test]
fn good_drafts_are_used_nearly_as_well_as_they_can_be() {
    for (right, each) in [(0.5, 0.0), (0.8, 0.0), (0.8, 0.1), (1.0, 0.0)] {
        for prior in [0.3, 0.7] {
            let simulated = SimulatedDrafter { prior, ..head(right, each, 0.0) };
            let speed = Simulation::new(FIFTH, &[simulated]).speed(Strategy::Auto, &[3000]);
            let best = Simulation::best(FIFTH, &[simulated], &[3000]);
            assert!(speed >= 0.93 * best, "{speed} of {best} for {right} prior {prior}");
        }
    }
}

#[test]
fn a_draft_that_is_not_made_yet_is_as_good_as_those_before() {
    let mut prior = [0.95; CONFIDENCE_BINS];
    prior[0] = 0.2;
    let mut controller = Controller::new(costs(), vec![prior]);
    let depth = |controller: &Controller, grade| {
        let candidate = DraftOption { grade, ..candidate(8, [0.1, 0.0]) };
        let choice =
            controller.choose(&SequenceStats::default(), &[candidate], OtherRows::default(), NOWHERE);
        choice.map_or(0, |choice| choice.depth)
    };
    assert!(depth(&controller, ANY_BIN) >= 2 && depth(&controller, 0) == 0, "as the prior says of most");
    for _ in 0..100 {
        controller.judged(&mut SequenceStats::default(), 0, 5, 2, 0);
    }
    assert_eq!(depth(&controller, ANY_BIN), 0, "wrong ones count whatever their grade was");
}

#[test]
fn drafts_that_become_good_are_found() {
    let mut controller = believing(0.4);
    let mut stats = SequenceStats::default();
    for _ in 0..30 {
        controller.judged(&mut stats, 0, 0, 2, 0);
    }
    let mut found = None;
    for step in 0..3000 {
        let choice = controller.choose(&stats, &[candidate(8, [0.0; 2])], OtherRows::default(), NOWHERE);
        let depth = choice.map_or(0, |choice| choice.depth);
        if depth > 2 {
            found = Some(step);
            break;
        }
        if let Some(choice) = choice {
            controller.probed(choice.probe);
            controller.judged(&mut stats, 0, 0, depth, depth);
        }
        controller.passed(&mut stats, 1, (1 + depth) as f64, 0.8 + 0.2 * (1 + depth) as f64, depth > 0);
    }
    assert!(found.is_some_and(|step| step > 20), "{found:?}");
}

#[test]
fn a_batch_pays_for_every_row() {
    let controller = believing(0.6);
    let depth = |rows: usize| {
        let others = OtherRows { rows, width: rows, kept: rows as f64 };
        let choice =
            controller.choose(&SequenceStats::default(), &[candidate(16, [0.0; 2])], others, NOWHERE);
        choice.map_or(0, |choice| choice.depth)
    };
    assert!(depth(0) >= 2, "alone {}", depth(0));
    assert!(depth(30) < depth(0), "{} beside thirty", depth(30));
}

#[test]
fn drafts_to_come_follow_from_usual_lengths_and_shares() {
    let check = |usual: Option<f64>, generated: usize, most: usize, expected: f64| {
        let controller = Controller { lengths: usual.map(|usual| [usual; 2]), ..believing(0.5) };
        let drafts =
            controller.drafts_to_come(&SequenceStats::default(), 0, SequenceLength { generated, most });
        assert_eq!(drafts, expected, "{usual:?} {generated} {most}");
    };
    // No answer has ended yet.
    check(None, 2, 1000, 15.0);
    check(None, 40, 1000, 20.0);
    check(Some(200.0), 1, 1000, 99.5);
    check(Some(200.0), 150, 1000, 75.0);
    // No more than there may be.
    check(Some(200.0), 1, 10, 5.0);
    check(Some(6.0), 1, 1000, 2.5);
    check(Some(6.0), 5, 0, 1.0);
    // Another one makes most of the drafts.
    let mut controller = Controller::new(costs(), vec![[0.5; CONFIDENCE_BINS]; 2]);
    (0..200).for_each(|_| controller.judged(&mut SequenceStats::default(), 1, 0, 4, 4));
    let length = SequenceLength { generated: 200, most: 1000 };
    assert_eq!(
        [0, 1].map(|drafter| controller.drafts_to_come(&SequenceStats::default(), drafter, length)),
        [5.0, 100.0]
    );
}

#[test]
fn auto_beside_other_programs_stays_near_the_best_choice() {
    for (token, each, catch_up_cost) in [(0.1, 0.05, 0.4), (0.25, 0.2, 0.4), (0.5, 0.2, 0.4)] {
        for right in [0.0, 0.3, 0.7, 0.9] {
            for busy in [0.3, 0.6] {
                let machine = Machine { step: 1.0, token, noise: 0.2, busy };
                let drafters = [LOOKUP, head(right, each, catch_up_cost)];
                let speed = |strategy| Simulation::new(machine, &drafters).speed(strategy, &[60; 80]);
                let fixed = [0, 1, 2, 3, 5].map(|depth| speed(Strategy::Fixed { drafter: 1, depth }));
                let (plain, best) = (fixed[0], fixed.into_iter().fold(0.0, f64::max));
                let auto = speed(Strategy::Auto);
                assert!(
                    auto >= 0.97 * plain && auto >= 0.85 * best,
                    "{auto}: plain {plain}, best {best} for {right} right, {token} {each} {catch_up_cost}, {busy}"
                );
            }
        }
    }
}

#[test]
fn costs_that_were_measured_wrong_at_load_are_corrected_within_the_allowance() {
    for wrong in [0.85, 1.0, 1.2] {
        for right in [0.0, 0.3, 0.7, 0.9] {
            let machine = Machine { step: 1.0, token: 0.4, noise: 0.0, busy: 0.0 };
            let drafters = [LOOKUP, head(right, 0.2, 0.4)];
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
