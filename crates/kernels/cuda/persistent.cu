// A step of decoding as one launch: CTAs that stay execute a list of operations, each after all CTAs have finished
// the one before. Each operation computes what the kernel of its own (skinny.cu, heads.cu and so on) computes.
//
// Weights do not depend on operations before them: each warp copies those of its next jobs into its ring while
// earlier operations run and CTAs wait for each other, across operations.
#include "attention_token.cuh"
#include "delta_token.cuh"
#include "embed.cuh"
#include "heads.cuh"
#include "input_row.cuh"
#include "sample.cuh"

constexpr int STEP_WARPS = 16, STEP_THREADS = STEP_WARPS * 32;
// Segments of weights in a warp's ring.
constexpr int RING_DEPTH = 2;
// Bytes of an operation, and products whose weights' places are known, both at most.
constexpr int OPERATION_BYTES = 1024, PRODUCTS_KNOWN = 8, OPERATIONS_KNOWN = 3;
// Tiles of a product whose segments are added up at the same time.
constexpr int TILES_OPEN = 4;

enum OperationKind {
    PRODUCT_OF_ROW,
    PRODUCT_OF_INTEGERS,
    GATED,
    DELTA_TOKEN_64,
    DELTA_TOKEN_128,
    HEADS,
    SCORES_64,
    SCORES_128,
    SCORES_256,
    VALUES_64,
    VALUES_128,
    VALUES_256,
    EMBED_4,
    EMBED_8,
    RMS_NORM,
    SAMPLE_PARTS,
    SAMPLE_ROW,
};

// At the start of each operation; its arguments follow, each at a multiple of 8 bytes.
struct OperationHead {
    int kind;
    // Bytes of the two operations after this one; 0: none.
    unsigned short next, after;
};

// Where the weights of a product are.
struct ProductWeights {
    const u8* weights[MAX_PARTS];
    int tiles[MAX_PARTS];
    // `jobs` of this CTA, each a segment of a tile, is computed once the rest is known.
    int all_tiles, segments, jobs, padding;
};

struct StepShared {
    u64 ring_barriers[STEP_WARPS * RING_DEPTH];
    u64 operation_barriers[OPERATIONS_KNOWN];
    u64 unused;
    // Warps that have added to each open tile.
    u32 arrived[TILES_OPEN];
    u32 padding[4];
    ProductWeights products[PRODUCTS_KNOWN];
    __align__(16) unsigned char operations[OPERATIONS_KNOWN][OPERATION_BYTES];
    __align__(128) unsigned char ring[STEP_WARPS * RING_DEPTH * BLOCK_BYTES];

    // What an operation has for itself.
    __device__ __forceinline__ unsigned char* scratch() { return (unsigned char*)(this + 1); }
};
// Bytes of it.
constexpr int SCRATCH = (227 << 10) - (int)sizeof(StepShared);
static_assert(SCRATCH == 81024, "the size that parameters.rs has");
static_assert(sizeof(ValueShared<256>) <= SCRATCH && sizeof(ScoreShared<64>) <= SCRATCH, "attention fits");

// Arguments of an operation, in order.
struct ArgumentReader {
    const unsigned char* at;

    template <class T>
    __device__ __forceinline__ const T& take() {
        const T& value = *(const T*)at;
        at += (sizeof(T) + 7) / 8 * 8;
        return value;
    }
};

// Waits until all CTAs have finished the previous operation.
struct PreviousOperation {
    const u32* finished;
    u32 target;

    __device__ __forceinline__ void operator()() const {
        if (threadIdx.x == 0)
            while ((int)(load_acquire(finished) - target) < 0) relax();
        __syncthreads();
    }
};

