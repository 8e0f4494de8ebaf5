//! Merges settings into the text of a config file: everything else stays as it is, comments too.

use toml::{Table, Value};

/// A merged text, and what happened to each key.
#[derive(Debug, PartialEq)]
pub struct MergedConfig {
    pub text: String,
    /// Keys that are new.
    pub added: Vec<String>,
    /// Keys that were set to something else, with that; the text has it only if they were not
    /// replaced.
    pub kept: Vec<(String, String)>,
    pub replaced: Vec<(String, String)>,
}

/// Merges `settings`, keys with values as TOML writes them, into the section `[model]`. Keys that
/// have another value there keep it, unless `replace`.
///
/// # Errors
/// The text is no config file, or its section cannot be changed without touching other lines.
pub fn merge_model_settings(
    text: &str,
    settings: &[(&str, String)],
    replace: bool,
) -> Result<MergedConfig, String> {
    let before: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let own = before.get("model").and_then(Value::as_table).cloned().unwrap_or_default();
    let mut merged = MergedConfig { text: text.to_owned(), added: vec![], kept: vec![], replaced: vec![] };
    let mut expected = own.clone();
    for (key, value) in settings {
        let parsed = parse(value)?;
        match own.get(*key) {
            Some(old) if *old == parsed => continue,
            Some(old) if !replace => {
                merged.kept.push(((*key).into(), shown(old)));
                continue;
            }
            Some(old) => {
                merged.text = replace_line(&merged.text, key, value)?;
                merged.replaced.push(((*key).into(), shown(old)));
            }
            None => {
                merged.text = insert_line(&merged.text, key, value);
                merged.added.push((*key).into());
            }
        }
        expected.insert((*key).into(), parsed);
    }
    // Sections may be written in ways that lines do not show.
    let mut wanted = before;
    if !expected.is_empty() {
        wanted.insert("model".into(), Value::Table(expected));
    }
    match merged.text.parse::<Table>() {
        Ok(after) if after == wanted => Ok(merged),
        _ => Err("its settings of the model are not in a plain section [model]".into()),
    }
}

fn parse(value: &str) -> Result<Value, String> {
    let table: Result<Table, _> = format!("value = {value}").parse();
    let mut table = table.map_err(|error| error.message().to_owned())?;
    table.remove("value").ok_or_else(|| "it is empty".into())
}

fn shown(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The line numbers of the section `[model]`, without its header.
fn section(lines: &[&str]) -> Option<std::ops::Range<usize>> {
    let is_header = |line: &&str| line.trim_start().starts_with('[');
    let name = |line: &&str| line.split('#').next().unwrap_or_default().trim() == "[model]";
    let start = lines.iter().position(name)? + 1;
    let length = lines[start..].iter().position(is_header).unwrap_or(lines.len() - start);
    Some(start..start + length)
}

fn insert_line(text: &str, key: &str, value: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let line = format!("{key} = {value}");
    let Some(section) = section(&lines) else {
        let gap = if text.is_empty() { "" } else { "\n" };
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        return format!("{text}{end}{gap}[model]\n{line}\n");
    };
    // After the last setting: a comment below belongs to the next section.
    let is_setting = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let last = lines[section.clone()].iter().rposition(is_setting);
    let at = last.map_or(section.start, |last| section.start + last + 1);
    [&lines[..at], &[&*line], &lines[at..]].concat().join("\n") + "\n"
}

/// # Errors
/// There is no line of this key.
fn replace_line(text: &str, key: &str, value: &str) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let is_key = |line: &&str| {
        let name = line.split_once('=').map(|(name, _)| name.trim().trim_matches(['"', '\'']));
        name == Some(key)
    };
    let at =
        section(&lines).and_then(|section| Some(section.start + lines[section].iter().position(is_key)?));
    let at = at.ok_or_else(|| format!("its setting of {key} is in no line of a section [model]"))?;
    let line = format!("{key} = {value}");
    Ok([&lines[..at], &[&*line], &lines[at + 1..]].concat().join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(text: &str, replace: bool) -> Result<MergedConfig, String> {
        let settings = [("max-context", "4096".to_owned()), ("speculate", "\"ngram\"".to_owned())];
        merge_model_settings(text, &settings, replace)
    }

    fn check(text: &str, replace: bool, expected: &str) {
        assert_eq!(merge(text, replace).unwrap().text, expected, "{text}");
    }

    #[test]
    fn settings_are_added_and_everything_else_stays() {
        check("", false, "[model]\nmax-context = 4096\nspeculate = \"ngram\"\n");
        check(
            "# mine\n[server]\nport = 8080",
            false,
            "# mine\n[server]\nport = 8080\n\n[model]\nmax-context = 4096\nspeculate = \"ngram\"\n",
        );
        check(
            "[model] # the model\npath = \"owl\" # a bird\n\n# keys\n[server]\nport = 1\n",
            false,
            "[model] # the model\npath = \"owl\" # a bird\nmax-context = 4096\nspeculate = \"ngram\"\n\n# keys\n\
             [server]\nport = 1\n",
        );
        check("[model]\n", false, "[model]\nmax-context = 4096\nspeculate = \"ngram\"\n");
    }

    #[test]
    fn settings_of_the_user_stay_unless_replaced() {
        let own = "[model]\nmax-context = 9 # few\nspeculate = 'off'\n";
        let kept = merge(own, false).unwrap();
        assert_eq!(kept.text, own);
        let old = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(kept.kept, [old("max-context", "9"), old("speculate", "\"off\"")]);
        let replaced = merge(own, true).unwrap();
        assert_eq!(replaced.text, "[model]\nmax-context = 4096\nspeculate = \"ngram\"\n");
        assert_eq!((replaced.kept.len(), replaced.replaced.len()), (0, 2));
        let same = merge("[model]\nmax-context = 4096\nspeculate = \"ngram\"\n", true).unwrap();
        assert_eq!((same.added.len(), same.replaced.len()), (0, 0), "nothing changes");
    }

    #[test]
    fn files_that_lines_do_not_show_are_refused() {
        let refused = |text: &str, replace: bool| {
            let error = merge(text, replace).unwrap_err();
            assert!(error.contains("[model]"), "{text}: {error}");
        };
        refused("model = { path = 'owl' }\n", false);
        refused("model.path = 'owl'\n", false);
        refused("model.max-context = 3\n", true);
        refused("[server]\nname = '''\n[model]\n'''\n[model]\nspeculate = 'off'\n", false);
        assert!(merge("[model", false).is_err());
    }
}
