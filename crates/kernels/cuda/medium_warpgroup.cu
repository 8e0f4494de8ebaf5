// Products of 9 to 64 rows and quantised weights (affine, 4 or 8 bits, groups of 64), for decoding many sequences on
// Hopper. Other GPUs use medium.cu; there these kernels are empty. Named by the features and rows of a tile.
#include "medium_warpgroup.cuh"

#if defined(EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BODY(bits, chunks) medium_warpgroups<MediumTiling<bits, chunks>>(parts, x, segments, rows, ExpertRows())
#else
#define BODY(bits, chunks)
#endif

#define MEDIUM_WARPGROUP(bits, size, chunks)                                                                     \
    extern "C" __global__ void __launch_bounds__(MediumTiling<bits, chunks>::ALL_THREADS, 1)                     \
        medium_warpgroup_##bits##_##size(const __grid_constant__ Parts parts, const u8* x, int segments, int rows) { \
        BODY(bits, chunks);                                                                                      \
    }

MEDIUM_WARPGROUP(4, 64x32, 1)
MEDIUM_WARPGROUP(4, 64x64, 2)
MEDIUM_WARPGROUP(8, 64x32, 1)
