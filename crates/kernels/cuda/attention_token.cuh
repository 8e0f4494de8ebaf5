// Attention of few queries (attention.cuh) in two operations of a persistent kernel, with the same bits: scores of
// some keys, then sums of some columns of a block's values, of which the last block to end merges all.
#pragma once
#include "attention.cuh"
#include "block.cuh"

// Queries of a key head that are computed together.
constexpr int QUAD = 4;
// Columns of values that are summed together.
constexpr int SLICE = 64;
// Numbers of keys, and of values, in shared memory at once.
constexpr int SCORE_NUMBERS = 16384;

struct TokenAttention {
    const float* q;
    float* out;
    // [kv_heads][quads][blocks * KEY_BLOCK][QUAD]
    float* scores;
    // [kv_heads][quads][slices][blocks][QUAD][SLICE + 2]
    float* partials;
    // [kv_heads][quads][slices], zero before and afterwards.
    u32* arrived;
    OutputGates gates;
    int heads, kv_heads;
    // Quads of queries of a key head, and blocks of keys.
    int quads, blocks;
    float scale;
};

template <int DIM>
struct ScoreShared {
    static constexpr int KEYS = SCORE_NUMBERS / DIM, PITCH = DIM + 4;
    __align__(16) float keys[KEYS][PITCH];
    __align__(16) float queries[QUAD][PITCH];
};

template <int DIM>
struct ValueShared {
    __align__(16) float values[KEY_BLOCK][SLICE];
    __align__(16) float weights[QUAD][KEY_BLOCK];
    // Of blocks in a merge.
    float factors[KEY_BLOCK][QUAD];
    float maxima[2][8][2];
    float largest[QUAD], totals[QUAD];
    bool last;
};

// An output after its gate, if there are gates.
__device__ __forceinline__ float gated_output(const OutputGates& gates, float value, float gate) {
    return gates.gates ? value * sigmoid(gate) : value;
}

// The queries of quad `quad` of a key head, [QUAD][PITCH]; those that do not exist are zeros.
template <int DIM, int THREADS>
__device__ __forceinline__ void load_quad(ScoreShared<DIM>& shared, const TokenAttention& own, const AttentionRow& row,
                                          int head, int quad) {
    const int group = own.heads / own.kv_heads;
#pragma unroll 1
    for (int i = threadIdx.x; i < QUAD * DIM; i += THREADS) {
        const int query = quad * QUAD + i / DIM, token = query / group;
        float value = 0;
        if (token < row.tokens)
            value = own.q[((size_t)(row.start + token) * own.heads + head * group + query % group) * DIM + i % DIM];
        shared.queries[i / DIM][i % DIM] = value;
    }
}

// Scores of KEYS keys and a quad, item after item. The first item's keys of earlier tokens are brought before
// `wait`, which returns once the previous operation is done.
template <int DIM, int THREADS, class Wait>
__device__ __forceinline__ void attention_scores(ScoreShared<DIM>& shared, const TokenAttention& own,
                                                 const AttentionRow& row, const Wait& wait) {
    constexpr int KEYS = ScoreShared<DIM>::KEYS;
    const int chunks = own.blocks * (KEY_BLOCK / KEYS);
    const int items = own.kv_heads * own.quads * chunks;
    bool waited = false;
#pragma unroll 1
    for (int item = blockIdx.x; item < items || !waited; item += gridDim.x) {
        const bool has = item < items;
        const int chunk = item % chunks, at = item / chunks, quad = at % own.quads, head = at / own.quads;
        const int first = chunk * KEYS, count = has ? min(KEYS, row.length - first) : 0;
        const float* keys = row.keys + ((size_t)head * row.capacity + first) * DIM;
        auto fetch = [&](int from, int to) {
#pragma unroll 2
            for (int i = from * (DIM / 4) + threadIdx.x; i < to * (DIM / 4); i += THREADS) {
                const int key = i / (DIM / 4), four = i % (DIM / 4) * 4;
                copy_16(shared_address(&shared.keys[key][four]), keys + (size_t)key * DIM + four);
            }
            commit_copies();
        };
        int fetched = 0;
        if (!waited) {
            fetched = min(count, row.length - row.tokens - first);
            fetched = fetched < 0 ? 0 : fetched;
            fetch(0, fetched);
            wait();
            waited = true;
        }
        if (!has) break;
        if (count <= 0) continue;
        fetch(fetched, count);
        load_quad<DIM, THREADS>(shared, own, row, head, quad);
        wait_for_copies<0>();
        __syncthreads();
        float* scores = own.scores + ((size_t)at * own.blocks * KEY_BLOCK + first) * QUAD;
#pragma unroll 1
        for (int pair = threadIdx.x; pair < count * QUAD; pair += THREADS) {
            const float* key = shared.keys[pair / QUAD];
            const float* query = shared.queries[pair % QUAD];
            float score = 0;
#pragma unroll 8
            for (int i = 0; i < DIM; i += 4) {
                const float4 x = *(const float4*)(query + i), k = *(const float4*)(key + i);
                score = __fmaf_rn(x.x, k.x, score);
                score = __fmaf_rn(x.y, k.y, score);
                score = __fmaf_rn(x.z, k.z, score);
                score = __fmaf_rn(x.w, k.w, score);
            }
            scores[pair] = score * own.scale;
        }
        __syncthreads();
    }
}

