//! The format of one file of state: a checked header with the tokens, then raw arrays, in two sections with a checksum
//! each. Knows nothing of folders, budgets or trees.
//!
//! ```text
//! magic 8 | version u32 | description u32 (bytes) | tokens u32 | BLAKE3 of all of the header but this, 32
//! description, JSON | token ids, u32 each | arrays of the run | arrays of the checkpoint
//! ```
//! Numbers are little-endian; so are arrays, row-major, in the order of the model's caches. Keys and values, those of
//! sliding windows among them, may be [packed](super::pack); the state of recurrences and convolutions never is.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use mlx::{Array, Dtype};
use serde::{Deserialize, Serialize};

use super::{
    super::state::{Checkpoint, Run},
    pack,
};
use crate::{CacheBits, cache::Snapshot};

const MAGIC: &[u8; 8] = b"LANSTATE";
/// Counts up when the format, or what stored state means, changes.
const VERSION: u32 = 2;
/// Magic, three numbers and a checksum.
const FIXED: usize = 8 + 3 * 4 + 32;
/// Headers that claim more are not ours.
const MAX_DESCRIPTION: u32 = 16 << 20;
const MAX_TOKENS: u32 = 16 << 20;
/// Most bytes of all arrays; larger sums could overflow.
const MAX_ARRAYS: usize = usize::MAX >> 16;
/// Bytes that are read before they are hashed: few enough to be in the processor's cache still.
const READ: usize = 128 << 10;

/// What the sequence of [`Piece::tokens`] has: keys and values of its tokens `from..`, if there are any, and perhaps a
/// checkpoint behind its last.
#[derive(Clone, Debug)]
pub struct Piece {
    pub tokens: Vec<u32>,
    pub description: Description,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// BLAKE3 of everything that decides which bits the state has, but the tokens.
    pub fingerprint: String,
    /// For people.
    pub model: String,
    pub from: usize,
    /// What keys and values are packed in; absent: they are as they were computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<CacheBits>,
    /// Of each growing layer.
    run: Vec<Layer>,
    /// Of each other layer.
    checkpoint: Option<Vec<Layer>>,
    /// BLAKE3 of the bytes of run and checkpoint.
    checksums: [String; 2],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    /// First position and end of what a sliding window holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<[i32; 2]>,
    arrays: [Option<Form>; 2],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    shape: Vec<i32>,
    dtype: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bits: Option<CacheBits>,
}

/// The arrays' bytes, not packed yet: what crosses to the thread that writes.
#[derive(Default)]
pub struct Contents {
    pub run: Vec<Vec<u8>>,
    pub checkpoint: Vec<Vec<u8>>,
}

/// An array's bytes: what crosses from the thread that reads.
pub struct RawArray {
    shape: Vec<i32>,
    dtype: Dtype,
    bytes: Vec<u8>,
}

/// A section's layers as they were read: the first position and the end of a window, and both sides.
pub type RawLayer = (Option<[i32; 2]>, [Option<RawArray>; 2]);

/// A section of a file, checked, in bytes.
pub struct RawSection {
    pub layers: Vec<RawLayer>,
    /// Even a checkpoint without keys may have been computed behind packed ones.
    pub lossy: bool,
}

impl Piece {
    /// What to write of a sequence of `tokens`.
    pub fn of(
        [fingerprint, model]: [&str; 2],
        bits: Option<CacheBits>,
        tokens: &[u32],
        from: usize,
        run: Option<&Run>,
        checkpoint: Option<&Checkpoint>,
    ) -> Piece {
        let layer = |window, bits, arrays: [Option<&Array>; 2]| Layer {
            window,
            arrays: arrays.map(|array| array.map(|array| Form::of(array, bits))),
        };
        let run = run.map_or(&[][..], |run| &run.layers[..]);
        let kept = |kept: &Snapshot| {
            let (window, arrays) = kept.parts();
            layer(window, bits.filter(|_| window.is_some()), arrays)
        };
        let description = Description {
            fingerprint: fingerprint.into(),
            model: model.into(),
            from,
            bits,
            run: run.iter().map(|sides| layer(None, bits, sides.each_ref().map(Option::as_ref))).collect(),
            checkpoint: checkpoint.map(|checkpoint| checkpoint.layers.iter().map(kept).collect()),
            checksums: [String::new(), String::new()],
        };
        Piece { tokens: tokens.to_vec(), description }
    }

