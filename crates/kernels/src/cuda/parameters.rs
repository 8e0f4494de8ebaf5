//! Parameters of the CUDA kernels, laid out as the sources have them. Addresses are the device's.

/// Rows of inputs of products, as integers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QuantizedRows {
    pub planes: u64,
    pub steps: u64,
    pub inputs: i32,
    pub groups: i32,
    pub rows: i32,
    /// 0 for few rows, 1 for many, 2 for warpgroups, 3 for them in half precision.
    pub layout: i32,
}

/// A row of inputs that a product makes integers of. A norm is over each `dim` of it; without one
/// `dim` is 0. `gate` may be 0.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct InputRow {
    pub x: u64,
    pub weight: u64,
    pub gate: u64,
    pub inputs: i32,
    pub dim: i32,
    pub eps: f32,
    /// Whether the operation before does not write the gates: for a persistent kernel.
    pub has_early_gates: i32,
}

/// One of the matrices of a launch; `bias` and `stream` may be 0.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ProductPart {
    pub weights: u64,
    pub out: u64,
    pub bias: u64,
    pub stream: u64,
    pub features: i32,
    pub tiles: i32,
}

/// Matrices of a launch; unused ones have no tiles.
pub type ProductParts = [ProductPart; 4];

/// The row of each place, by expert, `share` of which have the same row of inputs; without rows, 0,
/// each is in its own place.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RowOrder {
    pub rows: u64,
    pub share: i32,
    pub padding: i32,
}

/// Every row in its own place.
pub const OWN_ORDER: RowOrder = RowOrder { rows: 0, share: 1, padding: 0 };

/// Rows by expert: tiles of places and the row of each place, as a kernel lists them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExpertRows {
    pub tiles: u64,
    pub order: u64,
}

/// Few rows of experts, and of an expert that all tokens have.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExpertRowCounts {
    pub stacks: i32,
    pub assignments: i32,
    pub shared: i32,
    pub share: i32,
    pub shared_inputs: i32,
    pub rows: i32,
    pub segments: i32,
}

/// Bytes of a tile of places.
pub const EXPERT_TILE: usize = 16;
/// Most experts of a layer.
pub const MAX_EXPERTS: usize = 1024;
/// Warps of a block of products of few rows and experts.
pub const EXPERT_WARPS: usize = 8;

/// A product of rows and a matrix of floats; `bias` and `stream` may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FloatProduct {
    pub x: u64,
    pub weights: u64,
    pub bias: u64,
    pub stream: u64,
    pub out: u64,
    pub rows: i32,
    pub outputs: i32,
    pub inputs: i32,
    pub padding: i32,
}

/// How a router's logits become a choice of experts and their weights; `bias` may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RouterParameters {
    pub bias: u64,
    pub experts: i32,
    pub per_token: i32,
    pub normalize: i32,
    /// 0 for softmax, 1 for sigmoid.
    pub scores: i32,
    pub eps: f32,
    pub scale: f32,
    pub groups: i32,
    pub open_groups: i32,
}

/// The parts of a token's output besides those of its experts; each may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CombineArrays {
    pub shared: u64,
    pub gate: u64,
    pub stream: u64,
}

/// A sequence's tokens of a delta rule.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DeltaStep {
    pub keys: u64,
    pub values: u64,
    pub gates: u64,
    pub before: u64,
    pub after: u64,
    pub out: u64,
    pub tokens: i32,
    pub stride: i32,
}

pub type DeltaSteps = [DeltaStep; 16];

/// A sequence whose next token is token `token` of all.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DeltaToken {
    pub past: u64,
    pub next: u64,
    pub before: u64,
    pub after: u64,
    pub token: i32,
    pub padding: i32,
}

pub type DeltaTokenList = [DeltaToken; 64];

/// Consecutive tokens of a sequence before the delta rule.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DeltaSpan {
    pub past: u64,
    pub keys: u64,
    pub values: u64,
    pub gates: u64,
    pub row_start: i32,
    pub start: i32,
    pub tokens: i32,
    pub padding: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeltaSpans {
    pub spans: [DeltaSpan; 32],
    pub count: i32,
    pub padding: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeltaSizes {
    pub key_heads: i32,
    pub value_heads: i32,
    pub channels: i32,
    pub width: i32,
    pub key_eps: f32,
    pub query_eps: f32,
    pub key_weight: f32,
    pub query_weight: f32,
}

/// A sequence's inputs of a convolution.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ConvSpan {
    pub past: u64,
    pub x: u64,
    pub next: u64,
    pub tokens: i32,
    pub padding: i32,
}

/// Most tokens whose inputs of the delta rule a block of threads computes.
pub const MAX_DELTA_RUN: i32 = 8;

pub type ConvSpans = [ConvSpan; 32];