// Jobs of a CTA in a product, each a segment of a tile.
__device__ __forceinline__ int own_jobs(int tiles, int segments) {
    return (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * segments;
}

// A warp's weights, job after job of all products.
struct WeightStream {
    u32 ring, barriers;
    // The next job to be fetched: its product, number, tile of the CTA and segment.
    int product, job, tile, segment;
    // Jobs fetched and used so far.
    int fetched, used;

    __device__ __forceinline__ explicit WeightStream(StepShared& shared) {
        const int warp = threadIdx.x >> 5;
        ring = shared_address(shared.ring) + warp * RING_DEPTH * BLOCK_BYTES;
        barriers = shared_address(shared.ring_barriers + warp * RING_DEPTH);
        product = fetched = used = tile = 0, job = segment = warp;
    }

    // Fills the ring, with weights of the first `known` products at most.
    __device__ __forceinline__ void fill(const StepShared& shared, int known) {
#pragma unroll 1
        while (fetched - used < RING_DEPTH && product < known) {
            const ProductWeights& own = shared.products[product % PRODUCTS_KNOWN];
            if (job >= own.jobs) {
                product++, job = segment = threadIdx.x >> 5, tile = 0;
                continue;
            }
            const int segments = own.segments;
#pragma unroll 1
            while (segment >= segments) segment -= segments, tile++;
            if ((threadIdx.x & 31) == 0) {
                int at = blockIdx.x + tile * gridDim.x, part = 0;
#pragma unroll 1
                while (part + 1 < MAX_PARTS && at >= own.tiles[part]) at -= own.tiles[part++];
                const u8* from = own.weights[part] + ((size_t)at * segments + segment) * BLOCK_BYTES;
                const int slot = fetched % RING_DEPTH;
                barrier_expect(barriers + slot * 8, BLOCK_BYTES);
                bulk_copy(ring + slot * BLOCK_BYTES, from, BLOCK_BYTES, barriers + slot * 8, evict_first());
            }
            fetched++, job += STEP_WARPS, segment += STEP_WARPS;
        }
    }
};

// Makes integers of a warp's two inputs of each lane, one group of a row: 128 bytes of planes, and the step with the
// step times the sum (quantize.cuh).
__device__ __noinline__ void quantize_group(u8* planes, float2* step, float first, float second) {
    const int lane = threadIdx.x & 31, i = 2 * lane;
    const u32 a = __float_as_uint(first) & 0x7fffffffu, b = __float_as_uint(second) & 0x7fffffffu;
    // As numbers these bits are in the order of the magnitudes, infinities and then NaN last.
    const u32 most = max_of_warp(a > b ? a : b);
    const float largest = __uint_as_float(most);
    const bool finite = most < 0x7f800000u;
    int p = 0, q = 0;
    float own = finite ? 0.0f : __uint_as_float(0x7fc00000u);
    if (finite && largest >= 1e-30f) {
        const float inverse = 32639.0f / largest;
        p = __float2int_rn(first * inverse), q = __float2int_rn(second * inverse);
        own = largest / 32639.0f;
    }
    const int total = sum_of_warp(p + q);
    const int low_p = (signed char)(p & 255), low_q = (signed char)(q & 255);
    const int high_p = (p - low_p) >> 8, high_q = (q - low_q) >> 8;
    planes += i % 16 / 4 * 16 + i / 16 * 4 + i % 4;
    *(unsigned short*)planes = (high_p & 255) | (high_q & 255) << 8;
    *(unsigned short*)(planes + 64) = (low_p & 255) | (low_q & 255) << 8;
    if (lane == 0) *step = make_float2(own, (float)total * own);
}

// What lies where in the scratch memory during a product.
struct ProductScratch {
    // [TILES_OPEN][segments][TILE]
    float* partial;
    uint4* inputs;
    float2* steps;
    // The row, its weights in the norm and its gates, which need not be there.
    float* row;

    __device__ __forceinline__ ProductScratch(unsigned char* scratch, int segments) {
        partial = (float*)scratch;
        inputs = (uint4*)(partial + TILES_OPEN * segments * TILE);
        steps = (float2*)(inputs + segments * GROUPS * 8);
        row = (float*)(steps + segments * GROUPS);
    }
};

// Starts copying `count` numbers, a multiple of 4, by all threads.
__device__ __forceinline__ void copy_numbers(float* to, const float* from, int count) {
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < count; i += STEP_THREADS * 4) copy_16(shared_address(to + i), from + i);
}

