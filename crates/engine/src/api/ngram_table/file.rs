//! The file of a table: a header in text, then the entries.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
};

use super::{NgramTable, NgramTableError, TableInfo};

/// First bytes of a table, with the version of the format.
const MAGIC: &[u8] = b"lanner n-grams 1\n";
/// Bytes before the first entry: magic, JSON, and spaces to fill.
pub(super) const HEADER: usize = 4096;

impl NgramTable {
    /// Reads a table for the tokenizer with this fingerprint; `model` names the model with that
    /// tokenizer.
    ///
    /// # Errors
    /// The file is not a table, is damaged, or is for another tokenizer.
    pub fn open(path: &Path, tokenizer: &str, model: &str) -> Result<NgramTable, NgramTableError> {
        let table = NgramTable::read(path)?;
        if table.info.tokenizer == tokenizer {
            return Ok(table);
        }
        let (path, made_with, model) = (path.into(), table.info.model, model.into());
        Err(NgramTableError::OtherTokenizer { path, made_with, model })
    }

    /// Reads a table for any tokenizer.
    ///
    /// # Errors
    /// The file is not a table, or is damaged.
    pub fn read(path: &Path) -> Result<NgramTable, NgramTableError> {
        let read = |error| NgramTableError::Read { path: path.into(), error };
        let damaged = |problem| NgramTableError::Damaged { path: path.into(), problem };
        let mut file = files::open(path).map_err(read)?;
        let mut header = vec![];
        (&mut file).take(HEADER as u64).read_to_end(&mut header).map_err(read)?;
        let json = header.strip_prefix(MAGIC).ok_or_else(|| NgramTableError::NotATable(path.into()))?;
        let info: TableInfo =
            serde_json::from_slice(json).map_err(|_| damaged("its header cannot be read"))?;
        let length = file.metadata().map_err(read)?.len();
        if Some(length) != info.entries.checked_mul(8).and_then(|bytes| bytes.checked_add(HEADER as u64)) {
            return Err(damaged("its length is wrong"));
        }
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).map_err(read)?;
        if blake3::hash(&bytes).to_hex().as_str() != info.checksum {
            return Err(damaged("its checksum is wrong"));
        }
        let entries = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        Ok(NgramTable { info, entries })
    }
}

/// A table that is being written, under another name until it is complete.
pub(super) struct TableWriter {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
    hash: blake3::Hasher,
    entries: u64,
    is_complete: bool,
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

impl TableWriter {
    pub(super) fn create(path: &Path) -> io::Result<TableWriter> {
        let partial = with_extension(path, "partial");
        let mut file = BufWriter::new(File::create(&partial)?);
        file.write_all(&[b' '; HEADER])?;
        let hash = blake3::Hasher::new();
        Ok(TableWriter { path: path.into(), partial, file, hash, entries: 0, is_complete: false })
    }

    /// Entries come in ascending order.
    pub(super) fn push(&mut self, entry: u64) -> io::Result<()> {
        let bytes = entry.to_le_bytes();
        self.hash.update(&bytes);
        self.entries += 1;
        self.file.write_all(&bytes)
    }

    /// Writes the header, with the number and the checksum of the entries.
    pub(super) fn finish(mut self, info: TableInfo) -> io::Result<TableInfo> {
        let checksum = self.hash.finalize().to_hex().to_string();
        let info = TableInfo { entries: self.entries, checksum, ..info };
        let json = serde_json::to_vec(&info).map_err(io::Error::other)?;
        if MAGIC.len() + json.len() > HEADER {
            return Err(io::Error::other("the model's name is too long"));
        }
        self.file.rewind()?;
        self.file.write_all(MAGIC)?;
        self.file.write_all(&json)?;
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.partial, &self.path)?;
        self.is_complete = true;
        Ok(info)
    }
}

/// `path` with another extension appended.
pub(super) fn with_extension(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}
