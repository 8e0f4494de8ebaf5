//! Shared by several tests: servers, an HTTP client, a hub and recorded checkpoints.

#[path = "../../../../engine/tests/it/support/checkpoint.rs"]
pub(crate) mod checkpoint;
pub(crate) mod client;
#[path = "../../../../engine/tests/it/support/document.rs"]
#[allow(dead_code, reason = "its tables of bounds are the engine's")]
pub(crate) mod document;
pub(crate) mod fake_hub;
pub(crate) mod pictures;
pub(crate) mod process;
pub(crate) mod scripted_model;
pub(crate) mod server;
pub(crate) mod terminal;
pub(crate) mod wait;

use std::{fs, path::Path};

/// The built-in model with a longer context: a folder for `--model`.
pub(crate) fn long_context(tokens: usize) -> tempfile::TempDir {
    let merlin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&merlin).unwrap() {
        let name = entry.unwrap().file_name();
        fs::copy(merlin.join(&name), folder.path().join(&name)).unwrap();
    }
    let config = fs::read_to_string(merlin.join("config.json")).unwrap();
    let longer = format!("\"max_position_embeddings\": {tokens}");
    let longer = config.replace("\"max_position_embeddings\": 8192", &longer);
    assert_ne!(config, longer);
    fs::write(folder.path().join("config.json"), longer).unwrap();
    folder
}
