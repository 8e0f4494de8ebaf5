// Attention of many queries (attention.cuh): a CTA walks through all blocks of keys that its queries see.
//
// A thread has the scores of four keys and a quarter of the queries, then two columns of the outputs of
// some queries. Copies bring parts of all keys of a block, then values of some, while others are used.
#include "attention.cuh"

constexpr int PART_FLOATS = KEY_BLOCK * KEY_STRIDE;
// Numbers of a piece of values.
constexpr int VALUE_FLOATS = 4096;
static_assert(VALUE_FLOATS <= PART_FLOATS, "a piece of values takes a part of the keys");

constexpr int many_shared(int dim, int queries) {
    return (2 * PART_FLOATS + queries * dim + KEY_BLOCK * (queries + 4) + 8 * queries) * 4;
}

// `ROWS` queries of a key head, and what a CTA computes with them.
template <int DIM, int ROWS>
struct Chunk {
    // Queries of a thread's scores; columns and queries of a thread's outputs.
    static constexpr int SCORED = ROWS / 4, COLUMNS = 2, OWN = ROWS * DIM / 256 / COLUMNS;
    // Values of a piece.
    static constexpr int PIECE = VALUE_FLOATS / DIM;
    static constexpr int STRIDE = ROWS + 4;

    __align__(16) float buffers[2][PART_FLOATS];
    __align__(16) float queries[ROWS][DIM];
    __align__(16) float weights[KEY_BLOCK][STRIDE];
    float maxima[2][ROWS], largest[ROWS], totals[ROWS];
    // Factors that merge the current block, and the largest score and the sum so far.
    float before[ROWS], now[ROWS], most[ROWS], all[ROWS];

    __device__ __forceinline__ void load(const AttentionRow& row, const float* q, int first, int head, int heads,
                                         int group) {
        load_queries<DIM, ROWS>(queries, row, q, first, head, heads, group);
        if (threadIdx.x < ROWS) most[threadIdx.x] = -INFINITY, all[threadIdx.x] = 0;
    }

    // Starts copying part `part` of `count` keys.
    __device__ __forceinline__ void fetch_keys(const float* keys, int count, int part) {
        const u32 to = shared_address(buffers[part & 1]);
#pragma unroll
        for (int i = 0; i < KEY_BLOCK * PART / 4 / 256; i++) {
            const int at = i * 256 + threadIdx.x, key = at / (PART / 4), four = at % (PART / 4);
            if (key < count)
                copy_16(to + (key * KEY_STRIDE + four * 4) * 4, keys + (size_t)key * DIM + part * PART + four * 4);
        }
    }

    // Starts copying piece `piece` of `count` values.
    __device__ __forceinline__ void fetch_values(const float* values, int count, int piece) {
        const u32 to = shared_address(buffers[piece & 1]);
#pragma unroll
        for (int i = 0; i < VALUE_FLOATS / 4 / 256; i++) {
            const int at = (i * 256 + threadIdx.x) * 4;
            if (piece * PIECE + at / DIM < count) copy_16(to + at * 4, values + (size_t)piece * VALUE_FLOATS + at);
        }
    }

    // Dot products of a thread's keys, those of `thread % 64` and every 64th, and queries.
    __device__ __forceinline__ void multiply(const float* keys, int count, float (&scores)[4][SCORED]) {
        const int first = threadIdx.x % 64, query = threadIdx.x / 64 * SCORED;
#pragma unroll
        for (int i = 0; i < 4 * SCORED; i++) (&scores[0][0])[i] = 0;
        fetch_keys(keys, count, 0);
        commit_copies();
#pragma unroll 1
        for (int part = 0; part < DIM / PART; part++) {
            wait_for_copies<0>();
            __syncthreads();
            if (part + 1 < DIM / PART) fetch_keys(keys, count, part + 1);
            commit_copies();
            const float* from = buffers[part & 1] + first * KEY_STRIDE;
#pragma unroll 1
            for (int four = 0; four < PART / 4; four++) {
                float4 key[4];
#pragma unroll
                for (int i = 0; i < 4; i++) key[i] = *(const float4*)(from + i * 64 * KEY_STRIDE + four * 4);
#pragma unroll
                for (int r = 0; r < SCORED; r++) {
                    const float4 x = *(const float4*)&queries[query + r][part * PART + four * 4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        scores[i][r] = __fmaf_rn(x.x, key[i].x, scores[i][r]);
                        scores[i][r] = __fmaf_rn(x.y, key[i].y, scores[i][r]);
                        scores[i][r] = __fmaf_rn(x.z, key[i].z, scores[i][r]);
                        scores[i][r] = __fmaf_rn(x.w, key[i].w, scores[i][r]);
                    }
                }
            }
        }
    }

