//! Token embedding.

use mlx::{Array, Dtype, OutputSpec, apply};

/// `tokens`, each checked to be in the vocabulary.
#[track_caller]
pub(crate) fn check_token_ids(tokens: &Array, vocab_size: u32) -> Array {
    let spec = OutputSpec { shape: tokens.shape().to_vec(), dtype: Dtype::Uint32 };
    let [ids] = apply("token_ids", &[tokens], [spec], move |inputs, outputs| {
        let ids: &[u32] = inputs[0].values();
        let wrong = ids.iter().find(|&&id| id >= vocab_size);
        assert!(wrong.is_none(), "token id {wrong:?} is outside the vocabulary of {vocab_size}");
        outputs[0].values::<u32>().copy_from_slice(ids);
    });
    ids
}
