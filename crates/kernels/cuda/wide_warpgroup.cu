// Products of many rows and quantised weights (affine, 4 or 8 bits, groups of 64), for prompts on Hopper. Other
// GPUs use wide.cu; there these kernels are empty.
#include "wide_warpgroup.cuh"

template <int BITS>
using WideTiling = Tiling<BITS, 2, 1, 128, 64, 2>;

#if defined(EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BODY(bits) wide_warpgroups<WideTiling<bits>, 0>(parts, x, segments, rows)
#else
#define BODY(bits)
#endif

#define WIDE_WARPGROUP(bits)                                                                                \
    extern "C" __global__ void __launch_bounds__(WideTiling<bits>::ALL_THREADS, 1) wide_warpgroup_##bits(  \
        const __grid_constant__ Parts parts, const u8* x, int segments, int rows) {                         \
        BODY(bits);                                                                                         \
    }

WIDE_WARPGROUP(4)
WIDE_WARPGROUP(8)