    /// The file's name: a hash of what it holds the state of.
    pub fn name(&self) -> String {
        let Description { fingerprint, from, bits, checkpoint, .. } = &self.description;
        let mut hash = blake3::Hasher::new();
        hash.update(&VERSION.to_le_bytes()).update(fingerprint.as_bytes());
        hash.update(&[bits.map_or(0, u8::from)]);
        hash.update(&(*from as u64).to_le_bytes()).update(&[u8::from(checkpoint.is_some())]);
        hash.update(&token_bytes(&self.tokens));
        format!("{}.state", hash.finalize().to_hex())
    }

    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    pub fn has_checkpoint(&self) -> bool {
        self.description.checkpoint.is_some()
    }

    /// Bytes that the arrays of the run, and of the checkpoint, take in the file.
    pub fn bytes(&self) -> [usize; 2] {
        let checkpoint = self.description.checkpoint.as_deref().unwrap_or_default();
        [&self.description.run[..], checkpoint].map(|layers| forms(layers).map(Form::bytes).sum())
    }

    /// Bytes that the arrays of the run, and of the checkpoint, take in memory.
    pub fn unpacked_bytes(&self) -> [usize; 2] {
        let checkpoint = self.description.checkpoint.as_deref().unwrap_or_default();
        [&self.description.run[..], checkpoint].map(|layers| forms(layers).map(Form::unpacked_bytes).sum())
    }

    /// Most bytes of the file that are not arrays.
    pub fn header_bytes(&self) -> u64 {
        let description = serde_json::to_vec(&self.description).map_or(0, |json| json.len() + 2 * 64);
        (FIXED + description + 4 * self.tokens.len()) as u64
    }

    /// Writes all of it; about as fast as the disk, where nothing is to be packed.
    ///
    /// # Errors
    /// Those of `out`, or a number that cannot be packed.
    pub fn write(mut self, contents: Contents, out: &mut impl Write) -> io::Result<()> {
        let contents = contents.packed(&self.description)?;
        self.description.checksums = [&contents.run, &contents.checkpoint].map(|arrays| {
            let mut hash = blake3::Hasher::new();
            arrays.iter().for_each(|bytes| _ = hash.update(bytes));
            hash.finalize().to_hex().to_string()
        });
        let description = serde_json::to_vec(&self.description)?;
        let tokens = token_bytes(&self.tokens);
        let mut fixed = MAGIC.to_vec();
        for number in [VERSION, description.len() as u32, self.tokens.len() as u32] {
            fixed.extend(number.to_le_bytes());
        }
        let checksum = header_checksum(&fixed, &description, &tokens);
        for bytes in [&fixed[..], checksum.as_bytes(), &description, &tokens] {
            out.write_all(bytes)?;
        }
        contents.run.iter().chain(&contents.checkpoint).try_for_each(|bytes| out.write_all(bytes))
    }

    /// Opens a file and checks its header and its length, not yet its arrays.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(path: &Path) -> Result<(Piece, Arrays), String> {
        let mut file = File::open(path).map_err(|e| e.to_string())?;
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        let mut fixed = [0; FIXED];
        file.read_exact(&mut fixed).map_err(|_| "it is cut short")?;
        let number = |i: usize| u32::from_le_bytes([fixed[i], fixed[i + 1], fixed[i + 2], fixed[i + 3]]);
        let [version, description, tokens] = [number(8), number(12), number(16)];
        if &fixed[..8] != MAGIC {
            return Err("it is not a file of state".into());
        }
        if version != VERSION {
            return Err(format!("its format is number {version}, not {VERSION}"));
        }
        let header = FIXED as u64 + u64::from(description) + 4 * u64::from(tokens);
        if description > MAX_DESCRIPTION || tokens > MAX_TOKENS || header > length {
            return Err("it is cut short, or its header is broken".into());
        }
        let mut read = |bytes: usize| {
            let mut buffer = vec![0; bytes];
            file.read_exact(&mut buffer).map(|_| buffer).map_err(|e| e.to_string())
        };
        let (description, tokens) = (read(description as usize)?, read(4 * tokens as usize)?);
        if header_checksum(&fixed[..20], &description, &tokens).as_bytes() != &fixed[20..] {
            return Err("its header is broken".into());
        }
        let description = serde_json::from_slice(&description).map_err(|e| format!("its header: {e}"))?;
        let tokens = tokens.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let piece = Piece { tokens, description };
        piece.check()?;
        let held: usize = piece.bytes().iter().sum();
        match header + held as u64 == length {
            true => Ok((piece, Arrays { file, start: header })),
            false => Err(format!("it has {length} bytes, not {}", header + held as u64)),
        }
    }

    /// Whether the shapes are ones that state of these tokens has.
    fn check(&self) -> Result<(), String> {
        let Description { from, bits, run, checkpoint, .. } = &self.description;
        let tokens = self.tokens.len().checked_sub(*from).ok_or("it begins behind its end")?;
        let all = || forms(run).chain(checkpoint.iter().flat_map(|layers| forms(layers)));
        let sound = all().all(|form| {
            let elements =
                form.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
            // Packing works on rows: an array without axes has none.
            let has_rows = form.bits.is_none() || !form.shape.is_empty();
            form.dtype().is_some() && has_rows && elements.is_some_and(|n| n <= MAX_ARRAYS)
        });
        let add = |sum: usize, form: &Form| sum.checked_add(form.bytes()).filter(|&sum| sum <= MAX_ARRAYS);
        let sound = sound && all().try_fold(0, add).is_some();
        let runs = forms(run).all(|form| form.shape.len() == 3 && form.shape[1] as usize == tokens);
        let ends = checkpoint.iter().flatten().filter_map(|layer| layer.window);
        let windows = ends.into_iter().all(|[start, end]| {
            0 <= start && start <= end && end as usize == self.tokens.len() && start % nn::KEY_BLOCK == 0
        });
        let in_bits = |layer: &Layer, bits| layer.arrays.iter().flatten().all(|form| form.bits == bits);
        let ends = checkpoint.iter().flatten();
        let packed = run.iter().all(|layer| in_bits(layer, *bits))
            && ends.into_iter().all(|layer| in_bits(layer, bits.filter(|_| layer.window.is_some())));
        let something = tokens > 0 || self.has_checkpoint();
        if sound && runs && windows && packed && something {
            Ok(())
        } else {
            Err("its shapes are wrong".into())
        }
    }
}

