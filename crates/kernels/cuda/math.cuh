// Elementary functions with the bits of the CPU's (kernels/src/lanes.rs): the same polynomials, the same
// fused multiply-adds.
#pragma once
#include "common.cuh"

// `fraction` and `power` of exp(x) = (1 + fraction) * power. With `NEGATIVE`, x is at most 0 or NaN.
template <bool NEGATIVE = false>
__device__ __forceinline__ void exp_parts(float x, float& fraction, float& power) {
    // Comparisons keep NaN.
    const float clamped = x < -87.0f ? -87.0f : (!NEGATIVE && x > 88.0f ? 88.0f : x);
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

// exp(x) for x <= 0 or moderate; with `NEGATIVE` as for exp_parts, by fewer instructions.
template <bool NEGATIVE = false>
__device__ __forceinline__ float exact_exp(float x) {
    float fraction, power;
    exp_parts<NEGATIVE>(x, fraction, power);
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

// How a gate becomes a factor: 0 is SiLU, 1 GELU's approximation with tanh, 2 gpt-oss's with limits.
struct GateActivation {
    int kind;
    float limit;
};

// A value beside its gate: activation(gate) * up.
__device__ __forceinline__ float gated_value(const GateActivation& activation, float gate, float up) {
    if (activation.kind < 2) return (activation.kind ? gelu_tanh(gate) : silu(gate)) * up;
    const float limit = activation.limit;
    gate = gate > limit ? limit : gate, up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return gate * sigmoid(1.702f * gate) * (up + 1.0f);
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

// A norm adds up the squares of each block of its inputs by themselves, as the CPU does (kernels/src/norm.rs).
constexpr int NORM_BLOCK = 256;

// The squares of a block of `length` numbers, which may have none, added up by 16 neighbouring lanes: the sum
// is in each of them. By whole warps.
__device__ __forceinline__ float sum_of_squares(const float* block, int length) {
    const int first = thread_index() & 15;
    float squares = 0;
    if (length >= NORM_BLOCK) {
        // All are loaded before the first is added.
        float own[NORM_BLOCK / 16];
#pragma unroll
        for (int k = 0; k < NORM_BLOCK / 16; k++) own[k] = block[first + k * 16];
#pragma unroll
        for (int k = 0; k < NORM_BLOCK / 16; k++) squares = __fmaf_rn(own[k], own[k], squares);
    } else {
#pragma unroll 8
        for (int i = first; i < length; i += 16) squares = __fmaf_rn(block[i], block[i], squares);
    }
    return reduce_16(squares);
}

__device__ __forceinline__ float norm_factor(float squares, int length, float eps) {
    return 1.0f / sqrtf(squares / (float)length + eps);
}

// The factor that normalises a row, in each of the 16 neighbouring lanes that ask for it. By whole warps.
__device__ __forceinline__ float row_factor(const float* row, int length, float eps) {
    float squares = 0;
#pragma unroll 1
    for (int at = 0; at < length; at += NORM_BLOCK) squares = squares + sum_of_squares(row + at, length - at);
    return norm_factor(squares, length, eps);
}

// The same, in every thread of a CTA of `WARPS` warps that has just written the row. `sums` has room for
// 2 * WARPS numbers at a multiple of 16 bytes; it and the row are in shared memory.
template <int WARPS>
__device__ __forceinline__ float cta_row_factor(const float* row, int length, float eps, float* sums) {
    constexpr int HALVES = 2 * WARPS;
    const int half = thread_index() >> 4, at = half * NORM_BLOCK;
    float squares = 0;
#pragma unroll 1
    for (int first = 0; first < length; first += HALVES * NORM_BLOCK) {
        // The row is complete, and sums of the round before have been read.
        sync_threads(0, 32 * WARPS);
        const float own = sum_of_squares(row + first + at, length - first - at);
        if ((thread_index() & 15) == 0) sums[half] = own;
        sync_threads(0, 32 * WARPS);
        // Those beyond the last block are zeros.
        const int blocks = min((length - first + NORM_BLOCK - 1) / NORM_BLOCK, HALVES);
#pragma unroll 4
        for (int i = 0; i < blocks; i += 4) {
            const float4 four = *(const float4*)(sums + i);
            squares = squares + four.x, squares = squares + four.y;
            squares = squares + four.z, squares = squares + four.w;
        }
    }
    return norm_factor(squares, length, eps);
}
