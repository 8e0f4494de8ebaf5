//! Shared by several tests: servers, an HTTP client, a hub and recorded checkpoints.

#[path = "../../../../engine/tests/it/support/checkpoint.rs"]
pub mod checkpoint;
pub mod client;
#[path = "../../../../engine/tests/it/support/document.rs"]
pub mod document;
pub mod fake_hub;
pub mod process;
pub mod server;
