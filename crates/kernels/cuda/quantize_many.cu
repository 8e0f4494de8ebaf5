// Inputs of products of many rows as integers (quantize.cuh), fused with what produces the rows.
//
// For wide.cu and medium.cu: [rows / 128][groups][128][2][64], the high plane first in even rows and second
// in odd ones, and steps [rows / 128][groups][128]. For wide_warpgroup.cu: blocks [rows / 64][groups], with
// their steps. A step comes with the group's sum times the step. Groups after the row's end are zeros.
//
// 8 lanes have a group of a row, 8 neighbouring inputs each.
#include "quantize.cuh"

struct ManyQuantized {
    u8* planes;
    float2* steps;
    // Inputs of a row; groups, padded to whole segments; rows; 1 for many, 2 for blocks (quantize.cu).
    int inputs;
    int groups;
    int rows;
    int layout;
};

// By whole warps: quantises and writes the lanes' inputs of a group; nothing of rows beyond the last.
__device__ __forceinline__ void write_eight(const ManyQuantized& to, int row, int group, const float (&values)[8]) {
    const QuantizedEight eight = quantize_eight(values);
    const int lane = threadIdx.x & 7, odd = lane & 1;
    if (to.layout == 2) {
        // Two lanes have 16 inputs: the first writes their high bytes, the second the low ones.
        const u32 first = __shfl_xor_sync(0xffffffffu, odd ? eight.high[0] : eight.low[0], 1);
        const u32 second = __shfl_xor_sync(0xffffffffu, odd ? eight.high[1] : eight.low[1], 1);
        if (row >= to.rows) return;
        const int r = row % BLOCK_OF_ROWS;
        u8* block = to.planes + ((size_t)(row / BLOCK_OF_ROWS) * to.groups + group) * BLOCK_OF_INPUTS;
        u8* at = block + r / 8 * 1024 + r % 2 * 512 + lane / 2 * 128 + r % 8 / 2 * 32 + odd * 16;
        *(uint4*)at = odd ? make_uint4(first, second, eight.low[0], eight.low[1])
                          : make_uint4(eight.high[0], eight.high[1], first, second);
        if (lane == 0) ((float2*)(block + BLOCK_PLANES))[r] = eight.step;
    } else if (row < to.rows) {
        const size_t at = ((size_t)(row / 128) * to.groups + group) * 128 + row % 128;
        // Input i is at byte i % 16 / 4 * 16 + i / 16 * 4 + i % 4 of a plane.
        u8* planes = to.planes + at * 128 + odd * 32 + lane / 2 * 4;
        const int high = (row & 1) * 64, low = high ^ 64;
        *(u32*)(planes + high) = eight.high[0], *(u32*)(planes + high + 16) = eight.high[1];
        *(u32*)(planes + low) = eight.low[0], *(u32*)(planes + low + 16) = eight.low[1];
        if (lane == 0) to.steps[at] = eight.step;
    }
}

// Of the calling lane; a warp has a group of every other one of 8 rows, which are neighbours in blocks.
// Grid: groups / 4, rows / 8; 256 threads.
struct Place {
    int row, group, input;

    __device__ __forceinline__ Place() {
        const int warp = threadIdx.x >> 5;
        row = blockIdx.y * 8 + (threadIdx.x & 31) / 8 * 2 + (warp & 1);
        group = blockIdx.x * 4 + warp / 2;
        input = group * GROUP + (threadIdx.x & 7) * 8;
    }
    __device__ __forceinline__ bool exists(const ManyQuantized& to) const { return row < to.rows && input < to.inputs; }
};

// Inputs as they are.
extern "C" __global__ void __launch_bounds__(256) quantize_many(ManyQuantized to, const float* x) {
    launch_dependents();
    wait_for_previous();
    const Place own;
    float values[8] = {};
    if (own.exists(to)) load_8(values, x + (size_t)own.row * to.inputs + own.input);
    write_eight(to, own.row, own.group, values);
}

