// Heads before attention (heads.cuh).
#include "heads.cuh"

constexpr int MAX_HEAD_ROWS = 64;
struct HeadRows {
    HeadRow row[MAX_HEAD_ROWS];
    int count;
};

// A warp has a head. Grid: tokens, (heads + 2 kv_heads) / HEAD_WARPS, rounded up.
constexpr int HEAD_WARPS = 8;
extern "C" __global__ void __launch_bounds__(HEAD_WARPS * 32)
    heads(const __grid_constant__ HeadRows rows, const __grid_constant__ HeadSizes sizes,
          const __grid_constant__ HeadArrays arrays) {
    __shared__ HeadShared shared[HEAD_WARPS];
    launch_dependents();
    wait_for_previous();
    const int token = blockIdx.x, warp = threadIdx.x / 32, head = blockIdx.y * HEAD_WARPS + warp;
    if (head >= sizes.heads + 2 * sizes.kv_heads) return;
    int r = 0;
    while (r + 1 < rows.count && token >= rows.row[r + 1].start) r++;
    prepare_head(Warp(), shared[warp], rows.row[r], sizes, arrays, token, head);
}
