//! Linear layers with quantised weights in tiles on the device.

use kernels::{
    Affine,
    cuda::{MAX_SHARED, ProductPart, ProductParts, QuantizedRows, TiledLayout, skinny_shared, wide_shared},
};
use mlx::{
    Array, Dtype, FrozenArray, Result,
    cuda::{Arguments, Buffer},
    quant::Quantized,
};

use super::{
    super::cpu,
    launch::{device, empty, empty_of, fall_back, launch, resident, resident_f32},
    matrix::DeviceMatrix,
};
use crate::{Linear, Matrix, Precision, RmsNorm, precision, storage::WeightStorage};

/// See [`WeightStorage::prepacked`].
pub(crate) fn prepack(matrix: Matrix) -> Result<WeightStorage> {
    let tiled = match &matrix {
        Matrix::Quantized(weight) if precision() == Precision::Rounded => tiled(weight)?,
        _ => None,
    };
    match tiled {
        Some(tiled) => Ok(WeightStorage::Device(tiled)),
        None => {
            fall_back("weights in another format than affine, 4 or 8 bits, groups of 64, bfloat16 scales");
            cpu::prepack(matrix)
        }
    }
}

fn tiled(weight: &Quantized) -> Result<Option<DeviceMatrix>> {
    let frozen: Vec<FrozenArray> = weight.parts().map(FrozenArray::of).collect();
    let [codes, scales, biases] = &frozen[..] else { return Ok(None) };
    if [scales, biases].iter().any(|part| part.dtype() != Dtype::Bfloat16) || weight.codes.ndim() != 2 {
        return Ok(None);
    }
    let affine = Affine {
        codes: codes.values(),
        scales: kernels::Floats::Bf16(scales.values()),
        biases: kernels::Floats::Bf16(biases.values()),
        group_size: weight.quantization.group_size as usize,
        bits: weight.quantization.bits as usize,
    };
    let (outputs, inputs) = (weight.codes.dim(0), weight.inputs());
    let layout = TiledLayout::for_weight(&affine, outputs as usize, inputs as usize);
    let Some(layout) = layout else { return Ok(None) };
    let mut bytes = vec![0; layout.bytes()];
    layout.pack(affine, &mut bytes);
    let buffer = Buffer::new(device(), bytes.len())?;
    device().upload(buffer.pointer(), &bytes)?;
    let tiles = device().array(buffer, &[bytes.len() as i32], Dtype::Uint8);
    Ok(Some(DeviceMatrix { tiles, layout, outputs, inputs }))
}

impl Linear {
    fn on_device(&self) -> Option<&DeviceMatrix> {
        match &self.weight {
            WeightStorage::Device(matrix) => Some(matrix),
            _ => None,
        }
    }

    /// The bias's address on the device, or 0.
    #[track_caller]
    fn device_bias(&self) -> u64 {
        let Some(bias) = &self.bias else { return 0 };
        self.device_bias.get_or_init(|| resident_f32(bias)).device_address()
    }
}

/// `linear(norm(x))` of each linear layer.
#[track_caller]
pub(crate) fn project(x: &Array, norm: Option<&RmsNorm>, linears: &[&Linear]) -> Vec<Array> {
    if linears.iter().any(|linear| linear.on_device().is_none()) || x.size() == 0 {
        let one = |&linear: &&Linear| match linear.on_device() {
            Some(_) if x.size() > 0 => project(x, norm, &[linear]).remove(0),
            _ => cpu::project(x, norm, &[linear]).remove(0),
        };
        return linears.iter().map(one).collect();
    }
    let inputs = x.dim(-1);
    let rows = x.size() as i32 / inputs.max(1);
    let source = match norm {
        Some(norm) => Source::Normed { x, norm },
        None => Source::Plain { x },
    };
    let quantized = QuantizedInputs::new(source, rows, inputs);
    let outs: Vec<Array> = linears.iter().map(|linear| empty(&output_shape(x, linear))).collect();
    let products: Vec<Product> =
        linears.iter().zip(&outs).map(|(linear, out)| Product { linear, out, stream: None }).collect();
    quantized.multiply(&products);
    outs.into_iter().map(|out| out.astype(x.dtype())).collect()
}

#[track_caller]
pub(super) fn output_shape(x: &Array, linear: &Linear) -> Vec<i32> {
    let (inputs, outputs) = (linear.weight.inputs(), linear.weight.outputs());
    assert_eq!(x.dim(-1), inputs, "x {:?} does not fit a weight of {inputs} inputs", x.shape());
    [&x.shape()[..x.ndim() - 1], &[outputs]].concat()
}

