//! Products of rows and experts: few rows each with its expert, many rows expert by expert.

use std::borrow::Cow;

use kernels::cuda::{
    EXPERT_TILE, EXPERT_WARPS, ExpertRowCounts, ExpertRows, MAX_EXPERTS, MEDIUM_FEATURES, MEDIUM_THREADS,
    OWN_ORDER, RowOrder, TILE_FEATURES, experts_shared, medium_shared, medium_warpgroup_shared,
};
use mlx::{
    Array, Result,
    cuda::{Arguments, Buffer},
};

use super::{
    super::cpu,
    launch::{device, empty, fall_back, is_f32, launch, resident, scratch},
    linear::tiled,
    matrix::DeviceMatrix,
    products::{Layout, Product, QuantizedInputs, Source, activation_number, has_warpgroups, parts},
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
                "experts in another format than affine, groups of 64 or 128, bfloat16 scales, outputs a multiple of \
                 64",
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
    let [out] = rows.multiply(Source::Plain { x }, per_token / x.dim(1), 0, [(stack, None)]);
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
    if stacks.iter().any(|layers| layers.bias.is_some()) || !is_f32(x) || x.size() == 0 {
        return expert_products(x, experts, indices, shared);
    }
    let rows = RowsByExpert::new(indices, &[gate, up, down]);
    // Few rows of the shared expert go with those of the others.
    let together = shared.filter(|_| rows.order.is_none()).and_then(|mlp| like_experts(mlp, experts));
    let (tokens, count) = (indices.dim(0), rows.count as i32);
    let rows = rows.with_shared(if together.is_some() { tokens } else { 0 });
    let shared_of = |which: usize| together.map(|matrices| matrices[which]);
    let gate_and_up = [(gate, shared_of(0)), (up, shared_of(1))];
    let [gates, ups] = rows.multiply(Source::Plain { x }, indices.dim(1), 0, gate_and_up);
    let activation = activation_number(experts.activation);
    let inner = Source::Gated { gate: &gates, up: &ups, activation };
    let [out] = rows.multiply(inner, 1, count, [(down, shared_of(2))]);
    match together {
        Some(_) => ExpertOutputs { routed: out, shared: None },
        None => {
            let routed = out.reshape(&[tokens, indices.dim(1), down.outputs]);
            ExpertOutputs { routed, shared: shared.map(|mlp| mlp.forward(x)) }
        }
    }
}

/// The matrices of a block that is one more expert: of the same sizes and widths of codes.
fn like_experts<'a>(mlp: &'a Mlp, experts: &Experts) -> Option<[&'a DeviceMatrix; 3]> {
    let stacks = [&experts.gate_proj, &experts.up_proj, &experts.down_proj].map(StackedLinear::on_device);
    let linears = mlp.linears();
    let matrices = linears.map(Linear::on_device);
    let like = |matrix: &DeviceMatrix, stack: &DeviceMatrix| {
        let size = |matrix: &DeviceMatrix| (matrix.outputs, matrix.inputs, matrix.layout.bits);
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
                && stacks.iter().all(|stack| stack.layout.bits == 4)
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
        stacks: [(&DeviceMatrix, Option<&DeviceMatrix>); N],
    ) -> [Array; N] {
        let inputs = stacks[0].0.inputs;
        let all = (self.count + self.shared) as i32;
        let outs = stacks.map(|(stack, _)| empty(&[all, stack.outputs]));
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
        for bits in [4, 8] {
            let own = || stacks.iter().zip(&outs).filter(|((stack, _), _)| stack.layout.bits == bits);
            let mut products: Vec<Product> =
                own().map(|((stack, _), out)| Product::of_stack(stack, out)).collect();
            products.extend(own().filter_map(|((_, one), out)| Some(Product::of_stack((*one)?, out))));
            if !products.is_empty() {
                self.multiply_by(&quantized, bits, [share, shared_inputs], &products);
            }
        }
        outs
    }

    #[track_caller]
    fn multiply_by(
        &self,
        inputs: &QuantizedInputs,
        bits: usize,
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
            let name = if bits == 4 { "experts_few_4" } else { "experts_few_8" };
            let grid = multiprocessors.min(tiles * (self.count + self.shared));
            return launch(name, [grid, 1, 1], EXPERT_WARPS as u32 * 32, experts_shared(bits), arguments);
        };
        let blocks = order.most_tiles * tiles * TILE_FEATURES / MEDIUM_FEATURES;
        let list = ExpertRows { tiles: order.tiles.pointer(), order: order.order.pointer() };
        let arguments = arguments.with(inputs.planes());
        if has_warpgroups() {
            let name = match (bits, order.tile_rows) {
                (4, 64) => "experts_warpgroup_4_64",
                (4, _) => "experts_warpgroup_4_32",
                _ => "experts_warpgroup_8_32",
            };
            let (grid, shared) =
                (blocks.min(multiprocessors), medium_warpgroup_shared(bits, order.tile_rows));
            let arguments = arguments.with(inputs.segments as i32).with(list);
            return launch(name, [grid, 1, 1], MEDIUM_THREADS, shared, arguments);
        }
        let name = if bits == 4 { "experts_many_4" } else { "experts_many_8" };
        let arguments = arguments.with(inputs.steps()).with(inputs.segments as i32).with(list);
        launch(name, [blocks, 1, 1], 256, medium_shared(bits), arguments);
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
