//! Safetensors files: the header is checked first, then tensors are read straight into arrays.

use std::{
    io::{Cursor, Read, Seek, SeekFrom},
    path::Path,
};

use safetensors::tensor::Metadata;

use crate::{Array, Dtype, Error, Result};

/// Most bytes of a header, checked before it is read; real ones have a few megabytes.
const MAX_HEADER: u64 = 100 << 20;
/// Most tensors of a file; the largest published models have about 100,000 in all their files.
const MAX_TENSORS: usize = 1 << 18;
/// Most axes of a tensor.
const MAX_AXES: usize = 16;

trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// An open safetensors file whose header has been checked against its length.
pub struct Safetensors {
    name: String,
    metadata: Metadata,
    /// Where tensor data begins, in bytes.
    data: u64,
    source: Box<dyn ReadSeek>,
}

impl Safetensors {
    /// # Errors
    /// The file cannot be read, is cut short, or its header does not fit its contents.
    pub fn open(path: &Path) -> Result<Safetensors> {
        let name = path.display().to_string();
        let file = files::open(path).map_err(|e| file_error(&name, e.to_string()))?;
        Safetensors::new(name, Box::new(file))
    }

    /// A file in memory, such as one compiled into the program; `name` is for error messages.
    ///
    /// # Errors
    /// Those of [`open`](Safetensors::open).
    pub fn from_static(name: &str, bytes: impl AsRef<[u8]> + 'static) -> Result<Safetensors> {
        Safetensors::new(name.into(), Box::new(Cursor::new(bytes)))
    }

    fn new(name: String, mut source: Box<dyn ReadSeek>) -> Result<Safetensors> {
        let fail = |message: String| file_error(&name, message);
        let io = |e: std::io::Error| file_error(&name, e.to_string());
        let length = source.seek(SeekFrom::End(0)).map_err(io)?;
        source.rewind().map_err(io)?;
        let mut prefix = [0; 8];
        source.read_exact(&mut prefix).map_err(|_| fail("the file is cut short: it has no header".into()))?;
        let header = u64::from_le_bytes(prefix);
        if header > MAX_HEADER || header > length - 8 {
            return Err(fail(format!(
                "the header claims {header} bytes of a file of {length}: not a safetensors file, or cut short"
            )));
        }
        let mut bytes = vec![0; header as usize];
        source.read_exact(&mut bytes).map_err(io)?;
        // Each tensor is an object: braces are counted before parsing allocates memory for tensors.
        let tensors = bytes.iter().filter(|&&byte| byte == b'{').count();
        if tensors > MAX_TENSORS {
            return Err(fail(format!(
                "the header names more than {MAX_TENSORS} tensors: no model has as many"
            )));
        }
        let metadata: Metadata =
            serde_json::from_slice(&bytes).map_err(|e| fail(format!("the header is broken: {e}")))?;
        check_offsets(&metadata, length - 8 - header).map_err(fail)?;
        Ok(Safetensors { data: 8 + header, name, metadata, source })
    }

    /// Names of all tensors, in no particular order.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Size in bytes of a tensor's data; 0 if there is no such tensor.
    pub fn bytes_of(&self, name: &str) -> usize {
        self.metadata.info(name).map_or(0, |info| info.data_offsets.1 - info.data_offsets.0)
    }