// The integers of a row, by all threads.
__device__ __noinline__ void quantize_row(const InputRow& from, ProductScratch scratch, int groups,
                                             PreviousOperation wait) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, inputs = from.inputs, dim = from.dim;
    float* row = scratch.row;
    float* weights = row + inputs;
    float* gates = weights + dim;
    copy_numbers(weights, from.weight, dim);
    wait();
    copy_numbers(row, from.x, inputs);
    if (from.gate) copy_numbers(gates, from.gate, inputs);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    if (dim) {
        // Half a warp for each norm, whose factor goes where the steps of its groups will be.
        const int norms = inputs / dim, each = dim / GROUP;
#pragma unroll 1
        for (int first = warp * 2; first < norms; first += STEP_WARPS * 2) {
            const int norm = first + (lane >> 4);
            const float factor = row_factor(row + min(norm, norms - 1) * dim, dim, from.eps);
            if (norm < norms)
                for (int i = lane & 15; i < each; i += 16) scratch.steps[norm * each + i].x = factor;
        }
        __syncthreads();
    }
    // Eight lanes have a group, each eight neighbours.
#pragma unroll 1
    for (int at = threadIdx.x; at < groups * 8; at += STEP_THREADS) {
        const int group = at / 8, i = at * 8;
        float value[8];
#pragma unroll
        for (int k = 0; k < 8; k++) value[k] = 0.0f;
        if (i < inputs) {
            load_8(value, row + i);
            if (dim) {
                const float factor = scratch.steps[group].x;
                float weight[8];
                load_8(weight, weights + (dim == inputs ? i : i % dim));
#pragma unroll
                for (int k = 0; k < 8; k++) value[k] = value[k] * factor * weight[k];
            }
            if (from.gate) {
#pragma unroll 1
                for (int k = 0; k < 8; k += 4) {
                    float4 gate = *(const float4*)(gates + i + k);
                    gate.x = silu(gate.x), gate.y = silu(gate.y), gate.z = silu(gate.z), gate.w = silu(gate.w);
                    *(float4*)(gates + i + k) = gate;
                }
                float gate[8];
                load_8(gate, gates + i);
#pragma unroll
                for (int k = 0; k < 8; k++) value[k] = value[k] * gate[k];
            }
        }
        const QuantizedEight eight = quantize_eight(value);
        u32* planes = (u32*)(scratch.inputs + group * 8) + (at & 1) * 8 + (at >> 1 & 3);
        planes[0] = eight.high[0], planes[4] = eight.high[1];
        planes[16] = eight.low[0], planes[20] = eight.low[1];
        __syncwarp();
        if ((at & 7) == 0) scratch.steps[group] = eight.step;
    }
}

// The product of 16 features and a segment of one row: features g and g + 8 in the lanes with t == 0.
__device__ __forceinline__ float2 multiply_segment(const unsigned char* block, const uint4* inputs, const float2* steps,
                                                   int lane) {
    const int g = lane >> 2, t = lane & 3;
    const u32* scales = (const u32*)(block + CODE_BYTES) + g;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        u32 a[8];
        load_codes<4>(a, (const uint4*)block, i, lane);
        const u32 first = scales[i * TILE], second = scales[i * TILE + 8];
        uint4 b = make_uint4(0, 0, 0, 0);
        if (g < 2) b = inputs[i * 8 + g * 4 + t];
        const float2 step = steps[i];
        int c[4] = {0, 0, 0, 0};
        mma_u8_s8(c, a[0], a[1], a[2], a[3], b.x, b.y);
        mma_u8_s8(c, a[4], a[5], a[6], a[7], b.z, b.w);
        const float d0 = __fmul_rn((float)(c[0] * 256 + c[1]), step.x);
        const float d1 = __fmul_rn((float)(c[2] * 256 + c[3]), step.x);
        sum.x = __fmaf_rn(low_bf16(first), d0, sum.x);
        sum.x = __fmaf_rn(high_bf16(first), step.y, sum.x);
        sum.y = __fmaf_rn(low_bf16(second), d1, sum.y);
        sum.y = __fmaf_rn(high_bf16(second), step.y, sum.y);
    }
    return sum;
}

