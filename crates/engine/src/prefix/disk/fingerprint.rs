//! What decides which bits state has, besides the tokens, in one hash: the model, the program, how it computes and what
//! is kept of that.

use std::{
    env,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    time::SystemTime,
};

use crate::{CacheBits, Checkpoint, Options};

/// Of a weight file so many parts of so many bytes are read, evenly spread; all of it would take as long as loading it.
const PARTS: u64 = 256;
const PART: u64 = 4096;

/// The hash, and a name for people. `None` of a model that is made up: it is measured, not asked.
///
/// # Errors
/// The program's own file or a weight file cannot be read.
pub fn fingerprint(
    checkpoint: &Checkpoint,
    options: &Options,
    bits: Option<CacheBits>,
) -> io::Result<Option<(String, String)>> {
    let mut hash = blake3::Hasher::new();
    let name = match checkpoint {
        Checkpoint::Random { .. } => return Ok(None),
        Checkpoint::Builtin { weights, .. } => {
            hash.update(weights);
            "built-in".into()
        }
        Checkpoint::Folder(path) | Checkpoint::File(path) => {
            for path in checkpoint.weight_paths().map_err(io::Error::other)? {
                weights(&path, &mut hash)?;
            }
            path.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
    };
    let config = checkpoint.config().map_err(io::Error::other)?;
    let model_type = config.get("model_type").and_then(serde_json::Value::as_str).unwrap_or_default();
    let label = format!("{name} ({model_type})");
    // Products of dense bfloat16 weights differ between families of vectors.
    let computed = format!(
        "{config} {:?} {:?} {} {} {}",
        options.dtype,
        options.precision,
        kernels::vectors().name(),
        mlx::on_gpu(),
        mlx::version(),
    );
    hash.update(computed.as_bytes());
    // Who asked for exact state must never find any other, and nobody coarser state than asked for.
    hash.update(&[bits.map_or(0, u8::from)]);
    // Another build may add in another order.
    hash.update_reader(File::open(program()?)?)?;
    Ok(Some((hash.finalize().to_hex().to_string(), label)))
}

/// The running program, even if its file has been replaced.
fn program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { env::current_exe() }
}

/// Size, time, and parts of the file, its beginning and end among them.
fn weights(path: &Path, hash: &mut blake3::Hasher) -> io::Result<()> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let (length, modified) = (metadata.len(), metadata.modified()?);
    let modified = modified.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    hash.update(&length.to_le_bytes()).update(&modified.to_le_bytes());
    let mut header = [0; 8];
    file.read_exact(&mut header)?;
    // The header whole: it names what the parts are parts of.
    hash.update(&header);
    hash.update_reader((&mut file).take(u64::from_le_bytes(header).min(length)))?;
    for i in 0..PARTS {
        file.seek(SeekFrom::Start(length.saturating_sub(PART) * i / (PARTS - 1)))?;
        hash.update_reader((&mut file).take(PART))?;
    }
    Ok(())
}
