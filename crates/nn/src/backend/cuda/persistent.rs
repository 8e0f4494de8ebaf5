//! Operations of a single row, which wait for each other on the device: a whole step of decoding is
//! one launch of the kernel `persistent`.

use std::sync::atomic::{AtomicBool, Ordering};

use kernels::cuda::{
    InputRow, MAX_SHARED, OPERATION_BYTES, OperationKind, PERSISTENT_SCRATCH, PERSISTENT_THREADS,
    ProductParts,
};
use mlx::cuda::{Arguments, OperationWeights, PersistentKernel};

use super::launch::device;

static KERNEL: PersistentKernel = PersistentKernel {
    name: "persistent",
    threads: PERSISTENT_THREADS,
    shared: MAX_SHARED,
    operation_bytes: OPERATION_BYTES,
};

static ALLOWED: AtomicBool = AtomicBool::new(true);

/// Whether operations of a single row may be queued for one launch: for tests and measurements,
/// since no bit depends on it.
pub fn allow_persistent_kernel(allowed: bool) {
    ALLOWED.store(allowed, Ordering::Relaxed);
}

pub(super) fn is_allowed() -> bool {
    ALLOWED.load(Ordering::Relaxed)
}

/// Queues an operation; its name is for measurements.
#[track_caller]
pub(super) fn queue(name: &'static str, kind: OperationKind, arguments: Arguments) {
    queue_with(name, kind, &arguments, None);
}

#[track_caller]
fn queue_with(
    name: &'static str,
    kind: OperationKind,
    arguments: &Arguments,
    weights: Option<OperationWeights>,
) {
    device().queue(&KERNEL, name, kind as i32, arguments, weights).unwrap_or_else(|e| panic!("{e}"));
}

/// The row that products multiply.
pub(super) enum ProductRow {
    /// Float32, of which each block of threads makes the integers.
    Floats(InputRow),
    /// Addresses of planes and steps.
    Integers([u64; 2]),
}

/// Whether a product of this number of segments fits, with the row, its norm's weights and gates.
pub(super) fn fits(segments: usize, row: Option<&InputRow>) -> bool {
    let floats = row.map_or(0, |row| row.inputs * if row.gate == 0 { 1 } else { 2 } + row.dim);
    segments * (4 * 16 * 4 + 8 * (128 + 8)) + floats as usize * 4 <= PERSISTENT_SCRATCH
}

/// Whether the operation that was queued last is the delta rule of a token, which writes no gates.
#[track_caller]
fn is_after_delta() -> bool {
    let kinds = [OperationKind::DeltaToken64, OperationKind::DeltaToken128];
    device().last_queued().is_some_and(|last| kinds.iter().any(|&kind| kind as i32 == last))
}

/// Launches what is queued.
#[track_caller]
pub(super) fn launch_queued() {
    device().launch_operations().unwrap_or_else(|e| panic!("{e}"));
}

/// Queues products of a row, 4 bits each.
#[track_caller]
pub(super) fn queue_product(parts: ProductParts, segments: usize, row: ProductRow) {
    let tiles: i32 = parts.iter().map(|part| part.tiles).sum();
    let pair = |first: i32, second: i32| first as u32 as u64 | (second as u32 as u64) << 32;
    let weights = [
        parts[0].weights,
        parts[1].weights,
        parts[2].weights,
        parts[3].weights,
        pair(parts[0].tiles, parts[1].tiles),
        pair(parts[2].tiles, parts[3].tiles),
        pair(tiles, segments as i32),
    ];
    let arguments = Arguments::new().with(parts).with(tiles).with(segments as i32);
    let (name, kind, arguments) = match row {
        ProductRow::Floats(mut from) => {
            from.has_early_gates = (from.gate != 0 && is_after_delta()).into();
            ("product_of_row", OperationKind::ProductOfRow, arguments.with(from))
        }
        ProductRow::Integers([planes, steps]) => {
            let arguments = arguments.with(planes).with(steps);
            ("product_of_integers", OperationKind::ProductOfIntegers, arguments)
        }
    };
    queue_with(name, kind, &arguments, Some(weights));
}