/// See [`Linear::rows`].
#[track_caller]
pub(crate) fn rows(linear: &Linear, indices: &Array, dtype: Option<Dtype>) -> Array {
    let Some(matrix) = linear.on_device() else { return cpu::rows(linear, indices, dtype) };
    let n = indices.dim(0);
    let out = empty(&[n, matrix.inputs]);
    if n > 0 {
        let ids = resident(indices);
        let arguments = Arguments::new()
            .with(matrix.tiles.device_address())
            .with(ids.device_address())
            .with(out.device_address())
            .with(matrix.inputs)
            .with(matrix.layout.segments() as i32);
        let name = if matrix.layout.bits == 4 { "embed_4" } else { "embed_8" };
        launch(name, [n as usize, 1, 1], 256, 0, arguments);
    }
    out.astype(dtype.unwrap_or(Dtype::Bfloat16))
}

/// What rows of inputs are made from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Plain {
        x: &'a Array,
    },
    Normed {
        x: &'a Array,
        norm: &'a RmsNorm,
    },
    /// `activation(gate) * up`; the activation as kernels number it.
    Gated {
        gate: &'a Array,
        up: &'a Array,
        activation: i32,
    },
    /// `norm(x) * silu(gate)`, the norm over each head.
    GatedNorm {
        x: &'a Array,
        gate: &'a Array,
        norm: &'a RmsNorm,
    },
}

/// Rows of inputs as integers.
pub(super) struct QuantizedInputs {
    planes: Array,
    steps: Array,
    rows: usize,
    segments: usize,
    wide: bool,
}

/// A product to be written to `out`, added to `stream` if there is one.
pub(super) struct Product<'a> {
    pub linear: &'a Linear,
    pub out: &'a Array,
    pub stream: Option<&'a Array>,
}

/// More rows than this are multiplied by the kernel for many.
const MAX_FEW_ROWS: usize = 16;
/// Rows of a block of many.
const WIDE_ROWS: usize = 128;

impl QuantizedInputs {
    #[track_caller]
    pub(super) fn new(source: Source, rows: i32, inputs: i32) -> QuantizedInputs {
        assert!(inputs % 64 == 0, "{inputs} inputs are not groups of 64");
        let segments = (inputs as usize).div_ceil(512);
        let (rows, groups) = (rows as usize, segments * 8);
        let wide = rows > MAX_FEW_ROWS;
        let room = if wide { rows.next_multiple_of(WIDE_ROWS) } else { rows };
        let planes = empty_of(&[(room * groups * 128) as i32], Dtype::Uint8);
        let steps = empty(&[(room * groups * 2) as i32]);
        let to = QuantizedRows {
            planes: planes.device_address(),
            steps: steps.device_address(),
            inputs,
            groups: groups as i32,
            rows: rows as i32,
            wide: wide.into(),
        };
        let (grid, arguments) = ([groups / 8, rows, 1], Arguments::new().with(to));
        let at = |x: &Array| resident_f32(x);
        match source {
            Source::Plain { x } => {
                let x = at(x);
                launch("quantize", grid, 256, 0, arguments.with(x.device_address()));
            }
            Source::Normed { x, norm } => {
                let (x, weight) = (at(x), norm.device_weight());
                let arguments =
                    arguments.with(x.device_address()).with(weight.device_address()).with(norm.eps);
                launch("quantize_norm", grid, 256, inputs as usize * 4, arguments);
            }
            Source::Gated { gate, up, activation } => {
                let (gate, up) = (at(gate), at(up));
                let arguments =
                    arguments.with(gate.device_address()).with(up.device_address()).with(activation);
                launch("quantize_gated", grid, 256, 0, arguments);
            }
            Source::GatedNorm { x, gate, norm } => {
                let (x, gate, weight) = (at(x), at(gate), norm.device_weight());
                let arguments = arguments
                    .with(x.device_address())
                    .with(gate.device_address())
                    .with(weight.device_address())
                    .with(norm.weight.dim(0))
                    .with(norm.eps);
                launch("quantize_gated_norm", grid, 256, 0, arguments);
            }
        }
        QuantizedInputs { planes, steps, rows, segments, wide }
    }

    /// All products: up to four matrices of the same width of codes in one launch.
    #[track_caller]
    pub(super) fn multiply(&self, products: &[Product]) {
        for bits in [4, 8] {
            let own: Vec<&Product> =
                products.iter().filter(|product| product.matrix().layout.bits == bits).collect();
            for products in own.chunks(4) {
                match self.wide {
                    true => self.multiply_many(bits, products),
                    false => self.multiply_few(bits, products),
                }
            }
        }
    }

