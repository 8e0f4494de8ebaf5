// One token through a Gated DeltaNet: its sequence's memory, and the convolution of its channels.
#pragma once
#include "delta.cuh"

// A sequence whose next token is `token` of all.
struct DeltaTokenRow {
    // Inputs of the convolution before and after the token, [width - 1][channels]: not the same memory. No
    // inputs before: null.
    const float* past;
    float* next;
    // The state before and after it, which may be the same memory.
    const float* before;
    float* after;
    int token;
};

// Most inputs of a convolution.
constexpr int MAX_TAPS = 4;

// Inputs of a channel's convolution, the token's last, and its weights.
struct Channel {
    float inputs[MAX_TAPS], taps[MAX_TAPS];

    __device__ __forceinline__ void load(const DeltaSizes& sizes, const float* past, const float* x,
                                         const float* weights, int channel) {
#pragma unroll
        for (int j = 0; j < MAX_TAPS; j++) {
            inputs[j] = taps[j] = 0;
            if (j >= sizes.width) continue;
            const size_t at = (size_t)j * sizes.channels + channel;
            taps[j] = weights[at];
            inputs[j] = j == sizes.width - 1 ? x[channel] : past ? past[at] : 0.0f;
        }
    }

    __device__ __forceinline__ float convolved(int width) const {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < MAX_TAPS; j++)
            if (j < width) sum = __fmaf_rn(inputs[j], taps[j], sum);
        return silu(sum);
    }

    // Writes the inputs for the next token.
    __device__ __forceinline__ void keep(const DeltaSizes& sizes, float* next, int channel) const {
#pragma unroll
        for (int j = 1; j < MAX_TAPS; j++)
            if (j < sizes.width) next[(size_t)(j - 1) * sizes.channels + channel] = inputs[j];
    }
};

// Values of a head that a CTA computes.
constexpr int DELTA_VALUES = 32;
