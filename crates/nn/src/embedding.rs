//! Token embedding.

use mlx::{Array, Dtype};

use crate::{Linear, backend::on_backend};

pub struct Embedding {
    table: Linear,
    vocab_size: i32,
    dtype: Option<Dtype>,
}

impl Embedding {
    /// An embedding with the table `[vocab_size, hidden_size]`; rows come as `dtype`, or as stored.
    pub fn new(table: Linear, vocab_size: i32, dtype: Option<Dtype>) -> Embedding {
        Embedding { table, vocab_size, dtype }
    }

    /// Token ids `[tokens]` to `[tokens, hidden_size]`.
    ///
    /// # Panics
    /// On the CPU, at once or when it is evaluated, if an id is outside the vocabulary: MLX would
    /// read out of bounds.
    #[track_caller]
    pub fn forward(&self, tokens: &Array) -> Array {
        let tokens = on_backend!(check_token_ids(tokens, self.vocab_size as u32));
        self.table.rows(&tokens, self.dtype)
    }

    /// The output head of models that tie it to the embedding.
    pub fn as_linear(&self, x: &Array) -> Array {
        self.table.forward(x)
    }
}
