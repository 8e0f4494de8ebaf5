//! `xtask tidy`: rules on structure, length and wording that the compiler does not check. Reads
//! tracked files as text and never runs or changes them.

mod graph;
mod imports;
mod records;
mod shape;
mod source;
mod words;

use std::{collections::BTreeMap, fmt, fs, path::Path, process::Command};

use source::Source;

/// A violation of a rule, printed as `path:line: rule: message`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    pub path: String,
    /// Counted from 1; 0 if the fault concerns the whole file.
    pub line: usize,
    pub rule: &'static str,
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { path, line, rule, message } = self;
        write!(f, "{path}:{line}: {rule}: {message}")
    }
}

/// Every rule, in the order in which counts are printed.
const RULES: [&str; 9] = [
    "crate-order",
    "upward-import",
    "import-circle",
    "private-name",
    "private-word",
    "wide-line",
    "long-function",
    "long-file",
    "record",
];

/// Checks the tracked files below `root`, prints the faults of `only` (all rules if empty) and the
/// number of faults by rule.
///
/// # Errors
/// Files cannot be listed or read, or there are faults.
pub(crate) fn run(root: &Path, only: &str) -> Result<(), String> {
    if !only.is_empty() && !RULES.contains(&only) {
        return Err(format!("there is no rule `{only}`; the rules are {}", RULES.join(", ")));
    }
    let sources = tracked(root)?;
    let faults = check(&sources);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in &faults {
        *counts.entry(fault.rule).or_default() += 1;
        if only.is_empty() || only == fault.rule {
            println!("{fault}");
        }
    }
    let lines: usize = sources.iter().map(|source| source.text.lines().count()).sum();
    let counts: Vec<String> =
        RULES.iter().map(|rule| format!("{rule} {}", counts.get(rule).unwrap_or(&0))).collect();
    println!("tidy: {} files, {lines} lines; {}", sources.len(), counts.join(", "));
    if faults.is_empty() { Ok(()) } else { Err(format!("{} faults", faults.len())) }
}

/// All faults of `sources`, sorted by path and line.
fn check(sources: &[Source]) -> Vec<Fault> {
    let mut faults = imports::check(sources);
    for source in sources {
        faults.extend(words::check(source));
        faults.extend(shape::check(source));
        faults.extend(records::check(source));
    }
    faults.sort();
    faults
}

