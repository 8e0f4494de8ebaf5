// Inputs of quantised products of few rows (skinny.cu) as integers (quantize.cuh), fused with what produces
// the rows: planes [rows][groups][2][64], steps [groups][rows]. A step comes with the group's sum times the
// step. Groups after the row's end are zeros. Rows of few are made by many threads, each of which norms its
// row itself: waiting for another would take longer.
//
// Grid: groups / 8, rows; 256 threads, a warp for each group.
#include "quantize.cuh"

struct Quantized {
    u8* planes;
    float2* steps;
    // Inputs of a row; groups, padded to whole segments; rows.
    int inputs;
    int groups;
    int rows;
    int blocks;
};

// The calling warp's group of the calling CTA's row; each lane has inputs 2 lane and 2 lane + 1.
__device__ __forceinline__ void quantize_group(const Quantized& to, int group, float first, float second) {
    const int lane = threadIdx.x & 31, row = blockIdx.y;
    const QuantizedPair pair = quantize_pair(first, second);
    u8* planes = to.planes + ((size_t)row * to.groups + group) * 128 + pair.at;
    if (lane == 0) to.steps[(size_t)group * to.rows + row] = pair.step;
    *(unsigned short*)planes = pair.high, *(unsigned short*)(planes + 64) = pair.low;
}

__device__ __forceinline__ int own_group() { return blockIdx.x * 8 + (threadIdx.x >> 5); }

// Inputs as they are.
extern "C" __global__ void __launch_bounds__(256) quantize(Quantized to, const float* x) {
    launch_dependents();
    wait_for_previous();
    const int group = own_group(), i = group * GROUP + (threadIdx.x & 31) * 2;
    float2 value = make_float2(0.0f, 0.0f);
    if (i < to.inputs) value = *(const float2*)(x + (size_t)blockIdx.y * to.inputs + i);
    quantize_group(to, group, value.x, value.y);
}

// After an RMS norm of the row.
extern "C" __global__ void __launch_bounds__(256)
    quantize_norm(Quantized to, const float* x, const float* weight, float eps) {
    DYNAMIC_SHARED(memory);
    float* row = (float*)memory;
    __shared__ float factor;
    launch_dependents();
    wait_for_previous();
    x += (size_t)blockIdx.y * to.inputs;
    for (int i = threadIdx.x; i < to.inputs; i += 256) row[i] = x[i];
    __syncthreads();
    if (threadIdx.x < 32) {
        const float own = inverse_rms(row, to.inputs, eps);
        if (threadIdx.x == 0) factor = own;
    }
    __syncthreads();
    const int group = own_group(), i = group * GROUP + (threadIdx.x & 31) * 2;
    float first = 0, second = 0;
    if (i < to.inputs) first = row[i] * factor * weight[i], second = row[i + 1] * factor * weight[i + 1];
    quantize_group(to, group, first, second);
}

// activation(gate) * up; 0 is SiLU, 1 GELU's approximation with tanh.
extern "C" __global__ void __launch_bounds__(256)
    quantize_gated(Quantized to, const float* gate, const float* up, int activation) {
    launch_dependents();
    wait_for_previous();
    const int group = own_group(), i = group * GROUP + (threadIdx.x & 31) * 2;
    const size_t at = (size_t)blockIdx.y * to.inputs + i;
    float first = 0, second = 0;
    if (i < to.inputs) {
        const float2 g = *(const float2*)(gate + at), u = *(const float2*)(up + at);
        first = (activation ? gelu_tanh(g.x) : silu(g.x)) * u.x;
        second = (activation ? gelu_tanh(g.y) : silu(g.y)) * u.y;
    }
    quantize_group(to, group, first, second);
}

// norm(x) * silu(gate), the norm over each head of `dim` (a multiple of 64).
extern "C" __global__ void __launch_bounds__(256)
    quantize_gated_norm(Quantized to, const float* x, const float* gate, const float* weight, int dim, float eps) {
    launch_dependents();
    wait_for_previous();
    const int group = own_group(), i = group * GROUP + (threadIdx.x & 31) * 2;
    const size_t at = (size_t)blockIdx.y * to.inputs + i;
    float first = 0, second = 0;
    // Whole warps: a group lies inside one head.
    if (group * GROUP < to.inputs) {
        const float factor = inverse_rms(x + (size_t)blockIdx.y * to.inputs + group * GROUP / dim * dim, dim, eps);
        const float2 value = *(const float2*)(x + at), g = *(const float2*)(gate + at);
        first = value.x * factor * weight[i % dim] * silu(g.x);
        second = value.y * factor * weight[i % dim + 1] * silu(g.y);
    }
    quantize_group(to, group, first, second);
}
