// Heads before attention (heads.cuh).
#include "heads.cuh"

constexpr int MAX_HEAD_ROWS = 64;
struct HeadRows {
    HeadRow row[MAX_HEAD_ROWS];
    int count;
};

// A warp has a head: one of queries, keys and values of a token. Grid: tokens, (heads + 2 kv_heads) / HEAD_WARPS,
// rounded up.
constexpr int HEAD_WARPS = 8, MAX_HEAD_DIM = 256;
extern "C" __global__ void __launch_bounds__(HEAD_WARPS * 32)
    heads(const __grid_constant__ HeadRows rows, const __grid_constant__ HeadSizes sizes,
          const __grid_constant__ HeadArrays arrays) {
    __shared__ float shared[HEAD_WARPS][MAX_HEAD_DIM];
    launch_dependents();
    wait_for_previous();
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
        for (int i = lane; i < dim; i += 32) row.values[cached + i] = arrays.v[key + i];
        return;
    }
    float* x = shared[warp];
    const float* from = query ? arrays.q + of_query * sizes.query_stride : arrays.k + key;
    for (int i = lane; i < dim; i += 32) x[i] = from[i];
    norm_head(x, query ? arrays.query_weight : arrays.key_weight, dim, query ? sizes.query_eps : sizes.key_eps);
    rotate_head(x, sizes, [&](int pair) { return rotation(sizes, arrays.frequencies, pair, row.position + own); });
    float* to = query ? arrays.out + of_query * dim : row.keys + cached;
    for (int i = lane; i < dim; i += 32) to[i] = x[i];
}
