// Products of a few rows and quantised weights (affine, 4 or 8 bits, groups of 64), for decoding.
//
// y[m][n] = sum over segments of (sum over their groups of scale * step * dot + bias * step * total),
// where dot and total are exact integers: the arithmetic of the CPU's integer product.
//
// Weights: [N / 16][K / 512] blocks of BLOCK_BYTES. A lane's 16 bytes of a group are the A fragments of
// two m16n8k32: words (row g, inputs 0..31), (g, 32..63), (g + 8, 0..31), (g + 8, 32..63); the low
// nibbles of a word are inputs 4 t + byte, the high ones 16 + 4 t + byte (g = lane / 4, t = lane % 4).
// Codes of 8 bits are the fragments of the first m16n8k32 for all lanes, then those of the second.
// Tiles of zeros pad the inputs to whole segments and the features to multiples of 128.
//
// Inputs: integers of 16 bits as two planes of signed bytes, high and low, [M][K / 64][2][64]: of a
// plane, 16 bytes for each t, word w holding inputs 16 w + 4 t + byte. Steps [K / 64][M]: the step, and
// the step times the group's sum. See quantize.cu.
//
// Of a single row, the inputs may be float32, before a norm and a gate: every CTA then makes the integers
// itself.
//
// A warp takes whole segments of whole tiles and prefetches its own next ones by bulk copies; the
// last one to finish a tile adds its segments in ascending order. Inputs that do not fit into shared memory are
// multiplied in passes of some segments of all tiles, each pass adding to the totals of the one before.
#include "input_row.cuh"

// Tiles in flight in one CTA.
constexpr int OPEN_TILES = 4;

// Shared memory in bytes for passes of `segments`; a row in float32 takes 4 more for each input, and with several
// passes each tile of a CTA 256 more for each set.
constexpr int skinny_shared(int bits, int warps, int depth, int sets, int segments, int rows) {
    return warps * depth * block_bytes(bits) + OPEN_TILES * segments * sets * 64 * 4 +
           segments * GROUPS * rows * (128 + 8) + (warps * depth + segments) * 8 + OPEN_TILES * 4 + 256;
}

// acc = the products of 16 features and a segment of the rows, which lie `stride` apart: of the lane's features g and
// g + 8 and every fourth row from t on.
template <int BITS, int SETS>
__device__ __forceinline__ void multiply_segment(float2 (&acc)[SETS], const unsigned char* block, const uint4* inputs,
                                                 const float2* steps, int stride, int rows) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const u32* scales = (const u32*)(block + code_bytes(BITS));
#pragma unroll
    for (int s = 0; s < SETS; s++) acc[s] = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        u32 a[8];
        load_codes<BITS>(a, (const uint4*)block, i, lane);
        const u32 first = scales[i * TILE + g], second = scales[i * TILE + g + 8];
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const int column = s * 4 + (g >> 1), row = s * 4 + t;
            uint4 b = make_uint4(0, 0, 0, 0);
            float2 step = make_float2(0, 0);
            if (column < rows) b = inputs[column * stride + i * 8 + (g & 1) * 4 + t];
            if (row < rows) step = steps[i * rows + row];
            add_group(acc[s], a, first, second, b, step);
        }
    }
}

