//! The store's file, and what commands do with it.

use std::path::PathBuf;

use super::{dirs::user_folder, error::ConfigError};
use crate::cli::{ExportFormat, HistoryCommand, HistoryRmArgs, StoreArgs, StoreFileArgs, UsageArgs};

/// The store of a command that also works without.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub path: PathBuf,
    /// Whether the user named it: then it is an error if it cannot be opened.
    pub is_named: bool,
}

pub struct HistoryConfig {
    pub store: PathBuf,
    pub action: HistoryAction,
}

pub enum HistoryAction {
    List {
        words: String,
        limit: usize,
        json: bool,
    },
    /// `None`: the latest conversation.
    Show {
        id: Option<String>,
        json: bool,
    },
    /// All conversations if there are no ids; to stdout without a file.
    Export {
        ids: Vec<String>,
        format: ExportFormat,
        out: Option<PathBuf>,
    },
    Import {
        file: PathBuf,
    },
    Rename {
        id: String,
        title: String,
    },
    Remove {
        ids: Vec<String>,
    },
    RemoveAll {
        yes: bool,
    },
}

pub struct UsageConfig {
    pub store: PathBuf,
    pub days: u32,
    /// Lists this many requests instead.
    pub requests: Option<usize>,
    pub json: bool,
}

impl StoreConfig {
    /// `None`: nothing is stored, as the user wants or because there is no home folder.
    pub(super) fn new(args: StoreArgs, file: StoreArgs) -> Option<StoreConfig> {
        let is_off = args.no_store || args.store.is_none() && file.no_store;
        let named = args.store.or(file.store);
        let is_named = named.is_some();
        let path = named.or_else(store_file).filter(|_| !is_off)?;
        Some(StoreConfig { path, is_named })
    }
}

impl HistoryConfig {
    pub(super) fn new(command: HistoryCommand, file: StoreArgs) -> Result<HistoryConfig, ConfigError> {
        let (store, action) = match command {
            HistoryCommand::List(args) => {
                let words = args.words.join(" ");
                (args.store, HistoryAction::List { words, limit: args.limit, json: args.json })
            }
            HistoryCommand::Show(args) => (args.store, HistoryAction::Show { id: args.id, json: args.json }),
            HistoryCommand::Export(args) => {
                (args.store, HistoryAction::Export { ids: args.ids, format: args.format, out: args.out })
            }
            HistoryCommand::Import(args) => (args.store, HistoryAction::Import { file: args.file }),
            HistoryCommand::Rename(args) => {
                (args.store, HistoryAction::Rename { id: args.id, title: args.title })
            }
            HistoryCommand::Rm(HistoryRmArgs { store, all: true, yes, .. }) => {
                (store, HistoryAction::RemoveAll { yes })
            }
            HistoryCommand::Rm(args) => (args.store, HistoryAction::Remove { ids: args.ids }),
        };
        Ok(HistoryConfig { store: named(store, file)?, action })
    }
}

impl UsageConfig {
    pub(super) fn new(args: UsageArgs, file: StoreArgs) -> Result<UsageConfig, ConfigError> {
        let UsageArgs { days, requests, json, store } = args;
        Ok(UsageConfig { store: named(store, file)?, days, requests, json })
    }
}

fn named(args: StoreFileArgs, file: StoreArgs) -> Result<PathBuf, ConfigError> {
    args.store.or(file.store).or_else(store_file).ok_or(ConfigError::NoStoreFolder)
}

/// The user's store; it need not exist.
pub(super) fn store_file() -> Option<PathBuf> {
    user_folder("XDG_DATA_HOME", ".local/share").map(|folder| folder.join("store.db"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_store_override_the_file() {
        let args = |store: Option<&str>, no_store| StoreArgs { store: store.map(PathBuf::from), no_store };
        let check = |flags, file, expected: Option<&str>| {
            let found = StoreConfig::new(flags, file);
            assert_eq!(
                found.map(|store| (store.path, store.is_named)),
                expected.map(|path| (path.into(), true))
            );
        };
        check(args(Some("a"), false), args(None, false), Some("a"));
        check(args(Some("a"), false), args(Some("b"), true), Some("a"));
        check(args(None, false), args(Some("b"), false), Some("b"));
        check(args(None, false), args(Some("b"), true), None);
        check(args(Some("a"), true), args(Some("b"), false), None);
    }
}
