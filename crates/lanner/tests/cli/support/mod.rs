//! Shared by several tests: servers, an HTTP client, a hub and recorded checkpoints.

#[path = "../../../../engine/tests/it/support/checkpoint.rs"]
pub(crate) mod checkpoint;
pub(crate) mod client;
#[path = "../../../../engine/tests/it/support/document.rs"]
pub(crate) mod document;
pub(crate) mod fake_hub;
pub(crate) mod process;
pub(crate) mod server;
