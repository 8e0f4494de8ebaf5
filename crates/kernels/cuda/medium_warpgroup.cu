// Products of 9 to 64 rows and quantised weights (affine, 4 or 8 bits, groups of 64), for decoding many sequences on
// Hopper. Other GPUs use medium.cu; there these kernels are empty. Named by the features and rows of a tile.
#include "medium_warpgroup.cuh"

template <int BITS>
using MediumNarrow = MediumTiling<BITS, 1, 1, 4>;
template <int BITS>
using MediumBroad = MediumTiling<BITS, 2, 2, 2>;

#if defined(EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BODY(tiling) medium_warpgroups<tiling>(parts, x, segments, rows)
#else
#define BODY(tiling)
#endif

#define MEDIUM_WARPGROUP(bits, size, tiling)                                                                  \
    extern "C" __global__ void __launch_bounds__(tiling<bits>::ALL_THREADS, 1) medium_warpgroup_##bits##_##size( \
        const __grid_constant__ Parts parts, const u8* x, int segments, int rows) {                           \
        BODY(tiling<bits>);                                                                                   \
    }

MEDIUM_WARPGROUP(4, 64x32, MediumNarrow)
MEDIUM_WARPGROUP(8, 64x32, MediumNarrow)
MEDIUM_WARPGROUP(4, 128x64, MediumBroad)
MEDIUM_WARPGROUP(8, 128x64, MediumBroad)
