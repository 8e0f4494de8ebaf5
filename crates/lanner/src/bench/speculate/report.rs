//! What drafting changed, way by way: speeds beside those of plain decoding in the same rounds, and whether answers differ.

use engine::{Speculate, StepTimes};
use serde_json::{Value, json};

use super::measure::{Case, Round};
use crate::{
    bench::{
        chart::{Panel, Picture},
        machine::Machine,
        report::{ModelReport, about, heading, number},
        statistics::Spread,
    },
    terminal::table,
};

pub struct Comparison {
    pub machine: Machine,
    pub model: ModelReport,
    pub lines: Vec<ComparisonRow>,
}

/// All rounds of one way to decode one case.
#[derive(Debug)]
pub struct ComparisonRow {
    pub class: String,
    pub sampled: bool,
    pub batch: usize,
    /// As users write it; `off` is plain decoding.
    pub way: String,
    pub repeats: usize,
    /// Tokens per second, and seconds.
    pub decode: Spread,
    pub ttft: Spread,
    /// Of all rounds together.
    pub drafted: usize,
    pub accepted: usize,
    /// Tokens that a request gets from a step it takes part in, on average.
    pub kept: f64,
    /// Speed by that of plain decoding, round by round.
    pub ratio: Spread,
    /// What `ratio` should be by what steps took in the same rounds, and by what they took when the model was loaded; `None`
    /// but for one request with drafts of a fixed length.
    pub predicted: Option<f64>,
    pub predicted_at_load: Option<f64>,
    /// The first token that is not the one of plain decoding.
    pub difference: Option<Difference>,
    /// Whether that may be.
    pub lossy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Counted from 0, as is the position in the answer.
    pub prompt: usize,
    pub position: usize,
}

impl ComparisonRow {
    /// From the rounds of this way and those of plain decoding; `None` if there was nothing to decode.
    pub fn of(
        case: &Case,
        way: &Speculate,
        plain: &[Round],
        own: &[Round],
        load: &StepTimes,
    ) -> Option<ComparisonRow> {
        let sum = |of: fn(&Round) -> usize| own.iter().map(of).sum::<usize>();
        let (tokens, accepted) = (sum(|round| round.tokens), sum(|round| round.accepted));
        // A step brings the token behind the draft beside those of the draft that are right.
        let kept = tokens as f64 / (tokens - accepted.min(tokens)).max(1) as f64;
        let ratios = plain.iter().zip(own).map(|(plain, own)| own.speed() / plain.speed());
        let both = plain.iter().zip(own);
        let scripted = match way {
            Speculate::Fixed { drafter, depth: Some(depth) } if drafter == "scripted" && case.batch == 1 => {
                Some((drafter, *depth))
            }
            _ => None,
        };
        let predict =
            |times: &StepTimes| scripted.and_then(|(drafter, depth)| predicted(times, drafter, depth, kept));
        Some(ComparisonRow {
            class: case.class.clone(),
            sampled: case.sampling.temperature > 0.0,
            batch: case.batch,
            way: way.to_string(),
            repeats: own.len(),
            decode: Spread::of(own.iter().map(Round::speed))?,
            ttft: Spread::of(own.iter().flat_map(|round| round.ttft.iter().copied()))?,
            drafted: sum(|round| round.drafted),
            accepted,
            kept,
            ratio: Spread::of(ratios.filter(|ratio| ratio.is_finite()))?,
            predicted: Spread::of(own.iter().filter_map(|round| predict(&round.times))).map(|of| of.median),
            predicted_at_load: predict(load),
            lossy: *way == Speculate::Lossy,
            difference: both
                .filter_map(|(plain, own)| difference(&plain.answers, &own.answers))
                .min_by_key(|difference| (difference.prompt, difference.position)),
        })
    }

    /// A difference that there should not be.
    fn error(&self) -> Option<Difference> {
        self.difference.filter(|_| !self.lossy)
    }

    /// The case and the way, in few words.
    pub fn label(&self) -> String {
        let ComparisonRow { class, batch, way, .. } = self;
        let sampling = if self.sampled { ", seeded" } else { "" };
        let of = if *batch == 1 { String::new() } else { format!("{batch} × ") };
        format!("{of}{class}{sampling}: {way}")
    }

