//! Products of rows of inputs and quantised matrices: the kernel for each number of rows.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicBool, Ordering},
};

use kernels::cuda::{
    GateActivation, InputRow, MAX_SHARED, MEDIUM_FEATURES, MEDIUM_THREADS, OWN_ORDER, OperationKind,
    ProductPart, ProductParts, QuantizedRows, RowOrder, TILE_FEATURES, TileFormat, TiledLayout,
    WARPGROUP_BLOCK, WARPGROUP_BLOCK_ROWS, WARPGROUP_FEATURES, WARPGROUP_ROWS, WARPGROUP_THREADS,
    medium_shared, medium_warpgroup_shared, warpgroup_shared, wide_shared,
};
use mlx::{
    Array,
    cuda::{Arguments, Buffer},
};

use super::{
    launch::{device, launch, resident_f32, scratch},
    matrix::DeviceMatrix,
    persistent::{self, ProductRow, queue, queue_product},
    skinny::{FewRows, Launch, ROW_VARIANTS, Variant},
};
use crate::{Linear, RmsNorm};

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
    /// `activation(gate) * up`.
    Gated {
        gate: &'a Array,
        up: &'a Array,
        activation: GateActivation,
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
    integers: Integers,
    pub rows: usize,
    pub segments: usize,
    layout: Layout,
}

/// Memory for the integers of rows.
struct Integers {
    memory: Buffer,
    /// Where steps begin, which planes with steps of their own have not.
    steps: Option<usize>,
}

impl Integers {
    /// With `steps` steps of groups after the planes.
    #[track_caller]
    fn new(plane_bytes: usize, steps: usize) -> Integers {
        let memory = scratch(plane_bytes + steps * 2 * size_of::<f32>());
        Integers { memory, steps: (steps > 0).then_some(plane_bytes) }
    }

    fn planes(&self) -> u64 {
        self.memory.pointer()
    }

    /// 0 if there are none.
    fn steps(&self) -> u64 {
        self.steps.map_or(0, |start| self.memory.pointer() + start as u64)
    }
}

/// How integers lie in memory, as kernels number it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Few = 0,
    Many = 1,
    /// For warpgroups, as bytes.
    Bytes = 2,
    /// For warpgroups, in half precision.
    Halves = 3,
}

impl Layout {
    const ALL: [Layout; 4] = [Layout::Few, Layout::Many, Layout::Bytes, Layout::Halves];

    /// The layout of inputs that the products of `rows` rows with a matrix read.
    #[track_caller]
    fn of(rows: usize, matrix: TiledLayout) -> Layout {
        match rows {
            ..=MAX_FEW_ROWS => Layout::Few,
            _ if !has_warpgroups() => Layout::Many,
            _ if rows <= MAX_MEDIUM_ROWS || matrix.format.bits() == 8 => Layout::Bytes,
            _ if matrix.in_halves => Layout::Halves,
            _ => Layout::Many,
        }
    }

    /// Bytes of the planes of a group, and steps beside them.
    fn sizes(self, rows: usize) -> (usize, usize) {
        match self {
            Layout::Few => (rows * 128, rows),
            Layout::Many => (rows.next_multiple_of(WIDE_ROWS) * 128, rows.next_multiple_of(WIDE_ROWS)),
            Layout::Bytes | Layout::Halves => (rows.div_ceil(WARPGROUP_BLOCK_ROWS) * WARPGROUP_BLOCK, 0),
        }
    }
}

static WARPGROUPS: AtomicBool = AtomicBool::new(true);

/// Whether products of 9 and more rows may use the instructions of warpgroups on GPUs that have
/// them: for tests and measurements, since no bit depends on it.
pub fn allow_warpgroups(allowed: bool) {
    WARPGROUPS.store(allowed, Ordering::Relaxed);
}

/// Hopper alone has them.
#[track_caller]
pub(super) fn has_warpgroups() -> bool {
    device().capability == (9, 0) && WARPGROUPS.load(Ordering::Relaxed)
}

