//! Quantising weights.

pub(crate) use mlx::quant::quantize;