    #[track_caller]
    fn multiply_many(&self, bits: usize, products: &[&Product]) {
        let parts = parts(products, 0, |matrix| matrix.layout.padded_tiles());
        let tiles: i32 = parts.iter().map(|part| part.tiles).sum();
        let arguments = Arguments::new()
            .with(parts)
            .with(self.planes.device_address())
            .with(self.steps.device_address())
            .with(self.segments as i32)
            .with(self.rows as i32);
        let name = if bits == 4 { "wide_4" } else { "wide_8" };
        let grid = tiles as usize / 8 * self.rows.div_ceil(WIDE_ROWS);
        launch(name, [grid, 1, 1], 256, wide_shared(bits), arguments);
    }

    /// Some rows at a time: as many as fit into shared memory.
    #[track_caller]
    fn multiply_few(&self, bits: usize, products: &[&Product]) {
        let tiles: usize = products.iter().map(|product| product.matrix().layout.tiles()).sum();
        let mut first = 0;
        while first < self.rows {
            let (rows, variant) = self.variant(bits, tiles, self.rows - first);
            let parts = parts(products, first, |matrix| matrix.layout.tiles());
            let planes = self.planes.device_address() + (first * self.segments * 8 * 128) as u64;
            let arguments = Arguments::new()
                .with(parts)
                .with(planes)
                .with(self.steps.device_address() + (first * 8) as u64)
                .with(tiles as i32)
                .with(self.segments as i32)
                .with(rows as i32)
                .with(self.rows as i32);
            let grid = tiles.min(device().multiprocessors as usize);
            let shared = variant.shared(bits, self.segments, rows);
            launch(variant.name, [grid, 1, 1], variant.warps as u32 * 32, shared, arguments);
            first += rows;
        }
    }

    /// How many of `left` rows to multiply at once, and by which variant.
    fn variant(&self, bits: usize, tiles: usize, left: usize) -> (usize, &'static Variant) {
        let small = tiles * self.segments <= 4096 / 16 * 4096 / 512;
        let variants = || VARIANTS.iter().filter(|variant| variant.bits == bits);
        let fits = |variant: &&Variant, rows: usize| {
            variant.sets * 4 >= rows && variant.shared(bits, self.segments, rows) <= MAX_SHARED
        };
        for rows in (1..=left.min(8)).rev() {
            let sets = rows.div_ceil(4);
            let fitting = || variants().filter(|variant| variant.sets == sets).filter(|v| fits(v, rows));
            // Small matrices are done before a second segment would arrive.
            let preferred = fitting().find(|variant| !small || variant.depth == 1);
            if let Some(variant) = preferred.or_else(|| fitting().next()) {
                return (rows, variant);
            }
        }
        panic!("no product of few rows has room for {} inputs", self.segments * 512)
    }
}

impl Product<'_> {
    fn matrix(&self) -> &DeviceMatrix {
        self.linear.on_device().unwrap_or_else(|| unreachable!("checked by the caller"))
    }
}

/// The matrices of a launch for rows from row `first`.
#[track_caller]
fn parts(products: &[&Product], first: usize, tiles: impl Fn(&DeviceMatrix) -> usize) -> ProductParts {
    let mut parts = ProductParts::default();
    for (part, product) in parts.iter_mut().zip(products) {
        let matrix = product.matrix();
        let skipped = (first * matrix.outputs as usize * 4) as u64;
        *part = ProductPart {
            weights: matrix.tiles.device_address(),
            out: product.out.device_address() + skipped,
            bias: product.linear.device_bias(),
            stream: product.stream.map_or(0, |stream| stream.device_address() + skipped),
            features: matrix.outputs,
            tiles: tiles(matrix) as i32,
        };
    }
    parts
}

/// A compiled kernel for few rows.
struct Variant {
    name: &'static str,
    bits: usize,
    warps: usize,
    depth: usize,
    sets: usize,
}

impl Variant {
    fn shared(&self, bits: usize, segments: usize, rows: usize) -> usize {
        skinny_shared(bits, self.warps, self.depth, self.sets, segments, rows)
    }
}

const fn variant(name: &'static str, [bits, warps, depth, sets]: [usize; 4]) -> Variant {
    Variant { name, bits, warps, depth, sets }
}

/// The fastest first.
const VARIANTS: &[Variant] = &[
    variant("skinny_4_12_2_1", [4, 12, 2, 1]),
    variant("skinny_4_16_1_1", [4, 16, 1, 1]),
    variant("skinny_4_8_2_1", [4, 8, 2, 1]),
    variant("skinny_4_8_1_1", [4, 8, 1, 1]),
    variant("skinny_4_16_1_2", [4, 16, 1, 2]),
    variant("skinny_4_8_2_2", [4, 8, 2, 2]),
    variant("skinny_4_8_1_2", [4, 8, 1, 2]),
    variant("skinny_8_8_2_1", [8, 8, 2, 1]),
    variant("skinny_8_8_1_1", [8, 8, 1, 1]),
    variant("skinny_8_8_2_2", [8, 8, 2, 2]),
    variant("skinny_8_8_1_2", [8, 8, 1, 2]),
];
