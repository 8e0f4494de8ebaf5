//! Hash of everything besides the tokens that determines the bits of state: model, program, MLX's
//! library, device, options, and format.

use std::{
    env, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use super::digests::Digests;
use crate::api::{CacheBits, Checkpoint, DiskCache, Options};

/// A hash that is being computed on its own thread: all weights must be read, unless their digests
/// are cached. Dropping it stops the thread.
pub(crate) struct Fingerprint {
    thread: Option<JoinHandle<io::Result<[String; 2]>>>,
    stop: Arc<AtomicBool>,
}

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
        let machine = Machine::of_this_thread();
        let computation = computation(&config, options, &machine);
        let (bits, root, checkpoint) = (cache.bits, cache.folder.clone(), checkpoint.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            let library = machine.library.as_deref();
            Ok([hash(&computation, bits, &root, &checkpoint, library, &stopped)?, label])
        };
        let thread = thread::Builder::new().name("lanner-fingerprint".into()).spawn(work)?;
        Ok(Some(Fingerprint { thread: Some(thread), stop }))
    }

    /// The hash, and a readable name.
    ///
    /// # Errors
    /// The program's own file, MLX's library or a weight file cannot be read.
    pub(crate) fn finish(mut self) -> io::Result<[String; 2]> {
        let Some(thread) = self.thread.take() else { return Err(io::Error::other("it was finished before")) };
        thread.join().unwrap_or_else(|panic| Err(io::Error::other(mlx::panic_message(&*panic))))
    }
}

impl Drop for Fingerprint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What computes a model.
#[derive(Clone)]
struct Machine {
    /// Products of dense bfloat16 weights depend on the instruction set.
    simd: &'static str,
    device: String,
    mlx_version: String,
    /// MLX's library, if it is a file of its own.
    library: Option<PathBuf>,
}

impl Machine {
    fn of_this_thread() -> Machine {
        Machine {
            simd: kernels::simd_level().name(),
            device: mlx::device_name(),
            mlx_version: mlx::version(),
            library: mlx::library_path(),
        }
    }
}

/// Describes how a machine computes a model.
fn computation(config: &serde_json::Value, options: &Options, machine: &Machine) -> String {
    format!(
        "{config} {:?} {:?} {:?} {} {} {}",
        options.dtype,
        options.precision,
        options.kv_cache_dtype,
        machine.simd,
        machine.device,
        machine.mlx_version,
    )
}

fn hash(
    computation: &str,
    bits: Option<CacheBits>,
    root: &Path,
    checkpoint: &Checkpoint,
    library: Option<&Path>,
    stop: &AtomicBool,
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
    for path in weights.into_iter().chain(library.map(Path::to_path_buf)) {
        hash.update(digests.of(&path, stop)?.as_bytes());
    }
    match program() {
        // The path leads to the running program even after its file was replaced.
        Program::Running(path) => _ = hash.update_reader(std::fs::File::open(path)?)?,
        Program::File(path) => _ = hash.update(digests.of(&path, stop)?.as_bytes()),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fingerprint_depends_on_device_and_library() {
        let root = tempfile::tempdir().expect("a folder");
        let file = |text: &str| {
            let path = root.path().join(text);
            std::fs::write(&path, text).expect("is written");
            path
        };
        let checkpoint = Checkpoint::File(file("weights"));
        let fingerprint = |machine: &Machine| {
            let computation = computation(&json!({}), &Options::default(), machine);
            let (library, stop) = (machine.library.as_deref(), AtomicBool::new(false));
            hash(&computation, None, root.path(), &checkpoint, library, &stop).expect("a hash")
        };
        let own = Machine { library: Some(file("one")), ..Machine::of_this_thread() };
        let others = [
            Machine { device: "another".into(), ..own.clone() },
            Machine { mlx_version: "0".into(), ..own.clone() },
            Machine { simd: "none", ..own.clone() },
            Machine { library: Some(file("two")), ..own.clone() },
        ];
        assert_eq!(fingerprint(&own), fingerprint(&own));
        for (at, other) in others.iter().enumerate() {
            assert_ne!(fingerprint(&own), fingerprint(other), "machine {at}");
        }
        let this = Machine::of_this_thread();
        assert_eq!((this.device, this.library), (mlx::device_name(), mlx::library_path()));
    }
}
