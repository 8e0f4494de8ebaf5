//! Lengths of prose lines, functions and files.

use super::{
    Fault,
    source::{Kind, Source},
};

/// Maximum columns of a line of prose.
const WIDTH: usize = 100;
/// Maximum lines of a function without a comment `// Long: REASON` before it.
const FUNCTION: usize = 60;
const FILE: usize = 500;

pub(super) fn check(source: &Source) -> Vec<Fault> {
    let mut faults = wide_lines(source);
    if source.kind == Kind::Rust {
        faults.extend(long_functions(source));
        let lines = source.text.lines().count();
        if lines > FILE {
            faults.push(fault(
                source,
                0,
                "long-file",
                format!("{lines} lines; split it by noun, {FILE} at most"),
            ));
        }
    }
    faults
}

fn fault(source: &Source, line: usize, rule: &'static str, message: String) -> Fault {
    Fault { path: source.path.clone(), line, rule, message }
}

fn wide_lines(source: &Source) -> Vec<Fault> {
    let lines: Vec<&str> = source.text.lines().collect();
    let wide = |(line, _): &(usize, String)| {
        let text = lines.get(line - 1)?;
        let columns = text.chars().count();
        let free =
            columns <= WIDTH || text.contains("://") || text.contains("//! |") || text.contains("/// |");
        let message = || format!("{columns} columns; wrap prose at {WIDTH}");
        (!free).then(|| fault(source, *line, "wide-line", message()))
    };
    source.prose.iter().filter_map(wide).collect()
}

/// rustfmt indents a function's closing brace like its first line.
fn long_functions(source: &Source) -> Vec<Fault> {
    let code: Vec<&str> = source.code.lines().collect();
    let text: Vec<&str> = source.text.lines().collect();
    let mut faults = vec![];
    for (start, line) in code.iter().enumerate().filter(|(_, line)| is_function(line)) {
        let indent = line.len() - line.trim_start().len();
        let closes = |line: &&str| {
            line.len() - line.trim_start().len() == indent && line.trim_start().starts_with('}')
        };
        let Some(length) = code[start..].iter().position(closes) else { continue };
        // A declaration without a body ends before the next function begins.
        let declared = code[start..start + length]
            .iter()
            .take_while(|line| !line.contains('{'))
            .any(|line| line.trim_end().ends_with(';'));
        let attributes = text[..start].iter().rev().take_while(|line| is_heading(line));
        let excused = attributes.into_iter().any(|line| line.trim_start().starts_with("// Long: "));
        if length > FUNCTION && !declared && !excused {
            let message = format!("{length} lines; split it, or say why in a comment `// Long: REASON`");
            faults.push(fault(source, start + 1, "long-function", message));
        }
    }
    faults
}

fn is_heading(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("#[")
}

fn is_function(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| {
        matches!(*word, "pub" | "async" | "unsafe" | "const" | "extern") || word.starts_with("pub(")
    });
    words.next() == Some("fn")
}
