// Causal softmax attention over float32 keys and values, in the CPU kernel's order, bit for bit.
//
// Keys are processed in blocks of 256 positions: dot products are summed over the head's numbers in
// order, numerators as 16 partial sums and a tree, values in the order of keys. Blocks are merged from
// first to last.
#pragma once
#include "math.cuh"

constexpr int KEY_BLOCK = 256;
// Numbers of a key that are copied at once, and from one key to the next in shared memory: without conflicts
// of banks.
constexpr int PART = 16, KEY_STRIDE = PART + 4;

// What becomes of heads' sums. Gates, by whose sigmoid outputs are multiplied: [tokens] rows of heads, `stride` numbers
// from one head to the next. Sinks: a score for each head that only takes part in the sum of weights. Null: none.
struct HeadOutputs {
    const float* gates;
    const float* sinks;
    int stride;

    // Adds a head's sink to the sum of its weights, whose largest score is `most`; returns the factor of its other sums.
    __device__ __forceinline__ float add_sink(float& total, float most, int head) const {
        if (!sinks) return 1.0f;
        const float sink = sinks[head], largest = sink > most ? sink : most, factor = exact_exp(most - largest);
        total = __fmaf_rn(factor, total, exact_exp(sink - largest));
        return factor;
    }

    // 0 if there are none.
    __device__ __forceinline__ float load(size_t head, int column) const {
        return gates ? gates[head * stride + column] : 0.0f;
    }

    __device__ __forceinline__ float apply(float value, size_t head, int column) const {
        return gates ? value * sigmoid(gates[head * stride + column]) : value;
    }
};

// The largest of a warp's scores, in each lane.
__device__ __forceinline__ float largest_of_lanes(float most) {
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, distance);
        most = other > most ? other : most;
    }
    return most;
}

// One sequence's queries, the last of its `length` keys.
struct AttentionRow {
    const float* keys;
    const float* values;
    // The first query, among those of all sequences.
    int start;
    int tokens;
    int length;
    int capacity;
    // For attend_many: its first CTA in the grid's first dimension.
    int first_chunk;
    // Most keys that a query sees, its own included.
    int window;
};
constexpr int MAX_ATTENTION_ROWS = 64;
struct AttentionRows {
    AttentionRow row[MAX_ATTENTION_ROWS];
    int count;
};

// Keys that query `r` sees, from position `base` on: that of head r % group of token r / group.
__device__ __forceinline__ int visible_keys(const AttentionRow& row, int r, int group, int base) {
    const int token = r / group;
    return token < row.tokens ? row.length - row.tokens + token + 1 - base : 0;
}

// Keys before those that query `r` sees, from position `base` on; negative if it sees some before.
__device__ __forceinline__ int hidden_keys(const AttentionRow& row, int r, int group, int base) {
    return max(row.length - row.tokens + r / group + 1 - row.window, 0) - base;
}

// Whether it sees a key of the block at `base`.
__device__ __forceinline__ bool sees_block(const AttentionRow& row, int r, int group, int base) {
    return visible_keys(row, r, group, base) > 0 && hidden_keys(row, r, group, base) < KEY_BLOCK;
}

// Where the first block starts that query `r`, or one after it, sees.
__device__ __forceinline__ int first_block(const AttentionRow& row, int r, int group) {
    return hidden_keys(row, r, group, 0) & ~(KEY_BLOCK - 1);
}

// Copies `ROWS` queries of key head `head`, by 256 threads: query `r` is that of head r % group of token
// r / group. Zeros beyond the row's tokens.
template <int DIM, int ROWS>
__device__ __forceinline__ void load_queries(float (&queries)[ROWS][DIM], const AttentionRow& row, const float* q,
                                             int first, int head, int heads, int group) {
    for (int i = threadIdx.x; i < ROWS * DIM; i += 256) {
        const int r = first + i / DIM, token = r / group;
        float value = 0;
        if (token < row.tokens)
            value = q[((size_t)(row.start + token) * heads + head * group + r % group) * DIM + i % DIM];
        queries[i / DIM][i % DIM] = value;
    }
}

__device__ __forceinline__ void merge_block(float& most, float& before, float& now, float largest) {
    const float next = largest > most ? largest : most;
    before = exact_exp(most - next), now = exact_exp(largest - next);
    most = next;
}

// Merges the maxima and totals of blocks `first` up to `end` of a query; `parts` are those of block `start`, `stride`
// numbers before those of the next. The factors of block b, for what was there before and for the block, go to
// factors[2 (b - start)][query] and the next.
template <int QUERIES>
__device__ __forceinline__ void merge_totals(float& most, float& total, float (*factors)[QUERIES], int query,
                                             const float* parts, size_t stride, int start, int first, int end) {
#pragma unroll 4
    for (int b = first; b < end; b++) {
        const float largest = parts[(b - start) * stride], part_total = parts[(b - start) * stride + 1];
        float before, now;
        merge_block(most, before, now, largest);
        total = __fmaf_rn(before, total, now * part_total);
        factors[2 * (b - start)][query] = before, factors[2 * (b - start) + 1][query] = now;
    }
}

// The row of a chunk of queries, of those of all rows.
__device__ __forceinline__ const AttentionRow& row_of_chunk(const AttentionRows& rows, int chunk) {
    int r = 0;
    while (r + 1 < rows.count && chunk >= rows.row[r + 1].first_chunk) r++;
    return rows.row[r];
}
