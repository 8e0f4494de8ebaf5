// Attention with heads of any size that is a multiple of 4, also latent, whose values are parts of the keys, and with
// capped scores (attention.cuh); and what comes before it. A CTA has some queries of a key head and all blocks of keys
// that they see, one after another; or a block of them, and the last CTA merges all blocks.
#include "attention.cuh"

// Sizes of heads, and numbers from one value to the next. A cap of 0 is none.
struct AnyHeads {
    int heads, kv_heads, dim, value_dim, value_stride;
    float scale, cap;
};

// In shared memory, of ROWS queries; the queries and sums follow.
template <int ROWS>
struct AnyShared {
    __align__(16) float weights[KEY_BLOCK][ROWS];
    float maxima[8][ROWS], largest[ROWS], totals[ROWS];
    // Factors that merge a block, or those of sums beside a sink; the largest score and the sum so far.
    float before[ROWS], now[ROWS], most[ROWS], all[ROWS];
};

// The queries `first` and following of a key head, by 256 threads.
template <int ROWS>
struct AnyChunk {
    AnyShared<ROWS>& shared;
    const AttentionRow& row;
    const AnyHeads& sizes;
    int head, first, group;

    __device__ __forceinline__ float* queries() const { return (float*)(&shared + 1); }
    __device__ __forceinline__ float* sums() const { return queries() + ROWS * sizes.dim; }

    __device__ __forceinline__ void load(const float* q) const {
        for (int i = threadIdx.x; i < ROWS * sizes.dim; i += 256) {
            const int r = first + i / sizes.dim, token = r / group;
            float value = 0;
            if (token < row.tokens) {
                const size_t of_query = (size_t)(row.start + token) * sizes.heads + head * group + r % group;
                value = q[of_query * sizes.dim + i % sizes.dim];
            }
            queries()[i] = value;
        }
        for (int i = threadIdx.x; i < ROWS * sizes.value_dim; i += 256) sums()[i] = 0;
        if (threadIdx.x < ROWS) shared.most[threadIdx.x] = -INFINITY, shared.all[threadIdx.x] = 0;
        __syncthreads();
    }

    // Numerators of the block at `base`, of which `count` keys may be seen, their largest scores and sums: a thread for
    // each key.
    __device__ __forceinline__ void score(int base, int count) const {
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        float score[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) score[r] = 0;
        if (thread < count) {
            const float* key = row.keys + ((size_t)head * row.capacity + base + thread) * sizes.dim;
            constexpr int TOGETHER = ROWS == 4 ? 4 : 1;
#pragma unroll 1
            for (int from = 0; from < sizes.dim; from += TOGETHER * 4) {
                float4 own[TOGETHER];
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    if (from + i * 4 < sizes.dim) own[i] = *(const float4*)(key + from + i * 4);
                }
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    if (from + i * 4 >= sizes.dim) break;
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        const float4 x = *(const float4*)(queries() + r * sizes.dim + from + i * 4);
                        score[r] = __fmaf_rn(x.x, own[i].x, score[r]);
                        score[r] = __fmaf_rn(x.y, own[i].y, score[r]);
                        score[r] = __fmaf_rn(x.z, own[i].z, score[r]);
                        score[r] = __fmaf_rn(x.w, own[i].w, score[r]);
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int end = min(visible_keys(row, first + r, group, base), count);
            const bool seen = thread >= hidden_keys(row, first + r, group, base) && thread < end;
            score[r] = score[r] * sizes.scale;
            if (sizes.cap > 0) score[r] = sizes.cap * exact_tanh(score[r] / sizes.cap);
            if (!seen) score[r] = -INFINITY;
            const float most = largest_of_lanes(score[r]);
            if (lane == 0) shared.maxima[warp][r] = most;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float most = shared.maxima[0][r];
#pragma unroll
            for (int w = 1; w < 8; w++) most = shared.maxima[w][r] > most ? shared.maxima[w][r] : most;
            shared.weights[thread][r] = score[r] == -INFINITY ? 0.0f : exact_exp(score[r] - most);
            if (thread == 0) shared.largest[r] = most;
        }
        __syncthreads();
        // Half a warp for each query, always whole warps: every 16th key, then a tree.
        if (thread < ROWS * 16) {
            float sum = 0;
            for (int i = lane & 15; i < KEY_BLOCK; i += 16) sum = sum + shared.weights[i][thread / 16];
            sum = reduce_16(sum);
            if ((lane & 15) == 0) shared.totals[thread / 16] = sum;
        }
        __syncthreads();
    }

