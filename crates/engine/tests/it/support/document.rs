//! Generated sections of docs/models.md, between comments with their names.

use std::{fs, path::Path};

/// Bounds used in the document.
const LADDER: [f32; 6] = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4];

/// The least bound that is above a difference.
pub(crate) fn within(worst: f32) -> f32 {
    *LADDER.iter().find(|&&bound| worst <= bound).expect("below the bound")
}

/// Compares section `name` with a table whose last column is a bound of `worst` of the first one.
pub(crate) fn check(name: &str, table: &str, worst: impl Fn(&str) -> f32) {
    let written = part(name, table);
    // Figures may differ by a factor of two or three between processors.
    let columns = |text: &str| {
        text.lines().map(|line| line.rsplitn(3, '|').last().map(str::to_string)).collect::<Vec<_>>()
    };
    assert_eq!(
        columns(&written),
        columns(table),
        "docs/models.md is stale: run this test with UPDATE_DOCS=1"
    );
    for line in written.lines().skip(2) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (first, last) = (cells.next().unwrap_or_default(), cells.next_back().unwrap_or_default());
        let within: f32 = last.parse().expect("a bound");
        assert!(worst(first) <= 3.0 * within, "{first} is not within {within:e} any more");
    }
}

/// Returns section `name`; with UPDATE_DOCS set, replaces it by `text` first.
pub(crate) fn part(name: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let document = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), format!("<!-- end: {name} -->"));
    let outside = || panic!("docs/models.md has no part `{name}`");
    let (before, rest) = document.split_once(&begin).unwrap_or_else(outside);
    let (written, after) = rest.split_once(&end).unwrap_or_else(outside);
    if std::env::var_os("UPDATE_DOCS").is_none() {
        return written.into();
    }
    fs::write(&path, [before, &begin, text, &end, after].concat()).unwrap_or_else(|e| panic!("{e}"));
    text.into()
}
