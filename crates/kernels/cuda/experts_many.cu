// Products of rows and experts, for many tokens: up to 32 rows of one expert at a time. A tile has a CTA for every 64
// features; CTAs of tiles that are not there end at once.
#include "medium.cuh"

#define EXPERTS_MANY(name, format)                                                                                             \
    extern "C" __global__ void __launch_bounds__(MEDIUM_WARPS * 32, 1) experts_many_##name(                            \
        const __grid_constant__ Parts parts, const u8* x, const float2* steps, int segments,                           \
        const __grid_constant__ ExpertRows list) {                                                                     \
        medium<format, 1, true>(parts, x, steps, segments, 0, list);                                                     \
    }

EXPERTS_MANY(4, 4)
EXPERTS_MANY(8, 8)
EXPERTS_MANY(mxfp4, MXFP4)