// Products of one row, whose integers are in shared memory; the last warp to finish a tile adds its segments in
// ascending order.
__device__ __forceinline__ void multiply_row(StepShared& shared, WeightStream& stream, const ProductScratch& scratch,
                                             const Parts& parts, int tiles, int segments, int known) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int jobs = own_jobs(tiles, segments);
    int tile = 0, segment = warp;
    while (segment >= segments) segment -= segments, tile++;
#pragma unroll 1
    for (int job = warp; job < jobs; job += STEP_WARPS) {
        const int slot = stream.used % RING_DEPTH;
        barrier_wait(stream.barriers + slot * 8, stream.used / RING_DEPTH & 1);
        const float2 own = multiply_segment(shared.ring + (warp * RING_DEPTH + slot) * BLOCK_BYTES,
                                            scratch.inputs + segment * GROUPS * 8, scratch.steps + segment * GROUPS, lane);
        __syncwarp();
        stream.used++;
        stream.fill(shared, known);

        // A tile's partial sums are reused once its predecessor there is complete: arrivals only grow.
        const int open = tile % TILES_OPEN, generation = tile / TILES_OPEN;
        volatile u32* count = shared.arrived + open;
        while (*count < (u32)(generation * (segments + 1))) relax();
        float* sums = scratch.partial + open * segments * TILE;
        if (t == 0) sums[segment * TILE + g] = own.x, sums[segment * TILE + g + 8] = own.y;
        __threadfence_block();
        __syncwarp();
        u32 before = 0;
        if (lane == 0) before = atomicAdd(shared.arrived + open, 1);
        before = __shfl_sync(0xffffffffu, before, 0);
        if (before == (u32)(generation * (segments + 1) + segments - 1)) {
            __threadfence_block();
            int at = blockIdx.x + tile * gridDim.x;
            const Part& part = parts.part[find_part(parts, at)];
            if (lane < TILE) {
                float sum = 0;
#pragma unroll 4
                for (int i = 0; i < segments; i++) sum = sum + sums[i * TILE + lane];
                write_product(part, 0, at * TILE + lane, sum);
            }
            __threadfence_block();
            __syncwarp();
            if (lane == 0) atomicAdd(shared.arrived + open, 1);
        }
        segment += STEP_WARPS;
        while (segment >= segments) segment -= segments, tile++;
    }
}

// One token of several sequences through a Gated DeltaNet, in the order of delta_token.cuh, a CTA for each
// DELTA_VALUES values of a head. What does not depend on the previous operation is loaded before waiting for it.
template <int DIM>
struct DeltaShared {
    // Queries, then keys, then values.
    float channels[2 * DIM + DELTA_VALUES];
    float factors[2], rates[2];
};

