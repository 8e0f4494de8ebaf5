// One set of kernels (-DSET=n), so that sets compile in parallel.
#include "bench.h"
#if SET == 0
#include "../wide.cu"
namespace {
Register r4({"today", 0, 4, 2, 128, (const void*)wide_4, 256, wide_shared(4), wide_depth(4), true});
Register r8({"today", 0, 8, 2, 128, (const void*)wide_8, 256, wide_shared(8), wide_depth(8), true});
}
#else
#include "../wide_warpgroup.cuh"
template <class T, int MODE>
__global__ void __launch_bounds__(T::ALL_THREADS, 1)
    broad(const __grid_constant__ Parts parts, const u8* x, int segments, int rows) {
    wide_warpgroups<T, MODE>(parts, x, segments, rows);
}
namespace {
#define TRY_NAME(n) r##n
#define TRY_LINE(n, bits, w, e, r, c, b, mode)                                                            \
    Register TRY_NAME(n)({"w" #w " x" #e " r" #r " n" #c " b" #b, mode, bits, w * e, r,                              \
                          (const void*)broad<Tiling<bits, w, e, r, c, b>, mode>, w * 128 + 128,                \
                          Tiling<bits, w, e, r, c, b>::SHARED, Tiling<bits, w, e, r, c, b>::SLOTS, false})
#if SET == 1
TRY_LINE(0, 4, 2, 1, 128, 64, 2, 0);
#elif SET == 2
TRY_LINE(0, 4, 2, 1, 128, 64, 2, NO_COPIES);
TRY_LINE(1, 4, 2, 1, 128, 64, 2, NO_SCALING);
TRY_LINE(2, 4, 2, 1, 128, 64, 2, NO_PRODUCTS);
#elif SET == 3
TRY_LINE(3, 4, 2, 1, 128, 64, 2, NO_SCALING | NO_COPIES);
TRY_LINE(4, 4, 2, 1, 128, 64, 2, NO_PRODUCTS | NO_COPIES);
TRY_LINE(5, 4, 2, 1, 128, 64, 2, NO_PRODUCTS | NO_SCALING);
#elif SET == 5
TRY_LINE(0, 4, 3, 1, 128, 64, 1, 0);
TRY_LINE(1, 4, 3, 1, 128, 64, 1, NO_COPIES);
#elif SET == 6
TRY_LINE(0, 4, 3, 1, 64, 64, 1, 0);
TRY_LINE(1, 4, 3, 1, 64, 64, 1, NO_COPIES);
#elif SET == 7
TRY_LINE(0, 4, 4, 1, 64, 64, 1, 0);
TRY_LINE(1, 4, 4, 1, 64, 64, 1, NO_COPIES);
#elif SET == 8
TRY_LINE(0, 4, 2, 1, 128, 64, 1, 0);
#elif SET == 10
TRY_LINE(0, 4, 2, 2, 64, 64, 2, 0);
TRY_LINE(2, 4, 2, 2, 64, 64, 2, NO_COPIES);
#elif SET == 11
TRY_LINE(0, 4, 2, 2, 64, 64, 2, NO_SCALING | NO_COPIES);
TRY_LINE(1, 4, 2, 2, 64, 64, 2, NO_PRODUCTS | NO_COPIES);
TRY_LINE(2, 4, 2, 2, 64, 64, 2, NO_PRODUCTS | NO_SCALING);
#elif SET == 9
TRY_LINE(0, 8, 2, 1, 128, 64, 2, 0);
TRY_LINE(1, 8, 3, 1, 64, 64, 1, 0);
TRY_LINE(2, 8, 2, 2, 64, 64, 2, 0);
#endif
}
#endif
