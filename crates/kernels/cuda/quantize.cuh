// Inputs of quantised products: a row's groups of 64 become integers with one step, as on the CPU
// (kernels/src/linear/integer). The step is a power of two, the integers are of 14 bits, of which the first 11 that
// are not zeros are kept: half precision holds them.
//
// For kernels that multiply bytes, an integer is two signed bytes, in two planes of a group. Of a plane, input i lies
// at byte i % 16 / 4 * 16 + i / 16 * 4 + i % 4.
#pragma once
#include "math.cuh"

// Sizes of a group's largest input, as bits, for which it is not zeros, and not NaN: 1e-30 and 1e30.
constexpr u32 SMALLEST_BITS = 0x0da24260u, LARGEST_BITS = 0x7149f2cau, EXPONENT = 0x7f800000u;

__device__ __forceinline__ u32 size_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ u32 max_of(u32 a, u32 b) { return a > b ? a : b; }
__device__ __forceinline__ bool has_integers(u32 largest) { return largest >= SMALLEST_BITS && largest <= LARGEST_BITS; }

// A step, and the number of steps in 2^-24, in which half precision rounds as integers are rounded: numbers below 2^-13
// to whole ones, others to 11 bits.
__device__ __forceinline__ float step_of(u32 largest) { return __uint_as_float((largest & EXPONENT) - (13 << 23)); }
__device__ __forceinline__ float steps_in_half(u32 largest) { return __uint_as_float((243u << 23) - (largest & EXPONENT)); }

// Two inputs of a group, rounded to steps times 2^-24.
__device__ __forceinline__ u32 round_pair(float first, float second, float steps) {
    return half_pair(first * steps, second * steps);
}

// Bits whose low 16 are an integer that is given times 2^-24, and the bits of zero.
__device__ __forceinline__ u32 integer_bits(float rounded) { return __float_as_uint(__fadd_rn(rounded, 0.75f)); }
constexpr u32 ZERO_BITS = 0x3f400000u;

// Two inputs of a group: their bytes of both planes, the place of these in a plane, and what the group
// shares: its step, and its sum times the step.
struct QuantizedPair {
    unsigned short high, low;
    int at;
    float2 step;
};

// By a warp of which each lane has inputs 2 lane and 2 lane + 1 of a group.
__device__ __forceinline__ QuantizedPair quantize_pair(float first, float second) {
    const u32 largest = max_of_warp(max_of(size_bits(first), size_bits(second)));
    QuantizedPair pair;
    u32 p = ZERO_BITS, q = ZERO_BITS;
    pair.step.x = largest <= LARGEST_BITS ? 0.0f : __uint_as_float(0x7fc00000u);
    if (has_integers(largest)) {
        const float2 rounded = floats_of_halves(round_pair(first, second, steps_in_half(largest)));
        p = integer_bits(rounded.x), q = integer_bits(rounded.y);
        pair.step.x = step_of(largest);
    }
    pair.step.y = (float)sum_of_warp((int)(p + q - 2 * ZERO_BITS)) * pair.step.x;
    const int i = 2 * (thread_index() & 31);
    pair.low = (p & 255) | (q & 255) << 8, pair.high = (p + 128) >> 8 & 255 | (q + 128) & 0xff00;
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

// The bits of the largest size of a group, of which each of 8 lanes has eight inputs.
__device__ __forceinline__ u32 largest_of_eight(const float (&values)[8]) {
    u32 largest = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) largest = max_of(largest, size_bits(values[k]));
#pragma unroll
    for (int distance = 4; distance; distance /= 2) {
        largest = max_of(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    }
    return largest;
}

// By a warp of which every 8 lanes have a group, each 8 neighbours.
__device__ __forceinline__ QuantizedEight quantize_eight(const float (&values)[8]) {
    const u32 largest = largest_of_eight(values);
    QuantizedEight eight = {{0, 0}, {0, 0}, make_float2(largest <= LARGEST_BITS ? 0.0f : __uint_as_float(0x7fc00000u), 0.0f)};
    u32 total = 0;
    if (has_integers(largest)) {
        const float steps = steps_in_half(largest);
        eight.step.x = step_of(largest);
        u32 own[8];
#pragma unroll
        for (int k = 0; k < 8; k += 2) {
            const float2 rounded = floats_of_halves(round_pair(values[k], values[k + 1], steps));
            own[k] = integer_bits(rounded.x), own[k + 1] = integer_bits(rounded.y);
            total += own[k] + own[k + 1];
        }
        total -= 8 * ZERO_BITS;
        // The high byte is that of the integer plus 128.
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