    fn json(&self) -> Value {
        json!({
            "prompts": self.class,
            "sampling": sampling(self.sampled),
            "batch": self.batch,
            "speculation": self.way,
            "repeats": self.repeats,
            "decode_tok_s": self.decode.json(),
            "ttft_s": self.ttft.json(),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tokens_per_step": self.kept,
            "ratio": self.ratio.json(),
            "predicted_ratio": self.predicted,
            "predicted_ratio_at_load": self.predicted_at_load,
            "identical": self.difference.is_none(),
            "difference": self.difference.map(|at| json!({ "prompt": at.prompt, "position": at.position })),
        })
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        [
            self.class.clone(),
            sampling(self.sampled).into(),
            self.batch.to_string(),
            self.way.clone(),
            number(Some(self.decode.median)),
            number(Some(self.ttft.median * 1e3)),
            self.drafted.to_string(),
            self.accepted.to_string(),
            number(Some(self.kept)),
            number(Some(self.ratio.median)),
            number(Some(self.ratio.min)),
            number(Some(self.ratio.max)),
            number(self.predicted),
            match self.difference {
                None => "yes",
                Some(_) if self.lossy => "lossy",
                Some(_) => "NO",
            }
            .into(),
        ]
    }
}

fn sampling(sampled: bool) -> &'static str {
    if sampled { "seeded" } else { "greedy" }
}

/// Where the first answer that is not the same stops being so.
fn difference(plain: &[Vec<u32>], own: &[Vec<u32>]) -> Option<Difference> {
    let (prompt, (plain, own)) = plain.iter().zip(own).enumerate().find(|(_, (plain, own))| plain != own)?;
    let position = plain.iter().zip(own).take_while(|(a, b)| a == b).count();
    Some(Difference { prompt, position })
}

/// How many times as fast as plain decoding one request is that gets `kept` tokens from each step, if every step has a draft
/// of `depth` tokens; `None` if no such step was measured.
fn predicted(times: &StepTimes, drafter: &str, depth: usize, kept: f64) -> Option<f64> {
    let of = |known: &[(usize, f64)], size| known.iter().find(|(of, _)| *of == size).map(|(_, ms)| *ms);
    let plain = of(&times.plain, 1).or_else(|| of(&times.steps, 1))?;
    let each = times.drafters.iter().find(|(name, _)| *name == drafter).map_or(0.0, |(_, ms)| *ms);
    Some(kept * plain / (of(&times.steps, 1 + depth)? + each * depth as f64))
}

/// Times are in milliseconds.
pub const COLUMNS: [&str; 14] = [
    "prompts",
    "sampling",
    "batch",
    "speculation",
    "decode tok/s",
    "TTFT",
    "drafted",
    "accepted",
    "per step",
    "ratio",
    "least",
    "most",
    "predicted",
    "identical",
];

impl Comparison {
    pub fn json(&self) -> Value {
        let mut report = about(&self.machine, &self.model);
        report["speculation"] = self.lines.iter().map(ComparisonRow::json).collect();
        report
    }

    fn rows(&self) -> Vec<Vec<String>> {
        self.lines.iter().map(|line| line.cells().to_vec()).collect()
    }

    pub fn text(&self) -> String {
        let [model, machine] = heading(&self.machine, &self.model);
        let rows: Vec<[String; COLUMNS.len()]> = std::iter::once(COLUMNS.map(str::to_owned))
            .chain(self.lines.iter().map(ComparisonRow::cells))
            .collect();
        format!("{model}\n{machine}\n\n{}", table(&rows))
    }

    pub fn picture(&self) -> Picture {
        let bars = |of: fn(&ComparisonRow) -> Spread| {
            self.lines.iter().map(|line| (line.label(), Some(of(line)))).collect::<Vec<_>>()
        };
        Picture {
            heading: heading(&self.machine, &self.model),
            columns: COLUMNS.map(str::to_owned).to_vec(),
            rows: self.rows(),
            panels: vec![
                Panel { class: "decode", title: "Decode, tokens per second", bars: bars(|line| line.decode) },
                Panel { class: "prefill", title: "Beside plain decoding", bars: bars(|line| line.ratio) },
            ],
        }
    }

