// Inputs of products of many rows as integers (quantize.cuh), fused with what produces the rows.
//
// For wide.cu and medium.cu: [rows / 128][groups][128][2][64], the high plane first in even rows and second
// in odd ones, and steps [rows / 128][groups][128]. For wide_warpgroup.cu: blocks [rows / 64][groups], with
// their steps, of bytes or of halves. A step comes with the group's sum. Groups after the row's end are zeros.
//
// A warp has a segment of a row, a lane eight neighbouring inputs of its group lane / 8 and eight of group
// 4 + lane / 8.
#include "experts.cuh"
#include "quantize.cuh"

struct ManyQuantized {
    u8* planes;
    float2* steps;
    // Inputs of a row; groups, padded to whole segments; rows; 1 for many, 2 for blocks of bytes, 3 of halves.
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

// What a group in half precision shares. A segment has one step where it can: its groups' integers are multiplied by
// powers of two of 2^-24 to 1, which half precision holds. `ratio` is that power, `step` is that of the segment times
// 2^24; negative if it is the group's alone.
struct HalfStep {
    float ratio, step;
};

// From the bits of the largest sizes of a group and its segment; by whole warps, which agree on `is_shared`.
__device__ __forceinline__ HalfStep half_step(u32 largest, u32 segment, bool is_shared) {
    // 2^24 times a step.
    const auto scaled = [](u32 largest) { return __uint_as_float((largest & EXPONENT) + (11 << 23)); };
    if (is_shared) {
        const u32 apart = (segment & EXPONENT) - (largest & EXPONENT);
        return {has_integers(largest) ? __uint_as_float(0x3f800000u - apart) : 0.0f, has_integers(segment) ? scaled(segment) : 0.0f};
    }
    return {1.0f, has_integers(largest) ? -scaled(largest) : __uint_as_float(largest < SMALLEST_BITS ? 0x80000000u : 0xffc00000u)};
}

// Whether a group's integers fit the step of its segment. Steps from 2^-50 to 2^20 leave the sums of products far from
// the ends of float32, whatever a step multiplies first or last (see HALF_SCALES in kernels/src/cuda/tiles.rs).
__device__ __forceinline__ bool fits_segment(u32 largest, u32 segment) {
    constexpr u32 LOWEST = (127 - 50 + 13) << 23, HIGHEST = (127 + 20 + 13) << 23;
    const u32 exponent = segment & EXPONENT;
    if (segment < SMALLEST_BITS) return true;
    if (exponent < LOWEST || exponent > HIGHEST) return false;
    return largest < SMALLEST_BITS || exponent - (largest & EXPONENT) <= 24 << 23;
}

// Two rounded inputs as halves, times 2^24 and the ratio, and added to the sum.
__device__ __forceinline__ u32 halves_of(u32 rounded, float ratio, float& sum) {
    const float2 both = floats_of_halves(rounded);
    const float first = both.x * ratio, second = both.y * ratio;
    sum = sum + first + second;
    return half_pair(first * 16777216.0f, second * 16777216.0f);
}

// Where a block of 64 rows has the sum of a row's group, after which the step follows by 32 floats: rows 8 j + 2 t,
// 8 j + 2 t + 1 and those 8 further, which a thread needs together, lie on end.
__device__ __forceinline__ int place_of_sum(int row) {
    const int r = row % 32;
    return row / 32 * 64 + r / 16 * 16 + r % 8 / 2 * 4 + r / 8 % 2 * 2 + r % 2;
}

// After the last row, steps of rows that only fill its block, which must not be negative. By the lane that has the
// last row's step.
__device__ __forceinline__ void fill_steps(u8* block, int row, int rows) {
    if (row < rows - 1) return;
    for (int r = row % BLOCK_OF_ROWS + 1; r < BLOCK_OF_ROWS; r++) ((float*)(block + BLOCK_PLANES))[place_of_sum(r) + 32] = 0.0f;
}

// A segment of a row in blocks of halves.
__device__ __forceinline__ void write_halves(const ManyQuantized& to, int row, int segment, const float (&values)[2][8]) {
    const u32 largest[2] = {largest_of_eight(values[0]), largest_of_eight(values[1])};
    u32 most = max_of(largest[0], largest[1]);
    most = max_of(most, __shfl_xor_sync(0xffffffffu, most, 8));
    most = max_of(most, __shfl_xor_sync(0xffffffffu, most, 16));
    const bool fits = !any_of_warp(!fits_segment(largest[0], most) || !fits_segment(largest[1], most));
    const int lane = threadIdx.x & 31, odd = lane & 1, r = row % BLOCK_OF_ROWS;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float* own = values[half];
        const HalfStep step = half_step(largest[half], most, fits);
        const float steps = has_integers(largest[half]) ? steps_in_half(largest[half]) : 0.0f;
        float sum = 0;
        u32 halves[4];
        // Even inputs, then odd ones.
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float first = own[k % 2 * 4 + k / 2], second = own[k % 2 * 4 + k / 2 + 2];
            halves[k] = halves_of(steps > 0.0f ? round_pair(first, second, steps) : 0, step.ratio, sum);
        }
        // Two lanes have 16 inputs: the first writes the even ones, the second the odd ones.
        const u32 third = __shfl_xor_sync(0xffffffffu, odd ? halves[0] : halves[2], 1);
        const u32 fourth = __shfl_xor_sync(0xffffffffu, odd ? halves[1] : halves[3], 1);
#pragma unroll
        for (int distance = 4; distance; distance /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, distance);
        if (row >= to.rows) continue;
        const int group = segment * GROUPS + half * 4 + lane / 8;
        u8* block = to.planes + ((size_t)(row / BLOCK_OF_ROWS) * to.groups + group) * BLOCK_OF_INPUTS;
        *(uint4*)(block + r / 8 * 1024 + lane % 8 * 128 + r % 8 * 16) =
            odd ? make_uint4(third, fourth, halves[2], halves[3]) : make_uint4(halves[0], halves[1], third, fourth);
        float* shared_by_group = (float*)(block + BLOCK_PLANES) + place_of_sum(r);
        if (lane % 8 == 0) shared_by_group[0] = sum, shared_by_group[32] = step.step, fill_steps(block, row, to.rows);
    }
}