/// The sections behind a checked header.
pub struct Arrays {
    file: File,
    start: u64,
}

impl Arrays {
    /// The run of tokens `from..`, checked.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn run(&mut self, piece: &Piece) -> Result<RawSection, String> {
        let layers = self.section(&piece.description.run, 0, &piece.description.checksums[0])?;
        Ok(RawSection { layers, lossy: piece.description.bits.is_some() })
    }

    /// The checkpoint, checked.
    ///
    /// # Errors
    /// There is none, or what is wrong with it.
    pub fn checkpoint(&mut self, piece: &Piece) -> Result<RawSection, String> {
        let layers = piece.description.checkpoint.as_deref().ok_or("it has no checkpoint")?;
        let layers = self.section(layers, piece.bytes()[0], &piece.description.checksums[1])?;
        Ok(RawSection { layers, lossy: piece.description.bits.is_some() })
    }

    fn section(&mut self, layers: &[Layer], offset: usize, checksum: &str) -> Result<Vec<RawLayer>, String> {
        self.file.seek(SeekFrom::Start(self.start + offset as u64)).map_err(|e| e.to_string())?;
        let mut hash = blake3::Hasher::new();
        let mut read = |length: usize| -> Result<Vec<u8>, String> {
            let mut bytes = zeros(length)?;
            for bytes in bytes.chunks_mut(READ) {
                self.file.read_exact(bytes).map_err(|e| e.to_string())?;
                hash.update(bytes);
            }
            Ok(bytes)
        };
        let mut array = |form: &Form| -> Result<RawArray, String> {
            let dtype = form.dtype().ok_or("its types are wrong")?;
            let stored = read(form.bytes())?;
            let bytes = match form.bits {
                None => stored,
                Some(bits) => {
                    let mut bytes = zeros(form.unpacked_bytes())?;
                    pack::unpack(&stored, form.row(), bits, dtype, &mut bytes);
                    bytes
                }
            };
            Ok(RawArray { shape: form.shape.clone(), dtype, bytes })
        };
        let mut all = vec![];
        for layer in layers {
            let [first, second] =
                layer.arrays.each_ref().map(|form| form.as_ref().map(&mut array).transpose());
            all.push((layer.window, [first?, second?]));
        }
        match hash.finalize().to_hex().as_str() == checksum {
            true => Ok(all),
            false => Err("its arrays are broken".into()),
        }
    }
}

impl RawArray {
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Keeps tokens `from..to` of `[kv_heads, tokens, dim]`.
    pub fn keep(&mut self, from: usize, to: usize) {
        let [heads, tokens, dim] = self.shape[..] else { return };
        if from == 0 && to == tokens as usize {
            return;
        }
        let row = dim as usize * self.dtype.size();
        let length = (to - from) * row;
        for head in 0..heads as usize {
            let start = (head * tokens as usize + from) * row;
            self.bytes.copy_within(start..start + length, head * length);
        }
        self.bytes.truncate(heads as usize * length);
        self.shape[1] = (to - from) as i32;
    }

