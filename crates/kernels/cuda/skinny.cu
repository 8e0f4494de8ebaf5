// Product of a few rows and a quantised weight (affine, 4 bits, groups of 64), for decoding.
//
// y[m][n] = sum over segments of (sum over their groups of scale * step * dot + bias * step * total),
// where dot and total are exact integers: the arithmetic of the CPU's integer product.
//
// Weights: [N / 16][K / 512] blocks of BLOCK_BYTES. A lane's 16 bytes of a group are the A fragments of
// two m16n8k32: words (row g, inputs 0..31), (g, 32..63), (g + 8, 0..31), (g + 8, 32..63); the low
// nibbles of a word are inputs 4 t + byte, the high ones 16 + 4 t + byte (g = lane / 4, t = lane % 4).
//
// Inputs: integers of 16 bits as two planes of signed bytes, high and low, [M][K / 64][2][64]: of a
// plane, 16 bytes for each t, word w holding inputs 16 w + 4 t + byte. Steps [K / 64][M]: the step, and
// the step times the group's sum.
//
// A warp takes whole segments of whole tiles and prefetches its own next ones by bulk copies; the
// last one to finish a tile adds its segments in ascending order.
#include "common.cuh"

// Tiles in flight in one CTA.
constexpr int OPEN_TILES = 4;

// Shared memory in bytes for these sizes.
constexpr int skinny_shared(int warps, int depth, int sets, int segments, int rows) {
    return warps * depth * BLOCK_BYTES + OPEN_TILES * segments * sets * 64 * 4 +
           segments * GROUPS * rows * (128 + 8) + warps * depth * 8 + OPEN_TILES * 4 + 256;
}

