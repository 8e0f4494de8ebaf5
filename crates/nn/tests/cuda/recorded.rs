//! Outputs that a GPU has computed, in `recorded.txt`: a hash of the bits, and the comparison's
//! name. A hash of `-` stands for a comparison that has not run on a GPU yet.

use std::{
    ffi::OsString,
    fmt::{self, Debug, Write as _},
    fs::OpenOptions,
    io::Write as _,
    path::Path,
};

const RECORDED: &str = include_str!("recorded.txt");

/// The file that outputs of this machine's GPU are appended to.
pub(crate) fn file() -> Option<OsString> {
    std::env::var_os("LANNER_RECORD")
}

/// Compares an output with the recorded one, or records it.
///
/// # Panics
/// It is another one, or none is recorded.
#[track_caller]
pub(crate) fn compare(file_of_test: &str, what: &str, output: &impl Debug) {
    let module = Path::new(file_of_test).file_stem().unwrap().display();
    let (name, hash) = (format!("{module}: {what}"), hash_of(output));
    if let Some(path) = file() {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        // At once: other tests append to it, too.
        file.write_all(format!("{hash} {name}\n").as_bytes()).unwrap();
        return;
    }
    let mut lines = RECORDED.lines().filter_map(|line| line.split_once(' '));
    match lines.find(|(_, recorded)| *recorded == name) {
        Some(("-", _)) => {}
        Some((recorded, _)) => assert_eq!(hash, recorded, "{name}: a GPU computed other bits"),
        None => panic!("{name}: no GPU's output is recorded; CONTRIBUTING.md says how to"),
    }
}

/// FNV-1a, which unlike the standard library's hash never changes, of what is shown of an output:
/// its integers, which hold all bits.
fn hash_of(output: &impl Debug) -> String {
    struct Fnv(u64);
    impl fmt::Write for Fnv {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let next = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
            self.0 = text.bytes().fold(self.0, next);
            Ok(())
        }
    }
    let mut hash = Fnv(0xCBF2_9CE4_8422_2325);
    write!(hash, "{output:?}").unwrap();
    format!("{:016x}", hash.0)
}
