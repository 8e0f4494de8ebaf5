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

// Sine and cosine of a pair's angle.
__device__ __forceinline__ float2 rotation(const HeadSizes& sizes, const float* frequencies, int pair, int position) {
    float sine, cosine;
    sin_cos((float)position * frequencies[pair], sine, cosine);
    return make_float2(sine * sizes.rope_scale, cosine * sizes.rope_scale);
}

// Normalises a head in shared memory, in place, by a warp. `weight` may be null: no norm.
__device__ __forceinline__ void norm_head(float* x, const float* weight, int dim, float eps) {
    __syncwarp();
    if (!weight) return;
    const float factor = row_factor(x, dim, eps);
    __syncwarp();
#pragma unroll 4
    for (int i = thread_index() & 31; i < dim; i += 32) x[i] = x[i] * factor * weight[i];
    __syncwarp();
}

// Rotates it. `angle` returns sine and cosine of a pair.
template <class Angle>
__device__ __forceinline__ void rotate_head(float* x, const HeadSizes& sizes, const Angle& angle) {
#pragma unroll 1
    for (int pair = thread_index() & 31; pair < sizes.half; pair += 32) {
        const int first = sizes.adjacent ? 2 * pair : pair, second = first + (sizes.adjacent ? 1 : sizes.half);
        const float2 at = angle(pair);
        const float a = x[first], b = x[second];
        x[first] = a * at.y - b * at.x, x[second] = b * at.y + a * at.x;
    }
    __syncwarp();
}
