//! The layers families are built from; none knows how its weights are stored or where it runs.

mod mlp;
mod moe;
mod residual;
pub mod rope;

use mlx::{Array, Dtype, OutputSpec};
pub use mlx::{Linear, Matrix, RmsNorm};

pub use self::{
    mlp::Mlp,
    moe::{Experts, Router, Routing},
    residual::Residual,
};

/// Several matrices of one shape, of which each row of the input takes some: experts, or one for each head.
pub struct Stack {
    weight: Matrix,
    /// `[n, outputs]`.
    bias: Option<Array>,
}

impl Stack {
    pub fn new(weight: Matrix) -> Stack {
        Stack { weight, bias: None }
    }

    /// With a bias `[n, outputs]`.
    pub fn with_bias(self, bias: Array) -> Stack {
        Stack { bias: Some(bias), ..self }
    }

    /// `x` `[tokens, 1 or n, inputs]` and `indices` uint32 `[tokens, n]` to `[tokens, n, outputs]`.
    pub fn forward(&self, x: &Array, indices: &Array) -> Array {
        let out = self.weight.grouped_matmul(x, indices);
        match &self.bias {
            Some(bias) => out + bias.take(indices, 0).astype(x.dtype()),
            None => out,
        }
    }

    /// Matrix `i` for row `i` of each token: `[tokens, n, inputs]` to `[tokens, n, outputs]`.
    pub fn forward_each(&self, x: &Array) -> Array {
        let (tokens, n) = (x.dim(0), x.dim(1));
        let each = Array::arange(0, n, Dtype::Uint32).reshape(&[1, n]);
        self.forward(x, &each.broadcast_to(&[tokens, n]))
    }
}

pub struct Embedding {
    table: Linear,
    vocab_size: i32,
    dtype: Option<Dtype>,
}

impl Embedding {
    /// Of a table `[vocab_size, hidden_size]`.
    pub fn new(table: Linear, vocab_size: i32, dtype: Option<Dtype>) -> Embedding {
        Embedding { table, vocab_size, dtype }
    }

    /// Token ids `[tokens]` to `[tokens, hidden_size]`.
    ///
    /// # Panics
    /// On the CPU, at once or when it is evaluated, if an id is outside the vocabulary: MLX would read
    /// out of bounds.
    #[track_caller]
    pub fn forward(&self, tokens: &Array) -> Array {
        self.table.rows(&self.checked(tokens), self.dtype)
    }

    #[track_caller]
    fn checked(&self, tokens: &Array) -> Array {
        if mlx::on_gpu() {
            return tokens.clone();
        }
        let (vocab_size, spec) =
            (self.vocab_size as u32, OutputSpec { shape: tokens.shape().to_vec(), dtype: Dtype::Uint32 });
        let [ids] = mlx::apply("token_ids", &[tokens], [spec], move |inputs, outputs| {
            let ids: &[u32] = inputs[0].values();
            let wrong = ids.iter().find(|&&id| id >= vocab_size);
            assert!(wrong.is_none(), "token id {wrong:?} is outside the vocabulary of {vocab_size}");
            outputs[0].values::<u32>().copy_from_slice(ids);
        });
        ids
    }

    /// The output head of models that tie it to the embedding.
    pub fn as_linear(&self, x: &Array) -> Array {
        self.table.forward(x)
    }
}

/// Splits the last axis in two.
pub fn halves(x: &Array) -> [Array; 2] {
    let half = x.dim(-1) / 2;
    [x.slice(-1, 0, half), x.slice(-1, half, 2 * half)]
}
