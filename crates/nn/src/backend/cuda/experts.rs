//! Products of rows and experts: few rows each with its expert, many rows expert by expert.

use std::borrow::Cow;

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
    launch::{device, empty, fall_back, is_f32, launch, resident, resident_f32, scratch},
    linear::tiled,
    matrix::DeviceMatrix,
    products::{Layout, Product, QuantizedInputs, Source, gate_activation, has_warpgroups, parts},
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
    let rows = RowsByExpert::new(indices, &[stack]);
    let [out] = rows.multiply(Source::Plain { x }, per_token / x.dim(1), 0, [Factors::new(stack, 0, None)]);
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
    let rows = RowsByExpert::new(indices, &[gate, up, down]);
    // Few rows of the shared expert go with those of the others.
    let together = shared.filter(|_| rows.order.is_none()).and_then(|mlp| like_experts(mlp, experts));
    let (tokens, count) = (indices.dim(0), rows.count as i32);
    let rows = rows.with_shared(if together.is_some() { tokens } else { 0 });
    let matrices = [gate, up, down];
    let factors = |which: usize| {
        let shared = together.map(|matrices| matrices[which]);
        Factors::new(matrices[which], stacks[which].device_bias(), shared)
    };
    let [gates, ups] = rows.multiply(Source::Plain { x }, indices.dim(1), 0, [factors(0), factors(1)]);
    let activation = gate_activation(experts.activation);
    let inner = Source::Gated { gate: &gates, up: &ups, activation };
    let [out] = rows.multiply(inner, 1, count, [factors(2)]);
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

/// A stack of matrices that rows are multiplied with, its bias on the device or 0, and the matrix of
/// shared rows.
struct Factors<'a> {
    stack: &'a DeviceMatrix,
    bias: u64,
    shared: Option<&'a DeviceMatrix>,
}

impl<'a> Factors<'a> {
    fn new(stack: &'a DeviceMatrix, bias: u64, shared: Option<&'a DeviceMatrix>) -> Factors<'a> {
        Factors { stack, bias, shared }
    }
}

/// Rows, each with an expert.
struct RowsByExpert<'a> {
    /// The expert of each row, uint32.
    chosen: Cow<'a, Array>,
    count: usize,
    /// Rows of an expert that all tokens have, after the others: only of few rows.
    shared: usize,
    /// The order by expert, if there are more rows than `MAX_FEW`.
    order: Option<Order>,
}

/// Rows expert by expert, as a kernel lists them.
struct Order {
    tiles: Buffer,
    order: Buffer,
    /// Rows of a tile, and most tiles that there can be.
    tile_rows: usize,
    most_tiles: usize,
}

/// More rows than this are ordered by expert, so that those of one are multiplied together.
const MAX_FEW: usize = 64;
/// Rows of an expert from which tiles of 64 are faster than those of 32.
const MANY_OF_AN_EXPERT: usize = 48;

impl<'a> RowsByExpert<'a> {
    /// For products with stacks of equally many experts.
    #[track_caller]
    fn new(indices: &'a Array, stacks: &[&DeviceMatrix]) -> RowsByExpert<'a> {
        let (chosen, count) = (resident(indices), indices.size());
        let experts = stacks[0].layout.features / stacks[0].outputs as usize;
        let order = (count > MAX_FEW).then(|| {
            let wide = has_warpgroups()
                && stacks.iter().all(|stack| stack.layout.format.bits() == 4)
                && count >= MANY_OF_AN_EXPERT * experts;
            Order::new(&chosen, count, experts, if wide { 64 } else { 32 })
        });
        RowsByExpert { chosen, count, shared: 0, order }
    }

    fn with_shared(self, shared: i32) -> RowsByExpert<'a> {
        RowsByExpert { shared: shared as usize, ..self }
    }

    /// Multiplies all rows with a stack, and shared rows with a matrix. `share` of the rows have
    /// the same row of the source; its rows from `shared_inputs` on are those of shared rows.
    #[track_caller]
    fn multiply<const N: usize>(
        &self,
        source: Source,
        share: i32,
        shared_inputs: i32,
        stacks: [Factors; N],
    ) -> [Array; N] {
        let inputs = stacks[0].stack.inputs;
        let all = (self.count + self.shared) as i32;
        let outs = stacks.each_ref().map(|factors| empty(&[all, factors.stack.outputs]));
        let quantized = match &self.order {
            None => {
                let rows = (self.count as i32 / share).max(shared_inputs + self.shared as i32);
                QuantizedInputs::new(source, rows, inputs, Layout::Few, OWN_ORDER)
            }
            Some(order) => {
                let layout = if has_warpgroups() { Layout::Bytes } else { Layout::Many };
                let rows = RowOrder { rows: order.order.pointer(), share, padding: 0 };
                QuantizedInputs::new(source, order.places() as i32, inputs, layout, rows)
            }
        };
        for format in [TileFormat::Affine4, TileFormat::Affine8, TileFormat::Mxfp4] {
            let own =
                || stacks.iter().zip(&outs).filter(|(factors, _)| factors.stack.layout.format == format);
            let mut products: Vec<Product> =
                own().map(|(factors, out)| Product::of_stack(factors.stack, factors.bias, out)).collect();
            products
                .extend(own().filter_map(|(factors, out)| Some(Product::of_stack(factors.shared?, 0, out))));
            if !products.is_empty() {
                self.multiply_by(&quantized, format, [share, shared_inputs], &products);
            }
        }
        outs
    }

    #[track_caller]
    fn multiply_by(
        &self,
        inputs: &QuantizedInputs,
        format: TileFormat,
        [share, shared_inputs]: [i32; 2],
        products: &[Product],
    ) {
        let parts = parts(products, |stack| stack.outputs as usize / TILE_FEATURES);
        let stacks = if self.shared > 0 { products.len() / 2 } else { products.len() };
        let tiles: usize = parts[..stacks].iter().map(|part| part.tiles as usize).sum();
        let multiprocessors = device().multiprocessors as usize;
        let arguments = Arguments::new().with(parts);
        let Some(order) = &self.order else {
            let counts = ExpertRowCounts {
                stacks: stacks as i32,
                assignments: self.count as i32,
                shared: self.shared as i32,
                share,
                shared_inputs,
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
            let grid = multiprocessors.min(tiles * (self.count + self.shared));
            return launch(
                name,
                [grid, 1, 1],
                EXPERT_WARPS as u32 * 32,
                experts_shared(format.bits()),
                arguments,
            );
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
            let (grid, shared) =
                (blocks.min(multiprocessors), medium_warpgroup_shared(format.bits(), order.tile_rows));
            let arguments = arguments.with(inputs.segments as i32).with(list);
            return launch(name, [grid, 1, 1], MEDIUM_THREADS, shared, arguments);
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
