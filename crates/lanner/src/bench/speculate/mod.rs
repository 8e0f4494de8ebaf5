//! Compares speculative decoding with plain decoding.

mod measure;
mod prompts;
mod report;

use engine::{Speculate, StepTimes};

pub(crate) use self::{
    measure::{Case, Round, round},
    prompts::{PROMPT_CLASSES, PromptClass},
    report::{Comparison, ComparisonRow},
};

/// The modes to compare with plain decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpeculationModes {
    /// Every drafter at each of its depths, and `auto`.
    All,
    Listed(Vec<Speculate>),
}

impl SpeculationModes {
    /// The modes with these drafters, plain decoding first and none twice. A name without a depth
    /// gives several depths.
    pub fn resolve(&self, drafters: &[&str]) -> Vec<Speculate> {
        let all;
        let listed = match self {
            SpeculationModes::Listed(listed) => listed,
            SpeculationModes::All => {
                let any = |drafter: &&str| Speculate::Fixed { drafter: (*drafter).into(), depth: None };
                all = drafters.iter().map(any).chain([Speculate::Auto]).collect::<Vec<_>>();
                &all
            }
        };
        let mut modes = vec![Speculate::Off];
        for mode in listed {
            match mode {
                Speculate::Fixed { drafter, depth: None } => modes.extend(
                    depths(drafter)
                        .iter()
                        .map(|depth| Speculate::Fixed { drafter: drafter.clone(), depth: Some(*depth) }),
                ),
                mode => modes.push(mode.clone()),
            }
        }
        let mut unique: Vec<Speculate> = vec![];
        for mode in modes {
            if !unique.contains(&mode) {
                unique.push(mode);
            }
        }
        unique
    }
}

/// Draft lengths that show most about a drafter.
fn depths(drafter: &str) -> &'static [usize] {
    match drafter {
        // Drafts cost nothing, and many of their tokens are right or none. With the known token
        // these depths fill one or two tiles of a matrix product.
        "ngram" => &[3, 7, 15],
        "mtp" => &[1, 2, 3, 5],
        // The cost is the same at any depth.
        "block" => &[2, 4, 7],
        // With the known token: steps of 2, 4 and 8 tokens, which loading measures.
        "scripted" => &[1, 3, 7],
        _ => &[2, 4, 8],
    }
}

/// Rows of a case, one per mode; the first is plain decoding. `rounds` are by round, then by mode.
pub(crate) fn rows(
    case: &Case,
    modes: &[Speculate],
    rounds: &[Vec<Round>],
    load: &StepTimes,
) -> Vec<ComparisonRow> {
    let of = |mode: usize| rounds.iter().map(|round| round[mode].clone()).collect::<Vec<Round>>();
    let plain = of(0);
    let rows = modes.iter().enumerate();
    rows.filter_map(|(i, mode)| ComparisonRow::of(case, mode, &plain, &of(i), load)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolve_puts_plain_decoding_first_and_removes_duplicates() {
        let check = |modes: SpeculationModes, expected: &[&str]| {
            let found: Vec<String> =
                modes.resolve(&["ngram", "mtp"]).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected);
        };
        let all = ["off", "ngram:3", "ngram:7", "ngram:15", "mtp:1", "mtp:2", "mtp:3", "mtp:5", "auto"];
        check(SpeculationModes::All, &all);
        let listed = |text: &str| {
            SpeculationModes::Listed(text.split(',').map(|mode| mode.parse().unwrap()).collect())
        };
        check(listed("auto"), &["off", "auto"]);
        check(listed("off,mtp:3,mtp:4,mtp:3"), &["off", "mtp:3", "mtp:4"]);
        check(listed("block"), &["off", "block:2", "block:4", "block:7"]);
    }
}
