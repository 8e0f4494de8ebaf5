// Heads before attention (heads.cuh).
#include "heads.cuh"

constexpr int MAX_HEAD_ROWS = 64;
struct HeadRows {
    HeadRow row[MAX_HEAD_ROWS];
    int count;
};

// Grid: tokens, heads + 2 kv_heads; dim threads.
extern "C" __global__ void __launch_bounds__(256)
    heads(const __grid_constant__ HeadRows rows, const __grid_constant__ HeadSizes sizes,
          const __grid_constant__ HeadArrays arrays) {
    __shared__ HeadShared shared;
    launch_dependents();
    wait_for_previous();
    const int token = blockIdx.x;
    int r = 0;
    while (r + 1 < rows.count && token >= rows.row[r + 1].start) r++;
    prepare_head(Cta(), shared, rows.row[r], sizes, arrays, token, blockIdx.y);
}
