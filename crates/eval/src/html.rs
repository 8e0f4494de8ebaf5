//! A report, or two beside each other, as one HTML page with charts drawn in SVG. It loads nothing.

use crate::{
    Case, Report, Spread,
    compare::{differences, ratio},
    table::{HEADER, facts, failures, number, row},
};

const WIDTH: f64 = 860.0;
/// Left end of the bars, and length of the longest.
const LEFT: f64 = 300.0;
const LONGEST: f64 = 420.0;
const BAR: f64 = 14.0;
const GAP: f64 = 8.0;
/// Height of a chart's title.
const TITLE: f64 = 30.0;

const STYLE: &str = ":root{color-scheme:light dark;--text:#1f2328;--page:#fff;--line:#d0d7de}\
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--page:#0d1117;--line:#30363d}}\
body{font:14px system-ui,sans-serif;margin:24px auto;max-width:1100px;color:var(--text);background:var(--page)}\
table{border-collapse:collapse;margin:16px 0}th,td{text-align:right;padding:3px 9px;border-bottom:1px solid var(--line)}\
th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto;display:block;margin:16px 0}\
svg text{font:12px system-ui,sans-serif;fill:var(--text)}svg .title{font-weight:600;font-size:14px}\
.name{text-anchor:end}.a{fill:#3b78d8}.b{fill:#c8691c}.spread{stroke:var(--text)}pre{white-space:pre-wrap}";

/// A figure of a case that a chart shows.
type Figure = fn(&Case) -> Option<Spread>;

const CHARTS: [(&str, Figure); 4] = [
    ("Time to first token (s), less is better", Case::ttft),
    ("Decode speed (tokens per second), more is better", Case::decode),
    ("Share of the rubric that is met, more is better", Case::score),
    ("Judge's points, 0 to 10", Case::judged),
];

/// The page. One report, or two that are compared, each with its name.
pub fn page(reports: &[(&str, &Report)]) -> String {
    let title = match reports {
        [(_, one)] => format!("lanner eval: {}", one.server.model),
        _ => "lanner eval: two reports compared".to_owned(),
    };
    let charts: String = CHARTS.iter().map(|(title, figure)| chart(title, *figure, reports)).collect();
    let sections: String =
        reports.iter().zip(["a", "b"]).map(|(report, class)| section(report, class)).collect();
    let notes: String = match reports {
        [(_, a), (_, b)] => {
            let notes = differences(a, b).into_iter().map(|note| format!("<p>Note: {}</p>\n", escape(&note)));
            notes.chain([ratios(a, b)]).collect()
        }
        _ => String::new(),
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n<p>Bars are medians; a line marks the slowest and the fastest run. TTFT \
         is the time from sending a request to its first content, reasoning or tool-call token. Decode speed is by \
         the tokens after the first, and the time from the first to the last.</p>\n{notes}{charts}{sections}</body>\n\
         </html>\n",
        title = escape(&title)
    )
}

/// Facts, table, failures and answers of one report.
fn section((name, report): &(&str, &Report), class: &str) -> String {
    let facts = facts(report).map(|(name, value)| format!("<li>{name}: {}</li>\n", escape(&value))).concat();
    let cells = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let header = cells("th", &HEADER.map(str::to_owned));
    let rows: String = report.cases.iter().map(|case| cells("td", &row(case))).collect();
    let failures: String =
        failures(report).iter().map(|failure| format!("<li>{}</li>\n", escape(failure))).collect();
    let answers: String = report.cases.iter().map(answers).collect();
    format!(
        "<h2><svg width=\"12\" height=\"12\" style=\"display:inline\"><rect class=\"{class}\" width=\"12\" \
         height=\"12\"/></svg> {}</h2>\n<ul>\n{facts}</ul>\n<table>\n<thead>\n{header}</thead>\n<tbody>\n{rows}</tbody>\n\
         </table>\n<h3>Not passed</h3>\n<ul>\n{failures}</ul>\n<h3>Answers</h3>\n{answers}",
        escape(name)
    )
}