// `SETS` of 4 rows; a pass has up to `most` segments. With `ROW` the inputs are those of `from`, one row, in one pass.
template <int BITS, int WARPS, int DEPTH, int SETS, bool ROW>
__device__ __forceinline__ void skinny(const Parts& parts, const uint4* __restrict__ x,
                                       const float2* __restrict__ steps, int tiles, int segments, int rows,
                                       int most, const InputRow& from) {
    constexpr int BLOCK = block_bytes(BITS);
    DYNAMIC_SHARED(memory);
    unsigned char* ring = memory;
    float2* partial = (float2*)(ring + WARPS * DEPTH * BLOCK);
    uint4* inputs = (uint4*)(partial + OPEN_TILES * most * SETS * 32);
    float2* input_steps = (float2*)(inputs + most * GROUPS * rows * 8);
    u64* barriers = (u64*)(input_steps + most * GROUPS * rows);
    u32* arrived = (u32*)(barriers + WARPS * DEPTH + most);
    // A row in float32, or totals of several passes.
    void* rest = (void*)(((size_t)(arrived + OPEN_TILES) + 15) & ~(size_t)15);

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int own_tiles = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const int jobs = own_tiles * segments;
    unsigned char* own_ring = ring + warp * DEPTH * BLOCK;
    const u32 ring_address = shared_address(own_ring);
    const u32 barrier_address = shared_address(barriers + warp * DEPTH);
    // Of each segment of a pass.
    const u32 input_barriers = shared_address(barriers + WARPS * DEPTH);
    const u64 policy = evict_first();

    if (lane == 0) {
        for (int slot = 0; slot < DEPTH; slot++) barrier_init(barrier_address + slot * 8, 1);
        for (int i = warp; i < most && !ROW; i += WARPS) barrier_init(input_barriers + i * 8, 1);
        barrier_fence();
    }
    if (threadIdx.x < OPEN_TILES) arrived[threadIdx.x] = 0;
    auto fetch = [&](int job, int slot) {
        const int first = ROW ? 0 : job / (own_tiles * most) * most;
        const int count = ROW ? segments : min(most, segments - first), in_pass = job - first * own_tiles;
        int tile = blockIdx.x + in_pass / count * gridDim.x;
        const Part& part = parts.part[find_part(parts, tile)];
        const u8* from = part.weights + ((size_t)tile * segments + first + in_pass % count) * BLOCK;
        barrier_expect(barrier_address + slot * 8, BLOCK);
        bulk_copy(ring_address + slot * BLOCK, from, BLOCK, barrier_address + slot * 8, policy);
    };
    auto fill_ring = [&] {
        if (lane != 0) return;
        for (int i = 0; i < DEPTH; i++) {
            if (warp + i * WARPS < jobs) fetch(warp + i * WARPS, i);
        }
    };
    if (!ROW) {
        fill_ring();
        // All warps use the barriers of inputs.
        __syncthreads();
    }
    OwnInputs own_inputs;
    if (ROW) own_inputs.load_weights(from, threadIdx.x * 8);
    // Weights do not depend on the previous kernel; everything below does.
    launch_dependents();
    wait_for_previous();
    if (ROW) {
        own_inputs.load(from, threadIdx.x * 8);
        // Not before: the row would wait for all of these weights.
        fill_ring();
        quantize_row<WARPS>(from, own_inputs, (float*)rest, (float*)partial, segments * GROUPS, inputs, input_steps);
        __syncthreads();
    }

    int slot = 0, parity = 0, job = warp;
#pragma unroll 1
    for (int first = 0; first < segments; first += most) {
        const int count = ROW ? segments : min(most, segments - first), end = own_tiles * (first + count);
        if (!ROW) {
            if (first) {
                // The previous pass has read its inputs.
                __syncthreads();
                if (threadIdx.x < OPEN_TILES) arrived[threadIdx.x] = 0;
                __syncthreads();
            }
            // Segment by segment: warps start as soon as theirs is there.
            constexpr u32 BYTES = GROUPS * 128;
            const u32 step_bytes = GROUPS * rows * 8, row_bytes = count * BYTES;
            const u64 keep = evict_last();
            for (int i = warp; i < count && lane < rows; i += WARPS) {
                const u32 barrier = input_barriers + i * 8;
                if (lane == 0) {
                    barrier_expect(barrier, BYTES * rows + step_bytes);
                    bulk_copy(shared_address(input_steps) + i * step_bytes, steps + (first + i) * GROUPS * rows, step_bytes,
                              barrier, keep);
                }
                const uint4* own = x + ((size_t)lane * segments + first + i) * GROUPS * 8;
                bulk_copy(shared_address(inputs) + lane * row_bytes + i * BYTES, own, BYTES, barrier, keep);
            }
            __syncwarp();
        }
        // Of a pass.
        int tile = (job - own_tiles * first) / count, segment = (job - own_tiles * first) % count;
        for (; job < end; job += WARPS) {
            float2 acc[SETS];
            barrier_wait(barrier_address + slot * 8, parity);
            if (!ROW) barrier_wait(input_barriers + segment * 8, first / most & 1);
            multiply_segment<BITS, SETS>(acc, own_ring + slot * BLOCK, inputs + segment * GROUPS * 8,
                                         input_steps + segment * GROUPS * rows, count * GROUPS * 8, rows);
            __syncwarp();
            if (lane == 0 && job + DEPTH * WARPS < jobs) fetch(job + DEPTH * WARPS, slot);
            if (++slot == DEPTH) slot = 0, parity ^= 1;

            // A tile's partial sums are reused once its predecessor there is complete: arrivals only grow.
            const int open = tile % OPEN_TILES, generation = tile / OPEN_TILES;
            volatile u32* arrivals = arrived + open;
            while (*arrivals < (u32)(generation * (count + 1))) relax();
            float2* sums = partial + (open * most) * SETS * 32 + lane;
#pragma unroll
            for (int s = 0; s < SETS; s++) sums[(segment * SETS + s) * 32] = acc[s];
            __threadfence_block();
            __syncwarp();
            u32 before = 0;
            if (lane == 0) before = atomicAdd(arrived + open, 1);
            before = __shfl_sync(0xffffffffu, before, 0);
            if (before == (u32)(generation * (count + 1) + count - 1)) {
                __threadfence_block();
                int own = blockIdx.x + tile * gridDim.x;
                const Part& part = parts.part[find_part(parts, own)];
                const int feature = own * TILE + g;
#pragma unroll
                for (int s = 0; s < SETS; s++) {
                    float2* total = (float2*)rest + (tile * SETS + s) * 32 + lane;
                    float2 sum = make_float2(0, 0);
                    if (!ROW && first) sum = *total;
                    for (int i = 0; i < count; i++) {
                        const float2 next = sums[(i * SETS + s) * 32];
                        sum.x = sum.x + next.x;
                        sum.y = sum.y + next.y;
                    }
                    if (!ROW && first + count < segments) {
                        *total = sum;
                    } else if (s * 4 + t < rows) {
                        write_product(part, s * 4 + t, feature, sum.x);
                        write_product(part, s * 4 + t, feature + 8, sum.y);
                    }
                }
                __threadfence_block();
                __syncwarp();
                if (lane == 0) atomicAdd(arrived + open, 1);
            }
            segment += WARPS;
            while (segment >= count) segment -= count, tile++;
        }
    }
}

