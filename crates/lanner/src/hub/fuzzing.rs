//! Entry points for fuzzing the hub's answers and model files.

use std::collections::BTreeSet;

use super::{check::has_stated_length, index::shards, listing::Listing, name::RepoName};

/// File names in an index.
pub fn index(bytes: &[u8]) -> Result<BTreeSet<String>, String> {
    shards(bytes)
}

/// Files in a listing that a pull would fetch.
pub fn listing(bytes: &[u8]) -> Result<BTreeSet<String>, String> {
    let repo = RepoName::parse("org/name").ok_or("no name")?;
    let listing = Listing::parse(&repo, bytes).map_err(|error| error.to_string())?;
    let fetched = |path: &String| listing.file(&repo, path).is_ok();
    Ok(listing.paths().into_iter().filter(fetched).collect())
}

/// Checks that a weight file is as long as its header says.
pub fn header(bytes: &[u8]) -> Result<(), String> {
    match has_stated_length(bytes, bytes.len() as u64) {
        Ok(true) => Ok(()),
        Ok(false) => Err("it is cut short".into()),
        Err(error) => Err(error.to_string()),
    }
}
