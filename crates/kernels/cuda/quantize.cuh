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
