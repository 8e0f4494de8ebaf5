#![no_main]

use std::{path::PathBuf, sync::OnceLock};

use libfuzzer_sys::fuzz_target;

/// A file in memory where the system has /dev/shm.
fn scratch() -> &'static PathBuf {
    static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
    SCRATCH.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        folder.join(format!("lanner-fuzz-{}.state", std::process::id()))
    })
}

fuzz_target!(|bytes: &[u8]| {
    let _ = engine::fuzzing::disk_state(bytes, scratch());
    let _ = std::fs::remove_file(scratch());
});
