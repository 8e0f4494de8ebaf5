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

// By a warp of which each lane has inputs 2 lane and 2 lane + 1 of each of `N` groups.
template <int N>
__device__ __forceinline__ void quantize_pairs(const float2 (&values)[N], QuantizedPair (&pairs)[N]) {
    float largest[N];
    int finite[N], total[N], a[N], b[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float first = fabsf(values[j].x), second = fabsf(values[j].y);
        largest[j] = first > second ? first : second;
        finite[j] = first <= 3.402823466e38f && second <= 3.402823466e38f;
    }
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float other = __shfl_xor_sync(0xffffffffu, largest[j], distance);
            largest[j] = other > largest[j] ? other : largest[j];
            finite[j] &= __shfl_xor_sync(0xffffffffu, finite[j], distance);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        a[j] = b[j] = 0;
        pairs[j].step = make_float2(0.0f, 0.0f);
        if (finite[j] && largest[j] >= 1e-30f) {
            const float inverse = 32639.0f / largest[j];
            a[j] = __float2int_rn(values[j].x * inverse), b[j] = __float2int_rn(values[j].y * inverse);
            pairs[j].step.x = largest[j] / 32639.0f;
        } else if (!finite[j]) {
            pairs[j].step.x = __uint_as_float(0x7fc00000u);
        }
        total[j] = a[j] + b[j];
    }
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
#pragma unroll
        for (int j = 0; j < N; j++) total[j] += __shfl_xor_sync(0xffffffffu, total[j], distance);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int low_a = (signed char)(a[j] & 255), low_b = (signed char)(b[j] & 255);
        const int high_a = (a[j] - low_a) / 256, high_b = (b[j] - low_b) / 256;
        const int i = 2 * (threadIdx.x & 31);
        pairs[j].step.y = (float)total[j] * pairs[j].step.x;
        pairs[j].high = (high_a & 255) | (high_b & 255) << 8, pairs[j].low = (low_a & 255) | (low_b & 255) << 8;
        pairs[j].at = i % 16 / 4 * 16 + i / 16 * 4 + i % 4;
    }
}

__device__ __forceinline__ QuantizedPair quantize_pair(float first, float second) {
    const float2 values[1] = {make_float2(first, second)};
    QuantizedPair pairs[1];
    quantize_pairs<1>(values, pairs);
    return pairs[0];
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