template <int DIM>
__device__ __noinline__ void delta_operation(unsigned char* scratch, ArgumentReader arguments,
                                                PreviousOperation wait) {
    const DeltaSizes& sizes = arguments.take<DeltaSizes>();
    const float* x = arguments.take<const float*>();
    const float* taps = arguments.take<const float*>();
    const float* b = arguments.take<const float*>();
    const float* a = arguments.take<const float*>();
    const float* neg_exp_a = arguments.take<const float*>();
    const float* dt_bias = arguments.take<const float*>();
    float* out = arguments.take<float*>();
    const int rows = arguments.take<int>();
    const DeltaTokenRow* row = (const DeltaTokenRow*)arguments.at;
    auto& shared = *(DeltaShared<DIM>*)scratch;
    constexpr int PARTS = DIM / DELTA_VALUES, OWN = DIM / 8;
    const int thread = threadIdx.x, lane = thread & 7, width = sizes.width, keys = sizes.key_heads * DIM;
    const int blocks = sizes.value_heads * PARTS, sharing = sizes.value_heads / sizes.key_heads;
    // A thread has a channel, and a number of every eighth of a row of the state.
    const bool has_channel = thread < 2 * DIM + DELTA_VALUES, has_row = thread < DELTA_VALUES * 8;
    bool waited = false;
#pragma unroll 1
    for (int i = blockIdx.x; i < blocks * rows || !waited; i += gridDim.x) {
        const bool has = i < blocks * rows;
        const DeltaTokenRow& own = row[has ? i / blocks : 0];
        const int head = i % blocks / PARTS, part = i % PARTS, key_head = head / sharing;
        const int channel = thread < DIM         ? key_head * DIM + thread
                            : thread < 2 * DIM ? keys + key_head * DIM + thread - DIM
                                               : 2 * keys + head * DIM + part * DELTA_VALUES + thread - 2 * DIM;
        const size_t state = ((size_t)head * DIM + part * DELTA_VALUES + thread / 8) * DIM + lane;
        float s[OWN];
        if (has && has_row) {
#pragma unroll
            for (int j = 0; j < OWN; j++) s[j] = own.before[state + j * 8];
        }
        const bool has_rates = has && thread == STEP_THREADS - 1;
        float rate = 0, bias = 0;
        if (has_rates) rate = neg_exp_a[head], bias = dt_bias[head];
        if (!waited) wait();
        waited = true;
        if (!has) break;
        const size_t gate = (size_t)own.token * sizes.value_heads + head;
        if (has_channel) {
            const float now = x[(size_t)own.token * sizes.channels + channel];
            // One of the CTAs that need the same keys and queries keeps the inputs.
            const bool keeps = thread >= 2 * DIM || (part == 0 && head % sharing == 0);
            float taps_of[MAX_TAPS], inputs[MAX_TAPS], sum = 0;
#pragma unroll
            for (int j = 0; j < MAX_TAPS; j++) {
                const size_t at = (size_t)j * sizes.channels + channel;
                taps_of[j] = j < width ? taps[at] : 0.0f;
                inputs[j] = own.past && j < width - 1 ? own.past[at] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < MAX_TAPS; j++) {
                if (j >= width) break;
                const float input = j == width - 1 ? now : inputs[j];
                sum = __fmaf_rn(input, taps_of[j], sum);
                if (keeps && j > 0) own.next[(size_t)(j - 1) * sizes.channels + channel] = input;
            }
            shared.channels[thread] = silu(sum);
        }
        if (has_rates) {
            shared.rates[0] = exact_exp(rate * softplus(a[gate] + bias));
            shared.rates[1] = sigmoid(b[gate]);
        }
        __syncthreads();
        if (thread < 64) {
            const bool is_key = thread >= 32;
            const float factor = row_factor(shared.channels + is_key * DIM, DIM, is_key ? sizes.key_eps : sizes.query_eps);
            if ((thread & 31) == 0) shared.factors[is_key] = factor;
        }
        __syncthreads();
        if (thread < 2 * DIM) {
            const bool is_key = thread >= DIM;
            shared.channels[thread] = shared.channels[thread] * shared.factors[is_key] *
                                      (is_key ? sizes.key_weight : sizes.query_weight);
        }
        __syncthreads();
        if (has_row) {
            const float decay = shared.rates[0], beta = shared.rates[1];
            const float* q = shared.channels + lane;
            const float* k = q + DIM;
            float sums[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < OWN; j++) sums[j & 1] = __fmaf_rn(s[j], __fmul_rn(decay, k[j * 8]), sums[j & 1]);
            const float seen = sum_lanes(__fadd_rn(sums[0], sums[1]));
            const float delta = __fmul_rn(__fsub_rn(shared.channels[2 * DIM + thread / 8], seen), beta);
            sums[0] = sums[1] = 0;
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                const float next = __fmaf_rn(delta, k[j * 8], __fmul_rn(s[j], decay));
                sums[j & 1] = __fmaf_rn(next, q[j * 8], sums[j & 1]);
                own.after[state + j * 8] = next;
            }
            const float output = sum_lanes(__fadd_rn(sums[0], sums[1]));
            if (lane == 0) out[gate * DIM + part * DELTA_VALUES + thread / 8] = output;
        }
        __syncthreads();
    }
}