// Numerators of a block's keys and a quad, their largest scores and sums, by 512 threads.
template <int DIM>
__device__ __forceinline__ void block_weights(ValueShared<DIM>& shared, const AttentionRow& row, const float* scores,
                                              int quad, int group, int base, int count) {
    const int thread = threadIdx.x, lane = thread & 31, key = thread % KEY_BLOCK, half = thread / KEY_BLOCK;
    const float2 two = *(const float2*)(scores + key * QUAD + half * 2);
    float score[2] = {two.x, two.y};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int end = visible_keys(row, quad * QUAD + half * 2 + i, group, base);
        score[i] = key < min(end, count) ? score[i] : -INFINITY;
        float most = score[i];
#pragma unroll
        for (int distance = 16; distance; distance /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, most, distance);
            most = other > most ? other : most;
        }
        if (lane == 0) shared.maxima[half][key / 32][i] = most;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = shared.maxima[half][0][i];
#pragma unroll
        for (int w = 1; w < 8; w++) {
            const float other = shared.maxima[half][w][i];
            most = other > most ? other : most;
        }
        shared.weights[half * 2 + i][key] = score[i] == -INFINITY ? 0.0f : exact_exp(score[i] - most);
        if (key == 0) shared.largest[half * 2 + i] = most;
    }
    __syncthreads();
    // Half a warp for each query: every 16th key, then a tree. By warps that add up no values.
    if (thread >= KEY_BLOCK && thread < KEY_BLOCK + 16 * QUAD) {
        const int query = (thread - KEY_BLOCK) / 16;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < KEY_BLOCK; i += 16) sum = sum + shared.weights[query][i + (lane & 15)];
#pragma unroll
        for (int distance = 8; distance; distance /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, distance);
        if ((lane & 15) == 0) shared.totals[query] = sum;
    }
}

// Merges a row's blocks of partial sums and writes the quotients, by threads (column, query) with their gates.
template <int DIM>
__device__ __forceinline__ void merge_slices(ValueShared<DIM>& shared, const TokenAttention& own, int seen, int seen_by_own,
                                             const float* partials, size_t to, float gate) {
    constexpr int TOGETHER = KEY_BLOCK / 2, PARTIAL = SLICE + 2;
    const int thread = threadIdx.x, column = thread % SLICE, query = thread / SLICE;
    float most = -INFINITY, total = 0, sum = 0;
#pragma unroll 1
    for (int start = 0; start < own.blocks; start += TOGETHER) {
        const int end = min(own.blocks, start + TOGETHER);
        if (thread < QUAD) {
            const float* parts = partials + ((size_t)start * QUAD + thread) * PARTIAL + SLICE;
            merge_totals(most, total, shared.factors, thread, parts, (size_t)QUAD * PARTIAL, start, min(end, seen_by_own));
            shared.totals[thread] = total;
        }
        __syncthreads();
#pragma unroll 4
        for (int b = start; b < min(end, seen); b++) {
            const float part = partials[((size_t)b * QUAD + query) * PARTIAL + column];
            sum = __fmaf_rn(shared.factors[2 * (b - start)][query], sum,
                            part * shared.factors[2 * (b - start) + 1][query]);
        }
        __syncthreads();
    }
    if (seen) own.out[to] = gated_output(own.gates, sum / shared.totals[query], gate);
}

