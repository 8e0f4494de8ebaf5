//! A quantised matrix on the device.

use kernels::{
    Affine, FloatFormat, Microscaled, Weight,
    cuda::{TILE_FEATURES, TiledLayout},
};
use mlx::{
    Array, Dtype, FrozenArray, Result,
    cuda::Buffer,
    quant::{Mode, Quantized},
};

use super::launch::device;

/// A matrix, or a stack of them, in tiles on the device; nothing else can read it.
pub(crate) struct DeviceMatrix {
    /// Uint8.
    pub tiles: Array,
    /// The layout of all matrices, one after the other.
    pub layout: TiledLayout,
    /// Outputs of one matrix.
    pub outputs: i32,
    pub inputs: i32,
}

impl DeviceMatrix {
    /// Matrices of the stack.
    pub(super) fn count(&self) -> usize {
        self.layout.features / self.outputs as usize
    }

    /// Tiles of one matrix; of a single one with padding.
    pub(super) fn tiles_of_one(&self) -> usize {
        match self.count() {
            1 => self.layout.padded_tiles(),
            _ => self.outputs as usize / TILE_FEATURES,
        }
    }
}

/// A matrix, or a stack of them one after the other, in tiles.
pub(super) fn tiled(weight: &Quantized) -> Result<Option<DeviceMatrix>> {
    let frozen: Vec<FrozenArray> = weight.parts().map(FrozenArray::of).collect();
    let view = match &frozen[..] {
        [codes, scales, biases] if [scales, biases].iter().all(|part| part.dtype() == Dtype::Bfloat16) => {
            Weight::Affine(Affine {
                codes: codes.values(),
                scales: kernels::Floats::Bf16(scales.values()),
                biases: kernels::Floats::Bf16(biases.values()),
                group_size: weight.quantization.group_size as usize,
                bits: weight.quantization.bits as usize,
            })
        }
        [codes, scales] if weight.quantization.mode == Mode::Mxfp4 => Weight::Microscaled(Microscaled {
            codes: codes.values(),
            scales: scales.values(),
            format: FloatFormat::Mxfp4,
        }),
        _ => return Ok(None),
    };
    let (outputs, inputs) = (weight.codes.dim(-2), weight.inputs());
    let features = weight.codes.size() / weight.codes.dim(-1) as usize;
    let layout = TiledLayout::for_weight(&view, features, inputs as usize);
    let Some(layout) = layout else { return Ok(None) };
    let mut bytes = vec![0; layout.bytes()];
    layout.pack(view, &mut bytes);
    let buffer = Buffer::new(device(), bytes.len())?;
    device().upload(buffer.pointer(), &bytes)?;
    let tiles = device().array(buffer, &[bytes.len() as i32], Dtype::Uint8);
    Ok(Some(DeviceMatrix { tiles, layout, outputs, inputs }))
}
