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
    const int low_p = (signed char)(p & 255), low_q = (signed char)(q & 255), i = 2 * (thread_index() & 31);
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

// Byte `AT` of four words.
template <int AT>
__device__ __forceinline__ u32 gather_bytes(u32 a, u32 b, u32 c, u32 d) {
    constexpr u32 pair = AT | (4 + AT) << 4;
    return __byte_perm(__byte_perm(a, b, pair), __byte_perm(c, d, pair), 0x5410);
}

// By a warp of which every 8 lanes have a group, each 8 neighbours. 1.5 * 2^23 is added to round, and leaves an
// integer in the low bits; its high byte is that of the integer plus 128.
__device__ __forceinline__ QuantizedEight quantize_eight(const float (&values)[8]) {
    constexpr float ROUNDER = 12582912.0f;
    constexpr u32 ROUNDER_BITS = 0x4b400000u, FINITE = 0x7f7fffffu;
    // Bits of sizes are ordered as the sizes, then infinity, then what is not a number.
    u32 most = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const u32 size = __float_as_uint(values[k]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
#pragma unroll
    for (int distance = 4; distance; distance /= 2) {
        const u32 other = __shfl_xor_sync(0xffffffffu, most, distance);
        most = other > most ? other : most;
    }
    const float largest = __uint_as_float(most);
    QuantizedEight eight = {{0, 0}, {0, 0}, make_float2(most <= FINITE ? 0.0f : __uint_as_float(0x7fc00000u), 0.0f)};
    u32 total = 0;
    if (most <= FINITE && largest >= 1e-30f) {
        const float inverse = 32639.0f / largest;
        eight.step.x = largest / 32639.0f;
        u32 own[8];
#pragma unroll
        for (int k = 0; k < 8; k++) own[k] = __float_as_uint(__fadd_rn(values[k] * inverse, ROUNDER)), total += own[k];
        total -= 8 * ROUNDER_BITS;
#pragma unroll
        for (int k = 0; k < 8; k += 4) {
            eight.low[k / 4] = gather_bytes<0>(own[k], own[k + 1], own[k + 2], own[k + 3]);
            eight.high[k / 4] = gather_bytes<1>(own[k] + 128, own[k + 1] + 128, own[k + 2] + 128, own[k + 3] + 128);
        }
    }
#pragma unroll
    for (int distance = 4; distance; distance /= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
    eight.step.y = (float)(int)total * eight.step.x;
    return eight;
}

// Writes the `at`-th eight inputs of a row to its planes and, by the group's first lane, its step.
__device__ __forceinline__ void store_eight(uint4* inputs, float2* steps, int at, const QuantizedEight& eight) {
    u32* planes = (u32*)(inputs + at / 8 * 8) + (at & 1) * 8 + (at >> 1 & 3);
    planes[0] = eight.high[0], planes[4] = eight.high[1];
    planes[16] = eight.low[0], planes[20] = eight.low[1];
    if ((at & 7) == 0) steps[at / 8] = eight.step;
}
