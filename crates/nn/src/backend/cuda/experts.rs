//! Products of rows and experts: few rows each with its expert, many rows expert by expert.

use std::{borrow::Cow, ops::Range};

use kernels::cuda::{
    EXPERT_TILE, EXPERT_WARPS, ExpertRowCounts, ExpertRows, MAX_EXPERTS, MEDIUM_FEATURES, MEDIUM_THREADS,
    OWN_ORDER, RowOrder, TILE_FEATURES, TileFormat, experts_shared, medium_shared, medium_warpgroup_shared,
};
use mlx::{
    Array, Result,
    cuda::{Arguments, Buffer},
};

use super::{
    super::cpu,
    launch::{device, empty, fall_back, gate_activation, is_f32, launch, resident, resident_f32, scratch},
    matrix::{DeviceMatrix, tiled},
    products::{Layout, Product, QuantizedInputs, Source, has_warpgroups, parts},
};
use crate::{
    Experts, Linear, Matrix, Mlp, Precision, StackedLinear,
    moe::{ExpertOutputs, expert_products},
    precision,
    storage::WeightStorage,
};

/// See [`WeightStorage::stacked`].
pub(crate) fn prepack_stack(stack: Matrix) -> Result<WeightStorage> {
    let fits = |outputs: i32, count: i32| {
        (outputs as usize).is_multiple_of(MEDIUM_FEATURES) && (1..=MAX_EXPERTS as i32).contains(&count)
    };
    let tiled = match &stack {
        Matrix::Quantized(weight)
            if precision() == Precision::Rounded && fits(weight.codes.dim(-2), weight.codes.dim(0)) =>
        {
            tiled(weight)?
        }
        _ => None,
    };
    match tiled {
        Some(tiled) => Ok(WeightStorage::Device(tiled)),
        None => {
            fall_back(
                "experts in another format than mxfp4 and affine with groups of 64 or 128, bfloat16 scales, outputs a \
                 multiple of 64",
            );
            cpu::prepack_stack(stack)
        }
    }
}

impl StackedLinear {
    fn on_device(&self) -> Option<&DeviceMatrix> {
        match &self.weight {
            WeightStorage::Device(matrix) => Some(matrix),
            _ => None,
        }
    }

    /// The biases' address on the device, or 0.
    #[track_caller]
    fn device_bias(&self) -> u64 {
        let Some(bias) = &self.bias else { return 0 };
        self.device_bias.get_or_init(|| resident_f32(bias).into_owned()).device_address()
    }
}

/// See [`StackedLinear::forward`].
#[track_caller]
pub(crate) fn grouped_linear(x: &Array, weight: &WeightStorage, indices: &Array) -> Array {
    let WeightStorage::Device(stack) = weight else { return cpu::grouped_linear(x, weight, indices) };
    let (tokens, per_token) = (indices.dim(0), indices.dim(1));
    let shape = [tokens, per_token, stack.outputs];
    assert!(
        x.ndim() == 3 && x.dim(0) == tokens && [1, per_token].contains(&x.dim(1)) && x.dim(2) == stack.inputs,
        "x {:?} does not fit {:?} experts of {} inputs",
        x.shape(),
        indices.shape(),
        stack.inputs
    );
    if tokens == 0 {
        return empty(&shape).astype(x.dtype());
    }
    let rows = RowsByExpert::new(indices, stack.count(), [stack.layout.format].into_iter());
    let out = empty(&[rows.outputs(), stack.outputs]);
    let rows = rows.sharing_inputs(per_token / x.dim(1));
    rows.multiply(Source::Plain { x }, stack.inputs, &[Product::of_matrix(stack, 0, &out)]);
    out.reshape(&shape).astype(x.dtype())
}

