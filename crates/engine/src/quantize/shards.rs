//! The weight files of the result. All offsets are known before the first write, so headers come
//! first.

use std::{collections::BTreeMap, fs::File, io::Write, os::unix::fs::FileExt, path::PathBuf};

use mlx::Dtype;
use serde_json::{Map, Value, json};

use super::{error::QuantizeError, folder::PartialFolder, plan::StoredTensor};

/// Prefixes of weight files: the model's, and the MTP heads' that mlx-lm must not read.
const STEMS: [&str; 2] = ["model", "mtp"];

/// Weight files of the result, open for writing.
pub(super) struct Shards {
    files: Vec<Shard>,
    /// Where each tensor goes, by name.
    slots: BTreeMap<String, TensorSlot>,
    total: usize,
}

struct Shard {
    path: PathBuf,
    file: File,
}

struct TensorSlot {
    shard: usize,
    /// Where the next of its bytes goes in the file, and where they end.
    next: u64,
    end: u64,
}

impl Shards {
    /// Creates the files in `folder`, at most `limit` bytes each unless one tensor is longer.
    pub(super) fn create(
        folder: &PartialFolder,
        tensors: Vec<StoredTensor>,
        limit: usize,
    ) -> Result<Shards, QuantizeError> {
        let total = tensors.iter().map(StoredTensor::bytes).sum();
        let (in_mtp_file, main): (Vec<StoredTensor>, Vec<StoredTensor>) =
            tensors.into_iter().partition(|tensor| tensor.in_mtp_file);
        let mut shards = Shards { files: Vec::new(), slots: BTreeMap::new(), total };
        for (stem, tensors) in STEMS.into_iter().zip([main, in_mtp_file]) {
            let parts = split(tensors, limit);
            let count = parts.len();
            for (i, tensors) in parts.into_iter().enumerate() {
                let name = match count {
                    1 => format!("{stem}.safetensors"),
                    _ => format!("{stem}-{:05}-of-{count:05}.safetensors", i + 1),
                };
                shards.add(folder, &name, tensors)?;
            }
        }
        Ok(shards)
    }

    /// Bytes of all tensors.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    fn add(
        &mut self,
        folder: &PartialFolder,
        name: &str,
        mut tensors: Vec<StoredTensor>,
    ) -> Result<(), QuantizeError> {
        let path = folder.path().join(name);
        // Wide types first aligns every tensor to its type.
        tensors.sort_by(|a, b| b.dtype.size().cmp(&a.dtype.size()).then_with(|| a.name.cmp(&b.name)));
        let (header, mut offset) = (header(&tensors), 0);
        let write = |bytes: &[u8]| {
            let mut file = folder.create_file(name)?;
            file.write_all(bytes)?;
            Ok(file)
        };
        let file = write(&header).map_err(QuantizeError::write(&path, self.total))?;
        for tensor in tensors {
            let next = (header.len() + offset) as u64;
            offset += tensor.bytes();
            let slot = TensorSlot { shard: self.files.len(), next, end: (header.len() + offset) as u64 };
            self.slots.insert(tensor.name, slot);
        }
        self.files.push(Shard { path, file });
        Ok(())
    }

    /// Writes the next bytes of a tensor.
    ///
    /// # Errors
    /// The disk is full, or fails.
    ///
    /// # Panics
    /// The tensor was not planned, or is complete.
    pub(super) fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), QuantizeError> {
        let slot = self.slots.get_mut(name).unwrap_or_else(|| panic!("{name} was not planned"));
        assert!(slot.next + bytes.len() as u64 <= slot.end, "{name} has more bytes than planned");
        let shard = &self.files[slot.shard];
        shard.file.write_all_at(bytes, slot.next).map_err(QuantizeError::write(&shard.path, self.total))?;
        slot.next += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the files; returns the index and the number of files.
    pub(super) fn finish(self) -> Result<(Value, usize), QuantizeError> {
        let mut map = Map::new();
        for (name, slot) in &self.slots {
            assert_eq!(slot.next, slot.end, "{name} has fewer bytes than planned");
            let file = self.files[slot.shard].path.file_name().unwrap_or_default();
            map.insert(name.clone(), json!(file.to_string_lossy()));
        }
        for shard in &self.files {
            shard.file.sync_all().map_err(QuantizeError::write(&shard.path, self.total))?;
        }
        Ok((json!({ "metadata": { "total_size": self.total }, "weight_map": map }), self.files.len()))
    }
}

/// Whether a weight file can have this name.
pub(super) fn is_shard(name: &str) -> bool {
    let is_number = |part: &str| part.len() >= 5 && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.strip_suffix(".safetensors").unwrap_or("").split('-').collect();
    match parts[..] {
        [stem] => STEMS.contains(&stem),
        [stem, i, "of", count] => STEMS.contains(&stem) && is_number(i) && is_number(count),
        _ => false,
    }
}

/// Tensors sorted by name, split into files.
fn split(mut tensors: Vec<StoredTensor>, limit: usize) -> Vec<Vec<StoredTensor>> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut parts: Vec<Vec<StoredTensor>> = Vec::new();
    let mut used = 0;
    for tensor in tensors {
        // An upper bound of its header entry.
        let needs = tensor.bytes() + tensor.name.len() + 24 * tensor.shape.len() + 100;
        if parts.is_empty() || used + needs > limit {
            parts.push(Vec::new());
            used = 100;
        }
        used += needs;
        parts.last_mut().into_iter().for_each(|part| part.push(tensor.clone()));
    }
    parts
}

fn header(tensors: &[StoredTensor]) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), json!({ "format": "mlx" }));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.bytes();
        let entry =
            json!({ "dtype": name(tensor.dtype), "shape": tensor.shape, "data_offsets": [offset, end] });
        entries.insert(tensor.name.clone(), entry);
        offset = end;
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes(), &json[..]].concat()
}

/// safetensors' name of a type.
fn name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bool => "BOOL",
        Dtype::Uint8 => "U8",
        Dtype::Uint16 => "U16",
        Dtype::Uint32 => "U32",
        Dtype::Uint64 => "U64",
        Dtype::Int8 => "I8",
        Dtype::Int16 => "I16",
        Dtype::Int32 => "I32",
        Dtype::Int64 => "I64",
        Dtype::Float16 => "F16",
        Dtype::Bfloat16 => "BF16",
        _ => "F32",
    }
}
