//! Tensors of a checkpoint, piece by piece, so that memory is bounded by a piece and not by a model.

use std::{collections::HashMap, ops::Range};

use mlx::{Array, Dtype, load::Safetensors};

use super::layout::{Cut, Recipe};
use crate::error::{LoadError, Result};

/// Bytes of the source that are worked on at a time, unless one row or one matrix of a stack has more.
const PIECE: usize = 32 << 20;

pub struct Reader {
    files: Vec<Safetensors>,
    /// Tensor name to file.
    index: HashMap<String, usize>,
}

impl Reader {
    pub fn new(files: Vec<Safetensors>) -> Reader {
        let index = files
            .iter()
            .enumerate()
            .flat_map(|(i, file)| file.names().into_iter().map(move |name| (name, i)));
        Reader { index: index.collect(), files }
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.index.keys().cloned().collect();
        names.sort();
        names
    }

    /// Shape of a tensor; empty if there is none of that name.
    pub fn shape(&self, name: &str) -> &[usize] {
        self.index.get(name).and_then(|&file| self.files[file].shape(name)).unwrap_or_default()
    }

    pub fn dtype(&self, name: &str) -> Result<Dtype> {
        Ok(self.files[self.file(name)?].dtype(name)?)
    }

    /// Calls `work` with one piece after the other of what `recipe` makes, whole rows or matrices of its first axis, and
    /// the bytes of the source it was made of.
    pub fn pieces<E: From<LoadError>>(
        &mut self,
        recipe: &Recipe,
        mut work: impl FnMut(Array, usize) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for source in &recipe.sources {
            let row = recipe.seen_as[1..].iter().product::<usize>() * self.dtype(source)?.size();
            let (count, step) = (recipe.seen_as[0], (PIECE / row.max(1)).max(1));
            for from in (0..count).step_by(step) {
                let rows = from..count.min(from + step);
                let bytes = rows.len() * row;
                let values = self.rows(source, &recipe.seen_as, rows)?;
                work(recipe.apply(values), bytes)?;
            }
        }
        Ok(())
    }

    /// Rows of a tensor seen as `shape`.
    pub fn rows(&mut self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Array> {
        let file = self.file(name)?;
        let dtype = self.files[file].dtype(name)?;
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

    fn file(&self, name: &str) -> Result<usize> {
        self.index.get(name).copied().ok_or_else(|| LoadError::MissingTensor(name.into()))
    }
}

impl Recipe {
    /// What it makes of some rows of a source.
    fn apply(&self, values: Array) -> Array {
        let values = match self.cut {
            Some(cut) => cut.apply(&values),
            None => values,
        };
        let values = match (self.transposed, values.ndim() as i32) {
            (true, axes) => {
                let order: Vec<i32> = (0..axes - 2).chain([axes - 1, axes - 2]).collect();
                values.transpose(&order)
            }
            (false, _) => values,
        };
        if self.plus_one { values + 1.0 } else { values }
    }
}

impl Cut {
    fn apply(self, values: &Array) -> Array {
        let Cut { axis, from, count, step } = self;
        if step == 1 {
            return values.slice(axis as i32, from as i32, (from + count) as i32);
        }
        // Steps become an axis of their own.
        let (before, after) = (&values.shape()[..axis], &values.shape()[axis + 1..]);
        let stepped = values.reshape(&[before, &[count as i32, step as i32], after].concat());
        let one = stepped.slice(axis as i32 + 1, from as i32, from as i32 + 1);
        one.reshape(&[before, &[count as i32], after].concat())
    }
}
