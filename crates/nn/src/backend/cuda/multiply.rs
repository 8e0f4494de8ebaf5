//! Products of rows: affine matrices have kernels for each number of rows, those of 4-bit floats go
//! to the kernels of experts, each as a stack of one.

use mlx::{Array, Dtype};

use super::{
    experts::RowsByExpert,
    launch::{resident_f32, zeros},
    norm::gated_norm,
    products::{self, Product, Source},
};

/// All products of rows of inputs.
#[track_caller]
pub(super) fn multiply(source: Source, [rows, inputs]: [i32; 2], products: &[Product]) {
    let (floats, affine): (Vec<Product>, Vec<Product>) =
        products.iter().partition(|product| product.is_of_floats());
    if !affine.is_empty() {
        products::multiply(source, [rows, inputs], &affine);
    }
    if floats.is_empty() {
        return;
    }
    let expert = zeros(&[rows, 1], Dtype::Uint32);
    let rows = RowsByExpert::new(&expert, 1, floats.iter().map(|product| product.format()));
    if !rows.are_ordered() {
        return rows.multiply(source, inputs, &floats);
    }
    let normed: Array;
    let source = match source {
        Source::Normed { x, norm } => {
            // In float32, as kernels that make integers and norms at once compute it.
            normed = norm.forward(&resident_f32(x));
            Source::Plain { x: &normed }
        }
        Source::GatedNorm { x, gate, norm } => {
            normed = gated_norm(x, gate, norm);
            Source::Plain { x: &normed }
        }
        Source::Plain { .. } | Source::Gated { .. } => source,
    };
    rows.multiply(source, inputs, &floats);
}
