//! The files of a revision, as the hub lists them.

use serde::Deserialize;

use super::{
    error::HubError,
    name::{RepoName, escapes, is_commit, is_hex, is_safe_path},
};

/// A commit and its files.
#[derive(Debug)]
pub(super) struct Listing {
    pub commit: String,
    files: Vec<Sibling>,
}

/// A file that can be fetched and verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    pub path: String,
    /// In bytes.
    pub size: u64,
    pub digest: Digest,
}

/// The hash that names a blob, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Digest {
    /// SHA-256 of large files (LFS).
    Sha256(String),
    /// Hash of files in the Git repository itself: SHA-1 of a header and the contents.
    Git(String),
}

impl Digest {
    /// The blob's name.
    pub(super) fn etag(&self) -> &str {
        match self {
            Digest::Sha256(hex) | Digest::Git(hex) => hex,
        }
    }
}

#[derive(Deserialize)]
struct RevisionInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// Parses the response to `/api/models/ORG/NAME/revision/REVISION?blobs=true`.
    ///
    /// # Errors
    /// It is not such a response, or names a file outside the repository.
    pub(super) fn parse(repo: &RepoName, body: &[u8]) -> Result<Listing, HubError> {
        let wrong = |reason: String| HubError::Answer { repo: repo.id(), reason };
        let answer: RevisionInfo = serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?;
        if !is_commit(&answer.sha) {
            return Err(wrong(format!("`{}` is not a commit", answer.sha)));
        }
        match answer.siblings.iter().find(|file| escapes(&file.rfilename)) {
            Some(file) => Err(traversal(repo, &file.rfilename)),
            None => Ok(Listing { commit: answer.sha, files: answer.siblings }),
        }
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.files.iter().map(|file| file.rfilename.clone()).collect()
    }

    /// # Errors
    /// There is no such file, or the hub gives no size and hash for it.
    pub(super) fn file(&self, repo: &RepoName, path: &str) -> Result<RemoteFile, HubError> {
        let sibling = self.files.iter().find(|file| file.rfilename == path);
        let sibling = sibling.ok_or_else(|| HubError::NoFile { repo: repo.id(), file: path.into() })?;
        if !is_safe_path(path) {
            return Err(traversal(repo, path));
        }
        let digest = match (&sibling.lfs, &sibling.blob_id, sibling.size) {
            (Some(lfs), ..) if is_hex(&lfs.sha256, 64) => {
                Some((Digest::Sha256(lfs.sha256.clone()), lfs.size))
            }
            (None, Some(id), Some(size)) if is_hex(id, 40) => Some((Digest::Git(id.clone()), size)),
            _ => None,
        };
        let unknown =
            || HubError::Answer { repo: repo.id(), reason: format!("it gives no size and hash for {path}") };
        let (digest, size) = digest.ok_or_else(unknown)?;
        Ok(RemoteFile { path: path.into(), size, digest })
    }
}

fn traversal(repo: &RepoName, file: &str) -> HubError {
    HubError::Traversal { repo: repo.id(), file: file.escape_debug().to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn repo() -> RepoName {
        RepoName::parse("a/b").unwrap()
    }

    fn parse(siblings: serde_json::Value) -> Result<Listing, HubError> {
        let body = json!({ "sha": "c".repeat(40), "siblings": siblings, "tags": [] });
        Listing::parse(&repo(), body.to_string().as_bytes())
    }

    #[test]
    fn listed_file_has_size_and_hash() {
        let listing = parse(json!([
            { "rfilename": "config.json", "size": 3, "blobId": "a".repeat(40) },
            { "rfilename": "model.safetensors", "size": 9, "blobId": "b".repeat(40),
              "lfs": { "sha256": "d".repeat(64), "size": 9, "pointerSize": 130 } },
            { "rfilename": "bare.json" },
            { "rfilename": "odd.json", "size": 3, "blobId": "../../../etc/passwd" },
        ]))
        .unwrap();
        let file = |path: &str| listing.file(&repo(), path);
        assert_eq!(file("config.json").unwrap().digest, Digest::Git("a".repeat(40)));
        assert_eq!(file("model.safetensors").unwrap().digest, Digest::Sha256("d".repeat(64)));
        assert_eq!(file("model.safetensors").unwrap().size, 9);
        for (path, expected) in
            [("bare.json", "no size and hash"), ("odd.json", "no size and hash"), ("x", "has no file x")]
        {
            assert!(file(path).unwrap_err().to_string().contains(expected), "{path}");
        }
    }

    #[test]
    fn listing_with_path_traversal_is_rejected() {
        for name in ["../x", "/etc/passwd", "a/../../x", "a\\..\\x", "\\x"] {
            let error = parse(json!([{ "rfilename": "config.json" }, { "rfilename": name }])).unwrap_err();
            assert!(matches!(error, HubError::Traversal { .. }), "{name}: {error}");
        }
        let odd = parse(json!([{ "rfilename": "tokenizer\\x.json", "size": 1, "blobId": "a".repeat(40) }]))
            .unwrap();
        let error = odd.file(&repo(), "tokenizer\\x.json").unwrap_err();
        assert!(matches!(error, HubError::Traversal { .. }), "{error}");
        let body = json!({ "sha": "../..", "siblings": [] }).to_string();
        assert!(Listing::parse(&repo(), body.as_bytes()).unwrap_err().to_string().contains("not a commit"));
        assert!(Listing::parse(&repo(), b"<html>").unwrap_err().to_string().contains("makes no sense"));
    }
}