/// A product to be written to `out`, added to `stream` if there is one.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    matrix: &'a DeviceMatrix,
    bias: u64,
    out: &'a Array,
    stream: Option<&'a Array>,
}

/// All products of rows of inputs and affine matrices, up to four of the same width of codes in one
/// launch.
#[track_caller]
pub(super) fn multiply(source: Source, [rows, inputs]: [i32; 2], products: &[Product]) {
    if rows == 1 && persistent::is_allowed() && queue_row(source, products) {
        return;
    }
    if rows == 1 && multiply_row(source, products) {
        return;
    }
    for layout in Layout::ALL {
        let reads = |product: &&Product| Layout::of(rows as usize, product.matrix.layout) == layout;
        let own: Vec<&Product> = products.iter().filter(reads).collect();
        if !own.is_empty() {
            QuantizedInputs::new(source, rows, inputs, layout, OWN_ORDER).multiply(&own);
        }
    }
}

/// More rows than this are multiplied by one of the kernels for more.
const MAX_FEW_ROWS: usize = 8;
/// Up to this many rows fit into one tile of the narrower kernels.
const MAX_NARROW_ROWS: usize = 32;
/// More rows than this are multiplied by the kernel for many.
const MAX_MEDIUM_ROWS: usize = 64;
/// Rows of a block of many.
const WIDE_ROWS: usize = 128;

impl QuantizedInputs {
    /// Of `rows` places, which have the rows of the source in this order.
    #[track_caller]
    pub(super) fn new(
        source: Source,
        rows: i32,
        inputs: i32,
        layout: Layout,
        order: RowOrder,
    ) -> QuantizedInputs {
        assert!(inputs % 64 == 0, "{inputs} inputs are not groups of 64");
        let segments = (inputs as usize).div_ceil(512);
        let (rows, groups) = (rows as usize, segments * 8);
        let (plane_bytes, group_steps) = layout.sizes(rows);
        let integers = Integers::new(plane_bytes * groups, group_steps * groups);
        let to = QuantizedRows {
            planes: integers.planes(),
            steps: integers.steps(),
            inputs,
            groups: groups as i32,
            rows: rows as i32,
            layout: layout as i32,
        };
        source.quantize(to, order);
        QuantizedInputs { integers, rows, segments, layout }
    }

    pub(super) fn planes(&self) -> u64 {
        self.integers.planes()
    }

    pub(super) fn steps(&self) -> u64 {
        self.integers.steps()
    }

    #[track_caller]
    fn multiply(&self, products: &[&Product]) {
        for bits in [4, 8] {
            let has_bits = |product: &&&Product| product.matrix.layout.format.bits() == bits;
            let own: Vec<&Product> = products.iter().filter(has_bits).copied().collect();
            for products in own.chunks(4) {
                match self.layout {
                    Layout::Few => self.multiply_few(bits, products),
                    Layout::Many => self.multiply_many(bits, products),
                    Layout::Bytes | Layout::Halves => self.multiply_by_warpgroups(bits, products),
                }
            }
        }
    }

    #[track_caller]
    fn multiply_by_warpgroups(&self, bits: usize, products: &[&Product]) {
        let parts = parts(products.iter().copied(), |matrix| matrix.layout.padded_tiles());
        let features: usize = parts.iter().map(|part| part.tiles as usize * TILE_FEATURES).sum();
        let multiprocessors = device().multiprocessors as usize;
        let arguments = Arguments::new()
            .with(parts)
            .with(self.integers.planes())
            .with(self.segments as i32)
            .with(self.rows as i32);
        let grid = |tiles: usize| [tiles.min(multiprocessors), 1, 1];
        if self.rows <= MAX_MEDIUM_ROWS {
            let blocks = features.div_ceil(MEDIUM_FEATURES);
            let (name, rows) = medium_tile(bits, blocks, self.rows, multiprocessors);
            let shared = medium_warpgroup_shared(bits, rows);
            launch(name, grid(blocks * self.rows.div_ceil(rows)), MEDIUM_THREADS, shared, arguments);
        } else {
            let tiles = features.div_ceil(WARPGROUP_FEATURES) * self.rows.div_ceil(WARPGROUP_ROWS);
            let name = if bits == 4 { "wide_warpgroup_4" } else { "wide_warpgroup_8" };
            launch(name, grid(tiles), WARPGROUP_THREADS, warpgroup_shared(bits), arguments);
        }
    }