/// The text files that git tracks below `root`.
fn tracked(root: &Path) -> Result<Vec<Source>, String> {
    let git = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output();
    let git = git.map_err(|error| format!("git ls-files did not run: {error}"))?;
    if !git.status.success() {
        return Err(format!("{} is not a git checkout", root.display()));
    }
    let paths = String::from_utf8_lossy(&git.stdout).into_owned();
    let wanted = |path: &&str| !path.is_empty() && source::Kind::of(path).is_some();
    let read = |path: &str| {
        // A file that was deleted but not yet staged is skipped.
        let text = fs::read_to_string(root.join(path)).ok()?;
        Some(Source::new(path, &text))
    };
    Ok(paths.split('\0').filter(wanted).filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules that `files` break, with path and line.
    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        check(&sources).iter().map(|fault| format!("{}:{} {}", fault.path, fault.line, fault.rule)).collect()
    }

    #[test]
    fn clean_files_have_no_faults() {
        let files = [
            ("crates/engine/src/api/request.rs", "//! A request.\npub struct Request;\n"),
            (
                "crates/engine/src/engine_loop/step.rs",
                "use crate::api::request::Request;\nfn step(_: Request) {}\n",
            ),
            ("docs/adr/0001-a.md", "# 1. A\n\nStatus: accepted, 2026-11-20\n\nText.\n"),
        ];
        assert_eq!(faults(&files), Vec::<String>::new());
    }

    #[test]
    fn import_of_a_higher_floor_is_a_fault() {
        let files = [
            (
                "crates/engine/src/api/request.rs",
                "use crate::engine_loop::step::Step;\nuse crate::cache::Kv;\n",
            ),
            ("crates/engine/src/engine_loop/mod.rs", "pub mod step;\n"),
            ("crates/engine/src/engine_loop/step.rs", "pub struct Step;\n"),
            ("crates/engine/src/cache/mod.rs", "pub struct Kv;\n"),
        ];
        let expected = ["crates/engine/src/api/request.rs:1", "crates/engine/src/api/request.rs:2"];
        assert_eq!(faults(&files), expected.map(|at| format!("{at} upward-import")));
    }

    #[test]
    fn dependency_on_a_higher_crate_is_a_fault() {
        let kernels = "[package]\nname = \"kernels\"\n[dependencies]\nengine.workspace = true\n";
        let chat = "[package]\nname = \"chat\"\n\n[dev-dependencies]\nengine.workspace = true\n";
        let files = [("crates/kernels/Cargo.toml", kernels), ("crates/chat/Cargo.toml", chat)];
        assert_eq!(faults(&files), ["crates/kernels/Cargo.toml:4 crate-order"]);
    }

    #[test]
    fn circle_of_four_files_is_a_fault_and_of_three_is_not() {
        let circle = |names: &[&str]| {
            let next = |i: usize| names[(i + 1) % names.len()];
            let file = |(i, name): (usize, &&str)| {
                let text = format!("use crate::{0}::{0};\npub struct {name};\n", next(i));
                (format!("crates/chat/src/{name}.rs"), text)
            };
            let files: Vec<(String, String)> = names.iter().enumerate().map(file).collect();
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
            faults(&files)
        };
        assert_eq!(circle(&["a", "b", "c"]), Vec::<String>::new());
        assert_eq!(circle(&["a", "b", "c", "d"]), ["crates/chat/src/a.rs:0 import-circle"]);
    }

    #[test]
    fn reexport_leads_to_the_file_that_defines_the_name() {
        // Children that import a sibling through their parent do not make a circle with it.
        let files = [
            ("crates/chat/src/m/mod.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use self::a::A;\n"),
            ("crates/chat/src/m/a.rs", "pub struct A;\n"),
            ("crates/chat/src/m/b.rs", "use super::A;\n"),
            ("crates/chat/src/m/c.rs", "use super::{A};\n"),
            ("crates/chat/src/m/d.rs", "fn d(_: super::A) {}\n"),
        ];
        assert_eq!(faults(&files), Vec::<String>::new());
    }

    #[test]
    fn private_names_and_words_are_faults() {
        let code = "//! Tokens behind the prompt.\nstruct Places;\nconst TEXT: &str = \"behind\";\n";
        let files = [("crates/engine/src/a.rs", code), ("docs/a.md", "Whoever asks.\n`behind` is code.\n")];
        let expected = [
            "crates/engine/src/a.rs:1 private-word",
            "crates/engine/src/a.rs:2 private-name",
            "docs/a.md:1 private-word",
        ];
        assert_eq!(faults(&files), expected);
    }

    #[test]
    fn scoped_name_is_a_fault_in_its_crates_only() {
        let code = "fn settle() {}\n";
        let files = [("crates/nn/src/a.rs", code), ("crates/lanner/src/a.rs", code)];
        assert_eq!(faults(&files), ["crates/nn/src/a.rs:1 private-name"]);
    }

    #[test]
    fn wide_prose_is_a_fault_and_tables_and_links_are_not() {
        let wide = "x ".repeat(60);
        let text =
            format!("{wide}\n| {wide} |\n<https://example.org/{}>\n```\n{wide}\n```\n", "x".repeat(100));
        let code = format!("// {wide}\nfn a() {{}}\n");
        let files = [("docs/a.md", &*text), ("crates/chat/src/a.rs", &*code)];
        assert_eq!(faults(&files), ["crates/chat/src/a.rs:1 wide-line", "docs/a.md:1 wide-line"]);
    }

    #[test]
    fn long_functions_need_a_reason_and_long_files_are_faults() {
        let body = "    let _ = 0;\n".repeat(61);
        let long = format!("fn a() {{\n{body}}}\n");
        let excused = format!("// Long: one arm per format.\nfn a() {{\n{body}}}\n");
        let lines = "const A: u8 = 0;\n".repeat(501);
        let files = [
            ("crates/chat/src/a.rs", &*long),
            ("crates/chat/src/b.rs", &*excused),
            ("crates/chat/src/c.rs", &*lines),
        ];
        assert_eq!(
            faults(&files),
            ["crates/chat/src/a.rs:1 long-function", "crates/chat/src/c.rs:0 long-file"]
        );
    }

    #[test]
    fn records_need_status_and_date_and_at_most_450_words() {
        let long = format!("# 1. A\n\nStatus: accepted, 2026-11-20\n\n{}\n", "word\n".repeat(450));
        let files = [("docs/adr/0001-a.md", &*long), ("docs/adr/0002-b.md", "# 2. B\n\nText.\n")];
        assert_eq!(faults(&files), ["docs/adr/0001-a.md:0 record", "docs/adr/0002-b.md:0 record"]);
    }
}
