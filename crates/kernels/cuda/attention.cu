// Causal softmax attention over float32 keys and values, in the CPU kernel's order, bit for bit.
//
// Keys are processed in blocks of 256 positions: dot products are summed over the head's numbers in
// order, numerators as 16 partial sums and a tree, values in the order of keys. Blocks are merged from
// first to last. `attend_few` gives each block of few queries a CTA of its own, and the last one of a key
// head merges; `attend_many` walks through all blocks.
#include "math.cuh"

constexpr int KEY_BLOCK = 256;

// One sequence's queries, the last of its `length` keys.
struct AttentionRow {
    const float* keys;
    const float* values;
    // The first query, among those of all sequences.
    int start;
    int tokens;
    int length;
    int capacity;
    // Of attend_many: its first CTA in the grid's first dimension.
    int first_chunk;
};
constexpr int MAX_ATTENTION_ROWS = 64;
struct AttentionRows {
    AttentionRow row[MAX_ATTENTION_ROWS];
    int count;
};

// `ROWS` queries of a key head, `first` and following, and one block of its keys.
template <int DIM, int ROWS>
struct Block {
    __align__(16) float queries[ROWS][DIM];
    __align__(16) float weights[KEY_BLOCK][ROWS];
    float maxima[8][ROWS], largest[ROWS], totals[ROWS];

    // Query `r` is that of head r % group of token r / group.
    __device__ __forceinline__ void load(const AttentionRow& row, const float* q, int first, int head, int heads,
                                         int group) {
        for (int i = threadIdx.x; i < ROWS * DIM; i += 256) {
            const int r = first + i / DIM, token = r / group;
            float value = 0;
            if (token < row.tokens)
                value = q[((size_t)(row.start + token) * heads + head * group + r % group) * DIM + i % DIM];
            queries[i / DIM][i % DIM] = value;
        }
        __syncthreads();
    }

    // Keys that query `r` sees, from position `base` on.
    __device__ __forceinline__ static int visible(const AttentionRow& row, int r, int group, int base) {
        const int token = r / group;
        return token < row.tokens ? row.length - row.tokens + token + 1 - base : 0;
    }