    /// Shape of a tensor, from the header.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.metadata.info(name).map(|info| &info.shape[..])
    }

    /// Type of a tensor as an array; 8-bit floats, which MLX lacks, are uint8.
    ///
    /// # Errors
    /// There is no such tensor, or MLX lacks its type.
    pub fn dtype(&self, tensor: &str) -> Result<Dtype> {
        let fail = |message: String| file_error(&self.name, message);
        let info = self.metadata.info(tensor).ok_or_else(|| fail(format!("no tensor {tensor}")))?;
        dtype(info.dtype).ok_or_else(|| fail(format!("{tensor} has type {:?}", info.dtype)))
    }

    /// Reads all of one tensor's data into `bytes`, which has its size.
    ///
    /// # Errors
    /// There is no such tensor, or reading fails.
    pub fn read_bytes(&mut self, tensor: &str, bytes: &mut [u8]) -> Result<()> {
        let held = self.bytes_of(tensor);
        if bytes.len() != held {
            return Err(file_error(&self.name, format!("{tensor} has {held} bytes, not {}", bytes.len())));
        }
        self.read_part(tensor, 0, bytes)
    }

    /// Fills `bytes` with a tensor's data from byte `offset` on.
    ///
    /// # Errors
    /// There is no such tensor, it has fewer bytes, or reading fails.
    pub fn read_part(&mut self, tensor: &str, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let fail = |message: String| file_error(&self.name, message);
        let info = self.metadata.info(tensor).ok_or_else(|| fail(format!("no tensor {tensor}")))?;
        let (from, to) = info.data_offsets;
        if offset.saturating_add(bytes.len()) > to - from {
            return Err(fail(format!(
                "{tensor} has {} bytes, not {offset} and {} more",
                to - from,
                bytes.len()
            )));
        }
        let start = SeekFrom::Start(self.data + (from + offset) as u64);
        let read = self.source.seek(start).and_then(|_| self.source.read_exact(bytes));
        read.map_err(|e| file_error(&self.name, format!("reading {tensor}: {e}")))
    }

    /// Reads one tensor.
    ///
    /// # Errors
    /// There is no such tensor, MLX lacks its type, or reading fails.
    pub fn read(&mut self, tensor: &str) -> Result<Array> {
        let dtype = self.dtype(tensor)?;
        let shape = self.shape(tensor).unwrap_or_default();
        let shape = shape.iter().map(|&d| i32::try_from(d)).collect::<std::result::Result<Vec<_>, _>>();
        let too_long = || file_error(&self.name, format!("{tensor} has an axis of over 2^31 elements"));
        let shape = shape.map_err(|_| too_long())?;
        Array::fill_with(&shape, dtype, |bytes| self.read_bytes(tensor, bytes))
    }
}

/// The tensors must tile the data exactly, each with the bytes its shape and type need.
fn check_offsets(metadata: &Metadata, held: u64) -> std::result::Result<(), String> {
    let mut tensors: Vec<_> = metadata.tensors().into_iter().collect();
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut end = 0;
    for (name, info) in tensors {
        let (from, to) = info.data_offsets;
        if info.shape.len() > MAX_AXES {
            return Err(format!("tensor {name} has {} axes: the file is broken", info.shape.len()));
        }
        let elements = info.shape.iter().copied().try_fold(1usize, usize::checked_mul);
        let bits = elements.and_then(|n| n.checked_mul(info.dtype.bitsize()));
        let fits = bits.is_some_and(|bits| bits.is_multiple_of(8) && from.checked_add(bits / 8) == Some(to));
        if from != end || !fits {
            return Err(format!(
                "the header's offsets {from}..{to} of tensor {name} are wrong: the file is broken"
            ));
        }
        end = to;
    }
    if end as u64 == held {
        return Ok(());
    }
    Err(format!("the header describes {end} bytes of tensors, the file holds {held}: download it again"))
}

fn file_error(file: &str, message: String) -> Error {
    Error::File { file: file.into(), message }
}

fn dtype(dtype: safetensors::Dtype) -> Option<Dtype> {
    use safetensors::Dtype as S;
    Some(match dtype {
        S::BOOL => Dtype::Bool,
        S::U8 | S::F8_E4M3 | S::F8_E8M0 => Dtype::Uint8,
        S::U16 => Dtype::Uint16,
        S::U32 => Dtype::Uint32,
        S::U64 => Dtype::Uint64,
        S::I8 => Dtype::Int8,
        S::I16 => Dtype::Int16,
        S::I32 => Dtype::Int32,
        S::I64 => Dtype::Int64,
        S::F16 => Dtype::Float16,
        S::BF16 => Dtype::Bfloat16,
        S::F32 => Dtype::Float32,
        _ => return None,
    })
}
