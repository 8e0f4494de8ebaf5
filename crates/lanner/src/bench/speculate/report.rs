//! The report of a comparison: speeds relative to plain decoding in the same rounds, and whether
//! answers differ.

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

pub(crate) struct Comparison {
    pub machine: Machine,
    pub model: ModelReport,
    pub rows: Vec<ComparisonRow>,
}

/// All rounds of one mode on one case.
#[derive(Debug)]
pub(crate) struct ComparisonRow {
    pub class: String,
    pub sampled: bool,
    pub batch: usize,
    /// In the notation of --speculate; `off` is plain decoding.
    pub mode: String,
    pub repeats: usize,
    /// Tokens per second, and seconds.
    pub decode: Spread,
    pub ttft: Spread,
    /// Summed over all rounds.
    pub drafted: usize,
    pub accepted: usize,
    /// Mean tokens of a request per step.
    pub tokens_per_step: f64,
    /// Speed divided by that of plain decoding, by round.
    pub ratio: Spread,
    /// `ratio` predicted from step times, those of the same rounds and those measured at load;
    /// `None` except for one request with drafts of a fixed length.
    pub predicted: Option<f64>,
    pub predicted_at_load: Option<f64>,
    /// The first token that differs from plain decoding.
    pub difference: Option<Difference>,
    /// Whether the mode may change answers.
    pub lossy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Both are counted from 0.
    pub prompt: usize,
    pub position: usize,
}

impl ComparisonRow {
    /// From the rounds of this mode and of plain decoding; `None`: no rounds.
    pub(crate) fn of(
        case: &Case,
        mode: &Speculate,
        plain: &[Round],
        own: &[Round],
        load: &StepTimes,
    ) -> Option<ComparisonRow> {
        let sum = |of: fn(&Round) -> usize| own.iter().map(of).sum::<usize>();
        let (tokens, accepted) = (sum(|round| round.tokens), sum(|round| round.accepted));
        // A step gives the accepted tokens of the draft and one more.
        let tokens_per_step = tokens as f64 / (tokens - accepted.min(tokens)).max(1) as f64;
        let ratios = plain.iter().zip(own).map(|(plain, own)| own.speed() / plain.speed());
        let both = plain.iter().zip(own);
        let scripted = match mode {
            Speculate::Fixed { drafter, depth: Some(depth) } if drafter == "scripted" && case.batch == 1 => {
                Some((drafter, *depth))
            }
            _ => None,
        };
        let predict = |times: &StepTimes| {
            scripted.and_then(|(drafter, depth)| predicted(times, drafter, depth, tokens_per_step))
        };
        Some(ComparisonRow {
            class: case.class.clone(),
            sampled: case.sampling.temperature > 0.0,
            batch: case.batch,
            mode: mode.to_string(),
            repeats: own.len(),
            decode: Spread::of(own.iter().map(Round::speed))?,
            ttft: Spread::of(own.iter().flat_map(|round| round.ttft.iter().copied()))?,
            drafted: sum(|round| round.drafted),
            accepted,
            tokens_per_step,
            ratio: Spread::of(ratios.filter(|ratio| ratio.is_finite()))?,
            predicted: Spread::of(own.iter().filter_map(|round| predict(&round.times)))
                .map(|ratio| ratio.median),
            predicted_at_load: predict(load),
            lossy: *mode == Speculate::Lossy,
            difference: both
                .filter_map(|(plain, own)| difference(&plain.answers, &own.answers))
                .min_by_key(|difference| (difference.prompt, difference.position)),
        })
    }

    /// A difference in a mode that must not change answers.
    fn error(&self) -> Option<Difference> {
        self.difference.filter(|_| !self.lossy)
    }

    /// The case and the mode.
    pub(crate) fn label(&self) -> String {
        let ComparisonRow { class, batch, mode, .. } = self;
        let sampling = if self.sampled { ", seeded" } else { "" };
        let times = if *batch == 1 { String::new() } else { format!("{batch} × ") };
        format!("{times}{class}{sampling}: {mode}")
    }