// Values of some neighbouring keys, of a column, and their weights for two queries.
struct WeightedValues {
    static constexpr int KEYS = 8;
    float values[KEYS];
    float4 weights[2][KEYS / 4];

    __device__ __forceinline__ void load(const float* own, const float* first) {
#pragma unroll
        for (int i = 0; i < KEYS; i++) values[i] = own[i * SLICE];
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            weights[0][i] = *(const float4*)(first + i * 4);
            weights[1][i] = *(const float4*)(first + KEY_BLOCK + i * 4);
        }
    }

    __device__ __forceinline__ void add_to(float (&sums)[2]) const {
#pragma unroll
        for (int i = 0; i < KEYS; i += 4) {
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const float4 weight = weights[q][i / 4];
                sums[q] = __fmaf_rn(weight.x, values[i], sums[q]);
                sums[q] = __fmaf_rn(weight.y, values[i + 1], sums[q]);
                sums[q] = __fmaf_rn(weight.z, values[i + 2], sums[q]);
                sums[q] = __fmaf_rn(weight.w, values[i + 3], sums[q]);
            }
        }
    }
};

// Threads that add up values: each has a column and two queries.
constexpr int SUM_THREADS = SLICE * QUAD / 2;

// Adds the values of keys `from`, a multiple of 4, up to `to`, in their order. Those of eight keys are loaded while
// eight others are added.
template <int DIM>
__device__ __forceinline__ void sum_values(const ValueShared<DIM>& shared, float (&sums)[2], int from, int to) {
    constexpr int KEYS = WeightedValues::KEYS;
    const float* values = &shared.values[from][threadIdx.x % SLICE];
    const float* weights = &shared.weights[threadIdx.x / SLICE * 2][from];
    const int count = to - from, whole = count & ~(2 * KEYS - 1);
    if (whole) {
        WeightedValues now, next;
        now.load(values, weights);
#pragma unroll 1
        for (int k = 0; k < whole; k += 2 * KEYS) {
            next.load(values + (k + KEYS) * SLICE, weights + k + KEYS);
            now.add_to(sums);
            // The last round loads its own keys again.
            const int after = k + 2 * KEYS < whole ? k + 2 * KEYS : k;
            now.load(values + after * SLICE, weights + after);
            next.add_to(sums);
        }
    }
#pragma unroll 4
    for (int k = whole; k < count; k++) {
        sums[0] = __fmaf_rn(weights[k], values[k * SLICE], sums[0]);
        sums[1] = __fmaf_rn(weights[KEY_BLOCK + k], values[k * SLICE], sums[1]);
    }
}

