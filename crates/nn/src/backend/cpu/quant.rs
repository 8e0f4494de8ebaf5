//! Quantising weights.

use kernels::FloatFormat;
use mlx::{
    Array, Dtype, OutputSpec, apply,
    quant::{self, Mode, Quantization, Quantized},
};

use super::values::dispatch;

/// Formats of floats are packed here, affine ones by MLX.
#[track_caller]
pub(crate) fn quantize(w: &Array, quantization: Quantization) -> Quantized {
    if quantization.mode == Mode::Affine {
        return quant::quantize(w, quantization);
    }
    let with_last = |last: i32| [&w.shape()[..w.ndim() - 1], &[last]].concat();
    let inputs = w.dim(-1);
    let outputs = [
        OutputSpec { shape: with_last(inputs * quantization.bits / 32), dtype: Dtype::Uint32 },
        OutputSpec { shape: with_last(inputs / quantization.group_size), dtype: Dtype::Uint8 },
    ];
    let format = float_format(quantization.mode);
    let [codes, scales] = apply("pack_floats", &[w], outputs, move |inputs, outputs| {
        let [codes, scales] = outputs else { unreachable!("codes and scales") };
        dispatch!(inputs[0].dtype(), W => {
            kernels::quantize_microscaled::<W>(inputs[0].values(), format, codes.values(), scales.values())
        })
    });
    Quantized { codes, scales, biases: None, quantization }
}

pub(super) fn float_format(mode: Mode) -> FloatFormat {
    match mode {
        Mode::Mxfp4 => FloatFormat::Mxfp4,
        Mode::Mxfp8 => FloatFormat::Mxfp8,
        Mode::Nvfp4 => FloatFormat::Nvfp4,
        Mode::Affine => unreachable!("affine codes are integers"),
    }
}
