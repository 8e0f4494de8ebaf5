// Products of rows and experts on Hopper, for many tokens: 32 or 64 rows of one expert at a time. Other GPUs use
// experts_many.cu; there these kernels are empty. Named by the rows of a tile.
#include "medium_warpgroup.cuh"

#if defined(EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define EXPERTS_BODY(format, chunks) medium_warpgroups<MediumTiling<format, chunks, 0, true>>(parts, x, segments, 0, list)
#else
#define EXPERTS_BODY(format, chunks)
#endif

#define EXPERTS_WARPGROUP(name, format, rows, chunks)                                                            \
    extern "C" __global__ void __launch_bounds__(MediumTiling<format, chunks>::ALL_THREADS, 1)                   \
        experts_warpgroup_##name##_##rows(const __grid_constant__ Parts parts, const u8* x, int segments,        \
                                          const __grid_constant__ ExpertRows list) {                             \
        EXPERTS_BODY(format, chunks);                                                                            \
    }

EXPERTS_WARPGROUP(4, 4, 32, 1)
EXPERTS_WARPGROUP(4, 4, 64, 2)
EXPERTS_WARPGROUP(8, 8, 32, 1)
EXPERTS_WARPGROUP(mxfp4, MXFP4, 32, 1)
EXPERTS_WARPGROUP(mxfp4, MXFP4, 64, 2)