__device__ __noinline__ void heads_operation(unsigned char* scratch, ArgumentReader arguments,
                                                PreviousOperation wait) {
    const HeadSizes& sizes = arguments.take<HeadSizes>();
    const HeadArrays& arrays = arguments.take<HeadArrays>();
    const int tokens = arguments.take<int>(), rows = arguments.take<int>();
    const HeadRow* row = (const HeadRow*)arguments.at;
    const Team<256> team;
    auto& shared = ((HeadShared*)scratch)[team.index()];
    const int heads = sizes.heads + 2 * sizes.kv_heads;
    wait();
    for (int i = blockIdx.x + team.index() * gridDim.x; i < tokens * heads; i += STEP_THREADS / 256 * gridDim.x) {
        const int token = i / heads;
        int r = 0;
        while (r + 1 < rows && token >= row[r + 1].start) r++;
        prepare_head(team, shared, row[r], sizes, arrays, token, i % heads);
        team.sync();
    }
}

template <int BITS>
__device__ __noinline__ void embed_operation(ArgumentReader arguments, PreviousOperation wait) {
    const u8* weights = arguments.take<const u8*>();
    const u32* ids = arguments.take<const u32*>();
    float* out = arguments.take<float*>();
    const int inputs = arguments.take<int>(), segments = arguments.take<int>();
    const int rows = arguments.take<int>();
    wait();
    for (int i = blockIdx.x * STEP_THREADS + threadIdx.x; i < rows * inputs; i += gridDim.x * STEP_THREADS)
        out[i] = embedded<BITS>(weights, ids[i / inputs], i % inputs, segments);
}

// RMS norms of rows, each by a CTA.
__device__ __noinline__ void norm_operation(unsigned char* scratch, ArgumentReader arguments,
                                               PreviousOperation wait) {
    const float* x = arguments.take<const float*>();
    const float* weight = arguments.take<const float*>();
    float* out = arguments.take<float*>();
    const int length = arguments.take<int>();
    const float eps = arguments.take<float>();
    const int rows = arguments.take<int>();
    float* row = (float*)scratch + 4;
    wait();
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const size_t own = (size_t)r * length;
        for (int i = threadIdx.x; i < length; i += STEP_THREADS) row[i] = x[own + i];
        __syncthreads();
        if (threadIdx.x < 32) {
            const float factor = row_factor(row, length, eps);
            if (threadIdx.x == 0) row[-1] = factor;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < length; i += STEP_THREADS) out[own + i] = row[i] * row[-1] * weight[i];
        __syncthreads();
    }
}

// Of a row of logits, by the first 256 threads of each CTA.
__device__ __noinline__ void sample_operation(unsigned char* scratch, ArgumentReader arguments, bool finish,
                                                 PreviousOperation wait) {
    const Draw& draw = arguments.take<Draw>();
    const float* logits = arguments.take<const float*>();
    Candidate* parts = arguments.take<Candidate*>();
    Candidate* best = arguments.take<Candidate*>();
    u32* arrived = arguments.take<u32*>();
    u32* token = arguments.take<u32*>();
    float* fault = arguments.take<float*>();
    const int size = arguments.take<int>();
    auto& shared = *(SampleShared*)scratch;
    wait();
    if (threadIdx.x >= 256) return;
    const Team<256> team;
    if (finish) {
        sample_row(team, shared, draw, logits, parts, best, arrived, token, fault, size, blockIdx.x, gridDim.x);
    } else {
        sample_part(team, shared, draw, logits, parts, size, blockIdx.x, gridDim.x);
    }
}

