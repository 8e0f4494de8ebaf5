// Inputs of quantised products as integers (quantize.cuh), fused with what produces the row.
//
// Threads of a group norm its row themselves: where rows are more, quantize_many.cu is faster.
//
// For few rows (skinny.cu): planes [rows][groups][2][64], steps
// [groups][rows]. For many (wide.cu): [rows / 128][groups][128][2][64], the high plane first in even
// rows and second in odd ones, and steps [rows / 128][groups][128]. For many on Hopper: blocks of
// wide_warpgroup.cuh, [rows / 64][groups], with their steps. A step comes with the group's sum times the
// step. Groups after the row's end are zeros.
//
// Grid: groups / 8, rows; 256 threads, a warp for each group.
#include "quantize.cuh"

struct Quantized {
    u8* planes;
    float2* steps;
    // Inputs of a row; groups, padded to whole segments; rows; 0 for few rows, 1 for many, 2 for blocks.
    int inputs;
    int groups;
    int rows;
    int layout;
};

// The calling warp's group of the calling CTA's row; each lane has inputs 2 lane and 2 lane + 1.
__device__ __forceinline__ void quantize_group(const Quantized& to, int group, float first, float second) {
    const int lane = threadIdx.x & 31, row = blockIdx.y;
    const QuantizedPair pair = quantize_pair(first, second);
    u8* planes;
    int swapped = 0;
    if (to.layout == 2) {
        const int r = row % BLOCK_OF_ROWS, i = 2 * lane;
        u8* block = to.planes + ((size_t)(row / BLOCK_OF_ROWS) * to.groups + group) * BLOCK_OF_INPUTS;
        if (lane == 0) ((float2*)(block + BLOCK_PLANES))[r] = pair.step;
        planes = block + r / 8 * 1024 + r % 2 * 512 + i / 16 * 128 + r % 8 / 2 * 32 + i % 16;
        *(unsigned short*)planes = pair.high, *(unsigned short*)(planes + 16) = pair.low;
        return;
    }
    if (to.layout == 1) {
        const size_t block = (size_t)(row / 128) * to.groups + group;
        planes = to.planes + (block * 128 + row % 128) * 128;
        swapped = (row & 1) * 64;
        if (lane == 0) to.steps[block * 128 + row % 128] = pair.step;
    } else {
        planes = to.planes + ((size_t)row * to.groups + group) * 128;
        if (lane == 0) to.steps[(size_t)group * to.rows + row] = pair.step;
    }
    *(unsigned short*)(planes + pair.at + swapped) = pair.high;
    *(unsigned short*)(planes + pair.at + (swapped ^ 64)) = pair.low;
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
    __shared__ __align__(16) float sums[16];
    launch_dependents();
    const int group = own_group(), i = group * GROUP + (threadIdx.x & 31) * 2;
    // Weights do not depend on the previous kernel.
    float2 weights = make_float2(0.0f, 0.0f);
    if (i < to.inputs) weights = *(const float2*)(weight + i);
    wait_for_previous();
    x += (size_t)blockIdx.y * to.inputs;
#pragma unroll 1
    for (int first = threadIdx.x * 4; first < to.inputs; first += 4096) {
        // All are loaded before the first is stored.
        float4 own[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + k * 1024 < to.inputs) own[k] = *(const float4*)(x + first + k * 1024);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + k * 1024 < to.inputs) *(float4*)(row + first + k * 1024) = own[k];
    }
    const float factor = cta_row_factor<8>(row, to.inputs, eps, sums);
    float first = 0, second = 0;
    if (i < to.inputs) first = row[i] * factor * weights.x, second = row[i + 1] * factor * weights.y;
    quantize_group(to, group, first, second);
}

// activation(gate) * up; 0 is SiLU, 1 GELU's approximation with tanh.
extern "C" __global__ void __launch_bounds__(256)
    quantize_gated(Quantized to, const float* gate, const float* up, GateActivation activation) {
    launch_dependents();
    wait_for_previous();
    const int group = own_group(), i = group * GROUP + (threadIdx.x & 31) * 2;
    const size_t at = (size_t)blockIdx.y * to.inputs + i;
    float first = 0, second = 0;
    if (i < to.inputs) {
        const float2 g = *(const float2*)(gate + at), u = *(const float2*)(up + at);
        first = gated_value(activation, g.x, u.x), second = gated_value(activation, g.y, u.y);
    }
    quantize_group(to, group, first, second);
}

// norm(x) * silu(gate), the norm over each head of `dim` (a multiple of 64).
extern "C" __global__ void __launch_bounds__(256)
    quantize_gated_norm(Quantized to, const float* x, const float* gate, const float* weight, int dim, float eps) {
    launch_dependents();
    const int group = own_group(), i = group * GROUP + (threadIdx.x & 31) * 2;
    const size_t at = (size_t)blockIdx.y * to.inputs + i;
    float first = 0, second = 0;
    const float2 weights = *(const float2*)(weight + i % dim);
    wait_for_previous();
    // Whole warps: a group lies inside one head.
    if (group * GROUP < to.inputs) {
        const float2 value = *(const float2*)(x + at), g = *(const float2*)(gate + at);
        const float factor = row_factor(x + (size_t)blockIdx.y * to.inputs + group * GROUP / dim * dim, dim, eps);
        first = value.x * factor * weights.x * silu(g.x);
        second = value.y * factor * weights.y * silu(g.y);
    }
    quantize_group(to, group, first, second);
}
