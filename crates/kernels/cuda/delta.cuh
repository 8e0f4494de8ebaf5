// Shared by the kernels of the gated delta rule.
#pragma once
#include "math.cuh"

struct DeltaSizes {
    int key_heads;
    int value_heads;
    int channels;
    int width;
    float key_eps, query_eps;
    // The norms' weights are one number each.
    float key_weight, query_weight;
};

// A channel of a token after convolution and SiLU; `t` counts from the sequence's first token.
__device__ __forceinline__ float convolved(const DeltaSizes& sizes, const float* past, const float* x,
                                           const float* taps, int t, int channel) {
    float sum = 0;
    for (int j = 0; j < sizes.width; j++) {
        const int from = t + j - (sizes.width - 1);
        float value = 0;
        if (from >= 0) {
            value = x[(size_t)from * sizes.channels + channel];
        } else if (past) {
            value = past[(size_t)(from + sizes.width - 1) * sizes.channels + channel];
        }
        sum = __fmaf_rn(value, taps[(size_t)j * sizes.channels + channel], sum);
    }
    return silu(sum);
}

// The sum over 8 lanes, in each of them.
__device__ __forceinline__ float sum_lanes(float x) {
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 4));
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
    return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
}