    #[track_caller]
    fn multiply_many(&self, bits: usize, products: &[&Product]) {
        let parts = parts(products.iter().copied(), |matrix| matrix.layout.padded_tiles());
        let tiles: i32 = parts.iter().map(|part| part.tiles).sum();
        let arguments = Arguments::new()
            .with(parts)
            .with(self.integers.planes())
            .with(self.integers.steps())
            .with(self.segments as i32)
            .with(self.rows as i32);
        let (name, grid, shared) = match (self.rows <= MAX_MEDIUM_ROWS, bits) {
            (true, 4) if self.rows <= MAX_NARROW_ROWS => {
                ("medium_4_32", tiles as usize / 4, medium_shared(4))
            }
            (true, 4) => ("medium_4_64", tiles as usize / 4, medium_shared(4)),
            (true, _) if self.rows <= MAX_NARROW_ROWS => {
                ("medium_8_32", tiles as usize / 4, medium_shared(8))
            }
            (true, _) => ("medium_8_64", tiles as usize / 4, medium_shared(8)),
            (false, _) => {
                let blocks = tiles as usize / 8 * self.rows.div_ceil(WIDE_ROWS);
                (if bits == 4 { "wide_4" } else { "wide_8" }, blocks, wide_shared(bits))
            }
        };
        launch(name, [grid, 1, 1], 256, shared, arguments);
    }

    #[track_caller]
    fn multiply_few(&self, bits: usize, products: &[&Product]) {
        let parts = parts(products.iter().copied(), |matrix| matrix.layout.tiles());
        let tiles: usize = parts.iter().map(|part| part.tiles as usize).sum();
        let blocks = tiles.min(device().multiprocessors as usize);
        let problem = FewRows { bits, rows: self.rows, segments: self.segments, tiles, blocks };
        let Launch { variant, pass, shared } = problem.launch();
        let arguments = Arguments::new()
            .with(parts)
            .with(self.integers.planes())
            .with(self.integers.steps())
            .with(tiles as i32)
            .with(self.segments as i32)
            .with(self.rows as i32)
            .with(pass as i32);
        launch(variant.name, [blocks, 1, 1], variant.warps as u32 * 32, shared, arguments);
    }
}

/// Queues all products of one row as one operation; `false` if they take several.
#[track_caller]
fn queue_row(source: Source, products: &[Product]) -> bool {
    let layout = products[0].matrix.layout;
    let fits =
        |own: &Product| own.matrix.layout.format.bits() == 4 && own.matrix.layout.inputs == layout.inputs;
    if products.len() > 4 || !products.iter().all(fits) {
        return false;
    }
    let (inputs, segments) = (layout.inputs, layout.segments());
    let row = match source {
        Source::Gated { .. } => None,
        _ => source.row(inputs as i32),
    };
    if !persistent::fits(segments, row.as_ref().map(|(row, _)| row)) {
        return false;
    }
    let parts = parts(products, |matrix| matrix.layout.tiles());
    // Arrays live until the operation is queued: memory is used again in its order only.
    let integers = |gate: &Array, up: &Array, activation: GateActivation| {
        let groups = segments * 8;
        let integers = Integers::new(groups * 128, groups);
        let (gate, up) = (resident_f32(gate), resident_f32(up));
        let arguments = Arguments::new()
            .with(integers.planes())
            .with(integers.steps())
            .with(gate.device_address())
            .with(up.device_address())
            .with(inputs as i32)
            .with(groups as i32)
            .with(activation);
        queue("gated", OperationKind::Gated, arguments);
        queue_product(parts, segments, ProductRow::Integers([integers.planes(), integers.steps()]));
    };
    match (source, row) {
        (Source::Gated { gate, up, activation }, _) => integers(gate, up, activation),
        (_, Some((row, _arrays))) => queue_product(parts, segments, ProductRow::Floats(row)),
        _ => return false,
    }
    true
}

