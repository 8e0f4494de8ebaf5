//! A report as an SVG or HTML picture: bars of prefill and decode speed, for light and dark
//! backgrounds.

use super::{report::number, statistics::Spread};

const WIDTH: usize = 760;
const MARGIN: usize = 24;
/// Left end of the bars, and length of the longest.
const LEFT: usize = 210;
const LONGEST: f64 = 430.0;
const ROW: usize = 24;
/// Height of the heading, and of a panel's title.
const HEADING: usize = 76;
const TITLE: usize = 40;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.page{fill:#fff}.title{font-weight:600}\
.name{text-anchor:end}.note{fill:#57606a}.prefill{fill:#3b78d8}.decode{fill:#c8691c}.spread{stroke:#1f2328}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.note{fill:#9aa4af}.spread{stroke:#e6edf3}}";

/// Panels of bars, and the table that a page shows above them.
pub(crate) struct Picture {
    /// The model and the machine.
    pub heading: [String; 2],
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub panels: Vec<Panel>,
}

pub(crate) struct Panel {
    /// CSS class, for the colour.
    pub class: &'static str,
    pub title: &'static str,
    /// `None`: not measured.
    pub bars: Vec<(String, Option<Spread>)>,
}

impl Panel {
    fn height(&self) -> usize {
        TITLE + ROW * self.bars.len()
    }
}

/// Panels of horizontal bars; a line marks the slowest and the fastest repeat.
pub(crate) fn svg(picture: &Picture) -> String {
    let mut top = HEADING;
    let mut panels = String::new();
    for panel in &picture.panels {
        panels += &bars(panel, top);
        top += panel.height();
    }
    let height = top + MARGIN;
    let [model, machine] = picture.heading.each_ref().map(|line| escape(line));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<title>{model}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"34\">{model}</text>\n\
         <text class=\"note\" x=\"{MARGIN}\" y=\"56\">{machine}</text>\n{panels}</svg>\n"
    )
}

/// One self-contained page with the table and the picture.
pub(crate) fn html(picture: &Picture) -> String {
    let [model, machine] = picture.heading.each_ref().map(|line| escape(line));
    let row = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = picture.rows.iter().map(|cells| row("td", cells)).collect();
    let header = row("th", &picture.columns);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{model}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font:14px system-ui,sans-serif;margin:24px}}\
         table{{border-collapse:collapse;margin:16px 0}}th,td{{text-align:right;padding:3px 9px}}\
         th{{border-bottom:1px solid}}svg{{max-width:100%;height:auto}}</style>\n</head>\n<body>\n<h1>{model}</h1>\n\
         <p>{machine}. Times are in milliseconds, memory in megabytes.</p>\n<table>\n<thead>\n{header}</thead>\n\
         <tbody>\n{rows}</tbody>\n</table>\n{}</body>\n</html>\n",
        svg(picture)
    )
}

fn bars(panel: &Panel, top: usize) -> String {
    let Panel { class, title, bars } = panel;
    let spreads = bars.iter().filter_map(|(_, spread)| *spread);
    let longest = spreads.map(|spread| spread.max).fold(0.0, f64::max);
    let row = |(i, (name, spread)): (usize, &(String, Option<Spread>))| {
        let y = top + TITLE + ROW * i;
        let name =
            format!("<text class=\"name\" x=\"{}\" y=\"{}\">{}</text>\n", LEFT - 10, y + 13, escape(name));
        match spread {
            Some(spread) => name + &bar(class, y, *spread, longest),
            None => {
                name + &format!("<text class=\"note\" x=\"{LEFT}\" y=\"{}\">not measured</text>\n", y + 13)
            }
        }
    };
    let rows: String = bars.iter().enumerate().map(row).collect();
    format!("<text class=\"title\" x=\"{MARGIN}\" y=\"{}\">{title}</text>\n{rows}", top + 24)
}

fn bar(class: &str, y: usize, spread: Spread, longest: f64) -> String {
    let x = |speed: f64| LEFT as f64 + speed / longest * LONGEST;
    let (from, to, middle) = (x(spread.min), x(spread.max), y + 8);
    format!(
        "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"16\" rx=\"2\"/>\n\
         <line class=\"spread\" x1=\"{from:.1}\" y1=\"{middle}\" x2=\"{to:.1}\" y2=\"{middle}\"/>\n\
         <text x=\"{:.1}\" y=\"{}\">{}</text>\n",
        x(spread.median) - LEFT as f64,
        to + 8.0,
        y + 13,
        number(Some(spread.median))
    )
}

fn escape(text: &str) -> String {
    // Names of folders may hold any character.
    let visible = text.chars().filter(|c| !c.is_control());
    visible.fold(String::new(), |escaped, c| match c {
        '&' => escaped + "&amp;",
        '<' => escaped + "&lt;",
        '>' => escaped + "&gt;",
        '"' => escaped + "&quot;",
        c => escaped + c.encode_utf8(&mut [0; 4]),
    })
}
