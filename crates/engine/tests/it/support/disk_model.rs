//! A tiny model with a disk cache, and engines on both.

use std::{
    fs,
    path::{Path, PathBuf},
};

use lanner_engine::*;

use super::{
    checkpoint,
    requests::{Answer, answer, request, submit},
};

/// One model per kind of cache: keys and values, windows, recurrences and keys, convolutions,
/// latents.
pub(crate) const MODELS: [&str; 5] =
    ["qwen3-a", "gemma3_text-a", "qwen3_5-text-sharded", "lfm2-a", "deepseek_v3-a"];

/// A model and its disk cache.
pub(crate) struct DiskModel {
    pub folder: tempfile::TempDir,
    pub disk: tempfile::TempDir,
}

impl DiskModel {
    pub(crate) fn new(golden: &str) -> DiskModel {
        DiskModel { folder: checkpoint::folder(golden), disk: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn start(&self, options: Options) -> Engine {
        let options = Options { device: Some(Device::Cpu), ..options };
        start(Checkpoint::Folder(self.folder.path().into()), options, |_| {}).expect("loads")
    }

    /// An engine without a prefix cache.
    pub(crate) fn cold(&self) -> Engine {
        self.start(Options { prefix_cache_bytes: 0, ..Options::default() })
    }

    pub(crate) fn with_disk(&self, bytes: usize) -> Options {
        let folder = self.disk.path().into();
        Options {
            disk_cache: Some(DiskCache { folder, bytes, bits: None }),
            snapshot_interval: 100,
            ..Options::default()
        }
    }

    /// An engine with a prefix cache and the disk cache.
    pub(crate) fn warm(&self) -> Engine {
        self.start(self.with_disk(1 << 30))
    }

    /// State files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files = files(self.disk.path());
        files.retain(|path| path.extension().is_some_and(|extension| extension == "state"));
        files
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut all: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    all.sort();
    all
}

/// Total bytes of files.
pub(crate) fn total_bytes(files: &[PathBuf]) -> u64 {
    files.iter().map(|path| fs::metadata(path).expect("a file").len()).sum()
}

pub(crate) fn ask(engine: &Engine, prompt: &[u32]) -> Answer {
    answer(submit(engine, request(prompt.to_vec(), 4)))
}
