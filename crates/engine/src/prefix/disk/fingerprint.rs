//! Hash of everything besides the tokens that determines the bits of state: model, program, MLX's
//! library, device, options, and format.

use std::{
    env, io,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use super::digests::Digests;
use crate::api::{CacheBits, Checkpoint, DiskCache, Options};

/// A hash that is being computed on its own thread: all weights must be read, unless their digests
/// are cached.
pub(crate) struct Fingerprint(JoinHandle<io::Result<[String; 2]>>);

impl Fingerprint {
    /// Starts hashing a model as the calling thread computes it, on that thread's device. `None`
    /// for random weights, which serve benchmarks only.
    ///
    /// # Errors
    /// The model's config.json cannot be read, or no thread can be started.
    pub(crate) fn start(
        cache: &DiskCache,
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
        let computation = computation(&config, options);
        let (bits, root, checkpoint) = (cache.bits, cache.folder.clone(), checkpoint.clone());
        let work = move || Ok([hash(&computation, bits, &root, &checkpoint)?, label]);
        let thread = thread::Builder::new().name("lanner-fingerprint".into()).spawn(work)?;
        Ok(Some(Fingerprint(thread)))
    }

    /// The hash, and a readable name.
    ///
    /// # Errors
    /// The program's own file, MLX's library or a weight file cannot be read.
    pub(crate) fn finish(self) -> io::Result<[String; 2]> {
        self.0.join().unwrap_or_else(|panic| Err(io::Error::other(mlx::panic_message(&*panic))))
    }
}

/// Describes how this thread computes a model.
fn computation(config: &serde_json::Value, options: &Options) -> String {
    // Products of dense bfloat16 weights depend on the instruction set.
    format!(
        "{config} {:?} {:?} {:?} {} {} {}",
        options.dtype,
        options.precision,
        options.kv_cache_dtype,
        kernels::simd_level().name(),
        mlx::device_name(),
        mlx::version(),
    )
}

fn hash(
    computation: &str,
    bits: Option<CacheBits>,
    root: &Path,
    checkpoint: &Checkpoint,
) -> io::Result<String> {
    let mut hash = blake3::Hasher::new();
    hash.update(computation.as_bytes());
    // Exact and compressed state, and state of other bits, are never used for each other.
    hash.update(&[bits.map_or(0, u8::from)]);
    let mut digests = Digests::open(root);
    if let Checkpoint::Builtin { weights, .. } = checkpoint {
        hash.update(weights);
    }
    let weights = checkpoint.weight_paths().map_err(io::Error::other)?;
    // Other builds of the program or of MLX may add in another order.
    for path in weights.into_iter().chain(mlx::library_path()) {
        hash.update(digests.of(&path)?.as_bytes());
    }
    match program() {
        // The path leads to the running program even after its file was replaced.
        Program::Running(path) => _ = hash.update_reader(std::fs::File::open(path)?)?,
        Program::File(path) => _ = hash.update(digests.of(&path)?.as_bytes()),
    }
    // Without them the next start takes longer.
    let saved = super::folder::create_folder(root).and_then(|()| digests.save());
    saved.unwrap_or_else(|error| {
        tracing::debug!("digests of weights are not saved in {}: {error}", root.display());
    });
    Ok(hash.finalize().to_hex().to_string())
}

enum Program {
    Running(PathBuf),
    File(PathBuf),
}

fn program() -> Program {
    match env::current_exe() {
        // Linux marks the path of a removed or replaced file.
        Ok(path) if !path.to_string_lossy().ends_with(" (deleted)") => Program::File(path),
        _ => Program::Running("/proc/self/exe".into()),
    }
}
