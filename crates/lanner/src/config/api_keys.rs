//! The server's API keys with their names and limits, from flags and from a file of keys.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use ring::digest::{SHA256, digest};

const MAX_NAME: usize = 64;

/// The keys that clients may send; empty if they need none.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys(Vec<ApiKey>);

/// A key as its digest: the key itself is forgotten once it is read.
#[derive(Clone)]
pub struct ApiKey {
    /// Letters, digits, `.`, `_` and `-`, which logs and metrics can show.
    pub name: Arc<str>,
    pub digest: KeyDigest,
    pub limits: KeyLimits,
}

pub type KeyDigest = [u8; 32];

/// Limits of one key; LiteLLM's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests being answered at a time.
    pub max_parallel_requests: Option<u32>,
    /// Requests per minute.
    pub rpm_limit: Option<u32>,
    /// Tokens of prompts and answers per minute.
    pub tpm_limit: Option<u32>,
}

/// Why the keys cannot be used. No text has a key in it.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyError {
    #[error("cannot read the API keys in {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{} has no API key; write one on each line, as `name:key` or `key`", .0.display())]
    Empty(PathBuf),
    #[error("line {line} of {}: {problem}", path.display())]
    Line { path: PathBuf, line: usize, problem: LineProblem },
    #[error("an API key is given twice")]
    Repeated,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    #[error("the name before the colon must have 1 to {MAX_NAME} letters, digits, `.`, `_` or `-`")]
    Name,
    #[error("the key after the name is missing")]
    NoKey,
    #[error("the name {0} is taken by an earlier line")]
    RepeatedName(Arc<str>),
    #[error("this key is on an earlier line too")]
    RepeatedKey,
    #[error(
        "after the key come limits: max_parallel_requests=N, rpm_limit=N or tpm_limit=N, each at least 1 and \
         separated by spaces"
    )]
    Limit,
}

impl ApiKeys {
    /// The keys of flags, which have neither names nor limits, and those of a file.
    ///
    /// # Errors
    /// The file cannot be read, a line is not valid, or a key is given twice.
    pub fn new(given: &[String], file: Option<&Path>) -> Result<ApiKeys, ApiKeyError> {
        let mut keys: Vec<ApiKey> =
            given.iter().filter(|key| !key.is_empty()).map(|key| ApiKey::unnamed(key)).collect();
        if let Some(path) = file {
            let read = |error| ApiKeyError::Read { path: path.into(), error };
            keys.extend(parse(&fs::read_to_string(path).map_err(read)?, path)?);
        }
        let digests: BTreeSet<&KeyDigest> = keys.iter().map(|key| &key.digest).collect();
        if digests.len() < keys.len() {
            return Err(ApiKeyError::Repeated);
        }
        Ok(ApiKeys(keys))
    }