/// A sequence's keys and values before attention.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HeadSpan {
    pub keys: u64,
    pub values: u64,
    pub past: i32,
    pub capacity: i32,
    pub start: i32,
    pub position: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HeadSpans {
    pub spans: [HeadSpan; 64],
    pub count: i32,
    pub padding: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HeadSizes {
    pub heads: i32,
    pub kv_heads: i32,
    pub dim: i32,
    pub query_stride: i32,
    pub half: i32,
    pub adjacent: i32,
    pub rope_scale: f32,
    pub query_eps: f32,
    pub key_eps: f32,
}

/// A sequence's queries, and the keys and values that they attend to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AttentionSpan {
    pub keys: u64,
    pub values: u64,
    pub start: i32,
    pub tokens: i32,
    pub length: i32,
    pub capacity: i32,
    pub first_chunk: i32,
    /// Most keys that a query sees, its own included.
    pub window: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AttentionSpans {
    pub spans: [AttentionSpan; 64],
    pub count: i32,
    pub padding: i32,
}

/// Gates of the outputs of heads, or 0, with the numbers from one head's to the next's; sinks of
/// heads, or 0.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct HeadOutputs {
    pub gates: u64,
    pub sinks: u64,
    pub stride: i32,
    pub padding: i32,
}

/// Heads of any size: their numbers and sizes, and numbers from one value to the next. A cap of 0
/// is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AnyHeads {
    pub heads: i32,
    pub kv_heads: i32,
    pub dim: i32,
    pub value_dim: i32,
    pub value_stride: i32,
    pub scale: f32,
    pub cap: f32,
}

/// Rotations of heads; `axes` may be 0: each pair has the first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Rotations {
    pub x: u64,
    pub positions: u64,
    pub frequencies: u64,
    pub axes: u64,
    pub out: u64,
    pub heads: i32,
    pub dim: i32,
    pub half: i32,
    pub columns: i32,
    pub adjacent: i32,
    pub scale: f32,
}

/// How a gate becomes a factor: 0 is SiLU, 1 GELU's approximation with tanh, 2 gpt-oss's, whose
/// gates and values are limited.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GateActivation {
    pub kind: i32,
    pub limit: f32,
}

/// How a row of logits is sampled.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DrawParameters {
    pub temperature: f32,
    pub seed: [u32; 2],
    pub position: [u32; 2],
    /// How many of `ids` are valid; only these may be chosen, or if negative all but these. 0: all.
    pub listed: i32,
    pub ids: [u32; MAX_LISTED],
    /// Scores below it are no candidates.
    pub floor: f32,
    /// How many of the likeliest are kept, at most [`MAX_KEPT`]; 0: all.
    pub top_k: i32,
    pub top_p: f32,
}

/// Memory that the blocks of rows share.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SampleMemory {
    pub parts: u64,
    pub best: u64,
    /// Keys of [`MAX_KEPT`] tokens for each block, of 8 bytes.
    pub kept: u64,
}

/// Most tokens that `top_k` keeps on the device, and most blocks that sample a row.
pub const MAX_KEPT: usize = 64;
pub const MAX_SAMPLING_BLOCKS: usize = 256;

/// Most tokens in a list of tokens that may be chosen or may not.
pub const MAX_LISTED: usize = 8;

/// Most rows of a launch.
pub const MAX_DRAWS: usize = 48;
pub type DrawList = [DrawParameters; MAX_DRAWS];

/// Bytes of a candidate of sampling.
pub const CANDIDATE_BYTES: usize = 16;

/// Operations of the persistent kernel, as it numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum OperationKind {
    ProductOfRow,
    ProductOfIntegers,
    Gated,
    DeltaToken64,
    DeltaToken128,
    Scores64,
    Scores128,
    Scores256,
    Values64,
    Values128,
    Values256,
    Merge,
    ValuesShort64,
    ValuesShort128,
    ValuesShort256,
    Embed4,
    Embed8,
    RmsNorm,
    SampleParts,
    SampleRow,
}

/// Threads of a block of the persistent kernel, most bytes of an operation, and shared memory that
/// an operation has for itself.
pub const PERSISTENT_THREADS: u32 = 640;
pub const OPERATION_BYTES: usize = 1024;
pub const PERSISTENT_SCRATCH: usize = 81_664;

/// Where heads come from and go to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HeadArrays {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub query_weight: u64,
    pub key_weight: u64,
    pub frequencies: u64,
    pub out: u64,
}

/// Attention of a token in some operations.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TokenAttention {
    pub v: u64,
    pub out: u64,
    pub scores: u64,
    pub partials: u64,
    pub outputs: HeadOutputs,
    pub heads: i32,
    pub kv_heads: i32,
    pub quads: i32,
    pub blocks: i32,
    pub scale: f32,
    pub dim: i32,
    /// Keys before those that the token sees, of the first block.
    pub hidden: i32,
    pub padding: i32,
}

/// Queries that are computed together, columns of values, and numbers that stand for them and what
/// belongs to them.
pub const ATTENTION_QUAD: i32 = 4;
pub const ATTENTION_SLICE: i32 = 64;
pub const ATTENTION_PARTIAL: i32 = ATTENTION_SLICE + 4;
/// Most blocks of keys whose values are summed up column by column.
pub const SHORT_ATTENTION_BLOCKS: i32 = 6;
