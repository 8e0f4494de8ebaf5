// Inputs of quantised products: a row's groups of 64 become integers of 16 bits with one step, as on the CPU
// (kernels/src/linear/integer). An integer is two signed bytes, in two planes of a group. Of a plane, input
// i lies at byte i % 16 / 4 * 16 + i / 16 * 4 + i % 4.
#pragma once
#include "math.cuh"

// Two inputs of a group: their bytes of both planes, the place of these in a plane, and what the group
// shares: its step, and its sum times the step.
struct QuantizedPair {
    unsigned short high, low;
    int at;
    float2 step;
};

// By a warp of which each lane has inputs 2 lane and 2 lane + 1 of a group.
__device__ __forceinline__ QuantizedPair quantize_pair(float first, float second) {
    // The bits of magnitudes are in their order, then infinity, then what is not a number.
    const u32 a = __float_as_uint(first) & 0x7fffffffu, b = __float_as_uint(second) & 0x7fffffffu;
    const u32 most = max_of_warp(a > b ? a : b);
    const float largest = __uint_as_float(most);
    const bool finite = most < 0x7f800000u;
    int p = 0, q = 0;
    QuantizedPair pair;
    pair.step.x = finite ? 0.0f : __uint_as_float(0x7fc00000u);
    if (finite && largest >= 1e-30f) {
        const float inverse = 32639.0f / largest;
        p = __float2int_rn(first * inverse), q = __float2int_rn(second * inverse);
        pair.step.x = largest / 32639.0f;
    }
    pair.step.y = (float)sum_of_warp(p + q) * pair.step.x;
    const int low_p = (signed char)(p & 255), low_q = (signed char)(q & 255), i = 2 * (threadIdx.x & 31);
    const int high_p = (p - low_p) / 256, high_q = (q - low_q) / 256;
    pair.high = (high_p & 255) | (high_q & 255) << 8, pair.low = (low_p & 255) | (low_q & 255) << 8;
    pair.at = i % 16 / 4 * 16 + i / 16 * 4 + i % 4;
    return pair;
}

__device__ __forceinline__ void load_8(float (&to)[8], const float* from) {
    const float4 first = *(const float4*)from, second = *(const float4*)(from + 4);
    to[0] = first.x, to[1] = first.y, to[2] = first.z, to[3] = first.w;
    to[4] = second.x, to[5] = second.y, to[6] = second.z, to[7] = second.w;
}

__device__ __forceinline__ void store_8(float* to, const float (&from)[8]) {
    *(float4*)to = make_float4(from[0], from[1], from[2], from[3]);
    *(float4*)(to + 4) = make_float4(from[4], from[5], from[6], from[7]);
}

// Eight neighbouring inputs of a group: four bytes of each plane for the first four and for the others, and
// what the group shares, as in QuantizedPair.
struct QuantizedEight {
    u32 high[2], low[2];
    float2 step;
};

// By a warp of which every 8 lanes have a group, each 8 neighbours.
__device__ __forceinline__ QuantizedEight quantize_eight(const float (&values)[8]) {
    float largest = 0.0f;
    int finite = 1, total = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float size = fabsf(values[k]);
        largest = size > largest ? size : largest;
        finite &= size <= 3.402823466e38f;
    }
#pragma unroll
    for (int distance = 4; distance; distance /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, largest, distance);
        largest = other > largest ? other : largest;
        finite &= __shfl_xor_sync(0xffffffffu, finite, distance);
    }
    QuantizedEight eight = {{0, 0}, {0, 0}, make_float2(finite ? 0.0f : __uint_as_float(0x7fc00000u), 0.0f)};
    if (finite && largest >= 1e-30f) {
        const float inverse = 32639.0f / largest;
        eight.step.x = largest / 32639.0f;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int own = __float2int_rn(values[k] * inverse), low = (signed char)(own & 255);
            total += own;
            eight.high[k / 4] |= (u32)((own - low) / 256 & 255) << k % 4 * 8;
            eight.low[k / 4] |= (u32)(low & 255) << k % 4 * 8;
        }
    }
#pragma unroll
    for (int distance = 4; distance; distance /= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
    eight.step.y = (float)total * eight.step.x;
    return eight;
}

// Writes the `at`-th eight inputs of a row to its planes and, by the group's first lane, its step.
__device__ __forceinline__ void store_eight(uint4* inputs, float2* steps, int at, const QuantizedEight& eight) {
    u32* planes = (u32*)(inputs + at / 8 * 8) + (at & 1) * 8 + (at >> 1 & 3);
    planes[0] = eight.high[0], planes[4] = eight.high[1];
    planes[16] = eight.low[0], planes[20] = eight.low[1];
    if ((at & 7) == 0) steps[at / 8] = eight.step;
}