    pub fn as_slice(&self) -> &[ApiKey] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The keys of a file, one to a line. Lines may be empty, or comments after `#`.
fn parse(text: &str, path: &Path) -> Result<Vec<ApiKey>, ApiKeyError> {
    let mut keys: Vec<ApiKey> = vec![];
    for (at, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = ApiKey::parse(line).and_then(|key| match keys.iter().find(|other| other.is_like(&key)) {
            Some(other) if other.digest == key.digest => Err(LineProblem::RepeatedKey),
            Some(_) => Err(LineProblem::RepeatedName(key.name)),
            None => Ok(key),
        });
        keys.push(key.map_err(|problem| ApiKeyError::Line { path: path.into(), line: at + 1, problem })?);
    }
    match keys.is_empty() {
        true => Err(ApiKeyError::Empty(path.into())),
        false => Ok(keys),
    }
}

impl ApiKey {
    /// A key that is named after the start of its digest.
    fn unnamed(key: &str) -> ApiKey {
        let digest = key_digest(key);
        let name = digest[..4].iter().fold("key-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
        ApiKey { name: name.into(), digest, limits: KeyLimits::default() }
    }

    /// `name:key` or `key`, then limits.
    fn parse(line: &str) -> Result<ApiKey, LineProblem> {
        let mut words = line.split_whitespace();
        let word = words.next().unwrap_or_default();
        let key = match word.split_once(':') {
            None => ApiKey::unnamed(word),
            Some((name, _)) if !is_name(name) => return Err(LineProblem::Name),
            Some((_, "")) => return Err(LineProblem::NoKey),
            Some((name, key)) => ApiKey { name: name.into(), ..ApiKey::unnamed(key) },
        };
        let mut limits = KeyLimits::default();
        for word in words {
            let (name, value) = word.split_once('=').ok_or(LineProblem::Limit)?;
            let limit = match name {
                "max_parallel_requests" => &mut limits.max_parallel_requests,
                "rpm_limit" => &mut limits.rpm_limit,
                "tpm_limit" => &mut limits.tpm_limit,
                _ => return Err(LineProblem::Limit),
            };
            *limit = Some(value.parse().ok().filter(|limit| *limit > 0).ok_or(LineProblem::Limit)?);
        }
        Ok(ApiKey { limits, ..key })
    }

    fn is_like(&self, other: &ApiKey) -> bool {
        self.name == other.name || self.digest == other.digest
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ApiKey").field("name", &self.name).field("limits", &self.limits).finish()
    }
}

pub fn key_digest(key: &str) -> KeyDigest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
    bytes
}

fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Whether users other than the owner can read the file.
pub fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o044 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Result<Vec<ApiKey>, ApiKeyError> {
        parse(text, Path::new("keys"))
    }

    #[test]
    fn keys_file_has_names_keys_and_limits() {
        let text = "# users\n\n ann:sk-1 rpm_limit=60  tpm_limit=90000\nbob:a:b\nsk-3 max_parallel_requests=2 # no\n";
        assert!(matches!(keys(text), Err(ApiKeyError::Line { line: 5, problem: LineProblem::Limit, .. })));
        let keys = keys(&text.replace(" # no", "")).unwrap();
        assert_eq!(keys.iter().map(|key| &*key.name).collect::<Vec<_>>()[..2], ["ann", "bob"]);
        assert_eq!(
            keys.iter().map(|key| key.digest).collect::<Vec<_>>(),
            ["sk-1", "a:b", "sk-3"].map(key_digest)
        );
        let limits = KeyLimits { rpm_limit: Some(60), tpm_limit: Some(90_000), ..KeyLimits::default() };
        assert_eq!(keys[0].limits, limits);
        assert_eq!(keys[2].limits.max_parallel_requests, Some(2));
        assert!(keys[2].name.starts_with("key-") && keys[2].name.len() == 12, "{}", keys[2].name);
        assert!(!format!("{keys:?}").contains("sk-1"));
    }

    #[test]
    fn invalid_line_is_named_without_its_key() {
        for (text, line, problem) in [
            ("ann:x\nan n:secret", 2, LineProblem::Limit),
            ("ann:", 1, LineProblem::NoKey),
            (":secret", 1, LineProblem::Name),
            ("a\"b:secret", 1, LineProblem::Name),
            ("ann:x\nann:secret", 2, LineProblem::RepeatedName("ann".into())),
            ("ann:secret\nbob:secret", 2, LineProblem::RepeatedKey),
            ("ann:secret rpm_limit=0", 1, LineProblem::Limit),
            ("ann:secret rpm=5", 1, LineProblem::Limit),
        ] {
            let error = keys(text).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
            match error {
                ApiKeyError::Line { line: at, problem: found, .. } => {
                    assert_eq!((at, found), (line, problem), "{text}");
                }
                other => panic!("{text}: {other}"),
            }
        }
        assert!(matches!(keys("# none\n"), Err(ApiKeyError::Empty(_))));
        let given = ["a".to_owned(), String::new(), "a".to_owned()];
        assert!(matches!(ApiKeys::new(&given, None), Err(ApiKeyError::Repeated)));
        assert_eq!(ApiKeys::new(&given[..2], None).unwrap().as_slice().len(), 1);
    }
}