/// The outputs of the tokens' experts.
#[track_caller]
pub(crate) fn expert_outputs(
    x: &Array,
    experts: &Experts,
    indices: &Array,
    shared: Option<&Mlp>,
) -> ExpertOutputs {
    let stacks = [&experts.gate_proj, &experts.up_proj, &experts.down_proj];
    let [Some(gate), Some(up), Some(down)] = stacks.map(StackedLinear::on_device) else {
        return expert_products(x, experts, indices, shared);
    };
    if !is_f32(x) || x.size() == 0 {
        return expert_products(x, experts, indices, shared);
    }
    let matrices = [gate, up, down];
    let formats = matrices.iter().map(|stack| stack.layout.format);
    let rows = RowsByExpert::new(indices, gate.count(), formats);
    // Few rows of the shared expert go with those of the others.
    let together = shared.filter(|_| !rows.are_ordered()).and_then(|mlp| like_experts(mlp, experts));
    let (tokens, count) = (indices.dim(0), rows.count as i32);
    let shared_rows = if together.is_some() { tokens } else { 0 };
    let rows = rows.sharing_inputs(indices.dim(1));
    let rows = rows.with_shared(SharedRows { count: shared_rows, first_input: 0 });
    let outs = matrices.map(|stack| empty(&[rows.outputs(), stack.outputs]));
    let products = |which: Range<usize>| -> Vec<Product> {
        let stacks =
            which.clone().map(|i| Product::of_matrix(matrices[i], stacks[i].device_bias(), &outs[i]));
        let shared =
            together.iter().flat_map(|own| which.clone().map(|i| Product::of_matrix(own[i], 0, &outs[i])));
        stacks.chain(shared).collect()
    };
    rows.multiply(Source::Plain { x }, gate.inputs, &products(0..2));
    let activation = gate_activation(experts.activation);
    let inner = Source::Gated { gate: &outs[0], up: &outs[1], activation };
    let rows = rows.sharing_inputs(1).with_shared(SharedRows { count: shared_rows, first_input: count });
    rows.multiply(inner, down.inputs, &products(2..3));
    let [_, _, out] = outs;
    match together {
        Some(_) => ExpertOutputs { routed: out, shared: None },
        None => {
            let routed = out.reshape(&[tokens, indices.dim(1), down.outputs]);
            ExpertOutputs { routed, shared: shared.map(|mlp| mlp.forward(x)) }
        }
    }
}

/// The matrices of a block that is one more expert: of the same sizes and format.
fn like_experts<'a>(mlp: &'a Mlp, experts: &Experts) -> Option<[&'a DeviceMatrix; 3]> {
    let stacks = [&experts.gate_proj, &experts.up_proj, &experts.down_proj].map(StackedLinear::on_device);
    let linears = mlp.linears();
    let matrices = linears.map(Linear::on_device);
    let like = |matrix: &DeviceMatrix, stack: &DeviceMatrix| {
        let size = |matrix: &DeviceMatrix| (matrix.outputs, matrix.inputs, matrix.layout.format);
        size(matrix) == size(stack)
    };
    let all_alike = matrices.iter().zip(stacks).all(|pair| matches!(pair, (Some(a), Some(b)) if like(a, b)));
    let no_biases = linears.iter().all(|linear| linear.bias.is_none());
    if !(all_alike && no_biases && mlp.activation == experts.activation) {
        return None;
    }
    let [Some(gate), Some(up), Some(down)] = matrices else { return None };
    Some([gate, up, down])
}

/// Rows, each with an expert.
pub(super) struct RowsByExpert<'a> {
    /// The expert of each row, uint32.
    chosen: Cow<'a, Array>,
    count: usize,
    /// Neighbouring rows that have the same inputs.
    share: i32,
    /// Rows of an expert that all tokens have, after the others: only of few rows.
    shared: SharedRows,
    /// The order by expert, if rows are many.
    order: Option<Order>,
}

/// Rows of an expert that all tokens have: how many, and the first of their inputs.
#[derive(Clone, Copy, Default)]
struct SharedRows {
    count: i32,
    first_input: i32,
}

/// Rows expert by expert, as a kernel lists them.
struct Order {
    tiles: Buffer,
    order: Buffer,
    /// Rows of a tile, and most tiles that there can be.
    tile_rows: usize,
    most_tiles: usize,
}

/// More rows than this are ordered by expert, so that those of one are multiplied together; of a
/// single one more than two.
const MAX_FEW: usize = 64;
const MAX_FEW_OF_ONE: usize = 2;
/// Rows of an expert from which tiles of 64 are faster than those of 32.
const MANY_OF_AN_EXPERT: usize = 48;