    // The block's values, weighted: `write` takes the sum of a query and column.
    template <class Write>
    __device__ __forceinline__ void add_values(int base, int count, const Write& write) const {
        constexpr int KEYS_AHEAD = ROWS == 4 ? 8 : 4;
        const int start = max(hidden_keys(row, first, group, base), 0);
        const float* values = row.values + ((size_t)head * row.capacity + base) * sizes.value_stride;
        for (int column = threadIdx.x; column < sizes.value_dim; column += 256) {
            float own[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) own[r] = 0;
#pragma unroll KEYS_AHEAD
            for (int k = start; k < count; k++) {
                const float value = values[(size_t)k * sizes.value_stride + column];
#pragma unroll
                for (int r = 0; r < ROWS; r++) own[r] = __fmaf_rn(shared.weights[k][r], value, own[r]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) write(r, column, own[r]);
        }
    }

    // What merges the block at `base`, by a thread for each query.
    __device__ __forceinline__ void merge(int r, int base, float largest, float total) const {
        float highest = shared.most[r], old = 1, added = 0;
        if (sees_block(row, first + r, group, base)) {
            merge_block(highest, old, added, largest);
            shared.all[r] = __fmaf_rn(old, shared.all[r], added * total);
            shared.most[r] = highest;
        }
        shared.before[r] = old, shared.now[r] = added;
    }

    __device__ __forceinline__ void add(int r, int column, float block) const {
        float& sum = sums()[r * sizes.value_dim + column];
        sum = __fmaf_rn(shared.before[r], sum, block * shared.now[r]);
    }

    __device__ __forceinline__ void write(float* out, const HeadOutputs& outputs) const {
        const int thread = threadIdx.x;
        __syncthreads();
        if (thread < ROWS) {
            const int own = head * group + (first + thread) % group;
            shared.now[thread] = outputs.add_sink(shared.all[thread], shared.most[thread], own);
        }
        __syncthreads();
        for (int i = thread; i < ROWS * sizes.value_dim; i += 256) {
            const int r = i / sizes.value_dim, column = i % sizes.value_dim, token = (first + r) / group;
            if (token >= row.tokens) break;
            const size_t to = (size_t)(row.start + token) * sizes.heads + head * group + (first + r) % group;
            out[to * sizes.value_dim + column] = outputs.apply(sums()[i] * shared.now[r] / shared.all[r], to, column);
        }
    }
};

// Grid: chunks of all sequences, kv_heads; 256 threads.
template <int ROWS>
__device__ __forceinline__ void attend_any(const AttentionRows& rows, const float* q, float* out, const AnyHeads& sizes,
                                           const HeadOutputs& outputs) {
    DYNAMIC_SHARED(memory);
    launch_dependents();
    wait_for_previous();
    // The last chunks see most keys: they start first.
    const int index = gridDim.x - 1 - blockIdx.x, group = sizes.heads / sizes.kv_heads;
    const AttentionRow& row = row_of_chunk(rows, index);
    const int first = (index - row.first_chunk) * ROWS;
    const AnyChunk<ROWS> chunk = {*(AnyShared<ROWS>*)memory, row, sizes, (int)blockIdx.y, first, group};
    const int end = visible_keys(row, min(first + ROWS, row.tokens * group) - 1, group, 0);
    chunk.load(q);
#pragma unroll 1
    for (int base = first_block(row, first, group); base < end; base += KEY_BLOCK) {
        const int count = min(KEY_BLOCK, end - base), r = threadIdx.x;
        chunk.score(base, count);
        if (r < ROWS) chunk.merge(r, base, chunk.shared.largest[r], chunk.shared.totals[r]);
        __syncthreads();
        chunk.add_values(base, count, [&](int r, int column, float sum) { chunk.add(r, column, sum); });
        __syncthreads();
    }
    chunk.write(out, outputs);
}

// partials [chunks * kv_heads][blocks][ROWS][value_dim + 2]; arrived [chunks * kv_heads], zero before and afterwards.
// Grid: most blocks of a sequence, chunks of all sequences times kv_heads; 256 threads.
template <int ROWS>
__device__ __forceinline__ void attend_any_split(const AttentionRows& rows, const float* q, float* out, float* partials,
                                                 u32* arrived, const AnyHeads& sizes, const HeadOutputs& outputs) {
    DYNAMIC_SHARED(memory);
    __shared__ bool last;
    launch_dependents();
    wait_for_previous();
    const int unit = blockIdx.y, index = unit / sizes.kv_heads, group = sizes.heads / sizes.kv_heads;
    const AttentionRow& row = row_of_chunk(rows, index);
    const int first = (index - row.first_chunk) * ROWS, thread = threadIdx.x;
    const AnyChunk<ROWS> chunk = {*(AnyShared<ROWS>*)memory, row, sizes, unit % sizes.kv_heads, first, group};
    AnyShared<ROWS>& shared = chunk.shared;
    const int end = visible_keys(row, min(first + ROWS, row.tokens * group) - 1, group, 0);
    const int from = first_block(row, first, group), base = from + blockIdx.x * KEY_BLOCK;
    const int blocks = (end - from + KEY_BLOCK - 1) / KEY_BLOCK, stride = sizes.value_dim + 2;
    if (base >= end) return;
    float* all = partials + (size_t)unit * gridDim.x * ROWS * stride;
    float* own = all + (size_t)blockIdx.x * ROWS * stride;
    chunk.load(q);
    chunk.score(base, min(KEY_BLOCK, end - base));
    chunk.add_values(base, min(KEY_BLOCK, end - base), [&](int r, int column, float sum) { own[r * stride + column] = sum; });
    if (thread < ROWS) {
        own[thread * stride + sizes.value_dim] = shared.largest[thread];
        own[thread * stride + sizes.value_dim + 1] = shared.totals[thread];
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) {
        last = atomicAdd(arrived + unit, 1) == (u32)blocks - 1;
        if (last) arrived[unit] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
#pragma unroll 1
    for (int b = 0; b < blocks; b++) {
        const float* block = all + (size_t)b * ROWS * stride;
        if (thread < ROWS) {
            const float* part = block + thread * stride + sizes.value_dim;
            chunk.merge(thread, from + b * KEY_BLOCK, part[0], part[1]);
        }
        __syncthreads();
        for (int i = thread; i < ROWS * sizes.value_dim; i += 256) {
            const int r = i / sizes.value_dim, column = i % sizes.value_dim;
            chunk.add(r, column, block[r * stride + column]);
        }
        __syncthreads();
    }
    chunk.write(out, outputs);
}

#define ATTEND_ANY(queries)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 2) attend_any_##queries(                                        \
        const __grid_constant__ AttentionRows rows, const float* q, float* out, const __grid_constant__ AnyHeads sizes, \
        const __grid_constant__ HeadOutputs outputs) {                                                               \
        attend_any<queries>(rows, q, out, sizes, outputs);                                                           \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256, 2) attend_any_split_##queries(                                  \
        const __grid_constant__ AttentionRows rows, const float* q, float* out, float* partials, u32* arrived,       \
        const __grid_constant__ AnyHeads sizes, const __grid_constant__ HeadOutputs outputs) {                       \
        attend_any_split<queries>(rows, q, out, partials, arrived, sizes, outputs);                                  \
    }