// Sums of SLICE columns of the values of a block of keys for a quad, item after item, by 512 threads. What the
// operation before the previous one wrote is there before `wait`: values and gates.
template <int DIM, int THREADS, class Wait>
__device__ __forceinline__ void attention_values(ValueShared<DIM>& shared, const TokenAttention& own,
                                                 const AttentionRow& row, const Wait& wait) {
    constexpr int SLICES = DIM / SLICE, STAGES = 4, STAGE = KEY_BLOCK / STAGES, PARTIAL = SLICE + 2;
    const int group = own.heads / own.kv_heads, thread = threadIdx.x;
    const int items = own.kv_heads * own.quads * SLICES * own.blocks;
    bool waited = false;
#pragma unroll 1
    for (int item = blockIdx.x; item < items || !waited; item += gridDim.x) {
        const bool has = item < items;
        const int block = item % own.blocks, of_slice = item / own.blocks, slice = of_slice % SLICES;
        const int at = of_slice / SLICES, quad = at % own.quads, head = at / own.quads;
        const int base = block * KEY_BLOCK, count = has ? min(KEY_BLOCK, row.length - base) : 0;
        // The thread's output: a column and a query.
        const int query = quad * QUAD + thread / SLICE % QUAD, column = slice * SLICE + thread % SLICE;
        const size_t output = (size_t)(row.start + query / group) * own.heads + head * group + query % group;
        const int visible = visible_keys(row, query, group, 0);
        float gate = 0;
        if (has) {
            const float* values = row.values + ((size_t)head * row.capacity + base) * DIM + slice * SLICE;
            const int first = thread / (SLICE / 4), four = thread % (SLICE / 4) * 4;
            constexpr int ROWS = THREADS / (SLICE / 4);
#pragma unroll 1
            for (int stage = 0; stage < STAGES; stage++) {
#pragma unroll
                for (int i = 0; i < STAGE / ROWS; i++) {
                    const int key = stage * STAGE + i * ROWS + first;
                    if (key < count) copy_16(shared_address(&shared.values[key][four]), values + (size_t)key * DIM + four);
                }
                commit_copies();
            }
            if (own.gates.gates && visible > 0 && thread < SLICE * QUAD) gate = own.gates.gates[output * own.gates.stride + column];
        }
        if (!waited) wait();
        waited = true;
        if (!has) break;
        const float* scores = own.scores + ((size_t)at * own.blocks * KEY_BLOCK + base) * QUAD;
        block_weights<DIM>(shared, row, scores, quad, group, base, count);
        float sums[2] = {0, 0};
#pragma unroll 1
        for (int stage = 0; stage < STAGES; stage++) {
            switch (stage) {
                case 0: wait_for_copies<3>(); break;
                case 1: wait_for_copies<2>(); break;
                case 2: wait_for_copies<1>(); break;
                default: wait_for_copies<0>();
            }
            __syncthreads();
            const int from = stage * STAGE, to = min(count, from + STAGE);
            if (thread < SUM_THREADS && from < to) sum_values(shared, sums, from, to);
        }
        float* all = own.partials + (size_t)of_slice * own.blocks * QUAD * PARTIAL;
        float* part = all + (size_t)block * QUAD * PARTIAL;
        const size_t to = output * DIM + column;
        if (own.blocks == 1) {
            // Sums go to the threads of their outputs.
            if (thread < SUM_THREADS) {
#pragma unroll
                for (int i = 0; i < 2; i++) shared.values[thread / SLICE * 2 + i][thread % SLICE] = sums[i];
            }
            __syncthreads();
            // A merge with nothing multiplies by 1 and adds zeros.
            if (thread < SLICE * QUAD && visible > 0) {
                const float sum = __fmaf_rn(0.0f, 0.0f, shared.values[thread / SLICE][thread % SLICE]);
                own.out[to] = gated_output(own.gates, sum / shared.totals[thread / SLICE], gate);
            }
            __syncthreads();
            continue;
        }
        if (thread < SUM_THREADS) {
#pragma unroll
            for (int i = 0; i < 2; i++) part[(thread / SLICE * 2 + i) * PARTIAL + thread % SLICE] = sums[i];
        }
        if (thread < QUAD) {
            part[thread * PARTIAL + SLICE] = shared.largest[thread];
            part[thread * PARTIAL + SLICE + 1] = shared.totals[thread];
        }
        __threadfence();
        __syncthreads();
        if (thread == 0) {
            shared.last = atomicAdd(own.arrived + of_slice, 1) == (u32)own.blocks - 1;
            if (shared.last) own.arrived[of_slice] = 0;
        }
        __syncthreads();
        if (!shared.last) continue;
        __threadfence();
        const int seen = thread < SLICE * QUAD && visible > 0 ? (visible + KEY_BLOCK - 1) / KEY_BLOCK : 0;
        const int of_thread = visible_keys(row, quad * QUAD + thread % QUAD, group, 0);
        merge_slices<DIM>(shared, own, seen, (of_thread + KEY_BLOCK - 1) / KEY_BLOCK, all, to, gate);
        __syncthreads();
    }
}
