//! A source file, split into code without comments and strings, and prose without code.

/// Selects the rules for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rust,
    Markdown,
    Manifest,
}

impl Kind {
    /// `None` for files without rules.
    pub(super) fn of(path: &str) -> Option<Kind> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.')?.1 {
            "rs" => Some(Kind::Rust),
            "md" => Some(Kind::Markdown),
            "toml" if name == "Cargo.toml" => Some(Kind::Manifest),
            _ => None,
        }
    }
}

pub(super) struct Source {
    /// Relative to the repository's root, with slashes.
    pub path: String,
    pub kind: Kind,
    pub text: String,
    /// Rust: `text` with comments, strings and characters blanked, with the same lines. Else empty.
    pub code: String,
    /// Lines of comments or Markdown prose, counted from 1, with inline code blanked.
    pub prose: Vec<(usize, String)>,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Source {
        let kind = Kind::of(path).unwrap_or(Kind::Manifest);
        let (code, prose) = match kind {
            Kind::Rust => split_rust(text),
            Kind::Markdown => (String::new(), markdown_prose(text)),
            Kind::Manifest => (String::new(), vec![]),
        };
        let prose = prose.into_iter().map(|(line, text)| (line, without_inline_code(&text))).collect();
        Source { path: path.into(), kind, text: text.into(), code, prose }
    }
}

/// Prose lines: no tables, no fenced code and no indented code.
fn markdown_prose(text: &str) -> Vec<(usize, String)> {
    let (mut fenced, mut indented, mut blank) = (false, false, true);
    let prose = |(index, line): (usize, &str)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        indented = line.starts_with("    ") && (blank || indented);
        blank = line.trim().is_empty();
        let is_prose = !fence && !fenced && !indented && !line.trim_start().starts_with('|');
        is_prose.then(|| (index + 1, line.to_owned()))
    };
    text.lines().enumerate().filter_map(prose).collect()
}

fn without_inline_code(line: &str) -> String {
    let mut inside = false;
    let blank = |c: char| {
        inside ^= c == '`';
        if inside && c != '`' { ' ' } else { c }
    };
    let blanked: String = line.chars().map(blank).collect();
    // An odd backtick begins a span that ends on another line: keep the text as it is.
    if line.matches('`').count().is_multiple_of(2) { blanked } else { line.to_owned() }
}

/// Code with everything else blanked, and comments by line.
fn split_rust(text: &str) -> (String, Vec<(usize, String)>) {
    let bytes = text.as_bytes();
    let (mut code, mut prose) = (String::with_capacity(text.len()), vec![]);
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &text[at..];
        let skipped = token_length(rest, code.chars().next_back());
        if skipped == 0 {
            let c = rest.chars().next().unwrap_or(' ');
            line += usize::from(c == '\n');
            code.push(c);
            at += c.len_utf8();
            continue;
        }
        let token = &rest[..skipped];
        if token.starts_with("//") || token.starts_with("/*") {
            prose.extend(token.lines().enumerate().map(|(i, text)| (line + i, text.to_owned())));
        }
        code.extend(token.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        line += token.matches('\n').count();
        at += skipped;
    }
    (code, prose)
}

/// Length in bytes of the comment, string or character at the start of `rest`; 0 if there is none.
/// `before` is the character before it.
fn token_length(rest: &str, before: Option<char>) -> usize {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    if !in_word {
        let raw = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('r');
        let hashes = raw.map_or(0, |raw| raw.len() - raw.trim_start_matches('#').len());
        if raw.is_some_and(|raw| raw[hashes..].starts_with('"')) {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = rest.find('"').unwrap_or(0) + 1;
            return rest[start..].find(&end).map_or(rest.len(), |found| start + found + end.len());
        }
    }
    0
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        match (here.starts_with(b"/*"), here.starts_with(b"*/")) {
            (true, _) => (depth, at) = (depth + 1, at + 2),
            (_, true) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(rest.len())
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of a character literal; 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => quoted(rest, '\''),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_is_split_into_code_and_comments() {
        let text = "/// Doc.\nlet a = \"// no\"; // yes\nlet b = 'x'; let c: &'static str = r#\"\"q\"\"#;\n/* a\nb */ let d = '\\'';\n";
        let source = Source::new("a.rs", text);
        assert_eq!(source.code.lines().count(), text.lines().count());
        let words: Vec<&str> = source.code.split_whitespace().collect();
        let expected = [
            "let", "a", "=", ";", "let", "b", "=", ";", "let", "c:", "&'static", "str", "=", ";", "let", "d",
            "=", ";",
        ];
        assert_eq!(words, expected);
        let prose: Vec<(usize, &str)> = source.prose.iter().map(|(line, text)| (*line, &**text)).collect();
        assert_eq!(prose, [(1, "/// Doc."), (2, "// yes"), (4, "/* a"), (5, "b */")]);
    }

    #[test]
    fn markdown_prose_has_no_code_and_no_tables() {
        let text = "One `two`.\n| three |\n```\nfour\n```\nfive\n    six\n\n    seven\n";
        let source = Source::new("a.md", text);
        let lines: Vec<usize> = source.prose.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 6, 7, 8]);
        assert!(!source.prose[0].1.contains("two"));
    }
}