ATTEND_ANY(4)
ATTEND_ANY(16)

// Rotations of heads. x, out: [tokens][heads][dim]; positions: [tokens][columns]; without axes each pair has the first.
struct Rotations {
    const float* x;
    const int* positions;
    const float* frequencies;
    const u32* axes;
    float* out;
    int heads, dim, half, columns, adjacent;
    float scale;
};

// Grid: tokens; 256 threads; `half` pairs of floats are shared.
extern "C" __global__ void __launch_bounds__(256) rope(const __grid_constant__ Rotations own) {
    DYNAMIC_SHARED(memory);
    float2* angles = (float2*)memory;
    launch_dependents();
    wait_for_previous();
    const int* positions = own.positions + (size_t)blockIdx.x * own.columns;
    for (int pair = threadIdx.x; pair < own.half; pair += 256) {
        const int position = positions[own.axes ? own.axes[pair] : 0];
        float sine, cosine;
        sin_cos((float)position * own.frequencies[pair], sine, cosine);
        angles[pair] = make_float2(sine * own.scale, cosine * own.scale);
    }
    __syncthreads();
    const float* x = own.x + (size_t)blockIdx.x * own.heads * own.dim;
    float* out = own.out + (size_t)blockIdx.x * own.heads * own.dim;
    for (int i = threadIdx.x; i < own.heads * own.half; i += 256) {
        const int head = i / own.half * own.dim, pair = i % own.half;
        const int first = head + (own.adjacent ? 2 * pair : pair), second = first + (own.adjacent ? 1 : own.half);
        const float2 at = angles[pair];
        const float a = x[first], b = x[second];
        out[first] = a * at.y - b * at.x, out[second] = b * at.y + a * at.x;
    }
    const int rest = own.dim - 2 * own.half;
    for (int i = threadIdx.x; i < own.heads * rest; i += 256) {
        const int at = i / max(rest, 1) * own.dim + 2 * own.half + i % max(rest, 1);
        out[at] = x[at];
    }
}

// Writes [tokens][heads][dim] to a buffer [heads][capacity][dim] after `past` tokens. Grid: numbers / 256, rounded up; 256
// threads.
extern "C" __global__ void __launch_bounds__(256)
    append_heads(const float* from, float* to, int count, int heads, int dim, int capacity, int past) {
    launch_dependents();
    wait_for_previous();
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    const int token = i / (heads * dim), head = i / dim % heads;
    to[((size_t)head * capacity + past + token) * dim + i % dim] = from[i];
}
