// Heads before attention: norms of queries and keys, rotation, appending to the cache; in the CPU kernels'
// order of rounding.
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
constexpr int MAX_HEAD_ROWS = 64;
struct HeadRows {
    HeadRow row[MAX_HEAD_ROWS];
    int count;
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

// q, k, v: [tokens] rows of heads; rotated queries go to `out` [tokens][heads][dim], keys and values to
// the caches. Without norms their weights are null. Grid: tokens, heads + 2 kv_heads; dim threads.
extern "C" __global__ void __launch_bounds__(256)
    heads(const __grid_constant__ HeadRows rows, const __grid_constant__ HeadSizes sizes, const float* q,
          const float* k, const float* v, const float* query_weight, const float* key_weight,
          const float* frequencies, float* out) {
    __shared__ float x[256];
    __shared__ float factor;
    launch_dependents();
    wait_for_previous();
    const int token = blockIdx.x, i = threadIdx.x, dim = sizes.dim;
    int r = 0;
    while (r + 1 < rows.count && token >= rows.row[r + 1].start) r++;
    const HeadRow& row = rows.row[r];
    const int own = token - row.start;
    int head = blockIdx.y;
    const bool query = head < sizes.heads;
    if (!query) head -= sizes.heads;
    const bool value = !query && head >= sizes.kv_heads;
    if (value) head -= sizes.kv_heads;
    const size_t cached = ((size_t)head * row.capacity + row.past + own) * dim + i;
    if (value) {
        row.values[cached] = v[((size_t)token * sizes.kv_heads + head) * dim + i];
        return;
    }
    x[i] = query ? q[((size_t)token * sizes.heads + head) * sizes.query_stride + i]
                 : k[((size_t)token * sizes.kv_heads + head) * dim + i];
    const float* weight = query ? query_weight : key_weight;
    __syncthreads();
    if (weight) {
        if (i < 32) {
            const float own_factor = inverse_rms(x, dim, query ? sizes.query_eps : sizes.key_eps);
            if (i == 0) factor = own_factor;
        }
        __syncthreads();
        x[i] = x[i] * factor * weight[i];
        __syncthreads();
    }
    float result = x[i];
    if (i < 2 * sizes.half) {
        const int pair = sizes.adjacent ? i / 2 : i % sizes.half;
        const bool second = sizes.adjacent ? i & 1 : i >= sizes.half;
        const float other = sizes.adjacent ? x[i ^ 1] : x[second ? i - sizes.half : i + sizes.half];
        float sine, cosine;
        sin_cos((float)(row.position + own) * frequencies[pair], sine, cosine);
        sine = sine * sizes.rope_scale, cosine = cosine * sizes.rope_scale;
        result = second ? result * cosine + other * sine : result * cosine - other * sine;
    }
    if (query) {
        out[((size_t)token * sizes.heads + head) * dim + i] = result;
    } else {
        row.keys[cached] = result;
    }
}