// A segment of a row, by a warp.
__device__ __forceinline__ void write_segment(const ManyQuantized& to, int row, int segment, const float (&values)[2][8]) {
    if (to.layout == 3) return write_halves(to, row, segment, values);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        write_eight(to, row, segment * GROUPS + half * 4 + (threadIdx.x & 31) / 8, values[half]);
    }
}

// The first of the calling lane's inputs of each half of a segment.
__device__ __forceinline__ int first_input(int segment, int half) {
    return segment * SEGMENT + half * (SEGMENT / 2) + (threadIdx.x & 31) * 8;
}

// The row of each place, by expert (router.cu), `share` of which have the same row of inputs. Without rows each is in its
// own place.
struct RowOrder {
    const u32* rows;
    int share;
};

// The row of inputs of the calling warp's place, or NO_ROW.
__device__ __forceinline__ u32 source_row(const ManyQuantized& to, const RowOrder& order, int place) {
    if (place >= to.rows) return NO_ROW;
    if (!order.rows) return place;
    const u32 row = order.rows[place];
    return row == NO_ROW ? row : row / order.share;
}

// Inputs as they are. Grid: segments, rows / 8; 256 threads, as of those below.
extern "C" __global__ void __launch_bounds__(256) quantize_many(ManyQuantized to, const float* x, RowOrder order) {
    launch_dependents();
    wait_for_previous();
    const int row = blockIdx.y * 8 + threadIdx.x / 32;
    const u32 source = source_row(to, order, row);
    if (source == NO_ROW) return;
    float values[2][8] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = first_input(blockIdx.x, half);
        if (i < to.inputs) load_8(values[half], x + (size_t)source * to.inputs + i);
    }
    write_segment(to, row, blockIdx.x, values);
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
#pragma unroll 1
    for (int segment = threadIdx.x / 32; segment < to.groups / GROUPS; segment += 4) {
        float values[2][8] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = first_input(segment, half);
            if (i >= to.inputs) continue;
            float weights[8];
            load_8(values[half], row + i), load_8(weights, weight + i);
#pragma unroll
            for (int k = 0; k < 8; k++) values[half][k] = values[half][k] * factor * weights[k];
        }
        write_segment(to, blockIdx.x, segment, values);
    }
}

// activation(gate) * up; 0 is SiLU, 1 GELU's approximation with tanh.
extern "C" __global__ void __launch_bounds__(256)
    quantize_many_gated(ManyQuantized to, const float* gate, const float* up, GateActivation activation, RowOrder order) {
    launch_dependents();
    wait_for_previous();
    const int row = blockIdx.y * 8 + threadIdx.x / 32;
    const u32 source = source_row(to, order, row);
    if (source == NO_ROW) return;
    float values[2][8] = {}, gates[2][8], ups[2][8];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = first_input(blockIdx.x, half);
        const size_t at = (size_t)source * to.inputs + i;
        if (i < to.inputs) load_8(gates[half], gate + at), load_8(ups[half], up + at);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (first_input(blockIdx.x, half) >= to.inputs) continue;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            values[half][k] = gated_value(activation, gates[half][k], ups[half][k]);
        }
    }
    write_segment(to, row, blockIdx.x, values);
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
    const int row = blockIdx.y * 8 + threadIdx.x / 32;
    float values[2][8] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = first_input(blockIdx.x, half);
        const bool exists = row < to.rows && i < to.inputs;
        const size_t at = (size_t)row * to.inputs;
        // A group lies inside one head. Lanes without inputs norm the first head.
        const float factor = row_factor_of_eight(x + (exists ? at + i / dim * dim : 0), dim, eps);
        if (!exists) continue;
        float gates[8], weights[8];
        load_8(values[half], x + at + i), load_8(gates, gate + at + i);
        load_8(weights, weight + i % dim);
#pragma unroll
        for (int k = 0; k < 8; k++) values[half][k] = values[half][k] * factor * weights[k] * silu(gates[k]);
    }
    write_segment(to, row, blockIdx.x, values);
}
