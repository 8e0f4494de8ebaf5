//! Speculation beside plain decoding: what is asked, in which ways, and what it changed.

mod measure;
mod prompts;
mod report;

use engine::{Speculate, StepTimes};

pub use self::{
    measure::{Case, Round, round},
    prompts::{PROMPT_CLASSES, PromptClass},
    report::{Comparison, ComparisonRow},
};

/// What is compared with plain decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpeculationModes {
    /// Each drafter that there is, at each of its depths, and `auto`.
    All,
    Listed(Vec<Speculate>),
}

impl SpeculationModes {
    /// With drafters of these names; plain decoding comes first. A name without a depth stands for its usual ones.
    pub fn of(&self, drafters: &[&str]) -> Vec<Speculate> {
        let all;
        let listed = match self {
            SpeculationModes::Listed(listed) => listed,
            SpeculationModes::All => {
                let any = |drafter: &&str| Speculate::Fixed { drafter: (*drafter).into(), depth: None };
                all = drafters.iter().map(any).chain([Speculate::Auto]).collect::<Vec<_>>();
                &all
            }
        };
        let mut ways = vec![Speculate::Off];
        for way in listed {
            match way {
                Speculate::Fixed { drafter, depth: None } => ways.extend(
                    depths(drafter)
                        .iter()
                        .map(|depth| Speculate::Fixed { drafter: drafter.clone(), depth: Some(*depth) }),
                ),
                way => ways.push(way.clone()),
            }
        }
        let mut seen = vec![];
        ways.retain(|way| {
            let new = !seen.contains(way);
            seen.push(way.clone());
            new
        });
        ways
    }
}

/// Lengths of drafts that tell most of a drafter.
fn depths(drafter: &str) -> &'static [usize] {
    match drafter {
        // Costs nothing, and is right for long or not at all. With the known token: one or two times as many as products take at
        // once.
        "ngram" => &[3, 7, 15],
        "mtp" => &[1, 2, 3, 5],
        // Costs the same at any depth.
        "block" => &[2, 4, 7],
        // With the known token: steps of two, four and eight, which are measured when a model is loaded.
        "scripted" => &[1, 3, 7],
        _ => &[2, 4, 8],
    }
}

/// Lines of a case, a way after another; the first is plain decoding. `rounds` are by round, then by way.
pub fn lines(case: &Case, ways: &[Speculate], rounds: &[Vec<Round>], load: &StepTimes) -> Vec<ComparisonRow> {
    let of = |way: usize| rounds.iter().map(|round| round[way].clone()).collect::<Vec<Round>>();
    let plain = of(0);
    let each = ways.iter().enumerate();
    each.filter_map(|(i, way)| ComparisonRow::of(case, way, &plain, &of(i), load)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_decoding_comes_first_and_nothing_twice() {
        let check = |ways: SpeculationModes, expected: &[&str]| {
            let found: Vec<String> = ways.of(&["ngram", "mtp"]).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected);
        };
        let all = ["off", "ngram:3", "ngram:7", "ngram:15", "mtp:1", "mtp:2", "mtp:3", "mtp:5", "auto"];
        check(SpeculationModes::All, &all);
        let listed =
            |text: &str| SpeculationModes::Listed(text.split(',').map(|way| way.parse().unwrap()).collect());
        check(listed("auto"), &["off", "auto"]);
        check(listed("off,mtp:3,mtp:4,mtp:3"), &["off", "mtp:3", "mtp:4"]);
        check(listed("block"), &["off", "block:2", "block:4", "block:7"]);
    }
}
