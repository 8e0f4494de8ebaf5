//! What `lanner launch` would do, as a script for sh.

use std::{ffi::OsString, fmt::Write};

use crate::launch::{Agent, Backend, Settings};

/// The key of the server stands in it as `$LANNER_API_KEY`.
pub(super) fn script(
    agent: &Agent,
    backend: &Backend,
    origin: &str,
    settings: &Settings,
    arguments: &[OsString],
    more_env: &[(&'static str, String)],
) -> String {
    let key = backend.key.as_deref();
    let context = backend.context.map_or("unknown".into(), |tokens| format!("{tokens} tokens"));
    let mut text = format!(
        "# {} with {} (context: {context}) of {origin}, {}\n",
        agent.title, backend.model, backend.url
    );
    // Writing to a string does not fail.
    for (path, content) in &settings.files {
        let path = quoted(&path.display().to_string(), None);
        let _ = write!(text, "mkdir -p \"$(dirname {path})\"\ncat > {path} <<'END'\n{content}END\n");
    }
    if let Some(entry) = &settings.entry {
        let (keys, value) = (entry.keys.join("."), masked(&format!("{:#}", entry.value), key));
        let _ = writeln!(text, "# {} gets this value at {keys}:", entry.file.display());
        value.lines().for_each(|line| {
            let _ = writeln!(text, "#   {line}");
        });
    }
    for (name, value) in settings.env.iter().chain(more_env) {
        let _ = writeln!(text, "export {name}={}", quoted(value, key));
    }
    let arguments = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    let words = [agent.program.to_owned()].into_iter().chain(settings.args.iter().cloned()).chain(arguments);
    let words: Vec<String> = words.map(|word| quoted(&word, key)).collect();
    text + &words.join(" ") + "\n"
}

fn masked(text: &str, key: Option<&str>) -> String {
    key.map_or_else(|| text.to_owned(), |key| text.replace(key, "$LANNER_API_KEY"))
}

/// A word of sh.
fn quoted(word: &str, key: Option<&str>) -> String {
    if let Some(key) = key.filter(|key| word.contains(*key)) {
        let escape = |text: &str| {
            text.chars().flat_map(|c| "\\\"$`".contains(c).then_some('\\').into_iter().chain([c])).collect()
        };
        let parts: Vec<String> = word.split(key).map(escape).collect();
        return format!("\"{}\"", parts.join("$LANNER_API_KEY"));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_are_safe_in_sh() {
        let check = |word: &str, expected: &str| assert_eq!(quoted(word, Some("sk-1")), expected);
        check("http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1");
        check("", "''");
        check("it's $HOME", r"'it'\''s $HOME'");
        check("sk-1", "\"$LANNER_API_KEY\"");
        check("{\"a\": \"sk-1\", \"b\": \"$x\"}", r#""{\"a\": \"$LANNER_API_KEY\", \"b\": \"\$x\"}""#);
    }
}