    fn json(&self) -> Value {
        json!({
            "prompts": self.class,
            "sampling": sampling(self.sampled),
            "batch": self.batch,
            "speculation": self.mode,
            "repeats": self.repeats,
            "decode_tok_s": self.decode.json(),
            "ttft_s": self.ttft.json(),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tokens_per_step": self.tokens_per_step,
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
            self.mode.clone(),
            number(Some(self.decode.median)),
            number(Some(self.ttft.median * 1e3)),
            self.drafted.to_string(),
            self.accepted.to_string(),
            number(Some(self.tokens_per_step)),
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

/// The first difference of the first answer that differs.
fn difference(plain: &[Vec<u32>], own: &[Vec<u32>]) -> Option<Difference> {
    let (prompt, (plain, own)) = plain.iter().zip(own).enumerate().find(|(_, (plain, own))| plain != own)?;
    let position = plain.iter().zip(own).take_while(|(a, b)| a == b).count();
    Some(Difference { prompt, position })
}

/// The predicted ratio of one request that gets `tokens_per_step`, if every step has a draft of
/// `depth` tokens; `None` if no such step was measured.
fn predicted(times: &StepTimes, drafter: &str, depth: usize, tokens_per_step: f64) -> Option<f64> {
    let ms_of = |times: &[(usize, f64)], tokens| times.iter().find(|(n, _)| *n == tokens).map(|(_, ms)| *ms);
    let plain = ms_of(&times.plain, 1).or_else(|| ms_of(&times.steps, 1))?;
    let each = times.drafters.iter().find(|(name, _)| *name == drafter).map_or(0.0, |(_, ms)| *ms);
    Some(tokens_per_step * plain / (ms_of(&times.steps, 1 + depth)? + each * depth as f64))
}

/// Times are in milliseconds.
pub(super) const COLUMNS: [&str; 14] = [
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
    pub(crate) fn json(&self) -> Value {
        let mut report = about(&self.machine, &self.model);
        report["speculation"] = self.rows.iter().map(ComparisonRow::json).collect();
        report
    }

    fn cells(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(|row| row.cells().to_vec()).collect()
    }

    pub(crate) fn text(&self) -> String {
        let [model, machine] = heading(&self.machine, &self.model);
        let rows: Vec<[String; COLUMNS.len()]> = std::iter::once(COLUMNS.map(str::to_owned))
            .chain(self.rows.iter().map(ComparisonRow::cells))
            .collect();
        format!("{model}\n{machine}\n\n{}", table(&rows))
    }

    pub(crate) fn picture(&self) -> Picture {
        let bars = |of: fn(&ComparisonRow) -> Spread| {
            self.rows.iter().map(|row| (row.label(), Some(of(row)))).collect::<Vec<_>>()
        };
        Picture {
            heading: heading(&self.machine, &self.model),
            columns: COLUMNS.map(str::to_owned).to_vec(),
            rows: self.cells(),
            panels: vec![
                Panel { class: "decode", title: "Decode, tokens per second", bars: bars(|row| row.decode) },
                Panel { class: "prefill", title: "Relative to plain decoding", bars: bars(|row| row.ratio) },
            ],
        }
    }

    /// Modes whose answers differ from plain decoding although they must not, with the first
    /// difference.
    pub(crate) fn differences(&self) -> Vec<(String, Difference)> {
        self.rows.iter().filter_map(|row| Some((row.label(), row.error()?))).collect()
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

    /// A round of `tokens` after the first in `seconds`, `accepted` of them from drafts.
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

    fn mode(text: &str) -> Speculate {
        text.parse().unwrap()
    }

    #[test]
    fn comparison_row_summarises_its_rounds() {
        let plain = [round(40, 2.0, 0, &[5, 6]), round(40, 4.0, 0, &[5, 6]), round(40, 1.0, 0, &[5, 6])];
        let own = [round(40, 1.0, 20, &[5, 6]), round(40, 1.0, 20, &[5, 6]), round(40, 1.0, 20, &[5, 6])];
        let load = StepTimes { steps: vec![(1, 1.0), (4, 4.0)], ..StepTimes::default() };
        let row = ComparisonRow::of(&case(1), &mode("scripted:3"), &plain, &own, &load).unwrap();
        assert_eq!(
            (row.drafted, row.accepted, row.tokens_per_step),
            (120, 60, 2.0),
            "half of the tokens came from drafts"
        );
        assert_eq!(
            row.ratio,
            Spread { median: 2.0, min: 1.0, max: 4.0 },
            "each round beside its own plain one"
        );
        assert_eq!(row.decode.median, 40.0);
        assert!((row.predicted.unwrap() - 2.0 * 1.0 / 2.3).abs() < 1e-9, "{:?}", row.predicted);
        assert_eq!(row.predicted_at_load, Some(0.5));
        assert_eq!(row.difference, None);
        let many = ComparisonRow::of(&case(8), &mode("scripted:3"), &plain, &own, &load).unwrap();
        assert_eq!((many.predicted, many.label()), (None, "8 × prose: scripted:3".into()));
        let unknown = ComparisonRow::of(&case(1), &mode("scripted:5"), &plain, &own, &load).unwrap();
        assert_eq!(unknown.predicted, None, "no step of six tokens was measured");
        assert!(ComparisonRow::of(&case(1), &mode("off"), &[], &[], &load).is_none());
    }

    #[test]
    fn difference_is_the_first_token_that_differs() {
        let check = |answer: &[u32], expected: Option<(usize, usize)>| {
            let (plain, own) = ([round(8, 1.0, 0, &[5, 6])], [round(8, 1.0, 0, answer)]);
            let row =
                ComparisonRow::of(&case(1), &mode("auto"), &plain, &own, &StepTimes::default()).unwrap();
            assert_eq!(row.difference.map(|at| (at.prompt, at.position)), expected);
            assert_eq!(row.error(), row.difference);
            let lossy = ComparisonRow::of(&case(1), &mode("self:lossy"), &plain, &own, &StepTimes::default())
                .unwrap();
            assert_eq!(
                (lossy.difference, lossy.error()),
                (row.difference, None),
                "a lossy mode may change answers"
            );
            assert_eq!(lossy.cells()[13] == "lossy", expected.is_some());
            let identical = row.json()["identical"].as_bool().unwrap();
            assert_eq!((identical, row.cells()[13] == "yes"), (expected.is_none(), expected.is_none()));
        };
        check(&[5, 6], None);
        check(&[5, 7], Some((1, 1)));
        check(&[5], Some((1, 1)));
        check(&[5, 6, 7], Some((1, 2)));
        check(&[], Some((1, 0)));
    }
}