fn answers(case: &Case) -> String {
    let one = |run: &crate::Run| {
        let text = run.error.as_deref().unwrap_or(&run.answer);
        format!("<pre>{}</pre>\n", escape(text))
    };
    let runs: String = case.runs.iter().map(one).collect();
    format!("<details><summary>{}: {}</summary>\n{runs}</details>\n", escape(&case.test), escape(&case.name))
}

/// The ratios of the medians of two reports.
fn ratios(a: &Report, b: &Report) -> String {
    let row = |one: &Case| {
        let other = b.case(&one.test, &one.name)?;
        let cell = |figure: Figure| ratio(figure(one), figure(other)).map_or("-".into(), number);
        let name = escape(&format!("{}: {}", one.test, one.name));
        Some(format!(
            "<tr><td>{name}</td><td>{}</td><td>{}</td></tr>\n",
            cell(Case::ttft),
            cell(Case::decode)
        ))
    };
    let rows: String = a.cases.iter().filter_map(row).collect();
    format!(
        "<table>\n<thead><tr><th>second by first</th><th>TTFT</th><th>decode</th></tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table>\n"
    )
}

/// A chart of one figure: a group of bars for each case that has it in any report.
fn chart(title: &str, figure: Figure, reports: &[(&str, &Report)]) -> String {
    let mut names: Vec<(&str, &str)> = vec![];
    for case in reports.iter().flat_map(|(_, report)| &report.cases) {
        let name = (case.test.as_str(), case.name.as_str());
        if figure(case).is_some() && !names.contains(&name) {
            names.push(name);
        }
    }
    let of = |report: &Report, (test, name): (&str, &str)| report.case(test, name).and_then(figure);
    let all = names.iter().flat_map(|name| reports.iter().filter_map(|(_, report)| of(report, *name)));
    let longest = all.map(|spread| spread.max).fold(0.0, f64::max);
    if names.is_empty() || longest <= 0.0 {
        return String::new();
    }
    let (mut bars, mut top) = (String::new(), TITLE);
    for name in names {
        bars += &label(name, top, reports.len());
        for ((_, report), class) in reports.iter().zip(["a", "b"]) {
            bars += &of(report, name).map_or(String::new(), |spread| bar(class, top, spread, longest));
            top += BAR;
        }
        top += GAP;
    }
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {top}\" width=\"{WIDTH}\" height=\"{top}\" role=\"img\">\n<title>{0}</title>\n\
         <text class=\"title\" x=\"0\" y=\"18\">{0}</text>\n{bars}</svg>\n",
        escape(title)
    )
}

fn label((test, name): (&str, &str), top: f64, bars: usize) -> String {
    let y = top + BAR * bars as f64 / 2.0 + 4.0;
    let text = escape(&format!("{test}: {name}"));
    format!("<text class=\"name\" x=\"{}\" y=\"{y:.1}\">{text}</text>\n", LEFT - 10.0)
}

fn bar(class: &str, top: f64, spread: Spread, longest: f64) -> String {
    let length = |value: f64| value / longest * LONGEST;
    let (from, to, middle) = (LEFT + length(spread.min), LEFT + length(spread.max), top + BAR / 2.0 - 1.0);
    format!(
        "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{top}\" width=\"{:.1}\" height=\"{}\"/>\n\
         <line class=\"spread\" x1=\"{from:.1}\" y1=\"{middle}\" x2=\"{to:.1}\" y2=\"{middle}\"/>\n\
         <text x=\"{:.1}\" y=\"{}\">{}</text>\n",
        length(spread.median),
        BAR - 2.0,
        to + 8.0,
        top + BAR - 3.0,
        number(spread.median)
    )
}

fn escape(text: &str) -> String {
    // Answers and names are not ours: they may hold anything.
    let visible = text.chars().filter(|c| !c.is_control() || *c == '\n');
    visible.fold(String::new(), |escaped, c| match c {
        '&' => escaped + "&amp;",
        '<' => escaped + "&lt;",
        '>' => escaped + "&gt;",
        '"' => escaped + "&quot;",
        c => escaped + c.encode_utf8(&mut [0; 4]),
    })
}