/// The kernel for `blocks` of 64 features and 9 to 64 rows, and the rows of its tiles: two tiles of
/// 32 rows are faster than one of 64 while all are computed at once, and with 8 bits mostly.
fn medium_tile(bits: usize, blocks: usize, rows: usize, multiprocessors: usize) -> (&'static str, usize) {
    match bits {
        8 => ("medium_warpgroup_8_64x32", 32),
        _ if rows <= MAX_NARROW_ROWS || 2 * blocks <= multiprocessors => ("medium_warpgroup_4_64x32", 32),
        _ => ("medium_warpgroup_4_64x64", 64),
    }
}

/// All products of one row in one launch, which makes the integers too; `false` if they take
/// several.
#[track_caller]
fn multiply_row(source: Source, products: &[Product]) -> bool {
    let layout = products[0].matrix.layout;
    let (bits, segments, inputs) = (layout.format.bits(), layout.segments(), layout.inputs);
    let own_launch =
        products.len() <= 4 && products.iter().all(|own| own.matrix.layout.format.bits() == bits);
    let tiles: usize = products.iter().map(|product| product.matrix.layout.tiles()).sum();
    // The row, and the kernel's own memory.
    let row = inputs * 4;
    let fits = |variant: &&Variant| variant.shared(bits, segments, 1) + row + 1024 <= MAX_SHARED;
    let variant = ROW_VARIANTS.iter().filter(|variant| variant.bits == bits).find(fits);
    let row_of = source.row(inputs as i32);
    // The arrays live until the launch.
    let (Some(variant), Some((from, _arrays))) = (variant.filter(|_| own_launch), row_of) else {
        return false;
    };
    let arguments = Arguments::new()
        .with(parts(products, |matrix| matrix.layout.tiles()))
        .with(from)
        .with(tiles as i32)
        .with(segments as i32);
    let grid = tiles.min(device().multiprocessors as usize);
    let shared = variant.shared(bits, segments, 1) + row;
    launch(variant.name, [grid, 1, 1], variant.warps as u32 * 32, shared, arguments);
    true
}

impl<'a> Source<'a> {
    /// Most rows whose integers the kernels for few make sooner on an H200; no bit depends on it.
    fn max_few_rows(self) -> usize {
        match self {
            Source::Plain { .. } => MAX_FEW_ROWS,
            Source::Normed { .. } => 64,
            Source::Gated { .. } | Source::GatedNorm { .. } => 16,
        }
    }