template <int DIM>
__device__ __noinline__ void attention_operation(unsigned char* scratch, ArgumentReader arguments, bool values,
                                                    PreviousOperation wait) {
    const TokenAttention& own = arguments.take<TokenAttention>();
    const AttentionRow* rows = (const AttentionRow*)arguments.at;
    if (values) {
        attention_values<DIM, STEP_THREADS>(*(ValueShared<DIM>*)scratch, own, rows, wait);
    } else {
        attention_scores<DIM, STEP_THREADS>(*(ScoreShared<DIM>*)scratch, own, rows, wait);
    }
}

__device__ __noinline__ void gated_operation(ArgumentReader arguments, PreviousOperation wait) {
    u8* planes = arguments.take<u8*>();
    float2* steps = arguments.take<float2*>();
    const float* gate = arguments.take<const float*>();
    const float* up = arguments.take<const float*>();
    const int inputs = arguments.take<int>(), groups = arguments.take<int>();
    const int activation = arguments.take<int>();
    wait();
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int group = blockIdx.x + (threadIdx.x >> 5) * gridDim.x; group < groups; group += STEP_WARPS * gridDim.x) {
        const int i = group * GROUP + 2 * lane;
        float first = 0, second = 0;
        if (i < inputs) {
            const float2 g = *(const float2*)(gate + i), u = *(const float2*)(up + i);
            first = (activation ? gelu_tanh(g.x) : silu(g.x)) * u.x;
            second = (activation ? gelu_tanh(g.y) : silu(g.y)) * u.y;
        }
        quantize_group(planes + group * 128, steps + group, first, second);
    }
}

// What a CTA does for an operation, but for products.
__device__ __forceinline__ void execute(int kind, unsigned char* scratch, ArgumentReader arguments,
                                        PreviousOperation wait) {
    switch (kind) {
        case GATED: gated_operation(arguments, wait); break;
        case DELTA_TOKEN_64: delta_operation<64>(scratch, arguments, wait); break;
        case DELTA_TOKEN_128: delta_operation<128>(scratch, arguments, wait); break;
        case HEADS: heads_operation(scratch, arguments, wait); break;
        case SCORES_64: attention_operation<64>(scratch, arguments, false, wait); break;
        case SCORES_128: attention_operation<128>(scratch, arguments, false, wait); break;
        case SCORES_256: attention_operation<256>(scratch, arguments, false, wait); break;
        case VALUES_64: attention_operation<64>(scratch, arguments, true, wait); break;
        case VALUES_128: attention_operation<128>(scratch, arguments, true, wait); break;
        case VALUES_256: attention_operation<256>(scratch, arguments, true, wait); break;
        case EMBED_4: embed_operation<4>(arguments, wait); break;
        case EMBED_8: embed_operation<8>(arguments, wait); break;
        case RMS_NORM: norm_operation(scratch, arguments, wait); break;
        case SAMPLE_PARTS: sample_operation(scratch, arguments, false, wait); break;
        case SAMPLE_ROW: sample_operation(scratch, arguments, true, wait); break;
    }
}

