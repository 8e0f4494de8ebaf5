// Products of some rows and quantised weights (affine, 4 or 8 bits, groups of 64), for decoding many
// sequences: up to 64 rows.
#include "medium.cuh"

#define MEDIUM(bits, rows)                                                                                   \
    extern "C" __global__ void __launch_bounds__(MEDIUM_WARPS * 32, 1) medium_##bits##_##rows(                \
        const __grid_constant__ Parts parts, const u8* x, const float2* steps, int segments, int count) {    \
        medium<bits, rows / 32, false>(parts, x, steps, segments, count, ExpertRows());                                           \
    }

MEDIUM(4, 32)
MEDIUM(4, 64)
MEDIUM(8, 32)
MEDIUM(8, 64)
