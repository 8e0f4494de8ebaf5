// Operations on rows in float32: norms, gates, rows of embeddings, and sums of experts.
#include "embed.cuh"
#include "math.cuh"

// RMS norm, added to `stream` unless that is null. Grid: rows; 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    rms_norm(const float* x, const float* weight, const float* stream, float* out, int length, float eps) {
    DYNAMIC_SHARED(memory);
    float* row = (float*)memory;
    __shared__ __align__(16) float sums[16];
    launch_dependents();
    wait_for_previous();
    x += (size_t)blockIdx.x * length;
    out += (size_t)blockIdx.x * length;
    for (int i = threadIdx.x; i < length; i += 256) row[i] = x[i];
    const float factor = cta_row_factor<8>(row, length, eps, sums);
    if (stream) stream += (size_t)blockIdx.x * length;
    for (int i = threadIdx.x; i < length; i += 256) {
        const float normed = row[i] * factor * weight[i];
        out[i] = stream ? stream[i] + normed : normed;
    }
}

// An operand of element-wise arithmetic: numbers that repeat, or a constant if they are null.
struct Operand {
    const float* values;
    int period;
    float constant;

    __device__ __forceinline__ float at(int i) const { return values ? values[i % period] : constant; }
};

// out = a + b, a - b, a * b or a / b. Grid: numbers / 256, rounded up; 256 threads.
extern "C" __global__ void __launch_bounds__(256) arithmetic(Operand a, Operand b, float* out, int count, int operation) {
    launch_dependents();
    wait_for_previous();
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    const float x = a.at(i), y = b.at(i);
    out[i] = operation == 0 ? x + y : operation == 1 ? x - y : operation == 2 ? x * y : x / y;
}

// A causal convolution of channels by themselves, and the inputs after it. x, out: [tokens][channels]; weight
// [channels][width]; past and next: [width - 1][channels]. Grid: channels / 256, rounded up, tokens or 1; 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    causal_conv(const float* x, const float* weight, const float* past, float* out, float* next, int tokens, int channels,
                int width, int silu_after) {
    launch_dependents();
    wait_for_previous();
    const int channel = blockIdx.x * 256 + threadIdx.x, before = width - 1;
    if (channel >= channels) return;
    auto input = [&](int i) {
        return i < before ? past[(size_t)i * channels + channel] : x[(size_t)(i - before) * channels + channel];
    };
    const int token = blockIdx.y;
    float sum = 0;
    for (int j = 0; j < width; j++) sum = __fmaf_rn(input(token + j), weight[(size_t)channel * width + j], sum);
    out[(size_t)token * channels + channel] = silu_after ? silu(sum) : sum;
    if (token > 0) return;
    for (int i = 0; i < before; i++) next[(size_t)i * channels + channel] = input(tokens + i);
}

// out = cap * tanh(x / cap). Grid: numbers / 256, rounded up; 256 threads.
extern "C" __global__ void __launch_bounds__(256) softcap(const float* x, float* out, int count, float cap) {
    launch_dependents();
    wait_for_previous();
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) out[i] = cap * exact_tanh(x[i] / cap);
}

// Rows `ids` of a weight as skinny.cu stores it. Grid: rows; 256 threads.
template <int BITS>
__device__ __forceinline__ void embed(const u8* weights, const u32* ids, float* out, int inputs, int segments) {
    launch_dependents();
    wait_for_previous();
    const u32 id = ids[blockIdx.x];
    out += (size_t)blockIdx.x * inputs;
    for (int i = threadIdx.x; i < inputs; i += 256) out[i] = embedded<BITS>(weights, id, i, segments);
}

extern "C" __global__ void __launch_bounds__(256)
    embed_4(const u8* weights, const u32* ids, float* out, int inputs, int segments) {
    embed<4>(weights, ids, out, inputs, segments);
}

extern "C" __global__ void __launch_bounds__(256)
    embed_8(const u8* weights, const u32* ids, float* out, int inputs, int segments) {
    embed<8>(weights, ids, out, inputs, segments);
}

extern "C" __global__ void __launch_bounds__(256)
    embed_mxfp4(const u8* weights, const u32* ids, float* out, int inputs, int segments) {
    embed<MXFP4>(weights, ids, out, inputs, segments);
}

// The parts of a token's output besides those of its experts; all optional.
struct CombineWith {
    const float* shared;
    const float* gate;
    const float* stream;
};

// Sums of experts, as on the CPU (kernels/src/combine.rs). Grid: tokens, hidden / 256; 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    combine_experts(const float* outputs, const float* weights, CombineWith with, float* out, int per_token, int hidden) {
    launch_dependents();
    wait_for_previous();
    const int i = blockIdx.y * 256 + threadIdx.x;
    if (i >= hidden) return;
    const size_t token = blockIdx.x, at = token * hidden + i;
    float sum = 0;
#pragma unroll 8
    for (int n = 0; n < per_token; n++) {
        sum = __fmaf_rn(outputs[(token * per_token + n) * hidden + i], weights[token * per_token + n], sum);
    }
    if (with.shared) sum = sum + with.shared[at] * (with.gate ? sigmoid(with.gate[token]) : 1.0f);
    if (with.stream) sum = sum + with.stream[at];
    out[at] = sum;
}

// Rows `ids` of a matrix of floats. Grid: rows; 256 threads.
template <bool BFLOAT16>
__device__ __forceinline__ void gather_rows(const void* values, const u32* ids, float* out, int inputs) {
    launch_dependents();
    wait_for_previous();
    const size_t from = (size_t)ids[blockIdx.x] * inputs, to = (size_t)blockIdx.x * inputs;
    for (int i = threadIdx.x; i < inputs; i += 256) {
        out[to + i] = BFLOAT16 ? __uint_as_float((u32)((const unsigned short*)values)[from + i] << 16) : ((const float*)values)[from + i];
    }
}

extern "C" __global__ void __launch_bounds__(256) gather_float32(const void* values, const u32* ids, float* out, int inputs) {
    gather_rows<false>(values, ids, out, inputs);
}

extern "C" __global__ void __launch_bounds__(256) gather_bfloat16(const void* values, const u32* ids, float* out, int inputs) {
    gather_rows<true>(values, ids, out, inputs);
}

// activation(gate) * up; 0 is SiLU, 1 GELU's approximation with tanh. Grid: numbers / 256; 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    gated(const float* gate, const float* up, float* out, int count, GateActivation activation) {
    launch_dependents();
    wait_for_previous();
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) out[i] = gated_value(activation, gate[i], up[i]);
}

// norm(x) * silu(gate), the norm over each head of `dim`. Grid: heads of all rows; 32 threads.
extern "C" __global__ void __launch_bounds__(32)
    gated_norm(const float* x, const float* gate, const float* weight, float* out, int dim, float eps) {
    launch_dependents();
    wait_for_previous();
    const size_t head = (size_t)blockIdx.x * dim;
    const float factor = row_factor(x + head, dim, eps);
    for (int i = threadIdx.x; i < dim; i += 32) out[head + i] = x[head + i] * factor * weight[i] * silu(gate[head + i]);
}