// Products of one row: its integers, then the tiles of the CTA.
__device__ __forceinline__ void product_operation(StepShared& shared, WeightStream& stream, int kind,
                                                  ArgumentReader arguments, PreviousOperation wait, int known) {
    const Parts& parts = arguments.take<Parts>();
    const int tiles = arguments.take<int>(), segments = arguments.take<int>();
    const ProductScratch scratch(shared.scratch(), segments);
    if (threadIdx.x < TILES_OPEN) shared.arrived[threadIdx.x] = 0;
    if (kind == PRODUCT_OF_ROW) {
        quantize_row(arguments.take<InputRow>(), scratch, segments * GROUPS, wait);
    } else {
        const uint4* planes = arguments.take<const uint4*>();
        const float2* steps = arguments.take<const float2*>();
        wait();
        for (int i = threadIdx.x; i < segments * GROUPS * 8; i += STEP_THREADS) scratch.inputs[i] = planes[i];
        for (int i = threadIdx.x; i < segments * GROUPS; i += STEP_THREADS) scratch.steps[i] = steps[i];
    }
    __syncthreads();
    multiply_row(shared, stream, scratch, parts, tiles, segments, known);
}

// `operations` are those of the step, the first two of these bytes; `products` the weights of its `count` products.
// `finished` counts CTAs that have finished an operation, from `before` on. Grid: at most the multiprocessors.
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1)
    persistent(const unsigned char* operations, int first_bytes, int second_bytes, const ProductWeights* products,
               int count, u32* finished, u32 before) {
    DYNAMIC_SHARED(memory);
    StepShared& shared = *(StepShared*)memory;
    WeightStream stream(shared);
    const u32 operation_barrier = shared_address(shared.operation_barriers);
    auto fetch = [&](int bytes, int slot) {
        const u32 barrier = operation_barrier + slot * 8;
        barrier_expect(barrier, bytes);
        bulk_copy(shared_address(shared.operations[slot]), operations, bytes, barrier, evict_first());
        operations += bytes;
    };
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < STEP_WARPS * RING_DEPTH; i++) barrier_init(shared_address(shared.ring_barriers + i), 1);
        for (int i = 0; i < OPERATIONS_KNOWN; i++) barrier_init(operation_barrier + i * 8, 1);
        barrier_fence();
        fetch(first_bytes, 0);
        if (second_bytes) fetch(second_bytes, 1);
    }
    constexpr int WORDS = sizeof(ProductWeights) / 8;
    auto know = [&](int product) {
        if (threadIdx.x >= 32) return;
        ProductWeights& to = shared.products[product % PRODUCTS_KNOWN];
        if (threadIdx.x < WORDS) ((u64*)&to)[threadIdx.x] = ((const u64*)(products + product))[threadIdx.x];
        __syncwarp();
        if (threadIdx.x == 0) to.jobs = own_jobs(to.all_tiles, to.segments);
    };
    int known = min(count, PRODUCTS_KNOWN), done = 0;
    for (int i = 0; i < known; i++) know(i);
    __syncthreads();
    PreviousOperation wait = {finished, before};
    int slot = 0;
    u32 parity = 0;
#pragma unroll 1
    for (bool more = true; more;) {
        stream.fill(shared, known);
        barrier_wait(operation_barrier + slot * 8, parity);
        const OperationHead head = *(const OperationHead*)shared.operations[slot];
        more = head.next != 0;
        // The slot after the next one's was that of the previous operation.
        if (threadIdx.x == 0 && head.after) fetch(head.after, slot == 0 ? OPERATIONS_KNOWN - 1 : slot - 1);
        const ArgumentReader arguments = {shared.operations[slot] + sizeof(OperationHead)};
        if (head.kind <= PRODUCT_OF_INTEGERS) {
            // The place of the product before this one is free.
            const bool another = done > 0 && known < count;
            if (another) know(known);
            product_operation(shared, stream, head.kind, arguments, wait, known);
            known += another, done++;
        } else {
            execute(head.kind, shared.scratch(), arguments, wait);
        }
        __syncthreads();
        if (threadIdx.x == 0) add_release(finished, 1);
        wait.target += gridDim.x;
        if (++slot == OPERATIONS_KNOWN) slot = 0, parity ^= 1;
    }
}
