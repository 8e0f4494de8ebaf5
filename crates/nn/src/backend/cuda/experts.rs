//! Products of rows and experts: few rows each with its expert, many rows expert by expert.

use std::borrow::Cow;

use kernels::cuda::{
    EXPERT_TILE, EXPERT_WARPS, ExpertRows, MAX_EXPERTS, MEDIUM_FEATURES, MEDIUM_THREADS, OWN_ORDER, RowOrder,
    TILE_FEATURES, experts_shared, medium_shared, medium_warpgroup_shared,
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
    Experts, Matrix, Precision, StackedLinear, moe::expert_products, precision, storage::WeightStorage,
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
    let [out] = rows.multiply(Source::Plain { x }, per_token / x.dim(1), [stack]);
    out.reshape(&shape).astype(x.dtype())
}

/// What each expert of a token computes, `[tokens, n, hidden]`.
#[track_caller]
pub(crate) fn expert_outputs(x: &Array, experts: &Experts, indices: &Array) -> Array {
    let stacks = [&experts.gate_proj, &experts.up_proj, &experts.down_proj];
    let [Some(gate), Some(up), Some(down)] = stacks.map(StackedLinear::on_device) else {
        return expert_products(x, experts, indices);
    };
    if stacks.iter().any(|layers| layers.bias.is_some()) || !is_f32(x) || x.size() == 0 {
        return expert_products(x, experts, indices);
    }
    let rows = RowsByExpert::new(indices, &[gate, up, down]);
    let [gates, ups] = rows.multiply(Source::Plain { x }, indices.dim(1), [gate, up]);
    let activation = activation_number(experts.activation);
    let [out] = rows.multiply(Source::Gated { gate: &gates, up: &ups, activation }, 1, [down]);
    out.reshape(&[indices.dim(0), indices.dim(1), down.outputs])
}

/// Rows, each with an expert.
struct RowsByExpert<'a> {
    /// The expert of each row, uint32.
    chosen: Cow<'a, Array>,
    count: usize,
    /// Of more rows than `MAX_FEW`.
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
        RowsByExpert { chosen, count, order }
    }

    /// The products of all rows; `share` of them have the same row of the source.
    #[track_caller]
    fn multiply<const N: usize>(&self, source: Source, share: i32, stacks: [&DeviceMatrix; N]) -> [Array; N] {
        let inputs = stacks[0].inputs;
        let outs = stacks.map(|stack| empty(&[self.count as i32, stack.outputs]));
        let quantized = match &self.order {
            None => QuantizedInputs::new(source, self.count as i32 / share, inputs, Layout::Few, OWN_ORDER),
            Some(order) => {
                let layout = if has_warpgroups() { Layout::Bytes } else { Layout::Many };
                let places = RowOrder { order: order.order.pointer(), share, padding: 0 };
                QuantizedInputs::new(source, order.places() as i32, inputs, layout, places)
            }
        };
        for bits in [4, 8] {
            let own = stacks.iter().zip(&outs).filter(|(stack, _)| stack.layout.bits == bits);
            let products: Vec<Product> = own.map(|(stack, out)| Product::of_stack(stack, out)).collect();
            if !products.is_empty() {
                self.multiply_by(&quantized, bits, share, &products);
            }
        }
        outs
    }

    #[track_caller]
    fn multiply_by(&self, inputs: &QuantizedInputs, bits: usize, share: i32, products: &[Product]) {
        let parts = parts(products, |stack| stack.outputs as usize / TILE_FEATURES);
        let tiles: usize = parts.iter().map(|part| part.tiles as usize).sum();
        let multiprocessors = device().multiprocessors as usize;
        let arguments = Arguments::new().with(parts);
        let Some(order) = &self.order else {
            let arguments = arguments
                .with(self.chosen.device_address())
                .with(inputs.planes())
                .with(inputs.steps())
                .with(self.count as i32)
                .with(share)
                .with(inputs.rows as i32)
                .with(inputs.segments as i32);
            let name = if bits == 4 { "experts_few_4" } else { "experts_few_8" };
            let grid = multiprocessors.min(tiles * self.count);
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