    // Numerators, their largest scores and sums, and what merges the block.
    __device__ __forceinline__ void weigh(const AttentionRow& row, int first, int group, int base, int count,
                                          float scale, float (&scores)[4][SCORED]) {
        const int thread = threadIdx.x, lane = thread & 31, key = thread % 64, query = thread / 64 * SCORED;
#pragma unroll
        for (int r = 0; r < SCORED; r++) {
            const int end = min(visible_keys(row, first + query + r, group, base), count);
            const int hidden = hidden_keys(row, first + query + r, group, base);
            float largest = -INFINITY;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool seen = key + i * 64 >= hidden && key + i * 64 < end;
                const float score = seen ? scores[i][r] * scale : -INFINITY;
                scores[i][r] = score;
                largest = score > largest ? score : largest;
            }
            largest = largest_of_lanes(largest);
            if (lane == 0) maxima[thread / 32 & 1][query + r] = largest;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < SCORED; r++) {
            const float a = maxima[0][query + r], b = maxima[1][query + r], own = b > a ? b : a;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float score = scores[i][r];
                weights[key + i * 64][query + r] = score == -INFINITY ? 0.0f : exact_exp(score - own);
            }
            if (key == 0) largest[query + r] = own;
        }
        __syncthreads();
        // Half a warp for each query, always whole warps: every 16th key, then a tree.
        for (int r = thread / 16; r < ROWS; r += 16) {
            float sum = 0;
            for (int i = lane & 15; i < KEY_BLOCK; i += 16) sum = sum + weights[i][r];
            sum = reduce_16(sum);
            if ((lane & 15) == 0) merge(r, sum, sees_block(row, first + r, group, base));
        }
    }

    __device__ __forceinline__ void merge(int r, float sum, bool visible) {
        float highest = most[r], old = 1, added = 0;
        if (visible) {
            merge_block(highest, old, added, largest[r]);
            all[r] = __fmaf_rn(old, all[r], added * sum);
            most[r] = highest;
        }
        before[r] = old, now[r] = added;
    }

    // Adds the block's values to the thread's columns of its queries.
    __device__ __forceinline__ void add_values(const float* values, int count, float (&sums)[OWN][COLUMNS]) {
        const int column = threadIdx.x % (DIM / COLUMNS) * COLUMNS, query = threadIdx.x / (DIM / COLUMNS) * OWN;
        float own[OWN][COLUMNS];
#pragma unroll
        for (int i = 0; i < OWN; i++) own[i][0] = own[i][1] = 0;
        const int pieces = (count + PIECE - 1) / PIECE;
#pragma unroll 1
        for (int piece = 0; piece < pieces; piece++) {
            wait_for_copies<0>();
            __syncthreads();
            if (piece + 1 < pieces) fetch_values(values, count, piece + 1);
            commit_copies();
            const float* from = buffers[piece & 1] + column;
            const int end = min(PIECE, count - piece * PIECE);
#pragma unroll 4
            for (int k = 0; k < end; k++) {
                const float2 value = *(const float2*)(from + k * DIM);
                const float* weight = &weights[piece * PIECE + k][query];
#pragma unroll
                for (int i = 0; i < OWN; i += 4) {
                    const float4 four = *(const float4*)(weight + i);
                    const float w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        own[i + j][0] = __fmaf_rn(w[j], value.x, own[i + j][0]);
                        own[i + j][1] = __fmaf_rn(w[j], value.y, own[i + j][1]);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < OWN; i++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                sums[i][c] = __fmaf_rn(before[query + i], sums[i][c], own[i][c] * now[query + i]);
    }
};

// Grid: chunks of all sequences, kv_heads; 256 threads.
template <int DIM, int ROWS>
__device__ __forceinline__ void attend_many(const AttentionRows& rows, const float* q, float* out, int heads,
                                            int kv_heads, float scale, const HeadOutputs& outputs) {
    using Own = Chunk<DIM, ROWS>;
    static_assert(sizeof(Own) == many_shared(DIM, ROWS), "the launch sets its size");
    DYNAMIC_SHARED(memory);
    Own& shared = *(Own*)memory;
    launch_dependents();
    wait_for_previous();
    // The last chunks see most keys: they start first.
    const int chunk = gridDim.x - 1 - blockIdx.x;
    const AttentionRow& row = row_of_chunk(rows, chunk);
    const int head = blockIdx.y, group = heads / kv_heads, first = (chunk - row.first_chunk) * ROWS;
    shared.load(row, q, first, head, heads, group);
    float sums[Own::OWN][Own::COLUMNS];
#pragma unroll
    for (int i = 0; i < Own::OWN; i++) sums[i][0] = sums[i][1] = 0;
    const int last = min(first + ROWS, row.tokens * group) - 1, end = visible_keys(row, last, group, 0);
#pragma unroll 1
    for (int base = first_block(row, first, group); base < end; base += KEY_BLOCK) {
        const int count = min(KEY_BLOCK, end - base);
        const size_t at = ((size_t)head * row.capacity + base) * DIM;
        float scores[4][Own::SCORED];
        shared.multiply(row.keys + at, count, scores);
        // All have read the last part of the keys, whose place values take.
        __syncthreads();
        shared.fetch_values(row.values + at, count, 0);
        commit_copies();
        shared.weigh(row, first, group, base, count, scale, scores);
        shared.add_values(row.values + at, count, sums);
        __syncthreads();
    }
    if (threadIdx.x < ROWS) {
        const int r = threadIdx.x, own = head * group + (first + r) % group;
        shared.now[r] = outputs.add_sink(shared.all[r], shared.most[r], own);
    }
    __syncthreads();
    const int column = threadIdx.x % (DIM / Own::COLUMNS) * Own::COLUMNS;
    const int query = threadIdx.x / (DIM / Own::COLUMNS) * Own::OWN;
#pragma unroll
    for (int i = 0; i < Own::OWN; i++) {
        const int r = first + query + i, token = r / group;
        if (token >= row.tokens) continue;
        const size_t to = (size_t)(row.start + token) * heads + head * group + r % group;
#pragma unroll
        for (int c = 0; c < Own::COLUMNS; c++)
            out[to * DIM + column + c] =
                outputs.apply(sums[i][c] * shared.now[query + i] / shared.all[query + i], to, column + c);
    }
}

#define ATTEND_MANY(dim, queries)                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 2) attend_many_##dim(                                   \
        const __grid_constant__ AttentionRows rows, const float* q, float* out, int heads, int kv_heads,     \
        float scale, const __grid_constant__ HeadOutputs outputs) {                                            \
        attend_many<dim, queries>(rows, q, out, heads, kv_heads, scale, outputs);                              \
    }

ATTEND_MANY(64, 32)
ATTEND_MANY(128, 32)
ATTEND_MANY(256, 16)
