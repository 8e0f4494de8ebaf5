// Elementary functions with the bits of the CPU's (kernels/src/lanes.rs): the same polynomials, the same
// fused multiply-adds.
#pragma once
#include "common.cuh"

// `fraction` and `power` of exp(x) = (1 + fraction) * power.
__device__ __forceinline__ void exp_parts(float x, float& fraction, float& power) {
    // Comparisons keep NaN.
    const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    const float rounded = __fmaf_rn(clamped, 1.44269504f, 12582912.0f);
    const float n = rounded - 12582912.0f;
    const float r = __fmaf_rn(n, 2.1219444e-4f, __fmaf_rn(n, -0.6933594f, clamped));
    float p = __fmaf_rn(r, 1.9875691e-4f, 1.3981999e-3f);
    p = __fmaf_rn(r, p, 8.333452e-3f);
    p = __fmaf_rn(r, p, 4.1665796e-2f);
    p = __fmaf_rn(r, p, 1.6666665e-1f);
    p = __fmaf_rn(r, p, 0.5f);
    fraction = __fmaf_rn(r * r, p, r);
    power = __uint_as_float((__float_as_uint(rounded) << 23) + (127u << 23));
}

// exp(x) for x <= 0 or moderate.
__device__ __forceinline__ float exact_exp(float x) {
    float fraction, power;
    exp_parts(x, fraction, power);
    return x < -87.0f ? 0.0f : (fraction + 1.0f) * power;
}

// ln(x) for normal positive x.
__device__ __forceinline__ float exact_ln(float x) {
    const u32 offset = __float_as_uint(x) - 0x3f3504f3u;
    const float n = (float)((int)offset >> 23);
    const float m = __uint_as_float((offset & 0x007fffffu) + 0x3f3504f3u);
    const float f = m - 1.0f;
    const float s = f / (m + 1.0f);
    const float square = s * s;
    float series = __fmaf_rn(square, 2.0f / 9.0f, 2.0f / 7.0f);
    series = __fmaf_rn(square, series, 2.0f / 5.0f);
    series = __fmaf_rn(square, series, 2.0f / 3.0f);
    const float small = __fmaf_rn(s, __fmaf_rn(square, series, -f), n * -2.1219444e-4f);
    return __fmaf_rn(n, 0.6933594f, f + small);
}

__device__ __forceinline__ float silu(float x) {
    const float e = exact_exp(-fabsf(x));
    return (x >= 0.0f ? x : x * e) / (1.0f + e);
}

