//! Generated sections of docs/models.md, between comments with their names.

use std::{fs, path::Path};

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
