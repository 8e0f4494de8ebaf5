// Products of rows and matrices of floats, as on the CPU: of float32, for routers of experts
// (kernels/src/linear/float32), and of bfloat16, whose rows are rounded to bfloat16 (kernels/src/linear/bfloat16, the
// order of lanes). An output is 16 sums along the inputs, added as a tree.
//
// Half a warp has an output of a row or, of many rows, several of each; a lane has one of the 16 sums of all.
#include "math.cuh"

struct FloatProduct {
    const float* x;
    const void* weights;
    // Both optional: a number for each output, and what the product is added to, like `out`.
    const float* bias;
    const float* stream;
    float* out;
    int rows, outputs, inputs;
};

// The nearest number in bfloat16, ties to even.
__device__ __forceinline__ float round_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    if (x != x) return __uint_as_float((bits | 0x400000u) & 0xffff0000u);
    return __uint_as_float((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);
}

// A lane's inputs of a line: every sixteenth number.
struct Float32Line {
    static constexpr int INPUTS = 1;
    float w, v;
    __device__ __forceinline__ void load_weight(const void* weights, size_t at) { w = ((const float*)weights)[at]; }
    __device__ __forceinline__ void load_input(const float* x, size_t at) { v = x[at]; }
    __device__ static float add(float sum, const Float32Line& weight, const Float32Line& input) {
        return __fmaf_rn(weight.w, input.v, sum);
    }
};

// Every sixteenth pair.
struct Bfloat16Line {
    static constexpr int INPUTS = 2;
    u32 w;
    float2 v;
    __device__ __forceinline__ void load_weight(const void* weights, size_t at) { w = ((const u32*)weights)[at / 2]; }
    __device__ __forceinline__ void load_input(const float* x, size_t at) {
        const float2 both = *(const float2*)(x + at);
        v = make_float2(round_bf16(both.x), round_bf16(both.y));
    }
    __device__ static float add(float sum, const Bfloat16Line& weight, const Bfloat16Line& input) {
        return __fmaf_rn(low_bf16(weight.w), input.v.x, __fmaf_rn(high_bf16(weight.w), input.v.y, sum));
    }
};

// Products of `ROWS` rows and `OUTPUTS` outputs, from a first row and output on. A step loads `STEP` lines ahead.
template <class Line, int ROWS, int OUTPUTS, int STEP>
__device__ __forceinline__ void float_product(const FloatProduct& p) {
    constexpr int LINE = 16 * Line::INPUTS;
    const int lane = threadIdx.x & 15, half = blockIdx.x * (blockDim.x / 16) + threadIdx.x / 16;
    const int first_output = half * OUTPUTS, first_row = blockIdx.y * ROWS;
    launch_dependents();
    wait_for_previous();
    // Whole warps go on: lanes of both halves reduce together. Those without work compute the last output or row again.
    size_t weight_at[OUTPUTS], input_at[ROWS];
#pragma unroll
    for (int j = 0; j < OUTPUTS; j++) weight_at[j] = (size_t)min(first_output + j, p.outputs - 1) * p.inputs;
#pragma unroll
    for (int i = 0; i < ROWS; i++) input_at[i] = (size_t)min(first_row + i, p.rows - 1) * p.inputs;
    float sums[ROWS][OUTPUTS] = {};
    int at = lane * Line::INPUTS;
#pragma unroll 1
    for (; at + (STEP - 1) * LINE < p.inputs; at += STEP * LINE) {
        Line weights[STEP][OUTPUTS], inputs[STEP][ROWS];
#pragma unroll
        for (int s = 0; s < STEP; s++) {
#pragma unroll
            for (int j = 0; j < OUTPUTS; j++) weights[s][j].load_weight(p.weights, weight_at[j] + at + s * LINE);
#pragma unroll
            for (int i = 0; i < ROWS; i++) inputs[s][i].load_input(p.x, input_at[i] + at + s * LINE);
        }
#pragma unroll
        for (int s = 0; s < STEP; s++) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
#pragma unroll
                for (int j = 0; j < OUTPUTS; j++) sums[i][j] = Line::add(sums[i][j], weights[s][j], inputs[s][i]);
            }
        }
    }
#pragma unroll 1
    for (; at < p.inputs; at += LINE) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int j = 0; j < OUTPUTS; j++) {
                Line weight, input;
                weight.load_weight(p.weights, weight_at[j] + at), input.load_input(p.x, input_at[i] + at);
                sums[i][j] = Line::add(sums[i][j], weight, input);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++) {
            float sum = reduce_16(sums[i][j]);
            const int row = first_row + i, output = first_output + j;
            if (lane || row >= p.rows || output >= p.outputs) continue;
            const size_t to = (size_t)row * p.outputs + output;
            if (p.bias) sum = sum + p.bias[output];
            if (p.stream) sum = sum + p.stream[to];
            p.out[to] = sum;
        }
    }
}

// Of few rows. Grid: outputs / 4, rows; 64 threads.
#define FEW(name, line, step)                                                                                           \
    extern "C" __global__ void __launch_bounds__(64) name(const __grid_constant__ FloatProduct p) { float_product<line, 1, 1, step>(p); }
FEW(float_product_few, Float32Line, 32)
FEW(bfloat16_product_few, Bfloat16Line, 16)

// Of many. Grid: outputs / 64, rows / 4; 256 threads.
#define MANY(name, line)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ FloatProduct p) { float_product<line, 4, 4, 2>(p); }
MANY(float_product_many, Float32Line)
MANY(bfloat16_product_many, Bfloat16Line)
