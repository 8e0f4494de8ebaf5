//! Metadata of a state file: which arrays it has, in which shapes and formats.

use mlx::{Array, Dtype};
use serde::{Deserialize, Serialize};

use super::kv_quant;
use crate::{
    CacheBits, CacheSalt,
    cache::Snapshot,
    prefix::state::{KvSpan, StateSnapshot},
};

/// Maximum bytes of all arrays; larger sums could overflow.
const MAX_ARRAYS: usize = usize::MAX >> 16;

/// The JSON of the header; `rename` gives names that differ in the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metadata {
    /// BLAKE3 of everything besides the tokens that determines the bits of the state.
    pub fingerprint: String,
    /// Readable name.
    pub model: String,
    /// That of the request that computed it; absent if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<StoredSalt>,
    pub from: usize,
    /// Bits of quantized keys and values; absent if they are stored as computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<CacheBits>,
    /// Per full-attention layer.
    #[serde(rename = "run")]
    pub span: Vec<LayerSpec>,
    /// Per other layer.
    #[serde(rename = "checkpoint")]
    pub snapshot: Option<Vec<LayerSpec>>,
    /// BLAKE3 of the bytes of the span and of the snapshot.
    pub checksums: [String; 2],
}

/// A salt as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct StoredSalt(pub CacheSalt);

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayerSpec {
    /// First position and end of a sliding window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<[i32; 2]>,
    pub arrays: [Option<ArraySpec>; 2],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArraySpec {
    pub shape: Vec<i32>,
    pub dtype: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<CacheBits>,
}

impl Metadata {
    pub(super) fn new(
        [fingerprint, model]: [&str; 2],
        bits: Option<CacheBits>,
        from: usize,
        span: Option<&KvSpan>,
        snapshot: Option<&StateSnapshot>,
    ) -> Metadata {
        let layer = |window, bits, arrays: [Option<&Array>; 2]| LayerSpec {
            window,
            arrays: arrays.map(|array| array.map(|array| ArraySpec::new(array, bits))),
        };
        let span = span.map_or(&[][..], |span| &span.layers[..]);
        let snapshot_layer = |snapshot: &Snapshot| {
            let (window, arrays) = snapshot.parts();
            layer(window, bits.filter(|_| window.is_some()), arrays)
        };
        Metadata {
            fingerprint: fingerprint.into(),
            model: model.into(),
            salt: None,
            from,
            bits,
            span: span.iter().map(|sides| layer(None, bits, sides.each_ref().map(Option::as_ref))).collect(),
            snapshot: snapshot.map(|snapshot| snapshot.layers.iter().map(snapshot_layer).collect()),
            checksums: [String::new(), String::new()],
        }
    }

    /// Checks that the shapes fit a sequence of `position` tokens.
    pub(super) fn check(&self, position: usize) -> Result<(), String> {
        let Metadata { from, bits, span, snapshot, .. } = self;
        let tokens = position.checked_sub(*from).ok_or("it begins after its end")?;
        let all = || arrays(span).chain(snapshot.iter().flat_map(|layers| arrays(layers)));
        let valid = all().all(|array| {
            let elements =
                array.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
            // Quantization works on rows: an array without axes has none.
            let has_rows = array.bits.is_none() || !array.shape.is_empty();
            array.dtype().is_some() && has_rows && elements.is_some_and(|n| n <= MAX_ARRAYS)
        });
        let add =
            |sum: usize, array: &ArraySpec| sum.checked_add(array.bytes()).filter(|&sum| sum <= MAX_ARRAYS);
        let valid = valid && all().try_fold(0, add).is_some();
        let lengths = arrays(span).all(|array| array.shape.len() == 3 && array.shape[1] as usize == tokens);
        let ends = snapshot.iter().flatten().filter_map(|layer| layer.window);
        let windows = ends.into_iter().all(|[start, end]| {
            0 <= start && start <= end && end as usize == position && start % nn::KEY_BLOCK == 0
        });
        let in_bits = |layer: &LayerSpec, bits| layer.arrays.iter().flatten().all(|array| array.bits == bits);
        let ends = snapshot.iter().flatten();
        let formats = span.iter().all(|layer| in_bits(layer, *bits))
            && ends.into_iter().all(|layer| in_bits(layer, bits.filter(|_| layer.window.is_some())));
        let has_state = tokens > 0 || snapshot.is_some();
        if valid && lengths && windows && formats && has_state {
            Ok(())
        } else {
            Err("its shapes are wrong".into())
        }
    }
}

impl TryFrom<String> for StoredSalt {
    type Error = &'static str;

    fn try_from(digits: String) -> Result<StoredSalt, &'static str> {
        CacheSalt::from_hex(&digits).map(StoredSalt).ok_or("its salt is broken")
    }
}

impl From<StoredSalt> for String {
    fn from(StoredSalt(salt): StoredSalt) -> String {
        salt.to_hex()
    }
}

impl ArraySpec {
    fn new(array: &Array, bits: Option<CacheBits>) -> ArraySpec {
        ArraySpec { shape: array.shape().to_vec(), dtype: array.dtype().name().into(), bits }
    }

    pub(super) fn dtype(&self) -> Option<Dtype> {
        let all = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
        all.into_iter().find(|dtype| dtype.name() == self.dtype)
    }

    /// Bytes in the file.
    pub(super) fn bytes(&self) -> usize {
        match self.bits {
            None => self.memory_bytes(),
            Some(bits) => self.elements() / self.row().max(1) * kv_quant::row_bytes(self.row(), bits),
        }
    }

    /// Bytes in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.elements() * self.dtype().map_or(0, Dtype::size)
    }

    fn elements(&self) -> usize {
        self.shape.iter().map(|&d| d as usize).product()
    }

    /// Values per head and token.
    pub(super) fn row(&self) -> usize {
        self.shape.last().map_or(0, |&dim| dim as usize)
    }
}

pub(super) fn arrays(layers: &[LayerSpec]) -> impl Iterator<Item = &ArraySpec> {
    layers.iter().flat_map(|layer| &layer.arrays).flatten()
}
