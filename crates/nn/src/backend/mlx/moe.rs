//! Choice of experts.

use mlx::Array;

#[track_caller]
pub(crate) fn top_k(scores: &Array, k: i32) -> Array {
    (-scores).argsort(-1).slice(-1, 0, k)
}
