//! Format of a state file: a checked header with the tokens, then raw arrays in two sections, each
//! with a checksum. Knows nothing of folders, budgets or trees.
//!
//! ```text
//! magic 8 | version u32 | metadata u32 (bytes) | tokens u32 | BLAKE3 of the rest of the header, 32
//! metadata, JSON | token ids, u32 each | arrays of the span | arrays of the snapshot
//! ```
//! Numbers and arrays are little-endian; arrays are row-major, in the order of the model's caches.
//! Keys and values, including those of sliding windows, may be [quantized](super::kv_quant);
//! recurrent and convolution state never is.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use mlx::{Array, Dtype};

use super::{
    kv_quant,
    metadata::{ArraySpec, LayerSpec, Metadata, StoredSalt, arrays},
};
use crate::{
    CacheBits,
    prefix::{
        key::PrefixKey,
        state::{KvSpan, StateSnapshot},
    },
};

const MAGIC: &[u8; 8] = b"LANSTATE";
/// Incremented when the format or the meaning of stored state changes.
const VERSION: u32 = 2;
/// Bytes of magic, three numbers and a checksum.
const FIXED: usize = 8 + 3 * 4 + 32;
/// Headers that claim more are invalid.
const MAX_METADATA: u32 = 16 << 20;
const MAX_TOKENS: u32 = 16 << 20;
/// Bytes read before they are hashed: few enough to stay in the processor's cache.
const READ: usize = 128 << 10;

/// State of the sequence `tokens`: keys and values of its tokens `from..`, a snapshot after the
/// last one, or both.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub tokens: Vec<u32>,
    pub metadata: Metadata,
}

/// Bytes of the arrays before quantization, as sent to the writer's thread.
#[derive(Default)]
pub(super) struct Payload {
    pub span: Vec<Vec<u8>>,
    pub snapshot: Vec<Vec<u8>>,
}

/// Bytes of an array, as sent from the reader's thread.
pub(super) struct RawArray {
    shape: Vec<i32>,
    dtype: Dtype,
    bytes: Vec<u8>,
}

/// A layer of a section: first position and end of a window, and both arrays.
pub(super) type RawLayer = (Option<[i32; 2]>, [Option<RawArray>; 2]);

/// A checked section of a file, in bytes.
pub(super) struct RawSection {
    pub layers: Vec<RawLayer>,
    /// Even a snapshot without keys may have been computed from quantized ones.
    pub lossy: bool,
}

impl Segment {
    /// Describes the state after the key's tokens.
    pub(super) fn new(
        [fingerprint, model]: [&str; 2],
        bits: Option<CacheBits>,
        key: PrefixKey,
        from: usize,
        span: Option<&KvSpan>,
        snapshot: Option<&StateSnapshot>,
    ) -> Segment {
        let mut metadata = Metadata::new([fingerprint, model], bits, from, span, snapshot);
        metadata.salt = key.salt.map(StoredSalt);
        Segment { tokens: key.tokens.to_vec(), metadata }
    }

