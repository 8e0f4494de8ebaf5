//! Runs fuzz targets on their committed seeds, in unit tests of the crates that define them.

use std::{fs, path::Path};

/// Runs the seeds of a target; at least `least` of them must be valid.
pub(crate) fn check_seeds(target: &str, run: impl Fn(&[u8]) -> Result<(), String>, least: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let (mut valid, mut errors) = (0, vec![]);
    for entry in fs::read_dir(folder).expect("seeds") {
        let path = entry.expect("an entry").path();
        match run(&fs::read(&path).expect("a seed")) {
            Ok(()) => valid += 1,
            Err(error) => errors.push(format!("{}: {error}", path.display())),
        }
    }
    assert!(valid >= least, "{valid} seeds of {target} are valid; others: {errors:#?}");
}