// `SETS` of 4 rows.
template <int WARPS, int DEPTH, int SETS>
__device__ __forceinline__ void skinny(const unsigned char* __restrict__ weights, const uint4* __restrict__ x,
                                       const float2* __restrict__ steps, float* __restrict__ y, int tiles,
                                       int segments, int rows, int stride) {
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* ring = memory;
    float2* partial = (float2*)(ring + WARPS * DEPTH * BLOCK_BYTES);
    uint4* inputs = (uint4*)(partial + OPEN_TILES * segments * SETS * 32);
    float2* input_steps = (float2*)(inputs + segments * GROUPS * rows * 8);
    u64* barriers = (u64*)(input_steps + segments * GROUPS * rows);
    u32* arrived = (u32*)(barriers + WARPS * DEPTH);

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int own_tiles = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const int jobs = own_tiles * segments;
    unsigned char* own_ring = ring + warp * DEPTH * BLOCK_BYTES;
    const u32 ring_address = shared_address(own_ring);
    const u32 barrier_address = shared_address(barriers + warp * DEPTH);
    const u64 policy = evict_first();

    if (lane == 0) {
        for (int slot = 0; slot < DEPTH; slot++) barrier_init(barrier_address + slot * 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < OPEN_TILES) arrived[threadIdx.x] = 0;
    auto fetch = [&](int job, int slot) {
        const size_t tile = blockIdx.x + (size_t)(job / segments) * gridDim.x;
        const unsigned char* from = weights + (tile * segments + job % segments) * BLOCK_BYTES;
        barrier_expect(barrier_address + slot * 8, BLOCK_BYTES);
        bulk_copy(ring_address + slot * BLOCK_BYTES, from, BLOCK_BYTES, barrier_address + slot * 8, policy);
    };
    if (lane == 0) {
        for (int i = 0; i < DEPTH; i++) {
            if (warp + i * WARPS < jobs) fetch(warp + i * WARPS, i);
        }
    }
    // Weights do not depend on the previous kernel; everything below does.
    launch_dependents();
    wait_for_previous();
    for (int i = threadIdx.x; i < segments * GROUPS * rows * 8; i += WARPS * 32) inputs[i] = x[i];
    for (int i = threadIdx.x; i < segments * GROUPS * rows; i += WARPS * 32) input_steps[i] = steps[i];
    __syncthreads();

    int slot = 0, parity = 0;
    int tile = warp / segments, segment = warp % segments;
    for (int job = warp; job < jobs; job += WARPS) {
        float2 acc[SETS];
#pragma unroll
        for (int s = 0; s < SETS; s++) acc[s] = make_float2(0, 0);
        barrier_wait(barrier_address + slot * 8, parity);
        const uint4* codes = (const uint4*)(own_ring + slot * BLOCK_BYTES);
        const u32* scales = (const u32*)(own_ring + slot * BLOCK_BYTES + CODE_BYTES);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const uint4 q = codes[i * 32 + lane];
            const u32 first = scales[i * TILE + g], second = scales[i * TILE + g + 8];
            const int group = segment * GROUPS + i;
            const u32 mask = 0x0f0f0f0f;
            const u32 a00 = q.x & mask, a02 = q.x >> 4 & mask, a10 = q.y & mask, a12 = q.y >> 4 & mask;
            const u32 a01 = q.z & mask, a03 = q.z >> 4 & mask, a11 = q.w & mask, a13 = q.w >> 4 & mask;
#pragma unroll
            for (int s = 0; s < SETS; s++) {
                const int column = s * 4 + (g >> 1), row = s * 4 + t;
                uint4 b = make_uint4(0, 0, 0, 0);
                float2 step = make_float2(0, 0);
                if (column < rows) b = inputs[(column * segments * GROUPS + group) * 8 + (g & 1) * 4 + t];
                if (row < rows) step = input_steps[group * rows + row];
                int c[4] = {0, 0, 0, 0};
                mma_u8_s8(c, a00, a01, a02, a03, b.x, b.y);
                mma_u8_s8(c, a10, a11, a12, a13, b.z, b.w);
                const float d0 = __fmul_rn((float)(c[0] * 256 + c[1]), step.x);
                const float d1 = __fmul_rn((float)(c[2] * 256 + c[3]), step.x);
                acc[s].x = __fmaf_rn(low_bf16(first), d0, acc[s].x);
                acc[s].x = __fmaf_rn(high_bf16(first), step.y, acc[s].x);
                acc[s].y = __fmaf_rn(low_bf16(second), d1, acc[s].y);
                acc[s].y = __fmaf_rn(high_bf16(second), step.y, acc[s].y);
            }
        }
        __syncwarp();
        if (lane == 0 && job + DEPTH * WARPS < jobs) fetch(job + DEPTH * WARPS, slot);
        if (++slot == DEPTH) slot = 0, parity ^= 1;

        // A tile's partial sums are reused once its predecessor there is complete: arrivals only grow.
        const int open = tile % OPEN_TILES, generation = tile / OPEN_TILES;
        volatile u32* count = arrived + open;
        while (*count < (u32)(generation * (segments + 1))) {}
        float2* sums = partial + (open * segments) * SETS * 32 + lane;
#pragma unroll
        for (int s = 0; s < SETS; s++) sums[(segment * SETS + s) * 32] = acc[s];
        __threadfence_block();
        __syncwarp();
        u32 before = 0;
        if (lane == 0) before = atomicAdd(arrived + open, 1);
        before = __shfl_sync(0xffffffffu, before, 0);
        if (before == (u32)(generation * (segments + 1) + segments - 1)) {
            __threadfence_block();
            const size_t at = (blockIdx.x + (size_t)tile * gridDim.x) * TILE + g;
#pragma unroll
            for (int s = 0; s < SETS; s++) {
                float2 sum = sums[s * 32];
                for (int i = 1; i < segments; i++) {
                    const float2 next = sums[(i * SETS + s) * 32];
                    sum.x = __fadd_rn(sum.x, next.x);
                    sum.y = __fadd_rn(sum.y, next.y);
                }
                if (s * 4 + t < rows) {
                    y[(size_t)(s * 4 + t) * stride + at] = sum.x;
                    y[(size_t)(s * 4 + t) * stride + at + 8] = sum.y;
                }
            }
            __threadfence_block();
            __syncwarp();
            if (lane == 0) atomicAdd(arrived + open, 1);
        }
        segment += WARPS;
        while (segment >= segments) segment -= segments, tile++;
    }
}

#define SKINNY(name, warps, depth, sets)                                                                     \
    extern "C" __global__ void __launch_bounds__(warps * 32)                                                 \
        name(const unsigned char* weights, const uint4* x, const float2* steps, float* y, int tiles,         \
             int segments, int rows, int stride) {                                                           \
        skinny<warps, depth, sets>(weights, x, steps, y, tiles, segments, rows, stride);                     \
    }