    pub(super) fn key(&self) -> PrefixKey<'_> {
        PrefixKey { salt: self.metadata.salt.map(|StoredSalt(salt)| salt), tokens: &self.tokens }
    }

    /// The file's name: a hash of everything that determines its state.
    pub(super) fn name(&self) -> String {
        let Metadata { fingerprint, salt, from, bits, snapshot, .. } = &self.metadata;
        let mut hash = blake3::Hasher::new();
        hash.update(&VERSION.to_le_bytes()).update(fingerprint.as_bytes());
        hash.update(&[bits.map_or(0, u8::from)]);
        let flags = u8::from(snapshot.is_some()) | (u8::from(salt.is_some()) << 1);
        hash.update(&(*from as u64).to_le_bytes()).update(&[flags]);
        salt.iter().for_each(|StoredSalt(salt)| _ = hash.update(salt.as_bytes()));
        hash.update(&token_bytes(&self.tokens));
        format!("{}.state", hash.finalize().to_hex())
    }

    pub(super) fn position(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn has_snapshot(&self) -> bool {
        self.metadata.snapshot.is_some()
    }

    /// Bytes of the span and of the snapshot in the file.
    pub(super) fn bytes(&self) -> [usize; 2] {
        let snapshot = self.metadata.snapshot.as_deref().unwrap_or_default();
        [&self.metadata.span[..], snapshot].map(|layers| arrays(layers).map(ArraySpec::bytes).sum())
    }

    /// Bytes of the span and of the snapshot in memory.
    pub(super) fn memory_bytes(&self) -> [usize; 2] {
        let snapshot = self.metadata.snapshot.as_deref().unwrap_or_default();
        [&self.metadata.span[..], snapshot].map(|layers| arrays(layers).map(ArraySpec::memory_bytes).sum())
    }

    /// Maximum bytes of the header.
    pub(super) fn header_bytes(&self) -> u64 {
        let metadata = serde_json::to_vec(&self.metadata).map_or(0, |json| json.len() + 2 * 64);
        (FIXED + metadata + 4 * self.tokens.len()) as u64
    }

    /// Writes the whole file, as fast as the disk unless keys and values are quantized.
    ///
    /// # Errors
    /// Those of `out`, or a value that cannot be quantized.
    pub(super) fn write(mut self, payload: Payload, out: &mut impl Write) -> io::Result<()> {
        let payload = payload.quantized(&self.metadata)?;
        self.metadata.checksums = [&payload.span, &payload.snapshot].map(|arrays| {
            let mut hash = blake3::Hasher::new();
            arrays.iter().for_each(|bytes| _ = hash.update(bytes));
            hash.finalize().to_hex().to_string()
        });
        let metadata = serde_json::to_vec(&self.metadata)?;
        let tokens = token_bytes(&self.tokens);
        let mut fixed = MAGIC.to_vec();
        for number in [VERSION, metadata.len() as u32, self.tokens.len() as u32] {
            fixed.extend(number.to_le_bytes());
        }
        let checksum = header_checksum(&fixed, &metadata, &tokens);
        for bytes in [&fixed[..], checksum.as_bytes(), &metadata, &tokens] {
            out.write_all(bytes)?;
        }
        payload.span.iter().chain(&payload.snapshot).try_for_each(|bytes| out.write_all(bytes))
    }

    /// Opens a file and checks its header and length, but not its arrays.
    ///
    /// # Errors
    /// The file is not a valid state file.
    pub(super) fn open(path: &Path) -> Result<(Segment, SegmentReader), String> {
        let mut file = File::open(path).map_err(|e| e.to_string())?;
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        let mut fixed = [0; FIXED];
        file.read_exact(&mut fixed).map_err(|_| "it is cut short")?;
        let number = |i: usize| u32::from_le_bytes([fixed[i], fixed[i + 1], fixed[i + 2], fixed[i + 3]]);
        let [version, metadata, tokens] = [number(8), number(12), number(16)];
        if &fixed[..8] != MAGIC {
            return Err("it is not a state file".into());
        }
        if version != VERSION {
            return Err(format!("it has format version {version}, not {VERSION}"));
        }
        let header = FIXED as u64 + u64::from(metadata) + 4 * u64::from(tokens);
        if metadata > MAX_METADATA || tokens > MAX_TOKENS || header > length {
            return Err("it is cut short, or its header is broken".into());
        }
        let mut read = |bytes: usize| {
            let mut buffer = vec![0; bytes];
            file.read_exact(&mut buffer).map(|_| buffer).map_err(|e| e.to_string())
        };
        let (metadata, tokens) = (read(metadata as usize)?, read(4 * tokens as usize)?);
        if header_checksum(&fixed[..20], &metadata, &tokens).as_bytes() != &fixed[20..] {
            return Err("its header is broken".into());
        }
        let metadata = serde_json::from_slice(&metadata).map_err(|e| format!("its header: {e}"))?;
        let tokens = tokens.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let segment = Segment { tokens, metadata };
        segment.metadata.check(segment.position())?;
        let arrays: usize = segment.bytes().iter().sum();
        match header + arrays as u64 == length {
            true => Ok((segment, SegmentReader { file, start: header })),
            false => Err(format!("it has {length} bytes, not {}", header + arrays as u64)),
        }
    }
}

/// Reads the sections after a checked header.
pub(super) struct SegmentReader {
    file: File,
    start: u64,
}

impl SegmentReader {
    /// Reads and checks the span.
    ///
    /// # Errors
    /// The section is invalid.
    pub(super) fn span(&mut self, segment: &Segment) -> Result<RawSection, String> {
        let layers = self.section(&segment.metadata.span, 0, &segment.metadata.checksums[0])?;
        Ok(RawSection { layers, lossy: segment.metadata.bits.is_some() })
    }

    /// Reads and checks the snapshot.
    ///
    /// # Errors
    /// There is none, or the section is invalid.
    pub(super) fn snapshot(&mut self, segment: &Segment) -> Result<RawSection, String> {
        let layers = segment.metadata.snapshot.as_deref().ok_or("it has no snapshot")?;
        let layers = self.section(layers, segment.bytes()[0], &segment.metadata.checksums[1])?;
        Ok(RawSection { layers, lossy: segment.metadata.bits.is_some() })
    }

