// Heads before attention: norms of queries and keys, rotation, appending to the cache; in the CPU kernels'
// order of rounding.
#pragma once
#include "block.cuh"
#include "math.cuh"

// One sequence's tokens.
struct HeadRow {
    // Buffers [kv_heads][capacity][dim], and tokens in them before this step.
    float* keys;
    float* values;
    int past;
    int capacity;
    // The first token, among those of all sequences, and its position.
    int start;
    int position;
};
struct HeadSizes {
    int heads;
    int kv_heads;
    int dim;
    // From one query head to the next: twice `dim` with gates.
    int query_stride;
    // Pairs that are rotated, and whether a pair is neighbours.
    int half;
    int adjacent;
    float rope_scale;
    float query_eps, key_eps;
};

// Where heads come from and go to. q, k, v: [tokens] rows of heads; rotated queries go to `out`
// [tokens][heads][dim], keys and values to the caches. Without norms their weights are null.
struct HeadArrays {
    const float* q;
    const float* k;
    const float* v;
    const float* query_weight;
    const float* key_weight;
    const float* frequencies;
    float* out;
};

// Shared by the threads of a block.
struct HeadShared {
    float x[256];
    float factor;
};

// Head `head` of heads + 2 kv_heads of a token, by whole warps.
template <class Block>
__device__ __forceinline__ void prepare_head(const Block& block, HeadShared& shared, const HeadRow& row,
                                             const HeadSizes& sizes, const HeadArrays& arrays, int token, int head) {
    float(&x)[256] = shared.x;
    const int first = block.thread(), dim = sizes.dim, own = token - row.start;
    const bool query = head < sizes.heads;
    if (!query) head -= sizes.heads;
    const bool value = !query && head >= sizes.kv_heads;
    if (value) head -= sizes.kv_heads;
    const size_t cached = ((size_t)head * row.capacity + row.past + own) * dim;
    const size_t key = ((size_t)token * sizes.kv_heads + head) * dim, of_query = (size_t)token * sizes.heads + head;
    if (value) {
        for (int i = first; i < dim; i += Block::SIZE) row.values[cached + i] = arrays.v[key + i];
        return;
    }
    const float* from = query ? arrays.q + of_query * sizes.query_stride : arrays.k + key;
    for (int i = first; i < dim; i += Block::SIZE) x[i] = from[i];
    block.sync();
    const float* weight = query ? arrays.query_weight : arrays.key_weight;
    if (weight) {
        if (first < 32) {
            const float factor = row_factor(x, dim, query ? sizes.query_eps : sizes.key_eps);
            if (first == 0) shared.factor = factor;
        }
        block.sync();
        for (int i = first; i < dim; i += Block::SIZE) x[i] = x[i] * shared.factor * weight[i];
        block.sync();
    }
    float* to = query ? arrays.out + of_query * dim : row.keys + cached;
    for (int i = first; i < dim; i += Block::SIZE) {
        float result = x[i];
        if (i < 2 * sizes.half) {
            const int pair = sizes.adjacent ? i / 2 : i % sizes.half;
            const bool second = sizes.adjacent ? i & 1 : i >= sizes.half;
            const float other = sizes.adjacent ? x[i ^ 1] : x[second ? i - sizes.half : i + sizes.half];
            float sine, cosine;
            sin_cos((float)(row.position + own) * arrays.frequencies[pair], sine, cosine);
            sine = sine * sizes.rope_scale, cosine = cosine * sizes.rope_scale;
            result = second ? result * cosine + other * sine : result * cosine - other * sine;
        }
        to[i] = result;
    }
}
