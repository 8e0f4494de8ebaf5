//! The text of a bug report, without keys, tokens, passwords and user names.

use toml::{Table, Value};

use super::Check;

const REDACTED: &str = "[redacted]";
/// Parts of names whose values are secret.
const SECRET_NAMES: [&str; 8] =
    ["key", "token", "secret", "password", "passwd", "credential", "auth", "cookie"];
/// Beginnings of words that are tokens of well-known services.
const SECRET_STARTS: [&str; 6] = ["hf_", "sk-", "ghp_", "github_pat_", "xoxb-", "AKIA"];
/// Names of users that say nothing, and are words of other texts.
const COMMON_USERS: [&str; 3] = ["root", "user", "admin"];

/// What must not be in the report.
pub(crate) struct Redaction<'a> {
    pub home: Option<&'a str>,
    pub user: Option<&'a str>,
    /// Keys and tokens.
    pub secrets: &'a [String],
}

pub(crate) struct BugReport<'a> {
    pub checks: &'a [Check],
    /// The config file's text.
    pub config: Option<&'a str>,
    pub env: &'a [(String, String)],
}

impl BugReport<'_> {
    pub(crate) fn text(&self, redaction: &Redaction) -> String {
        let hint = |check: &Check| check.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        let check = |check: &Check| {
            format!("- {} {}: {}{}\n", check.status.name(), check.name, check.found, hint(check))
        };
        let checks: String = self.checks.iter().map(check).collect();
        let config = match self.config.map(str::parse::<Table>) {
            None => "none\n".into(),
            // The text around a fault may be a key.
            Some(Err(_)) => "not valid TOML\n".into(),
            Some(Ok(table)) => shown(&redacted(Value::Table(table), "")),
        };
        let variable = |(name, value): &(String, String)| match is_secret(name) {
            true => format!("{name}={REDACTED}\n"),
            false => format!("{name}={value}\n"),
        };
        let env: String = self.env.iter().map(variable).collect();
        let text = format!(
            "## Checks\n\n{checks}\n## Config file\n\n```toml\n{config}```\n\n## Environment\n\n```text\n{env}```\n"
        );
        redaction.apply(&text)
    }
}

impl Redaction<'_> {
    fn apply(&self, text: &str) -> String {
        // The longest first: one may be part of another.
        let mut secrets: Vec<&String> = self.secrets.iter().filter(|secret| !secret.is_empty()).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        let mut text = secrets.iter().fold(text.to_owned(), |text, secret| text.replace(*secret, REDACTED));
        if let Some(home) = self.home.map(|home| home.trim_end_matches('/')).filter(|home| !home.is_empty()) {
            text = text.replace(home, "~");
        }
        if let Some(user) = self.user.filter(|user| !user.is_empty() && !COMMON_USERS.contains(user)) {
            text = replace_words(&text, |word| (word == user).then(|| "USER".into()));
        }
        text = replace_words(&text, |word| is_token(word).then(|| REDACTED.into()));
        without_passwords(&text)
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // Files and numbers of keys are not secret.
    let is_harmless = name.ends_with("file") || name.contains("tokens") || name.contains("tokenizer");
    !is_harmless && SECRET_NAMES.iter().any(|part| name.contains(part))
}

fn is_token(word: &str) -> bool {
    SECRET_STARTS.iter().any(|start| word.strip_prefix(start).is_some_and(|rest| rest.len() >= 8))
}

/// The value without secrets; `name` is its key.
fn redacted(value: Value, name: &str) -> Value {
    match value {
        Value::Table(table) => {
            let entry = |(name, value): (String, Value)| {
                let value = redacted(value, &name);
                (name, value)
            };
            Value::Table(table.into_iter().map(entry).collect())
        }
        _ if is_secret(name) => REDACTED.into(),
        Value::Array(values) => Value::Array(values.into_iter().map(|value| redacted(value, name)).collect()),
        value => value,
    }
}

/// Sections of values, as the config file has them; values are written as in JSON.
fn shown(value: &Value) -> String {
    let json = |value: &Value| serde_json::to_string(value).unwrap_or_default();
    let mut text = String::new();
    for (section, values) in value.as_table().into_iter().flatten() {
        match values {
            Value::Table(values) => {
                text += &format!("[{section}]\n");
                values.iter().for_each(|(name, value)| text += &format!("{name} = {}\n", json(value)));
            }
            value => text += &format!("{section} = {}\n", json(value)),
        }
    }
    text
}

/// Words are letters, digits, `_` and `-`.
fn replace_words(text: &str, by: impl Fn(&str) -> Option<String>) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        result += &by(word).unwrap_or_else(|| word.to_owned());
        let next = after.find(is_part).unwrap_or(after.len());
        result += &after[..next];
        rest = &after[next..];
    }
    result
}

/// The text without the `name:password@` of URLs.
fn without_passwords(text: &str) -> String {
    let mut parts = text.split("://");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "/\"'`,".contains(c)).unwrap_or(part.len());
        result += "://";
        match part[..end].rfind('@') {
            Some(at) => result += &format!("{REDACTED}{}", &part[at..]),
            None => result += part,
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[model]\npath = '/home/ada/models/owl'\n[server]\napi-key = ['s3cr3t', 'other']\n\
        api-keys-file = '/home/ada/keys'\nmax-thinking-tokens = 9\nalias = ['a=/srv/ada/b']\n";

    fn report(config: &str, env: &[(&str, &str)], found: &str) -> String {
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let checks = [Check::ok("models", found)];
        let redaction = Redaction { home: Some("/home/ada"), user: Some("ada"), secrets: &["s3cr3t".into()] };
        BugReport { checks: &checks, config: Some(config), env: &env }.text(&redaction)
    }

    #[test]
    fn bug_report_has_settings_and_no_secrets() {
        let env = [
            ("HF_TOKEN", "hf_abcdefghijkl"),
            ("LANNER_API_KEY", "another"),
            ("HTTPS_PROXY", "http://ada:pass@proxy.example:8080/x"),
            ("LANNER_CACHE_DIR", "/home/ada/cache"),
            ("LANNER_MAX_THINKING_TOKENS", "12"),
        ];
        let text = report(CONFIG, &env, "s3cr3t, sk-0123456789, /mnt/ada/models, adaptive");
        for secret in ["s3cr3t", "other", "hf_abc", "another", "pass", "sk-0123", "/home/ada", "ada/"] {
            assert!(!text.contains(secret), "{secret} is in\n{text}");
        }
        let kept = [
            "path = \"~/models/owl\"",
            "api-key = \"[redacted]\"",
            "api-keys-file = \"~/keys\"",
            "max-thinking-tokens = 9",
            "http://[redacted]@proxy.example:8080/x",
            "LANNER_MAX_THINKING_TOKENS=12",
            "/mnt/USER/models, adaptive",
            "LANNER_API_KEY=[redacted]",
        ];
        for part in kept {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn config_that_does_not_parse_is_not_quoted() {
        let text = report("[server]\napi-key = hidden", &[], "x");
        assert!(text.contains("not valid TOML") && !text.contains("hidden"), "{text}");
    }
}