// A bound above the number of threads: registers are left for the next kernel's threads.
constexpr int most_threads(int warps) { return warps * 40; }

#define SKINNY(bits, warps, depth, sets)                                                                     \
    extern "C" __global__ void __launch_bounds__(most_threads(warps), 1) skinny_##bits##_##warps##_##depth##_##sets(      \
        const __grid_constant__ Parts parts, const uint4* x, const float2* steps, int tiles, int segments,    \
        int rows, int most) {                                                                                \
        skinny<bits, warps, depth, sets, false>(parts, x, steps, tiles, segments, rows, most, InputRow());   \
    }

#define SKINNY_ROW(bits, warps, depth)                                                                      \
    extern "C" __global__ void __launch_bounds__(most_threads(warps), 1) skinny_row_##bits##_##warps##_##depth(          \
        const __grid_constant__ Parts parts, const __grid_constant__ InputRow from, int tiles, int segments) { \
        skinny<bits, warps, depth, 1, true>(parts, nullptr, nullptr, tiles, segments, 1, segments, from);             \
    }

SKINNY(4, 16, 2, 1)
SKINNY(4, 16, 1, 1)
SKINNY(4, 12, 2, 1)
SKINNY(4, 8, 2, 1)
SKINNY(4, 8, 1, 1)
SKINNY(4, 16, 1, 2)
SKINNY(4, 8, 2, 2)
SKINNY(4, 8, 1, 2)
SKINNY(8, 8, 2, 1)
SKINNY(8, 8, 1, 1)
SKINNY(8, 8, 2, 2)
SKINNY(8, 8, 1, 2)
SKINNY_ROW(4, 16, 2)
SKINNY_ROW(4, 16, 1)
SKINNY_ROW(4, 8, 2)
SKINNY_ROW(4, 8, 1)
SKINNY_ROW(8, 8, 2)
SKINNY_ROW(8, 8, 1)
