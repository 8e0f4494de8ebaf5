//! A piece of state on its way to the thread that writes: its arrays become bytes a few at a time, between steps.

use mlx::Array;

use super::{
    super::state::{Checkpoint, Run},
    file::{Contents, Piece},
};

pub struct Saving {
    pub piece: Piece,
    run: Option<Run>,
    checkpoint: Option<Checkpoint>,
    contents: Contents,
}

impl Saving {
    pub fn new(piece: Piece, run: Option<Run>, checkpoint: Option<Checkpoint>) -> Saving {
        Saving { piece, run, checkpoint, contents: Contents::default() }
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.piece.unpacked_bytes().iter().sum()
    }

    /// Takes arrays' bytes until `left` are copied; `true` once all are.
    ///
    /// # Errors
    /// Evaluating the arrays failed.
    pub fn advance(&mut self, left: &mut usize) -> mlx::Result<bool> {
        let run: Vec<&Array> = self.run.iter().flat_map(Run::arrays).collect();
        let checkpoint: Vec<&Array> = self.checkpoint.iter().flat_map(Checkpoint::arrays).collect();
        let Contents { run: first, checkpoint: second } = &mut self.contents;
        for (arrays, bytes) in [(run, first), (checkpoint, second)] {
            while let Some(array) = arrays.get(bytes.len()) {
                if *left == 0 {
                    return Ok(false);
                }
                *left = left.saturating_sub(array.nbytes());
                bytes.push(array.to_bytes()?);
            }
        }
        Ok(true)
    }

    pub fn into_parts(self) -> (Piece, Contents) {
        (self.piece, self.contents)
    }
}
