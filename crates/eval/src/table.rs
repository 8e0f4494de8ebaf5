//! A report as text: one line for each case, then what failed.

use crate::{Case, Report, Spread};

/// Columns of the table.
pub(crate) const HEADER: [&str; 8] =
    ["case", "TTFT (s)", "total (s)", "decode (tok/s)", "prompt", "generated", "passed", "score"];

/// The report for a terminal.
pub fn summary(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report.cases.iter().map(row).collect();
    let header = HEADER.map(str::to_owned).to_vec();
    let mut text = heading(report);
    text += &aligned(&[vec![header], rows].concat());
    let failures = failures(report);
    if !failures.is_empty() {
        text += "\nNot passed:\n";
        text.extend(failures.iter().map(|failure| format!("  {failure}\n")));
    }
    text
}

fn heading(report: &Report) -> String {
    let facts = facts(report).map(|(name, value)| format!("{name}: {value}\n")).concat();
    format!("{facts}\nMedian [minimum to maximum] of {} rounds.\n\n", report.settings.repeats)
}

/// What it ran on, by name.
pub(crate) fn facts(report: &Report) -> [(&'static str, String); 4] {
    let (server, origin, settings) = (&report.server, &report.origin, &report.settings);
    let known = [&server.version, &server.server_header, &server.system_fingerprint];
    let mut known: Vec<&str> = known.into_iter().flatten().map(String::as_str).collect();
    known.dedup();
    let version = if known.is_empty() { "version unknown".into() } else { known.join(", ") };
    let machine = &origin.machine;
    let load = |value: Option<f64>| value.map_or("unknown".into(), |load| format!("{load:.1}"));
    let judge = settings.judge.as_deref().map_or(String::new(), |judge| format!("; judged by {judge}"));
    [
        ("server", format!("{} at {} ({version})", server.model, server.url)),
        (
            "client",
            format!(
                "{}, {} cores, {}; load {} before, {} after",
                machine.cpu.as_deref().unwrap_or("unknown processor"),
                machine.cores,
                machine.system,
                load(machine.load_before),
                load(machine.load_after)
            ),
        ),
        ("made by", format!("lanner {} eval, {}", origin.lanner, origin.date)),
        (
            "settings",
            format!(
                "{}; long texts of {} tokens; code of answers {}{judge}",
                settings.tests.join(", "),
                settings.long_tokens,
                if settings.run_code { "executed" } else { "not executed" }
            ),
        ),
    ]
}

/// A case's cells, for [`HEADER`].
pub(crate) fn row(case: &Case) -> Vec<String> {
    let last = case.timings().last();
    let tokens = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
    let passed = case.passes().map(|[passed, failed, not_run]| match not_run {
        0 => format!("{passed} of {}", passed + failed),
        // What was not checked is not passed, and not failed either.
        not_run => format!("{passed} of {}, {not_run} not run", passed + failed + not_run),
    });
    let generated = Spread::of(case.timings().map(|timing| timing.completion_tokens as f64));
    vec![
        format!("{}: {}", case.test, case.name),
        spread(case.ttft()),
        spread(case.total()),
        spread(case.decode()),
        tokens(last.and_then(|timing| timing.prompt_tokens)),
        generated.map_or("-".into(), |spread| number(spread.median)),
        passed.unwrap_or_else(|| "-".into()),
        score(case),
    ]
}

fn score(case: &Case) -> String {
    let score = case.score().map_or("-".into(), |score| format!("{:.0} %", score.median * 100.0));
    match case.judged() {
        Some(judged) => format!("{score}, judge {}", number(judged.median)),
        None => score,
    }
}

/// Every distinct reason for which runs have no answer or did not pass.
pub(crate) fn failures(report: &Report) -> Vec<String> {
    let mut failures: Vec<String> = vec![];
    for case in &report.cases {
        let name = format!("{}: {}", case.test, case.name);
        for run in &case.runs {
            let verdict = run.verdict.iter();
            let missing = verdict.clone().flat_map(|verdict| &verdict.missing).cloned();
            let not_run = verdict.flat_map(|verdict| &verdict.not_run).map(|text| format!("not run: {text}"));
            let judge = run.judge_error.as_ref().map(|text| format!("the judge: {text}"));
            for text in run.error.iter().cloned().chain(missing).chain(not_run).chain(judge) {
                let line = format!("{name}: {text}");
                if !failures.contains(&line) {
                    failures.push(line);
                }
            }
        }
    }
    failures
}

/// Median, with minimum and maximum if they differ.
pub(crate) fn spread(spread: Option<Spread>) -> String {
    match spread {
        None => "-".into(),
        Some(Spread { median, min, max }) if min == max => number(median),
        Some(Spread { median, min, max }) => {
            format!("{} [{} to {}]", number(median), number(min), number(max))
        }
    }
}

/// Three significant digits, but whole numbers in full.
pub(crate) fn number(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.places$}")
}

/// Columns padded to their widest cell; all but the first are aligned to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(column, cell): (usize, &String)| match column {
            0 => format!("{cell:<0$}", widths[column]),
            _ => format!("  {cell:>0$}", widths[column]),
        };
        let line: String = row.iter().enumerate().map(cell).collect();
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let check = |value: f64, expected: &str| assert_eq!(number(value), expected);
        check(1234.6, "1235");
        check(512.0, "512");
        check(42.25, "42.2");
        check(4.256, "4.26");
        check(0.1256, "0.126");
        check(0.01256, "0.0126");
    }

    #[test]
    fn spread_shows_its_range_only_if_there_is_one() {
        assert_eq!(spread(None), "-");
        assert_eq!(spread(Spread::of([2.0])), "2");
        assert_eq!(spread(Spread::of([1.0, 2.5, 3.0])), "2.50 [1 to 3]");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "bb"], ["ccc", "d"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), "a    bb\nccc   d\n");
    }
}