__device__ __forceinline__ float sigmoid(float x) {
    const float e = exact_exp(-fabsf(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

__device__ __forceinline__ float exact_tanh(float x) {
    float fraction, power;
    exp_parts(-2.0f * fabsf(x), fraction, power);
    const float below_one = __fmaf_rn(power, fraction, power - 1.0f);
    const float y = -below_one / (2.0f + below_one);
    return __uint_as_float((__float_as_uint(y) & 0x7fffffffu) | (__float_as_uint(x) & 0x80000000u));
}

__device__ __forceinline__ float gelu_tanh(float x) {
    const float inner = 0.7978846f * __fmaf_rn(x * x * x, 0.044715f, x);
    return 0.5f * x * (1.0f + exact_tanh(inner));
}

// ln(1 + exp(x))
__device__ __forceinline__ float softplus(float x) {
    const float y = exact_exp(-fabsf(x));
    const float s = y / (2.0f + y);
    const float square = s * s;
    float series = 1.0f / 15.0f;
    series = __fmaf_rn(square, series, 1.0f / 13.0f);
    series = __fmaf_rn(square, series, 1.0f / 11.0f);
    series = __fmaf_rn(square, series, 1.0f / 9.0f);
    series = __fmaf_rn(square, series, 1.0f / 7.0f);
    series = __fmaf_rn(square, series, 1.0f / 5.0f);
    series = __fmaf_rn(square, series, 1.0f / 3.0f);
    series = __fmaf_rn(square, series, 1.0f);
    const float positive = x > 0.0f ? x : 0.0f;
    const float clamped = x < -1.0f ? -1.0f : (x > 1.0f ? 1.0f : x);
    return __fmaf_rn(2.0f * s, series, positive) + 0.0f * clamped;
}

// Sine and cosine for up to a million radians.
__device__ __forceinline__ void sin_cos(float x, float& sine, float& cosine) {
    const float rounded = __fmaf_rn(x, 0.636619772f, 12582912.0f);
    const float n = rounded - 12582912.0f;
    const float r = __fmaf_rn(n, 1.7151245e-15f, __fmaf_rn(n, 4.371139e-8f, __fmaf_rn(n, -1.5707964f, x)));
    const float square = r * r;
    float p = __fmaf_rn(square, -1.9515296e-4f, 8.332161e-3f);
    const float s = __fmaf_rn(square * r, __fmaf_rn(square, p, -1.6666655e-1f), r);
    p = __fmaf_rn(square, 2.4433157e-5f, -1.3887316e-3f);
    p = __fmaf_rn(square, p, 4.1666646e-2f);
    const float c = __fmaf_rn(square * square, p, __fmaf_rn(square, -0.5f, 1.0f));
    const u32 quadrant = __float_as_uint(rounded);
    const float first = quadrant & 1 ? c : s, second = quadrant & 1 ? s : c;
    sine = __uint_as_float(__float_as_uint(first) ^ (quadrant & 2) << 30);
    cosine = __uint_as_float(__float_as_uint(second) ^ (quadrant + 1 & 2) << 30);
}

// Lanes 0..15 of a half warp: the tree of the CPU's `reduce`, in every lane.
__device__ __forceinline__ float reduce_16(float x) {
    x = x + __shfl_xor_sync(0xffffffffu, x, 8);
    x = x + __shfl_xor_sync(0xffffffffu, x, 4);
    x = x + __shfl_xor_sync(0xffffffffu, x, 2);
    return x + __shfl_xor_sync(0xffffffffu, x, 1);
}

// The factor that normalises a row, in every lane of the calling warp.
__device__ __forceinline__ float inverse_rms(const float* row, int length, float eps) {
    float squares = 0;
#pragma unroll 32
    for (int i = threadIdx.x & 15; i < length; i += 16) squares = __fmaf_rn(row[i], row[i], squares);
    return 1.0f / sqrtf(reduce_16(squares) / (float)length + eps);
}

// The same, in every thread of a CTA that has just written the row; row and `factor` are in shared memory.
__device__ __forceinline__ float cta_inverse_rms(const float* row, int length, float eps, float& factor) {
    __syncthreads();
    if (threadIdx.x < 32) {
        const float own = inverse_rms(row, length, eps);
        if (threadIdx.x == 0) factor = own;
    }
    __syncthreads();
    return factor;
}

// The same, of a row in shared memory, in few instructions: terms are loaded while those before are added.
__device__ __forceinline__ float row_factor(const float* row, int length, float eps) {
    const int first = threadIdx.x & 15, whole = length & ~255;
    float squares = 0;
    if (whole) {
        float now[8], next[8];
#pragma unroll
        for (int k = 0; k < 8; k++) now[k] = row[first + k * 16];
#pragma unroll 1
        for (int i = first; i < whole; i += 256) {
#pragma unroll
            for (int k = 0; k < 8; k++) next[k] = row[i + 128 + k * 16];
#pragma unroll
            for (int k = 0; k < 8; k++) squares = __fmaf_rn(now[k], now[k], squares);
            // The last round loads its own terms again.
            const int after = i + 256 < whole ? i + 256 : i;
#pragma unroll
            for (int k = 0; k < 8; k++) now[k] = row[after + k * 16];
#pragma unroll
            for (int k = 0; k < 8; k++) squares = __fmaf_rn(next[k], next[k], squares);
        }
    }
#pragma unroll 4
    for (int i = whole + first; i < length; i += 16) squares = __fmaf_rn(row[i], row[i], squares);
    return 1.0f / sqrtf(reduce_16(squares) / (float)length + eps);
}
