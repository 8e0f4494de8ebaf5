//! What decides which bits state has, besides the tokens, in one hash: the model, the program and MLX's library, the
//! device, how all that computes and what is kept of it.

use std::{
    env, io,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use super::digests::Digests;
use crate::{CacheBits, Checkpoint, DiskCache, Options};

/// A hash that is being computed on a thread of its own: all weights have to be read for it, unless that was done before.
pub struct Fingerprint(JoinHandle<io::Result<[String; 2]>>);

impl Fingerprint {
    /// Of a model as the calling thread, whose device it is computed on, is going to compute it. `None` of one that is made
    /// up: it is measured, not asked.
    ///
    /// # Errors
    /// The model's config.json cannot be read, or the system has no thread left.
    pub fn start(
        place: &DiskCache,
        checkpoint: &Checkpoint,
        options: &Options,
    ) -> io::Result<Option<Fingerprint>> {
        let name = match checkpoint {
            Checkpoint::Random { .. } => return Ok(None),
            Checkpoint::Builtin { .. } => "built-in".into(),
            Checkpoint::Folder(path) | Checkpoint::File(path) => {
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
        };
        let config = checkpoint.config().map_err(io::Error::other)?;
        let model_type = config.get("model_type").and_then(serde_json::Value::as_str).unwrap_or_default();
        let label = format!("{name} ({model_type})");
        let computed = computed(&config, options);
        let (bits, root, checkpoint) = (place.bits, place.folder.clone(), checkpoint.clone());
        let work = move || Ok([hash(&computed, bits, &root, &checkpoint)?, label]);
        let thread = thread::Builder::new().name("lanner-fingerprint".into()).spawn(work)?;
        Ok(Some(Fingerprint(thread)))
    }

    /// The hash, and a name for people.
    ///
    /// # Errors
    /// The program's own file, MLX's library or a weight file cannot be read.
    pub fn finish(self) -> io::Result<[String; 2]> {
        self.0.join().unwrap_or_else(|panic| Err(io::Error::other(mlx::panic_message(&*panic))))
    }
}

/// How a model is computed on this thread.
fn computed(config: &serde_json::Value, options: &Options) -> String {
    // Products of dense bfloat16 weights differ between families of vectors.
    format!(
        "{config} {:?} {:?} {} {} {}",
        options.dtype,
        options.precision,
        kernels::simd_level().name(),
        mlx::device_name(),
        mlx::version(),
    )
}

fn hash(computed: &str, bits: Option<CacheBits>, root: &Path, checkpoint: &Checkpoint) -> io::Result<String> {
    let mut hash = blake3::Hasher::new();
    hash.update(computed.as_bytes());
    // Who asked for exact state must never find any other, and nobody coarser state than asked for.
    hash.update(&[bits.map_or(0, u8::from)]);
    let mut digests = Digests::open(root);
    if let Checkpoint::Builtin { weights, .. } = checkpoint {
        hash.update(weights);
    }
    let weights = checkpoint.weight_paths().map_err(io::Error::other)?;
    // Another build of the program, or of MLX, may add in another order.
    for path in weights.into_iter().chain(mlx::library_path()) {
        hash.update(digests.of(&path)?.as_bytes());
    }
    match program() {
        // Even if its file has been replaced: the path leads to the running one, which is not the one of that name.
        Program::Running(path) => _ = hash.update_reader(std::fs::File::open(path)?)?,
        Program::File(path) => _ = hash.update(digests.of(&path)?.as_bytes()),
    }
    // Without, the next start takes longer.
    let saved = super::folder::create_folder(root).and_then(|()| digests.save());
    saved.unwrap_or_else(|error| {
        tracing::debug!("digests of weights are not remembered in {}: {error}", root.display());
    });
    Ok(hash.finalize().to_hex().to_string())
}

enum Program {
    Running(PathBuf),
    File(PathBuf),
}

fn program() -> Program {
    match env::current_exe() {
        // Linux names a file that was removed or replaced so.
        Ok(path) if !path.to_string_lossy().ends_with(" (deleted)") => Program::File(path),
        _ => Program::Running("/proc/self/exe".into()),
    }
}