    /// Makes integers of the rows, by the kernels for few or for many.
    #[track_caller]
    fn quantize(self, to: QuantizedRows, order: RowOrder) {
        let (arguments, at) = (Arguments::new().with(to), resident_f32);
        let (groups, rows) = (to.groups as usize, to.rows as usize);
        let many = to.layout != Layout::Few as i32 && (rows > self.max_few_rows() || order.rows != 0);
        let grid = [groups / 8, if many { rows.div_ceil(8) } else { rows }, 1];
        match self {
            Source::Plain { x } => {
                let x = at(x);
                let arguments = arguments.with(x.device_address());
                match many {
                    true => launch("quantize_many", grid, 256, 0, arguments.with(order)),
                    false => launch("quantize", grid, 256, 0, arguments),
                }
            }
            _ if order.rows != 0 && !matches!(self, Source::Gated { .. }) => {
                unreachable!("norms have no order of rows")
            }
            Source::Normed { x, norm } => {
                let (x, weight) = (at(x), norm.device_weight());
                let arguments =
                    arguments.with(x.device_address()).with(weight.device_address()).with(norm.eps);
                let shared = to.inputs as usize * 4;
                match many {
                    true => launch("quantize_many_norm", [rows, 1, 1], 128, shared, arguments),
                    false => launch("quantize_norm", grid, 256, shared, arguments),
                }
            }
            Source::Gated { gate, up, activation } => {
                let (gate, up) = (at(gate), at(up));
                let arguments =
                    arguments.with(gate.device_address()).with(up.device_address()).with(activation);
                match many {
                    true => launch("quantize_many_gated", grid, 256, 0, arguments.with(order)),
                    false => launch("quantize_gated", grid, 256, 0, arguments),
                }
            }
            Source::GatedNorm { x, gate, norm } => {
                let (x, gate, weight) = (at(x), at(gate), norm.device_weight());
                let arguments = arguments
                    .with(x.device_address())
                    .with(gate.device_address())
                    .with(weight.device_address())
                    .with(norm.weight.dim(0))
                    .with(norm.eps);
                let name = if many { "quantize_many_gated_norm" } else { "quantize_gated_norm" };
                launch(name, grid, 256, 0, arguments);
            }
        }
    }

    /// As the product of one row takes it, with its arrays; `None` if making the integers once is
    /// faster.
    #[track_caller]
    fn row(self, inputs: i32) -> Option<(InputRow, [Cow<'a, Array>; 2])> {
        let (x, gate, norm) = match self {
            Source::Plain { x } => (x, None, None),
            Source::Normed { x, norm } => (x, None, Some(norm)),
            Source::GatedNorm { x, gate, norm } => (x, Some(gate), Some(norm)),
            Source::Gated { .. } => return None,
        };
        let (x, gated) = (resident_f32(x), gate.is_some());
        let gate = gate.map_or_else(|| x.clone(), resident_f32);
        let from = InputRow {
            x: x.device_address(),
            weight: norm.map_or(0, |norm| norm.device_weight().device_address()),
            gate: if gated { gate.device_address() } else { 0 },
            inputs,
            dim: norm.map_or(0, |norm| norm.weight.dim(0)),
            eps: norm.map_or(0.0, |norm| norm.eps),
            has_early_gates: 0,
        };
        Some((from, [x, gate]))
    }
}

impl<'a> Product<'a> {
    #[track_caller]
    pub(super) fn new(linear: &'a Linear, out: &'a Array, stream: Option<&'a Array>) -> Product<'a> {
        let matrix = linear.on_device().unwrap_or_else(|| unreachable!("checked by the caller"));
        Product { matrix, bias: linear.device_bias(), out, stream }
    }

    /// With a matrix or each of some, whose biases are at an address or 0.
    pub(super) fn of_matrix(matrix: &'a DeviceMatrix, bias: u64, out: &'a Array) -> Product<'a> {
        Product { matrix, bias, out, stream: None }
    }

    pub(super) fn format(&self) -> TileFormat {
        self.matrix.layout.format
    }

    pub(super) fn is_of_floats(&self) -> bool {
        self.format() == TileFormat::Mxfp4
    }
}

/// The matrices of a launch.
#[track_caller]
pub(super) fn parts<'a>(
    products: impl IntoIterator<Item = &'a Product<'a>>,
    tiles: impl Fn(&DeviceMatrix) -> usize,
) -> ProductParts {
    let mut parts = ProductParts::default();
    for (part, product) in parts.iter_mut().zip(products) {
        let matrix = product.matrix;
        *part = ProductPart {
            weights: matrix.tiles.device_address(),
            out: product.out.device_address(),
            bias: product.bias,
            stream: product.stream.map_or(0, |stream| stream.device_address()),
            features: matrix.outputs,
            tiles: tiles(matrix) as i32,
        };
    }
    parts
}
