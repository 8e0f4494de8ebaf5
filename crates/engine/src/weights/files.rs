//! The weight files of a checkpoint: headers, and tensors whole or in chunks of bounded memory.

use std::{collections::HashMap, ops::Range};

use mlx::{Array, Dtype, load::Safetensors};

use super::layout::Recipe;
use crate::error::{LoadError, Result};

/// Bytes per chunk, unless one row or one matrix of a stack is larger.
const CHUNK_BYTES: usize = 32 << 20;

#[derive(Default)]
pub(crate) struct WeightFiles {
    files: Vec<Safetensors>,
    /// By name.
    headers: HashMap<String, Header>,
}

struct Header {
    file: usize,
    /// `None` for a type that the engine lacks.
    dtype: Option<Dtype>,
    shape: Vec<usize>,
}

impl WeightFiles {
    /// # Errors
    /// Two files hold the same tensor.
    pub(crate) fn new(files: Vec<Safetensors>) -> Result<WeightFiles> {
        let mut headers = HashMap::new();
        for (i, file) in files.iter().enumerate() {
            for name in file.names() {
                let shape = file.shape(&name).unwrap_or_default().to_vec();
                let header = Header { file: i, dtype: file.dtype(&name).ok(), shape };
                if headers.insert(name.clone(), header).is_some() {
                    let message = "it is there twice, in two files".into();
                    return Err(LoadError::BadTensor { name, message });
                }
            }
        }
        Ok(WeightFiles { files, headers })
    }

    /// A checkpoint without data.
    pub(crate) fn described(tensors: impl IntoIterator<Item = (String, Dtype, Vec<i32>)>) -> WeightFiles {
        let header = |(name, dtype, shape): (String, Dtype, Vec<i32>)| {
            let shape = shape.into_iter().map(|dim| dim as usize).collect();
            (name, Header { file: 0, dtype: Some(dtype), shape })
        };
        WeightFiles { files: vec![], headers: tensors.into_iter().map(header).collect() }
    }

    /// Whether there is data, not only headers.
    pub(crate) fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Names of all tensors, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.headers.keys().cloned().collect();
        names.sort();
        names
    }

    /// Shape of a tensor; empty if there is none of that name.
    pub(crate) fn shape(&self, name: &str) -> &[usize] {
        self.headers.get(name).map(|header| &header.shape[..]).unwrap_or_default()
    }

    /// # Errors
    /// The tensor or its type is unknown.
    pub(crate) fn dtype(&self, name: &str) -> Result<Dtype> {
        let header = self.header(name)?;
        match header.dtype {
            Some(dtype) => Ok(dtype),
            None => Ok(self.files[header.file].dtype(name)?),
        }
    }

    /// The scales of a tensor `PATH.weight`, if it is quantised.
    pub(crate) fn scales_of(&self, name: &str) -> Option<String> {
        let scales = format!("{}.scales", name.strip_suffix(".weight")?);
        self.headers.contains_key(&scales).then_some(scales)
    }

    /// Size in bytes of a tensor's data.
    pub(crate) fn bytes_of(&self, name: &str) -> usize {
        let file = self.headers.get(name).and_then(|header| self.files.get(header.file));
        file.map_or(0, |file| file.bytes_of(name))
    }

    /// Reads all data of a tensor.
    pub(crate) fn read(&mut self, name: &str, bytes: &mut [u8]) -> mlx::Result<()> {
        let file = self.headers.get(name).map_or(0, |header| header.file);
        self.files[file].read_bytes(name, bytes)
    }

    /// Calls `work` with each chunk of the result of `recipe`, whole rows of its first axis, and
    /// the source bytes of the chunk.
    pub(crate) fn chunks<E: From<LoadError>>(
        &mut self,
        recipe: &Recipe,
        mut work: impl FnMut(Array, usize) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for source in &recipe.sources {
            let row = recipe.view[1..].iter().product::<usize>() * self.dtype(source)?.size();
            let (count, step) = (recipe.view[0], (CHUNK_BYTES / row.max(1)).max(1));
            for from in (0..count).step_by(step) {
                let rows = from..count.min(from + step);
                let bytes = rows.len() * row;
                let values = self.rows(source, &recipe.view, rows)?;
                work(recipe.apply(values), bytes)?;
            }
        }
        Ok(())
    }

    /// Rows of a tensor viewed as `shape`.
    pub(crate) fn rows(&mut self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Array> {
        let file = self.header(name)?.file;
        let dtype = self.dtype(name)?;
        let row = shape[1..].iter().product::<usize>() * dtype.size();
        let axis = |size: usize| {
            let too_long =
                |_| LoadError::BadTensor { name: name.into(), message: "an axis is over 2^31 long".into() };
            i32::try_from(size).map_err(too_long)
        };
        let axes = [rows.len()].into_iter().chain(shape[1..].iter().copied());
        let axes: Vec<i32> = axes.map(axis).collect::<Result<_>>()?;
        let files = &mut self.files;
        Ok(Array::fill_with(&axes, dtype, |bytes| files[file].read_part(name, rows.start * row, bytes))?)
    }

    fn header(&self, name: &str) -> Result<&Header> {
        self.headers.get(name).ok_or_else(|| LoadError::MissingTensor(name.into()))
    }
}
