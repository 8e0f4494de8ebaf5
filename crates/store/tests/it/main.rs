//! The store as its callers see it: conversations, search, requests, and files that are damaged, of
//! older versions, or written by a program that is killed.

// A panic is the verdict of a test.
#![allow(clippy::unwrap_used)]

mod conversations;
mod files;
mod kill;
mod migrations;
mod pictures;
mod requests;
mod search;

use std::path::{Path, PathBuf};

use lanner_store::{Message, Role, Store, Update};
use tempfile::TempDir;

/// A store in a folder of its own.
struct Fixture {
    store: Store,
    folder: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder.path().join("store.db"));
        Fixture { store, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    /// Closes the store and keeps its folder.
    fn close(self) -> TempDir {
        drop(self.store);
        self.folder
    }
}

fn open(path: &Path) -> Store {
    let opening = Store::open(path).unwrap();
    assert_eq!(opening.notice, None);
    opening.store
}

fn message(id: &str, parent: Option<&str>, role: Role, text: &str) -> Message {
    Message {
        id: id.into(),
        parent: parent.map(str::to_owned),
        role,
        text: text.into(),
        created: 1000,
        reasoning: None,
        model: (role == Role::Assistant).then(|| "owl".into()),
        tool_calls: None,
        usage: None,
        other: Default::default(),
    }
}

/// A question and its answer.
fn turn(question: &str, answer: &str) -> Update {
    let messages =
        vec![message("q", None, Role::User, question), message("a", Some("q"), Role::Assistant, answer)];
    Update { messages, leaf: Some("a".into()), ..Update::default() }
}