// After an RMS norm of the row. Grid: rows; 128 threads; shared memory for a row.
extern "C" __global__ void __launch_bounds__(128)
    quantize_many_norm(ManyQuantized to, const float* x, const float* weight, float eps) {
    DYNAMIC_SHARED(memory);
    float* row = (float*)memory;
    __shared__ __align__(16) float sums[8];
    launch_dependents();
    wait_for_previous();
    x += (size_t)blockIdx.x * to.inputs;
#pragma unroll 8
    for (int i = threadIdx.x * 4; i < to.inputs; i += 512) *(float4*)(row + i) = *(const float4*)(x + i);
    const float factor = cta_row_factor<4>(row, to.inputs, eps, sums);
    // Four groups in a warp.
#pragma unroll 1
    for (int group = threadIdx.x / 8; group < to.groups; group += 16) {
        const int i = group * GROUP + (threadIdx.x & 7) * 8;
        float values[8] = {}, weights[8];
        if (i < to.inputs) {
            load_8(values, row + i), load_8(weights, weight + i);
#pragma unroll
            for (int k = 0; k < 8; k++) values[k] = values[k] * factor * weights[k];
        }
        write_eight(to, blockIdx.x, group, values);
    }
}

// activation(gate) * up; 0 is SiLU, 1 GELU's approximation with tanh.
extern "C" __global__ void __launch_bounds__(256)
    quantize_many_gated(ManyQuantized to, const float* gate, const float* up, int activation) {
    launch_dependents();
    wait_for_previous();
    const Place own;
    float values[8] = {};
    if (own.exists(to)) {
        const size_t at = (size_t)own.row * to.inputs + own.input;
        float gates[8], ups[8];
        load_8(gates, gate + at), load_8(ups, up + at);
#pragma unroll
        for (int k = 0; k < 8; k++) values[k] = (activation ? gelu_tanh(gates[k]) : silu(gates[k])) * ups[k];
    }
    write_eight(to, own.row, own.group, values);
}

// row_factor of `length` numbers, a multiple of 64, in each of the 8 lanes that ask for it: each has two of the
// 16 sums. By whole warps.
__device__ __forceinline__ float row_factor_of_eight(const float* row, int length, float eps) {
    float squares = 0;
#pragma unroll 1
    for (int at = 0; at < length; at += NORM_BLOCK) {
        const int end = min(at + NORM_BLOCK, length);
        float first = 0, second = 0;
#pragma unroll 8
        for (int i = at + (threadIdx.x & 7); i < end; i += 16) {
            first = __fmaf_rn(row[i], row[i], first);
            second = __fmaf_rn(row[i + 8], row[i + 8], second);
        }
        float block = first + second;
#pragma unroll
        for (int distance = 4; distance; distance /= 2) block = block + __shfl_xor_sync(0xffffffffu, block, distance);
        squares = squares + block;
    }
    return norm_factor(squares, length, eps);
}

// norm(x) * silu(gate), the norm over each head of `dim` (a multiple of 64).
extern "C" __global__ void __launch_bounds__(256)
    quantize_many_gated_norm(ManyQuantized to, const float* x, const float* gate, const float* weight, int dim,
                             float eps) {
    launch_dependents();
    wait_for_previous();
    const Place own;
    const bool exists = own.exists(to);
    const size_t row = (size_t)own.row * to.inputs;
    // A group lies inside one head. Lanes without inputs norm the first head.
    const float factor = row_factor_of_eight(x + (exists ? row + own.group * GROUP / dim * dim : 0), dim, eps);
    float values[8] = {};
    if (exists) {
        float gates[8], weights[8];
        load_8(values, x + row + own.input), load_8(gates, gate + row + own.input);
        load_8(weights, weight + own.input % dim);
#pragma unroll
        for (int k = 0; k < 8; k++) values[k] = values[k] * factor * weights[k] * silu(gates[k]);
    }
    write_eight(to, own.row, own.group, values);
}