    // Numerators, their largest scores and sums.
    __device__ __forceinline__ void score(const AttentionRow& row, int first, int head, int group, int base,
                                          float scale) {
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const int count = min(KEY_BLOCK, row.length - base);
        float score[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) score[r] = 0;
        if (thread < count) {
            const float4* from = (const float4*)(row.keys + ((size_t)head * row.capacity + base + thread) * DIM);
#pragma unroll(ROWS == 4 ? 8 : 4)
            for (int at = 0; at < DIM / 4; at++) {
                const float4 key = from[at];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float4 x = *(const float4*)&queries[r][at * 4];
                    score[r] = __fmaf_rn(x.x, key.x, score[r]);
                    score[r] = __fmaf_rn(x.y, key.y, score[r]);
                    score[r] = __fmaf_rn(x.z, key.z, score[r]);
                    score[r] = __fmaf_rn(x.w, key.w, score[r]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int end = visible(row, first + r, group, base);
            score[r] = thread < min(end, count) ? score[r] * scale : -INFINITY;
            float most = score[r];
#pragma unroll
            for (int distance = 16; distance; distance /= 2) {
                const float other = __shfl_xor_sync(0xffffffffu, most, distance);
                most = other > most ? other : most;
            }
            if (lane == 0) maxima[warp][r] = most;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float most = maxima[0][r];
#pragma unroll
            for (int w = 1; w < 8; w++) most = maxima[w][r] > most ? maxima[w][r] : most;
            weights[thread][r] = score[r] == -INFINITY ? 0.0f : exact_exp(score[r] - most);
            if (thread == 0) largest[r] = most;
        }
        __syncthreads();
        // Half a warp for each query, always whole warps: every 16th key, then a tree.
        for (int r = thread / 16; r < ROWS; r += 16) {
            float sum = 0;
            for (int i = lane & 15; i < KEY_BLOCK; i += 16) sum = sum + weights[i][r];
#pragma unroll
            for (int distance = 8; distance; distance /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, distance);
            if ((lane & 15) == 0) totals[r] = sum;
        }
    }
};

__device__ __forceinline__ void merge_block(float& most, float& before, float& now, float largest) {
    const float next = largest > most ? largest : most;
    before = exact_exp(most - next), now = exact_exp(largest - next);
    most = next;
}

// Keys of a piece of values, and pieces in shared memory.
constexpr int PIECE = 32;
constexpr int few_slots(int dim) { return 512 / dim; }

// partials [sequences][kv_heads][blocks][ROWS][DIM + 2]; arrived [sequences][kv_heads], zero before and
// afterwards. Grid: most blocks of a sequence, kv_heads, sequences; 256 threads. tokens * group <= ROWS.
// Each thread sums a column of DIM for some of the queries, while bulk copies bring values.
template <int DIM, int ROWS>
__device__ __forceinline__ void attend_few(const AttentionRows& rows, const float* q, float* out, float* partials,
                                           u32* arrived, int heads, int kv_heads, float scale) {
    constexpr int PARTS = 256 / DIM, OWN = ROWS / PARTS, SLOTS = few_slots(DIM);
    DYNAMIC_SHARED(memory);
    float* ring = (float*)memory;
    Block<DIM, ROWS>& shared = *(Block<DIM, ROWS>*)(ring + SLOTS * PIECE * DIM);
    u64* barriers = (u64*)(&shared + 1);
    __shared__ bool last;
    const AttentionRow& row = rows.row[blockIdx.z];
    const int block = blockIdx.x, head = blockIdx.y, group = heads / kv_heads, thread = threadIdx.x;
    const int blocks = (row.length + KEY_BLOCK - 1) / KEY_BLOCK, base = block * KEY_BLOCK;
    const int count = min(KEY_BLOCK, row.length - base), pieces = (count + PIECE - 1) / PIECE;
    const float* values = row.values + ((size_t)head * row.capacity + base) * DIM;
    if (thread == 0) {
        for (int i = 0; i < SLOTS; i++) barrier_init(shared_address(barriers + i), 1);
        barrier_fence();
    }
    launch_dependents();
    wait_for_previous();
    if (block >= blocks) return;
    auto fetch = [&](int piece) {
        if (piece >= pieces) return;
        const u32 barrier = shared_address(barriers + piece % SLOTS);
        const u32 bytes = min(PIECE, count - piece * PIECE) * DIM * 4;
        barrier_expect(barrier, bytes);
        bulk_copy(shared_address(ring + piece % SLOTS * PIECE * DIM), values + (size_t)piece * PIECE * DIM, bytes,
                  barrier, evict_first());
    };
    if (thread == 0) {
        for (int i = 0; i < SLOTS; i++) fetch(i);
    }
    shared.load(row, q, 0, head, heads, group);
    shared.score(row, 0, head, group, base, scale);
    const int column = thread % DIM, first = thread / DIM * OWN;
    float sums[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) sums[i] = 0;
    for (int piece = 0; piece < pieces; piece++) {
        barrier_wait(shared_address(barriers + piece % SLOTS), piece / SLOTS & 1);
        const float* from = ring + piece % SLOTS * PIECE * DIM + column;
        const int end = min(PIECE, count - piece * PIECE);
#pragma unroll 8
        for (int k = 0; k < end; k++) {
            const float value = from[k * DIM];
#pragma unroll
            for (int i = 0; i < OWN; i++)
                sums[i] = __fmaf_rn(shared.weights[piece * PIECE + k][first + i], value, sums[i]);
        }
        if (SLOTS < KEY_BLOCK / PIECE) {
            __syncthreads();
            if (thread == 0) fetch(piece + SLOTS);
        }
    }
    __syncthreads();
    // Not of many queries: their quotients would take registers from their sums.
    if (ROWS == 4 && blocks == 1) {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int r = first + i;
            if (Block<DIM, ROWS>::visible(row, r, group, 0) == 0) continue;
            const size_t token = row.start + r / group;
            // A merge with nothing multiplies by 1 and adds zeros.
            out[(token * heads + head * group + r % group) * DIM + column] =
                __fmaf_rn(0.0f, 0.0f, sums[i]) / shared.totals[r];
        }
        return;
    }
    const size_t own_head = (size_t)blockIdx.z * kv_heads + head;
    float* all = partials + own_head * gridDim.x * ROWS * (DIM + 2);
    float* own = all + (size_t)block * ROWS * (DIM + 2);
#pragma unroll
    for (int i = 0; i < OWN; i++) own[(first + i) * (DIM + 2) + column] = sums[i];
    if (thread < ROWS) {
        own[thread * (DIM + 2) + DIM] = shared.largest[thread];
        own[thread * (DIM + 2) + DIM + 1] = shared.totals[thread];
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) {
        last = atomicAdd(arrived + own_head, 1) == (u32)blocks - 1;
        if (last) arrived[own_head] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
#pragma unroll 1
    for (int i = 0; i < OWN; i++) {
        const int r = first + i, end = Block<DIM, ROWS>::visible(row, r, group, 0);
        if (end == 0) continue;
        float most = -INFINITY, total = 0, sum = 0, before, now;
        const int visible = (end + KEY_BLOCK - 1) / KEY_BLOCK;
#pragma unroll 8
        for (int b = 0; b < visible; b++) {
            const float* part = all + ((size_t)b * ROWS + r) * (DIM + 2);
            const float largest = part[DIM], part_total = part[DIM + 1], part_sum = part[column];
            merge_block(most, before, now, largest);
            total = __fmaf_rn(before, total, now * part_total);
            sum = __fmaf_rn(before, sum, part_sum * now);
        }
        const size_t token = row.start + r / group;
        out[(token * heads + head * group + r % group) * DIM + column] = sum / total;
    }
}

// `ROWS` queries of a key head and all blocks that they see. Grid: chunks of all sequences, kv_heads; 256
// threads. Each thread sums a column of DIM for every (256 / DIM)th query.
template <int DIM, int ROWS>
__device__ __forceinline__ void attend_many(const AttentionRows& rows, const float* q, float* out, int heads,
                                            int kv_heads, float scale) {
    constexpr int PARTS = 256 / DIM, OWN = ROWS / PARTS;
    DYNAMIC_SHARED(memory);
    Block<DIM, ROWS>& shared = *(Block<DIM, ROWS>*)memory;
    // Of each query: what merges the current block, and the largest score and the sum so far.
    __shared__ float before[ROWS], now[ROWS], most[ROWS], totals[ROWS];
    launch_dependents();
    wait_for_previous();
    int r = 0;
    while (r + 1 < rows.count && (int)blockIdx.x >= rows.row[r + 1].first_chunk) r++;
    const AttentionRow& row = rows.row[r];
    const int head = blockIdx.y, group = heads / kv_heads, first = ((int)blockIdx.x - row.first_chunk) * ROWS;
    const int column = threadIdx.x % DIM, part = threadIdx.x / DIM;
    shared.load(row, q, first, head, heads, group);
    float sums[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) sums[i] = 0;
    if (threadIdx.x < ROWS) most[threadIdx.x] = -INFINITY, totals[threadIdx.x] = 0;
    const int last = min(first + ROWS, row.tokens * group) - 1;
    const int end = Block<DIM, ROWS>::visible(row, last, group, 0);
    for (int base = 0; base < end; base += KEY_BLOCK) {
        shared.score(row, first, head, group, base, scale);
        __syncthreads();
        if (threadIdx.x < ROWS) {
            const int i = threadIdx.x;
            before[i] = 1, now[i] = 0;
            if (Block<DIM, ROWS>::visible(row, first + i, group, base) > 0) {
                float largest = most[i], old, added;
                merge_block(largest, old, added, shared.largest[i]);
                totals[i] = __fmaf_rn(old, totals[i], added * shared.totals[i]);
                most[i] = largest, before[i] = old, now[i] = added;
            }
        }
        float own[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) own[i] = 0;
        const float* values = row.values + ((size_t)head * row.capacity + base) * DIM + column;
        const int count = min(KEY_BLOCK, end - base);
#pragma unroll 4
        for (int k = 0; k < count; k++) {
            const float value = values[(size_t)k * DIM];
#pragma unroll
            for (int i = 0; i < OWN; i++)
                own[i] = __fmaf_rn(shared.weights[k][part * OWN + i], value, own[i]);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; i++)
            sums[i] = __fmaf_rn(before[part * OWN + i], sums[i], own[i] * now[part * OWN + i]);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int r = first + part * OWN + i, token = r / group;
        if (token >= row.tokens) continue;
        out[((size_t)(row.start + token) * heads + head * group + r % group) * DIM + column] =
            sums[i] / totals[part * OWN + i];
    }
}

#define ATTEND(dim)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) attend_few_##dim##_4(                                   \
        const __grid_constant__ AttentionRows rows, const float* q, float* out, float* partials, u32* arrived, \
        int heads, int kv_heads, float scale) {                                                              \
        attend_few<dim, 4>(rows, q, out, partials, arrived, heads, kv_heads, scale);                         \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) attend_few_##dim##_16(                                  \
        const __grid_constant__ AttentionRows rows, const float* q, float* out, float* partials, u32* arrived, \
        int heads, int kv_heads, float scale) {                                                              \
        attend_few<dim, 16>(rows, q, out, partials, arrived, heads, kv_heads, scale);                        \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) attend_many_##dim(                                      \
        const __grid_constant__ AttentionRows rows, const float* q, float* out, int heads, int kv_heads,     \
        float scale) {                                                                                       \
        attend_many<dim, dim == 256 ? 16 : 32>(rows, q, out, heads, kv_heads, scale);                                          \
    }

ATTEND(64)
ATTEND(128)
ATTEND(256)
