// Heads before attention (heads.cuh).
#include "heads.cuh"

constexpr int MAX_HEAD_ROWS = 64;
struct HeadRows {
    HeadRow row[MAX_HEAD_ROWS];
    int count;
};

// By a warp. `dim` is a multiple of 64, and up to MAX_HEAD_DIM.
constexpr int MAX_HEAD_DIM = 256;
__device__ __forceinline__ void copy_head(float* to, const float* from, int dim) {
    const int i = (threadIdx.x & 31) * 4;
    float4 first, second;
    if (i < dim) first = *(const float4*)(from + i);
    if (i + 128 < dim) second = *(const float4*)(from + i + 128);
    if (i < dim) *(float4*)(to + i) = first;
    if (i + 128 < dim) *(float4*)(to + i + 128) = second;
}

// A warp has a head: one of queries, keys and values of a token. Grid: tokens, (heads + 2 kv_heads) / HEAD_WARPS,
// rounded up.
constexpr int HEAD_WARPS = 8;
extern "C" __global__ void __launch_bounds__(HEAD_WARPS * 32)
    heads(const __grid_constant__ HeadRows rows, const __grid_constant__ HeadSizes sizes,
          const __grid_constant__ HeadArrays arrays) {
    __shared__ __align__(16) float shared[HEAD_WARPS][MAX_HEAD_DIM];
    __shared__ float2 angles[HEAD_WARPS][MAX_HEAD_DIM / 2];
    launch_dependents();
    const int token = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x & 31, dim = sizes.dim;
    int head = blockIdx.y * HEAD_WARPS + warp;
    if (head >= sizes.heads + 2 * sizes.kv_heads) return;
    int r = 0;
    while (r + 1 < rows.count && token >= rows.row[r + 1].start) r++;
    const HeadRow& row = rows.row[r];
    const bool query = head < sizes.heads;
    if (!query) head -= sizes.heads;
    const bool value = !query && head >= sizes.kv_heads;
    if (value) head -= sizes.kv_heads;
    const int own = token - row.start;
    const size_t cached = ((size_t)head * row.capacity + row.past + own) * dim;
    const size_t key = ((size_t)token * sizes.kv_heads + head) * dim, of_query = (size_t)token * sizes.heads + head;
    if (value) {
        wait_for_previous();
        copy_head(row.values + cached, arrays.v + key, dim);
        return;
    }
    // Angles do not depend on the previous kernel. A lane reads those that it writes.
    float2* own_angles = angles[warp];
    for (int pair = lane; pair < sizes.half; pair += 32)
        own_angles[pair] = rotation(sizes, arrays.frequencies, pair, row.position + own);
    wait_for_previous();
    float* x = shared[warp];
    copy_head(x, query ? arrays.q + of_query * sizes.query_stride : arrays.k + key, dim);
    norm_head(x, query ? arrays.query_weight : arrays.key_weight, dim, query ? sizes.query_eps : sizes.key_eps);
    rotate_head(x, sizes, [&](int pair) { return own_angles[pair]; });
    copy_head(query ? arrays.out + of_query * dim : row.keys + cached, x, dim);
}
