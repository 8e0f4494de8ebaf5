//! `ORG/NAME[@REVISION][:PART]`, the name of a model on the hub.

use std::fmt;

/// A repository, revision and part; safe in paths and URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoName {
    org: String,
    name: String,
    /// A branch, a tag or a commit; `None`: `main`.
    pub revision: Option<String>,
    /// A folder of the repository, or one of its safetensors files.
    pub part: Option<String>,
}

impl RepoName {
    /// `None` if the text is not of this form.
    pub fn parse(text: &str) -> Option<RepoName> {
        let (text, part) = match text.split_once(':') {
            Some((text, part)) => (text, Some(part)),
            None => (text, None),
        };
        let (id, revision) = match text.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (text, None),
        };
        let (org, name) = id.split_once('/')?;
        let sound = is_word(org)
            && is_word(name)
            && revision.is_none_or(is_revision)
            && part.is_none_or(|part| is_safe_path(part) && !part.contains(':'));
        let own = |text: Option<&str>| text.map(str::to_owned);
        sound.then(|| RepoName {
            org: org.into(),
            name: name.into(),
            revision: own(revision),
            part: own(part),
        })
    }

    /// From the name of its folder in the cache.
    pub fn from_folder(folder: &str) -> Option<RepoName> {
        let (org, name) = folder.strip_prefix("models--")?.split_once("--")?;
        RepoName::parse(&format!("{org}/{name}"))
    }

    /// `ORG/NAME`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }

    /// `ORG/NAME[:PART]`, the name without the revision.
    pub fn model(&self) -> String {
        RepoName { revision: None, ..self.clone() }.to_string()
    }

    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// The name of its folder in the cache.
    pub fn folder(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }

    pub fn at(&self, revision: &str) -> RepoName {
        RepoName { revision: Some(revision.into()), ..self.clone() }
    }

    pub fn with_part(&self, part: &str) -> RepoName {
        RepoName { part: Some(part.into()), ..self.clone() }
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.part.iter().try_for_each(|part| write!(f, ":{part}"))
    }
}

/// The hub's rule for owners and repositories.
fn is_word(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=96).contains(&word.len())
        && word.chars().all(plain)
        && !word.starts_with(['-', '.'])
        && !word.ends_with(['-', '.'])
        && !word.contains("--")
        && !word.contains("..")
}

fn is_revision(revision: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    is_safe_path(revision) && revision.chars().all(plain)
}

/// Whether a path stays inside the folder that it is joined to.
pub(super) fn is_safe_path(path: &str) -> bool {
    let sound = |part: &str| !matches!(part, "" | "." | "..");
    !path.contains('\\') && !path.contains(char::is_control) && path.split('/').all(sound)
}

/// Whether a path was made to leave its folder.
pub(super) fn escapes(path: &str) -> bool {
    path.starts_with(['/', '\\']) || path.split(['/', '\\']).any(|part| part == "..")
}

/// A commit's full hash.
pub(super) fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

pub(super) fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repo_name_parses_repository_revision_and_part() {
        let check = |text: &str, id: &str, revision: &str, part: Option<&str>| {
            let name = RepoName::parse(text).unwrap();
            assert_eq!((name.id().as_str(), name.revision(), name.part.as_deref()), (id, revision, part));
            assert_eq!(name.to_string(), text);
        };
        check("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main", None);
        check("a/b@v1.0", "a/b", "v1.0", None);
        check("a/b@refs/pr/1", "a/b", "refs/pr/1", None);
        check("a/b:4bit", "a/b", "main", Some("4bit"));
        check("a/b@v1:x/y.safetensors", "a/b", "v1", Some("x/y.safetensors"));
        let name = RepoName::parse("a/b@v1:4bit").unwrap();
        assert_eq!((name.model().as_str(), name.folder().as_str()), ("a/b:4bit", "models--a--b"));
        assert_eq!(RepoName::from_folder("models--a--b").unwrap().id(), "a/b");
    }

    #[test]
    fn repo_name_with_unsafe_path_is_rejected() {
        for text in [
            "", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/.b", "-a/b", "a--b/c", "a/b--c", "a b/c",
            "a/b@", "a/b:", "a/b@../x", "a/b@x//y", "a/b@/x", "a/b@x y", "a/b@x?y", "a/b:../c", "a/b:/c",
            "a/b:c\\d", "a/b:c:d", "a/b:./c", "a/b:c\n",
        ] {
            assert_eq!(RepoName::parse(text), None, "{text:?}");
        }
        for folder in ["models--a", "models--a--b--c", "datasets--a--b", "models--..--b"] {
            assert_eq!(RepoName::from_folder(folder), None, "{folder}");
        }
    }
}
