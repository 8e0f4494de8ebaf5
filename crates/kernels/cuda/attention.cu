// Attention of few queries (attention.cuh): a CTA for each block of keys, of which the last one of a key head
// merges all blocks.
#include "attention.cuh"

// `ROWS` queries of a key head, `first` and following, and one block of its keys; PARTS_AHEAD parts of a warp's
// keys are in shared memory.
template <int DIM, int ROWS, int PARTS_AHEAD>
struct Block {
    // Parts of each warp's keys.
    __align__(16) float keys[8][PARTS_AHEAD][32 * KEY_STRIDE];
    __align__(16) float queries[ROWS][DIM];
    __align__(16) float weights[KEY_BLOCK][ROWS];
    float maxima[8][ROWS], largest[ROWS], totals[ROWS];
    // Of sums beside a sink.
    float factors[ROWS];

    __device__ __forceinline__ void load(const AttentionRow& row, const float* q, int first, int head, int heads,
                                         int group) {
        load_queries<DIM, ROWS>(queries, row, q, first, head, heads, group);
        __syncthreads();
    }

    // Starts copying part `part` of the warp's keys, of which `from` has `count`.
    __device__ __forceinline__ void fetch(const float* from, int count, int part) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const u32 to = shared_address(keys[warp][part % PARTS_AHEAD]);
#pragma unroll
        for (int i = 0; i < PART / 4; i++) {
            const int key = (i * 32 + lane) / (PART / 4), four = lane % (PART / 4);
            if (warp * 32 + key < count)
                copy_16(to + (key * KEY_STRIDE + four * 4) * 4,
                        from + (size_t)(warp * 32 + key) * DIM + part * PART + four * 4);
        }
        commit_copies();
    }

    // The first parts.
    __device__ __forceinline__ void start(const float* from, int count) {
        for (int part = 0; part < PARTS_AHEAD - 1; part++) fetch(from, count, part);
    }

    // Numerators, their largest scores and sums, after `start`.
    __device__ __forceinline__ void score(const AttentionRow& row, const float* from, int count, int first,
                                          int group, int base, float scale) {
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        float score[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) score[r] = 0;
#pragma unroll 1
        for (int part = 0; part < DIM / PART; part++) {
            wait_for_copies<PARTS_AHEAD - 2>();
            __syncwarp();
            if (part + PARTS_AHEAD - 1 < DIM / PART) {
                fetch(from, count, part + PARTS_AHEAD - 1);
            } else {
                commit_copies();
            }
            const float* own = keys[warp][part % PARTS_AHEAD] + lane * KEY_STRIDE;
#pragma unroll
            for (int four = 0; four < PART / 4; four++) {
                const float4 key = *(const float4*)(own + four * 4);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float4 x = *(const float4*)&queries[r][part * PART + four * 4];
                    score[r] = __fmaf_rn(x.x, key.x, score[r]);
                    score[r] = __fmaf_rn(x.y, key.y, score[r]);
                    score[r] = __fmaf_rn(x.z, key.z, score[r]);
                    score[r] = __fmaf_rn(x.w, key.w, score[r]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int end = min(visible_keys(row, first + r, group, base), count);
            const bool seen = thread >= hidden_keys(row, first + r, group, base) && thread < end;
            score[r] = seen ? score[r] * scale : -INFINITY;
            float most = score[r];
            most = largest_of_lanes(most);
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

// Keys of a piece of values.
constexpr int PIECE = 16;
// Parts of keys and pieces of values in shared memory. If the blocks of keys are fewer than the multiprocessors,
// no two of them share one, and each has `deep` pipelines.
constexpr int few_parts(bool deep) { return deep ? 4 : 3; }
constexpr int few_slots(int dim, bool deep) { return (deep ? 1024 : 512) / dim; }

// Merges the blocks of partial results `all` and writes the outputs. Factors are computed by a thread for each
// query, for some blocks at a time.
template <int DIM, int ROWS, int AHEAD>
__device__ __forceinline__ void merge_blocks(Block<DIM, ROWS, AHEAD>& shared, const AttentionRow& row, const float* all,
                                             float* out, int head, int heads, int group, int blocks,
                                             const HeadOutputs& outputs) {
    constexpr int PARTS = 256 / DIM, OWN = ROWS / PARTS, TOGETHER = KEY_BLOCK / 2;
    const int thread = threadIdx.x, column = thread % DIM, first = thread / DIM * OWN;
    float most = -INFINITY, total = 0, sums[OWN];
    int hidden[OWN], visible[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        sums[i] = 0;
        hidden[i] = hidden_keys(row, first + i, group, 0) / KEY_BLOCK;
        visible[i] = (visible_keys(row, first + i, group, 0) + KEY_BLOCK - 1) / KEY_BLOCK;
    }
    for (int start = 0; start < blocks; start += TOGETHER) {
        const int end = min(blocks, start + TOGETHER);
        if (thread < ROWS) {
            const int seen = min(end, (visible_keys(row, thread, group, 0) + KEY_BLOCK - 1) / KEY_BLOCK);
            const int unseen = max(start, hidden_keys(row, thread, group, 0) / KEY_BLOCK);
            const float* parts = all + ((size_t)start * ROWS + thread) * (DIM + 2) + DIM;
            merge_totals(most, total, shared.weights, thread, parts, (size_t)ROWS * (DIM + 2), start, unseen, seen);
            if (end == blocks) shared.factors[thread] = outputs.add_sink(total, most, head * group + thread % group);
            shared.totals[thread] = total;
        }
        __syncthreads();
#pragma unroll 4
        for (int b = start; b < end; b++) {
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                if (b < hidden[i] || b >= visible[i]) continue;
                const float part = all[((size_t)b * ROWS + first + i) * (DIM + 2) + column];
                const float before = shared.weights[2 * (b - start)][first + i];
                const float now = shared.weights[2 * (b - start) + 1][first + i];
                sums[i] = __fmaf_rn(before, sums[i], part * now);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int r = first + i;
        if (visible[i] == 0) continue;
        const size_t to = (size_t)(row.start + r / group) * heads + head * group + r % group;
        out[to * DIM + column] = outputs.apply(sums[i] * shared.factors[r] / shared.totals[r], to, column);
    }
}

// partials [sequences][kv_heads][blocks][ROWS][DIM + 2]; arrived [sequences][kv_heads], zero before and
// afterwards. Grid: most blocks of a sequence, kv_heads, sequences; 256 threads. tokens * group <= ROWS.
// Each thread sums a column of DIM for some of the queries, while bulk copies bring values.
template <int DIM, int ROWS, bool DEEP>
__device__ __forceinline__ void attend_few(const AttentionRows& rows, const float* q, float* out, float* partials,
                                           u32* arrived, int heads, int kv_heads, float scale,
                                           const HeadOutputs& outputs) {
    constexpr int PARTS = 256 / DIM, OWN = ROWS / PARTS, SLOTS = few_slots(DIM, DEEP);
    using OwnBlock = Block<DIM, ROWS, few_parts(DEEP)>;
    DYNAMIC_SHARED(memory);
    float* ring = (float*)memory;
    OwnBlock& shared = *(OwnBlock*)(ring + SLOTS * PIECE * DIM);
    u64* barriers = (u64*)(&shared + 1);
    __shared__ bool last;
    const AttentionRow& row = rows.row[blockIdx.z];
    const int block = blockIdx.x, head = blockIdx.y, group = heads / kv_heads, thread = threadIdx.x;
    const int blocks = (row.length + KEY_BLOCK - 1) / KEY_BLOCK, base = block * KEY_BLOCK;
    const int count = min(KEY_BLOCK, row.length - base), pieces = (count + PIECE - 1) / PIECE;
    const float* values = row.values + ((size_t)head * row.capacity + base) * DIM;
    const float* keys = row.keys + ((size_t)head * row.capacity + base) * DIM;
    if (thread == 0) {
        for (int i = 0; i < SLOTS; i++) barrier_init(shared_address(barriers + i), 1);
        barrier_fence();
        if (DEEP && block < blocks) prefetch(values, count * DIM * 4), prefetch(keys, count * DIM * 4);
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
    shared.start(keys, count);
    if (thread == 0) {
        for (int i = 0; i < SLOTS; i++) fetch(i);
    }
    shared.load(row, q, 0, head, heads, group);
    shared.score(row, keys, count, 0, group, base, scale);
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
            if (visible_keys(row, r, group, 0) == 0) continue;
            const size_t token = row.start + r / group;
            const size_t own = token * heads + head * group + r % group;
            // A merge with nothing multiplies by 1 and adds zeros.
            float total = shared.totals[r];
            const float factor = outputs.add_sink(total, shared.largest[r], head * group + r % group);
            out[own * DIM + column] = outputs.apply(__fmaf_rn(0.0f, 0.0f, sums[i]) * factor / total, own, column);
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
    merge_blocks<DIM, ROWS, few_parts(DEEP)>(shared, row, all, out, head, heads, group, blocks, outputs);
}

#define ATTEND_FEW(name, dim, queries, deep)                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 2) name(                                               \
        const __grid_constant__ AttentionRows rows, const float* q, float* out, float* partials, u32* arrived, \
        int heads, int kv_heads, float scale, const __grid_constant__ HeadOutputs outputs) {                   \
        attend_few<dim, queries, deep>(rows, q, out, partials, arrived, heads, kv_heads, scale, outputs);      \
    }

ATTEND_FEW(attend_few_64_4, 64, 4, false)
ATTEND_FEW(attend_few_64_4_deep, 64, 4, true)
ATTEND_FEW(attend_few_64_16, 64, 16, false)
ATTEND_FEW(attend_few_128_4, 128, 4, false)
ATTEND_FEW(attend_few_128_4_deep, 128, 4, true)
ATTEND_FEW(attend_few_128_16, 128, 16, false)
ATTEND_FEW(attend_few_256_4, 256, 4, false)
ATTEND_FEW(attend_few_256_4_deep, 256, 4, true)
ATTEND_FEW(attend_few_256_16, 256, 16, false)