    /// # Errors
    /// There is no memory for it.
    pub fn into_array(self) -> mlx::Result<Array> {
        Array::fill_with(&self.shape, self.dtype, |bytes| {
            bytes.copy_from_slice(&self.bytes);
            Ok(())
        })
    }
}

/// # Errors
/// There is no memory for so many.
fn zeros(length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![];
    bytes.try_reserve_exact(length).map_err(|_| format!("{length} bytes of it do not fit into memory"))?;
    bytes.resize(length, 0);
    Ok(bytes)
}

impl Contents {
    pub fn bytes(&self) -> usize {
        self.run.iter().chain(&self.checkpoint).map(Vec::len).sum()
    }

    /// With keys and values as the description says.
    ///
    /// # Errors
    /// A number is not finite, or nearly not.
    fn packed(self, description: &Description) -> io::Result<Contents> {
        let one = |(bytes, form): (Vec<u8>, &Form)| match (form.bits, form.dtype()) {
            (Some(bits), Some(dtype)) => pack::pack(&bytes, form.row(), bits, dtype)
                .ok_or_else(|| io::Error::other("a key or value is too large to be compressed")),
            _ => Ok(bytes),
        };
        let all = |arrays: Vec<Vec<u8>>, layers: &[Layer]| -> io::Result<Vec<Vec<u8>>> {
            arrays.into_iter().zip(forms(layers)).map(one).collect()
        };
        let checkpoint = description.checkpoint.as_deref().unwrap_or_default();
        Ok(Contents { run: all(self.run, &description.run)?, checkpoint: all(self.checkpoint, checkpoint)? })
    }
}

impl Form {
    fn of(array: &Array, bits: Option<CacheBits>) -> Form {
        Form { shape: array.shape().to_vec(), dtype: array.dtype().name().into(), bits }
    }

    fn dtype(&self) -> Option<Dtype> {
        let all = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
        all.into_iter().find(|dtype| dtype.name() == self.dtype)
    }

    /// In the file.
    fn bytes(&self) -> usize {
        match self.bits {
            None => self.unpacked_bytes(),
            Some(bits) => self.elements() / self.row().max(1) * pack::row_bytes(self.row(), bits),
        }
    }

    /// In memory.
    fn unpacked_bytes(&self) -> usize {
        self.elements() * self.dtype().map_or(0, Dtype::size)
    }

    fn elements(&self) -> usize {
        self.shape.iter().map(|&d| d as usize).product()
    }

    /// Numbers of one head and token.
    fn row(&self) -> usize {
        self.shape.last().map_or(0, |&dim| dim as usize)
    }
}

fn forms(layers: &[Layer]) -> impl Iterator<Item = &Form> {
    layers.iter().flat_map(|layer| &layer.arrays).flatten()
}

fn header_checksum(fixed: &[u8], description: &[u8], tokens: &[u8]) -> blake3::Hash {
    let mut hash = blake3::Hasher::new();
    hash.update(fixed).update(description).update(tokens);
    hash.finalize()
}

fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A piece of a sequence, and what it holds.
    pub fn piece(tokens: &[u32]) -> (Piece, Contents) {
        let form = Form { shape: vec![2, tokens.len() as i32, 4], dtype: "float32".into(), bits: None };
        let bytes = (0..form.bytes()).map(|i| i as u8).collect::<Vec<u8>>();
        let description = Description {
            fingerprint: "a".repeat(64),
            model: "a model".into(),
            from: 0,
            bits: None,
            run: vec![Layer { window: None, arrays: [Some(form), None] }],
            checkpoint: None,
            checksums: [String::new(), String::new()],
        };
        (Piece { tokens: tokens.to_vec(), description }, Contents { run: vec![bytes], checkpoint: vec![] })
    }

    #[test]
    fn raw_array_keeps_the_tokens_asked_for() {
        let (piece, contents) = piece(&[5, 6, 7]);
        let file = tempfile::NamedTempFile::new().expect("a file");
        piece.write(contents, &mut file.as_file()).expect("writes");
        let (piece, mut arrays) = Piece::open(file.path()).expect("opens");
        let mut run = arrays.run(&piece).expect("reads");
        let array = run.layers[0].1[0].as_mut().expect("an array");
        array.keep(1, 3);
        assert_eq!(array.shape, [2, 2, 4]);
        // Of each head, without the first token's 16 bytes.
        assert_eq!(array.bytes, (16..48).chain(64..96).collect::<Vec<u8>>());
    }
}