impl<'a> RowsByExpert<'a> {
    /// For products with stacks of `experts` matrices of these formats.
    #[track_caller]
    pub(super) fn new(
        indices: &'a Array,
        experts: usize,
        mut formats: impl Iterator<Item = TileFormat>,
    ) -> RowsByExpert<'a> {
        let (chosen, count) = (resident(indices), indices.size());
        let most = if experts == 1 { MAX_FEW_OF_ONE } else { MAX_FEW };
        let order = (count > most).then(|| {
            let wide = has_warpgroups()
                && formats.all(|format| format.bits() == 4)
                && count >= MANY_OF_AN_EXPERT * experts;
            Order::new(&chosen, count, experts, if wide { 64 } else { 32 })
        });
        RowsByExpert { chosen, count, share: 1, shared: SharedRows::default(), order }
    }

    /// Whether rows are multiplied in another order than theirs.
    pub(super) fn are_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// Where `share` neighbouring rows have the same inputs.
    fn sharing_inputs(self, share: i32) -> RowsByExpert<'a> {
        RowsByExpert { share, ..self }
    }

    fn with_shared(self, shared: SharedRows) -> RowsByExpert<'a> {
        RowsByExpert { shared, ..self }
    }

    /// Rows of outputs.
    fn outputs(&self) -> i32 {
        self.count as i32 + self.shared.count
    }

    /// All products of rows of a source: of stacks and then, if there are shared rows, of as many
    /// matrices for these. Norms only where rows keep their order.
    #[track_caller]
    pub(super) fn multiply(&self, source: Source, inputs: i32, products: &[Product]) {
        let quantized = match &self.order {
            None => {
                let SharedRows { count, first_input } = self.shared;
                let rows = (self.count as i32 / self.share).max(first_input + count);
                QuantizedInputs::new(source, rows, inputs, Layout::Few, OWN_ORDER)
            }
            Some(order) => {
                let layout = if has_warpgroups() { Layout::Bytes } else { Layout::Many };
                let rows = RowOrder { rows: order.order.pointer(), share: self.share, padding: 0 };
                QuantizedInputs::new(source, order.places() as i32, inputs, layout, rows)
            }
        };
        for format in [TileFormat::Affine4, TileFormat::Affine8, TileFormat::Mxfp4] {
            let own: Vec<Product> =
                products.iter().filter(|product| product.format() == format).copied().collect();
            // A launch takes four.
            for products in own.chunks(4) {
                self.multiply_by(&quantized, format, products);
            }
        }
    }

    #[track_caller]
    fn multiply_by(&self, inputs: &QuantizedInputs, format: TileFormat, products: &[Product]) {
        let parts = parts(products, DeviceMatrix::tiles_of_one);
        let stacks = if self.shared.count > 0 { products.len() / 2 } else { products.len() };
        let tiles: usize = parts[..stacks].iter().map(|part| part.tiles as usize).sum();
        let multiprocessors = device().multiprocessors as usize;
        let arguments = Arguments::new().with(parts);
        let Some(order) = &self.order else {
            let counts = ExpertRowCounts {
                stacks: stacks as i32,
                assignments: self.count as i32,
                shared: self.shared.count,
                share: self.share,
                shared_inputs: self.shared.first_input,
                rows: inputs.rows as i32,
                segments: inputs.segments as i32,
            };
            let arguments = arguments
                .with(self.chosen.device_address())
                .with(inputs.planes())
                .with(inputs.steps())
                .with(counts);
            let name = match format {
                TileFormat::Affine4 => "experts_few_4",
                TileFormat::Affine8 => "experts_few_8",
                TileFormat::Mxfp4 => "experts_few_mxfp4",
            };
            let grid = multiprocessors.min(tiles * self.outputs() as usize);
            let shared = experts_shared(format.bits());
            return launch(name, [grid, 1, 1], EXPERT_WARPS as u32 * 32, shared, arguments);
        };
        let blocks = order.most_tiles * tiles * TILE_FEATURES / MEDIUM_FEATURES;
        let list = ExpertRows { tiles: order.tiles.pointer(), order: order.order.pointer() };
        let arguments = arguments.with(inputs.planes());
        if has_warpgroups() {
            let name = match (format, order.tile_rows) {
                (TileFormat::Affine4, 64) => "experts_warpgroup_4_64",
                (TileFormat::Affine4, _) => "experts_warpgroup_4_32",
                (TileFormat::Mxfp4, 64) => "experts_warpgroup_mxfp4_64",
                (TileFormat::Mxfp4, _) => "experts_warpgroup_mxfp4_32",
                (TileFormat::Affine8, _) => "experts_warpgroup_8_32",
            };
            let shared = medium_warpgroup_shared(format.bits(), order.tile_rows);
            let arguments = arguments.with(inputs.segments as i32).with(list);
            return launch(name, [blocks.min(multiprocessors), 1, 1], MEDIUM_THREADS, shared, arguments);
        }
        let name = match format {
            TileFormat::Affine4 => "experts_many_4",
            TileFormat::Affine8 => "experts_many_8",
            TileFormat::Mxfp4 => "experts_many_mxfp4",
        };
        let arguments = arguments.with(inputs.steps()).with(inputs.segments as i32).with(list);
        launch(name, [blocks, 1, 1], 256, medium_shared(format.bits()), arguments);
    }
}

impl Order {
    #[track_caller]
    fn new(chosen: &Array, count: usize, experts: usize, tile_rows: usize) -> Order {
        let most_tiles = count / tile_rows + experts.min(count);
        let tiles = scratch((most_tiles + 1) * EXPERT_TILE);
        let order = scratch(most_tiles * tile_rows * size_of::<u32>());
        let ordered = Order { tiles, order, tile_rows, most_tiles };
        let arguments = Arguments::new()
            .with(chosen.device_address())
            .with(ordered.order.pointer())
            .with(ordered.tiles.pointer())
            .with(count as i32)
            .with(experts as i32)
            .with(tile_rows as i32)
            .with(ordered.places() as i32);
        launch("group_experts", [1, 1, 1], 1024, 0, arguments);
        ordered
    }

    fn places(&self) -> usize {
        self.most_tiles * self.tile_rows
    }
}
