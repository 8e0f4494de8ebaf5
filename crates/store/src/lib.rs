//! Conversations and figures of requests in one SQLite file, which only its user can read. Holds no
//! text of API requests, and knows nothing of HTTP or models.
//!
//! ```
//! use lanner_store::{Scope, Store, Update};
//!
//! let folder = tempfile::tempdir()?;
//! let store = Store::open(&folder.path().join("store.db"))?.store;
//! store.put("", "c1", Update { title: Some("Owls".into()), ..Update::default() })?;
//! let found = store.search(&Scope::All, "owl", None, 10)?;
//! assert_eq!(found.items[0].id, "c1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod api;
mod clock;
mod conversation;
mod error;
mod exchange;
mod file;
mod history;
mod pictures;
mod requests;
mod schema;
mod search;
mod store;
mod usage;
mod words;
mod writer;

pub use self::{
    clock::now,
    conversation::{Conversation, Message, Role, Summary, Update, title_of},
    error::StoreError,
    exchange::{from_json, to_json, to_markdown},
    history::{Cursor, Page, Scope},
    requests::RequestRecord,
    store::{Opening, Store},
    usage::{Period, UsageSum},
    writer::Limits,
};
