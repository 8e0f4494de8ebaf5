// Elementary functions with the bits of the CPU's (kernels/src/lanes.rs), and norms: the same polynomials, the same
// fused multiply-adds. MLX puts this before each kernel.
//
// Each operation is rounded as it is written. MLX compiles kernels in safe mode; multiplications and additions that
// are written apart must not be fused either.
#include <metal_simdgroup_matrix>

#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#else
#pragma clang fp contract(off)
#endif

using namespace metal;

namespace lanner {

// `fraction` and `power` of exp(x) = (1 + fraction) * power.
inline void exp_parts(float x, thread float& fraction, thread float& power) {
    // Comparisons keep NaN.
    const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    const float rounded = fma(clamped, 1.44269504f, 12582912.0f);
    const float n = rounded - 12582912.0f;
    const float r = fma(n, 2.1219444e-4f, fma(n, -0.6933594f, clamped));
    float p = fma(r, 1.9875691e-4f, 1.3981999e-3f);
    p = fma(r, p, 8.333452e-3f);
    p = fma(r, p, 4.1665796e-2f);
    p = fma(r, p, 1.6666665e-1f);
    p = fma(r, p, 0.5f);
    fraction = fma(r * r, p, r);
    power = as_type<float>((as_type<uint>(rounded) << 23) + (127u << 23));
}

// exp(x) for x <= 0 or moderate.
inline float exact_exp(float x) {
    float fraction, power;
    exp_parts(x, fraction, power);
    return x < -87.0f ? 0.0f : (fraction + 1.0f) * power;
}

inline float silu(float x) {
    const float e = exact_exp(-fabs(x));
    return (x >= 0.0f ? x : x * e) / (1.0f + e);
}

inline float sigmoid(float x) {
    const float e = exact_exp(-fabs(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

inline float exact_tanh(float x) {
    float fraction, power;
    exp_parts(-2.0f * fabs(x), fraction, power);
    const float below_one = fma(power, fraction, power - 1.0f);
    const float y = -below_one / (2.0f + below_one);
    return as_type<float>((as_type<uint>(y) & 0x7fffffffu) | (as_type<uint>(x) & 0x80000000u));
}

inline float gelu_tanh(float x) {
    const float inner = 0.7978846f * fma(x * x * x, 0.044715f, x);
    return 0.5f * x * (1.0f + exact_tanh(inner));
}

// A gate up to `limit`, times 1 and a value from -limit to limit. Comparisons keep NaN.
inline float clamped_swish(float gate, float up, float limit) {
    gate = gate > limit ? limit : gate, up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return gate * sigmoid(1.702f * gate) * (up + 1.0f);
}

// ln(1 + exp(x))
inline float softplus(float x) {
    const float y = exact_exp(-fabs(x));
    const float s = y / (2.0f + y);
    const float square = s * s;
    float series = 1.0f / 15.0f;
    series = fma(square, series, 1.0f / 13.0f);
    series = fma(square, series, 1.0f / 11.0f);
    series = fma(square, series, 1.0f / 9.0f);
    series = fma(square, series, 1.0f / 7.0f);
    series = fma(square, series, 1.0f / 5.0f);
    series = fma(square, series, 1.0f / 3.0f);
    series = fma(square, series, 1.0f);
    const float positive = x > 0.0f ? x : 0.0f;
    const float clamped = x < -1.0f ? -1.0f : (x > 1.0f ? 1.0f : x);
    return fma(2.0f * s, series, positive) + 0.0f * clamped;
}

// Sine and cosine for up to a million radians.
inline void sin_cos(float x, thread float& sine, thread float& cosine) {
    const float rounded = fma(x, 0.636619772f, 12582912.0f);
    const float n = rounded - 12582912.0f;
    const float r = fma(n, 1.7151245e-15f, fma(n, 4.371139e-8f, fma(n, -1.5707964f, x)));
    const float square = r * r;
    float p = fma(square, -1.9515296e-4f, 8.332161e-3f);
    const float s = fma(square * r, fma(square, p, -1.6666655e-1f), r);
    p = fma(square, 2.4433157e-5f, -1.3887316e-3f);
    p = fma(square, p, 4.1666646e-2f);
    const float c = fma(square * square, p, fma(square, -0.5f, 1.0f));
    const uint quadrant = as_type<uint>(rounded);
    const float first = (quadrant & 1) ? c : s, second = (quadrant & 1) ? s : c;
    sine = as_type<float>(as_type<uint>(first) ^ ((quadrant & 2) << 30));
    cosine = as_type<float>(as_type<uint>(second) ^ (((quadrant + 1) & 2) << 30));
}

// The sum of 16 neighbouring lanes as the CPU's tree, in each of them.
inline float sum_of_16(float x) {
    x = x + simd_shuffle_xor(x, 8);
    x = x + simd_shuffle_xor(x, 4);
    x = x + simd_shuffle_xor(x, 2);
    return x + simd_shuffle_xor(x, 1);
}

// The sum of 8 neighbouring lanes likewise.
inline float sum_of_8(float x) {
    x = x + simd_shuffle_xor(x, 4);
    x = x + simd_shuffle_xor(x, 2);
    return x + simd_shuffle_xor(x, 1);
}

// A norm adds up the squares of each block of its inputs by themselves (kernels/src/norm.rs).
constant constexpr int NORM_BLOCK = 256;

inline float norm_factor(float squares, int length, float eps) {
    return 1.0f / precise::sqrt(squares / (float)length + eps);
}

// The factor that normalises a row, in each lane of the SIMD-group that asks for it.
template <class Row>
inline float row_factor(Row row, int length, float eps, uint lane) {
    float squares = 0;
    for (int at = 0; at < length; at += NORM_BLOCK) {
        const int end = min(at + NORM_BLOCK, length);
        float own = 0;
        for (int i = at + (int)(lane & 15); i < end; i += 16) {
            const float x = static_cast<float>(row[i]);
            own = fma(x, x, own);
        }
        squares = squares + sum_of_16(own);
    }
    return norm_factor(squares, length, eps);
}

}  // namespace lanner
