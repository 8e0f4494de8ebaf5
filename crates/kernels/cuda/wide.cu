// Products of many rows and quantised weights (affine, 4 or 8 bits, groups of 64), for prompts.
//
// The same weights, the same segments and the same arithmetic as skinny.cu: which of the two computes a
// row changes no bit of it.
//
// A CTA computes 128 features of 128 rows: 8 warps of 64 features and 32 rows.
#include "wide.cuh"

constexpr int WIDE_FEATURES = 128;
constexpr int WIDE_TILES = WIDE_FEATURES / TILE;
// One group of a CTA's weights and inputs: codes, scales, planes, steps.
constexpr int WIDE_SCALES = WIDE_TILES * TILE * 4;
constexpr int WIDE_STEPS = WIDE_ROWS * 8;
constexpr int wide_codes(int bits) { return WIDE_TILES * TILE * GROUP * bits / 8; }
constexpr int wide_bytes(int bits) { return wide_codes(bits) + WIDE_SCALES + WIDE_PLANES + WIDE_STEPS; }
constexpr int WIDE_THREADS = 256;
// Sums of whole segments stay in shared memory: registers hold those of the current one.
constexpr int WIDE_TOTALS = WIDE_ROWS * WIDE_FEATURES * 4;
// Groups in flight.
constexpr int wide_depth(int bits) { return bits == 4 ? 6 : 5; }
constexpr int wide_shared(int bits) { return WIDE_TOTALS + wide_depth(bits) * (wide_bytes(bits) + 16) + 128; }

template <int BITS>
__device__ __forceinline__ void wide(const Parts& parts, const u8* __restrict__ x, const float2* __restrict__ steps,
                                     int segments, int rows) {
    constexpr int WIDE_DEPTH = wide_depth(BITS), WIDE_BYTES = wide_bytes(BITS), WIDE_CODES = wide_codes(BITS);
    constexpr int GROUP_BYTES = TILE * GROUP * BITS / 8;
    DYNAMIC_SHARED(shared);
    unsigned char* memory = shared + WIDE_TOTALS;
    float4* totals = (float4*)shared + threadIdx.x;
    const u32 full = shared_address(memory + WIDE_DEPTH * WIDE_BYTES), empty = full + WIDE_DEPTH * 8;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int groups = segments * GROUPS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_DEPTH; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 8);
        barrier_fence();
    }
    __syncthreads();
    // Neighbouring CTAs share weights: rows change first.
    const int row_blocks = (rows + WIDE_ROWS - 1) / WIDE_ROWS;
    const int row_block = blockIdx.x % row_blocks;
    int first_tile = blockIdx.x / row_blocks * WIDE_TILES;
    const Part& part = parts.part[find_part(parts, first_tile)];
    const u64 keep = evict_last();
    // By the first warp.
    auto fetch = [&](int group) {
        const int slot = group % WIDE_DEPTH, in = group % GROUPS;
        const u32 to = shared_address(memory + slot * WIDE_BYTES), barrier = full + slot * 8;
        if (lane == 0) barrier_expect(barrier, WIDE_BYTES);
        __syncwarp();
        if (lane < WIDE_TILES) {
            const u8* from = part.weights + ((size_t)(first_tile + lane) * segments + group / GROUPS) * block_bytes(BITS);
            bulk_copy(to + lane * GROUP_BYTES, from + in * GROUP_BYTES, GROUP_BYTES, barrier, keep);
            bulk_copy(to + WIDE_CODES + lane * 64, from + code_bytes(BITS) + in * 64, 64, barrier, keep);
        } else if (lane == WIDE_TILES) {
            const size_t at = (size_t)row_block * groups + group;
            const u32 planes = to + WIDE_CODES + WIDE_SCALES;
            bulk_copy(planes, x + at * WIDE_PLANES, WIDE_PLANES, barrier, keep);
            bulk_copy(planes + WIDE_PLANES, steps + at * WIDE_ROWS, WIDE_STEPS, barrier, keep);
        }
    };
    launch_dependents();
    wait_for_previous();
    if (warp == 0) {
        for (int group = 0; group < min(WIDE_DEPTH - 1, groups); group++) fetch(group);
    }
    const int feature_half = warp & 1, row_quarter = warp >> 1;
    float acc[4][4][4];
#pragma unroll
    for (int i = 0; i < 64; i++) (&acc[0][0][0])[i] = 0;
    for (int group = 0; group < groups; group++) {
        const int slot = group % WIDE_DEPTH;
        const unsigned char* from = memory + slot * WIDE_BYTES;
        const int next = group + WIDE_DEPTH - 1;
        if (warp == 0 && next < groups) {
            // Its slot was used by the group before this one.
            if (group > 0) barrier_wait(empty + next % WIDE_DEPTH * 8, (group - 1) / WIDE_DEPTH & 1);
            fetch(next);
        }
        barrier_wait(full + slot * 8, group / WIDE_DEPTH & 1);
        const uint4* codes = (const uint4*)(from + feature_half * 4 * GROUP_BYTES);
        const u32* scales = (const u32*)(from + WIDE_CODES) + feature_half * 64 + g;
        const unsigned char* planes = from + WIDE_CODES + WIDE_SCALES + (row_quarter * 32 + g) * 128 + t * 16;
        const float4* pairs =
            (const float4*)(from + WIDE_CODES + WIDE_SCALES + WIDE_PLANES) + row_quarter * 16 + t;
        multiply_group<BITS>(acc, codes, scales, planes, pairs, lane);
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + slot * 8);
        if (group % GROUPS == GROUPS - 1) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float* a = acc[i / 4][i % 4];
                float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (group >= GROUPS) sum = totals[i * WIDE_THREADS];
                sum.x = sum.x + a[0], sum.y = sum.y + a[1], sum.z = sum.z + a[2], sum.w = sum.w + a[3];
                totals[i * WIDE_THREADS] = sum;
                a[0] = a[1] = a[2] = a[3] = 0;
            }
        }
    }
    const int row = row_block * WIDE_ROWS + row_quarter * 32 + 2 * t;
    const int feature = first_tile * TILE + feature_half * 64 + g;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float4 sum = totals[i * WIDE_THREADS];
        const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = row + i % 4 * 8 + (j & 1);
            if (at < rows) write_product(part, at, feature + i / 4 * 16 + (j >> 1) * 8, values[j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)
    wide_4(const __grid_constant__ Parts parts, const u8* x, const float2* steps, int segments, int rows) {
    wide<4>(parts, x, steps, segments, rows);
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)
    wide_8(const __grid_constant__ Parts parts, const u8* x, const float2* steps, int segments, int rows) {
    wide<8>(parts, x, steps, segments, rows);
}
