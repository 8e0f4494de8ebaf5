//! Two reports side by side.

use crate::{
    Case, Report, Spread,
    table::{aligned, facts, number, spread},
};

/// Both reports' cases with the ratio of the second to the first, as text. Differences in what was
/// run come first, because such figures do not compare.
pub fn compare(reports: [(&str, &Report); 2]) -> String {
    let mut text = String::new();
    for (label, (name, report)) in ["A", "B"].iter().zip(reports) {
        text += &format!("{label}: {name}\n");
        text.extend(facts(report).map(|(name, value)| format!("   {name}: {value}\n")));
    }
    let [a, b] = reports.map(|(_, report)| report);
    text.extend(differences(a, b).iter().map(|difference| format!("Note: {difference}\n")));
    text += "\nMedians [minimum to maximum]; B/A above 1 means more time, or more tokens per second.\n\n";
    text + &aligned(&rows(a, b))
}

/// Why figures of the reports may not compare.
pub(crate) fn differences(a: &Report, b: &Report) -> Vec<String> {
    let mut found = vec![];
    let mut note = |what: &str, a: &str, b: &str| {
        if a != b {
            found.push(format!("{what} differ: {a} and {b}"));
        }
    };
    note("tests", &a.settings.tests.join(" "), &b.settings.tests.join(" "));
    note("tokens of long texts", &a.settings.long_tokens.to_string(), &b.settings.long_tokens.to_string());
    note("permissions to execute code", &a.settings.run_code.to_string(), &b.settings.run_code.to_string());
    note("models", &a.server.model, &b.server.model);
    note("Lanner's versions", &a.origin.lanner, &b.origin.lanner);
    let machine = |report: &Report| {
        let machine = &report.origin.machine;
        format!("{}, {} cores", machine.cpu.as_deref().unwrap_or("unknown"), machine.cores)
    };
    note("machines", &machine(a), &machine(b));
    found
}

fn rows(a: &Report, b: &Report) -> Vec<Vec<String>> {
    let header = ["case", "figure", "A", "B", "B/A"].map(str::to_owned).to_vec();
    let mut rows = vec![header];
    for one in &a.cases {
        match b.case(&one.test, &one.name) {
            Some(other) => rows.extend(figures(one, other)),
            None => rows.push(only(one, "A")),
        }
    }
    rows.extend(
        b.cases.iter().filter(|one| a.case(&one.test, &one.name).is_none()).map(|one| only(one, "B")),
    );
    rows
}

fn title(case: &Case) -> String {
    format!("{}: {}", case.test, case.name)
}

fn only(case: &Case, report: &str) -> Vec<String> {
    let mut row = vec![title(case), format!("only in {report}")];
    row.resize(5, String::new());
    row
}

fn figures(a: &Case, b: &Case) -> Vec<Vec<String>> {
    let measured = [
        ("TTFT (s)", a.ttft(), b.ttft()),
        ("total (s)", a.total(), b.total()),
        ("decode (tok/s)", a.decode(), b.decode()),
    ];
    let mut rows: Vec<Vec<String>> = measured
        .into_iter()
        .map(|(figure, a, b)| {
            vec![String::new(), figure.into(), spread(a), spread(b), ratio(a, b).map_or("-".into(), number)]
        })
        .collect();
    let passes = |case: &Case| {
        let [passed, ..] = case.passes()?;
        let score = case.score().map_or("-".into(), |score| format!("{:.0} %", score.median * 100.0));
        Some(format!("{passed} of {}, {score}", case.runs.len()))
    };
    if a.passes().or(b.passes()).is_some() {
        let cell = |case| passes(case).unwrap_or_else(|| "-".into());
        rows.push(vec![String::new(), "passed".into(), cell(a), cell(b), String::new()]);
    }
    rows[0][0] = title(a);
    rows
}

pub(crate) fn ratio(a: Option<Spread>, b: Option<Spread>) -> Option<f64> {
    let (a, b) = (a?.median, b?.median);
    (a > 0.0).then_some(b / a)
}