    fn section(
        &mut self,
        layers: &[LayerSpec],
        offset: usize,
        checksum: &str,
    ) -> Result<Vec<RawLayer>, String> {
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
        let mut array = |spec: &ArraySpec| -> Result<RawArray, String> {
            let dtype = spec.dtype().ok_or("its types are wrong")?;
            let stored = read(spec.bytes())?;
            let bytes = match spec.bits {
                None => stored,
                Some(bits) => {
                    let mut bytes = zeros(spec.memory_bytes())?;
                    kv_quant::dequantize(&stored, spec.row(), bits, dtype, &mut bytes);
                    bytes
                }
            };
            Ok(RawArray { shape: spec.shape.clone(), dtype, bytes })
        };
        let mut all = vec![];
        for layer in layers {
            let [first, second] =
                layer.arrays.each_ref().map(|spec| spec.as_ref().map(&mut array).transpose());
            all.push((layer.window, [first?, second?]));
        }
        match hash.finalize().to_hex().as_str() == checksum {
            true => Ok(all),
            false => Err("its arrays are broken".into()),
        }
    }
}

impl RawArray {
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Reduces `[kv_heads, tokens, dim]` to tokens `from..to`.
    pub(super) fn slice_tokens(&mut self, from: usize, to: usize) {
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
    /// Out of memory.
    pub(super) fn into_array(self) -> mlx::Result<Array> {
        Array::fill_with(&self.shape, self.dtype, |bytes| {
            bytes.copy_from_slice(&self.bytes);
            Ok(())
        })
    }
}

/// # Errors
/// Out of memory.
fn zeros(length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![];
    bytes.try_reserve_exact(length).map_err(|_| format!("{length} bytes of it do not fit into memory"))?;
    bytes.resize(length, 0);
    Ok(bytes)
}

impl Payload {
    pub(super) fn bytes(&self) -> usize {
        self.span.iter().chain(&self.snapshot).map(Vec::len).sum()
    }

    /// Quantizes keys and values as the metadata says.
    ///
    /// # Errors
    /// A value is not finite, or close to overflow.
    fn quantized(self, metadata: &Metadata) -> io::Result<Payload> {
        let quantize = |(bytes, spec): (Vec<u8>, &ArraySpec)| match (spec.bits, spec.dtype()) {
            (Some(bits), Some(dtype)) => kv_quant::quantize(&bytes, spec.row(), bits, dtype)
                .ok_or_else(|| io::Error::other("a key or value is too large to be compressed")),
            _ => Ok(bytes),
        };
        let section = |bytes: Vec<Vec<u8>>, layers: &[LayerSpec]| -> io::Result<Vec<Vec<u8>>> {
            bytes.into_iter().zip(arrays(layers)).map(quantize).collect()
        };
        let snapshot = metadata.snapshot.as_deref().unwrap_or_default();
        Ok(Payload { span: section(self.span, &metadata.span)?, snapshot: section(self.snapshot, snapshot)? })
    }
}

fn header_checksum(fixed: &[u8], metadata: &[u8], tokens: &[u8]) -> blake3::Hash {
    let mut hash = blake3::Hasher::new();
    hash.update(fixed).update(metadata).update(tokens);
    hash.finalize()
}

fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A segment with one layer of keys for `tokens`.
    pub(crate) fn segment(tokens: &[u32]) -> (Segment, Payload) {
        let array = ArraySpec { shape: vec![2, tokens.len() as i32, 4], dtype: "float32".into(), bits: None };
        let bytes = (0..array.bytes()).map(|i| i as u8).collect::<Vec<u8>>();
        let metadata = Metadata {
            fingerprint: "a".repeat(64),
            model: "a model".into(),
            salt: None,
            from: 0,
            bits: None,
            span: vec![LayerSpec { window: None, arrays: [Some(array), None] }],
            snapshot: None,
            checksums: [String::new(), String::new()],
        };
        (Segment { tokens: tokens.to_vec(), metadata }, Payload { span: vec![bytes], snapshot: vec![] })
    }

    #[test]
    fn raw_array_slice_tokens_keeps_range_of_each_head() {
        let (segment, payload) = segment(&[5, 6, 7]);
        let file = tempfile::NamedTempFile::new().expect("a file");
        segment.write(payload, &mut file.as_file()).expect("writes");
        let (segment, mut reader) = Segment::open(file.path()).expect("opens");
        let mut span = reader.span(&segment).expect("reads");
        let array = span.layers[0].1[0].as_mut().expect("an array");
        array.slice_tokens(1, 3);
        assert_eq!(array.shape, [2, 2, 4]);
        // Each head without the 16 bytes of its first token.
        assert_eq!(array.bytes, (16..48).chain(64..96).collect::<Vec<u8>>());
    }
}