    /// The ways whose answers are not those of plain decoding, with where that begins.
    pub fn differences(&self) -> Vec<(String, Difference)> {
        self.lines.iter().filter_map(|line| Some((line.label(), line.error()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(batch: usize) -> Case {
        Case {
            class: "prose".into(),
            prompts: vec![],
            sampling: engine::Sampling::default(),
            generate: 8,
            ignore_eos: false,
            batch,
        }
    }

    /// So many tokens behind the first in so many seconds, with so many of a draft accepted.
    fn round(tokens: usize, seconds: f64, accepted: usize, answer: &[u32]) -> Round {
        Round {
            ttft: vec![0.1],
            decoded: tokens,
            seconds,
            drafted: 2 * accepted,
            accepted,
            tokens,
            answers: vec![vec![1, 2], answer.to_vec()],
            times: StepTimes {
                steps: vec![(1, 1.2), (4, 2.0)],
                plain: vec![(1, 1.0)],
                drafters: vec![("scripted", 0.1)],
            },
        }
    }

    fn way(text: &str) -> Speculate {
        text.parse().unwrap()
    }

    #[test]
    fn figures_of_a_way_follow_from_its_rounds() {
        let plain = [round(40, 2.0, 0, &[5, 6]), round(40, 4.0, 0, &[5, 6]), round(40, 1.0, 0, &[5, 6])];
        let own = [round(40, 1.0, 20, &[5, 6]), round(40, 1.0, 20, &[5, 6]), round(40, 1.0, 20, &[5, 6])];
        let load = StepTimes { steps: vec![(1, 1.0), (4, 4.0)], ..StepTimes::default() };
        let line = ComparisonRow::of(&case(1), &way("scripted:3"), &plain, &own, &load).unwrap();
        assert_eq!(
            (line.drafted, line.accepted, line.kept),
            (120, 60, 2.0),
            "half of the tokens came from drafts"
        );
        assert_eq!(
            line.ratio,
            Spread { median: 2.0, min: 1.0, max: 4.0 },
            "each round beside its own plain one"
        );
        assert_eq!(line.decode.median, 40.0);
        assert!((line.predicted.unwrap() - 2.0 * 1.0 / 2.3).abs() < 1e-9, "{:?}", line.predicted);
        assert_eq!(line.predicted_at_load, Some(0.5));
        assert_eq!(line.difference, None);
        let many = ComparisonRow::of(&case(8), &way("scripted:3"), &plain, &own, &load).unwrap();
        assert_eq!((many.predicted, many.label()), (None, "8 × prose: scripted:3".into()));
        let unknown = ComparisonRow::of(&case(1), &way("scripted:5"), &plain, &own, &load).unwrap();
        assert_eq!(unknown.predicted, None, "no step of six tokens was measured");
        assert!(ComparisonRow::of(&case(1), &way("off"), &[], &[], &load).is_none());
    }

    #[test]
    fn the_first_other_token_is_named() {
        let check = |answer: &[u32], expected: Option<(usize, usize)>| {
            let (plain, own) = ([round(8, 1.0, 0, &[5, 6])], [round(8, 1.0, 0, answer)]);
            let line =
                ComparisonRow::of(&case(1), &way("auto"), &plain, &own, &StepTimes::default()).unwrap();
            assert_eq!(line.difference.map(|at| (at.prompt, at.position)), expected);
            assert_eq!(line.error(), line.difference);
            let lossy =
                ComparisonRow::of(&case(1), &way("self:lossy"), &plain, &own, &StepTimes::default()).unwrap();
            assert_eq!(
                (lossy.difference, lossy.error()),
                (line.difference, None),
                "nothing else was promised"
            );
            assert_eq!(lossy.cells()[13] == "lossy", expected.is_some());
            let identical = line.json()["identical"].as_bool().unwrap();
            assert_eq!((identical, line.cells()[13] == "yes"), (expected.is_none(), expected.is_none()));
        };
        check(&[5, 6], None);
        check(&[5, 7], Some((1, 1)));
        check(&[5], Some((1, 1)));
        check(&[5, 6, 7], Some((1, 2)));
        check(&[], Some((1, 0)));
    }
}
