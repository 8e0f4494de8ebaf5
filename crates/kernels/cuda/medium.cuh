// Products of some rows, by warps: medium.cu and experts_many.cu.
//
// The same weights, segments and arithmetic as skinny.cu, inputs as wide.cuh lays them out. A CTA computes
// 64 features of all rows, a warp 32 rows of them and every n-th segment; sums of segments are added in
// ascending order, each by the warp whose turn it is. A warp brings its own weights and inputs.
#pragma once
#include "experts.cuh"
#include "wide.cuh"

constexpr int MEDIUM_TILES = 4, MEDIUM_WARPS = 8;
// A warp's group: codes and scales of 64 features, planes and steps of 32 rows.
constexpr int MEDIUM_SCALES = MEDIUM_TILES * TILE * 4, MEDIUM_PLANES = 32 * 2 * GROUP, MEDIUM_STEPS = 32 * 8;
constexpr int medium_codes(int format) { return MEDIUM_TILES * TILE * GROUP * bits_of(format) / 8; }
constexpr int medium_bytes(int format) { return medium_codes(format) + MEDIUM_SCALES + MEDIUM_PLANES + MEDIUM_STEPS; }
// Groups in flight.
constexpr int medium_depth(int format) { return bits_of(format) == 4 ? 4 : 3; }
// Sums of 64 features and 64 rows.
constexpr int MEDIUM_TOTALS = 64 * 64 * 4;
constexpr int medium_shared(int format) {
    return MEDIUM_TOTALS + MEDIUM_WARPS * medium_depth(format) * medium_bytes(format) + 16;
}

// Grid: tiles of all parts / 4; 256 threads. `HALVES` of 32 rows each. With `EXPERTS` the rows are those of tile after
// tile of `list`, 32 of one expert.
template <int FORMAT, int HALVES, bool EXPERTS>
__device__ __forceinline__ void medium(const Parts& parts, const u8* __restrict__ x,
                                       const float2* __restrict__ steps, int segments, int rows, const ExpertRows& list) {
    constexpr int WORKERS = MEDIUM_WARPS / HALVES, DEPTH = medium_depth(FORMAT), BYTES = medium_bytes(FORMAT);
    constexpr int CODES = medium_codes(FORMAT), GROUP_BYTES = TILE * GROUP * bits_of(FORMAT) / 8;
    DYNAMIC_SHARED(memory);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int half = warp % HALVES, worker = warp / HALVES;
    float4* totals = (float4*)memory + half * 16 * 32 + lane;
    unsigned char* ring = memory + MEDIUM_TOTALS + warp * DEPTH * BYTES;
    // The segment to be added next, for each half of the rows.
    u32* turns = (u32*)(memory + MEDIUM_TOTALS + MEDIUM_WARPS * DEPTH * BYTES);
    if (threadIdx.x < HALVES) turns[threadIdx.x] = 0;
    __syncthreads();
    int first_tile = blockIdx.x * MEDIUM_TILES;
    ExpertTile own_rows = {0, 0, 0, 0};
    if (EXPERTS) {
        launch_dependents();
        wait_for_previous();
        const int tiles = all_tiles(parts), at = first_tile / tiles;
        if (at >= list.tiles[0].expert) return;
        own_rows = list.tiles[1 + at], first_tile %= tiles;
    }
    const Part& part = parts.part[find_part(parts, first_tile)];
    const int weight_tile = first_tile + (EXPERTS ? own_rows.expert * part.tiles : 0);
    if (EXPERTS) rows = own_rows.rows;
    auto out_row = [&](int row) { return EXPERTS ? (int)list.order[own_rows.first + row] : row; };
    const int groups = (segments - worker + WORKERS - 1) / WORKERS * GROUPS;
    auto segment_of = [&](int group) { return worker + group / GROUPS * WORKERS; };
    auto fetch_weights = [&](int group) {
        const u32 to = shared_address(ring + group % DEPTH * BYTES);
        const int in = group % GROUPS;
        const u8* from = part.weights + ((size_t)weight_tile * segments + segment_of(group)) * block_bytes(FORMAT);
        const size_t tile = (size_t)segments * block_bytes(FORMAT);
#pragma unroll
        for (int i = 0; i < CODES / 512; i++) {
            const int at = i * 512 + lane * 16;
            copy_16(to + at, from + at / GROUP_BYTES * tile + in * GROUP_BYTES + at % GROUP_BYTES);
        }
        if (lane < 16) {
            const u8* scales = from + lane / 4 * tile + code_bytes(FORMAT) + in * 64;
            copy_16(to + CODES + lane * 16, scales + lane % 4 * 16);
        }
    };
    auto fetch_inputs = [&](int group) {
        const u32 to = shared_address(ring + group % DEPTH * BYTES) + CODES + MEDIUM_SCALES;
        const size_t at = ((size_t)(own_rows.first / WIDE_ROWS) * segments + segment_of(group)) * GROUPS + group % GROUPS;
        const int own = half + own_rows.first % WIDE_ROWS / 32;
        const u8* from = x + at * WIDE_PLANES + own * MEDIUM_PLANES + lane * 16;
#pragma unroll
        for (int i = 0; i < MEDIUM_PLANES / 512; i++) copy_16(to + i * 512 + lane * 16, from + i * 512);
        if (lane < 16) copy_16(to + MEDIUM_PLANES + lane * 16, steps + at * WIDE_ROWS + own * 32 + lane * 2);
    };
    // Weights do not depend on the previous kernel; everything below does.
    for (int group = 0; group < min(DEPTH - 1, groups); group++) fetch_weights(group);
    launch_dependents();
    wait_for_previous();
    for (int group = 0; group < DEPTH - 1; group++) {
        if (group < groups) fetch_inputs(group);
        commit_copies();
    }
    float acc[4][4][4];
#pragma unroll 1
    for (int group = 0; group < groups; group++) {
        if (group % GROUPS == 0) {
#pragma unroll
            for (int i = 0; i < 64; i++) (&acc[0][0][0])[i] = 0;
        }
        wait_for_copies<DEPTH - 2>();
        __syncwarp();
        if (group + DEPTH - 1 < groups) fetch_weights(group + DEPTH - 1), fetch_inputs(group + DEPTH - 1);
        commit_copies();
        const unsigned char* from = ring + group % DEPTH * BYTES;
        const u32* scales = (const u32*)(from + CODES) + g;
        const unsigned char* planes = from + CODES + MEDIUM_SCALES;
        const float4* pairs = (const float4*)(planes + MEDIUM_PLANES) + t;
        multiply_group<FORMAT>(acc, (const uint4*)from, scales, planes + g * 128 + t * 16, pairs, lane);
        if (group % GROUPS < GROUPS - 1) continue;
        const int segment = segment_of(group);
        volatile u32* turn = turns + half;
        while (*turn != (u32)segment) relax();
        __threadfence_block();
        __syncwarp();
        const int row = half * 32 + 2 * t, feature = first_tile * TILE + g;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float* own = acc[i / 4][i % 4];
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (segment > 0) sum = totals[i * 32];
            sum.x = sum.x + own[0], sum.y = sum.y + own[1], sum.z = sum.z + own[2], sum.w = sum.w + own[3];
            totals[i * 32] = sum;
        }
        if (segment == segments - 1) {
#pragma unroll 1
            for (int i = 0; i < 16; i++) {
                const float4 sum = totals[i * 32];
                const int at = row + i % 4 * 8, to = feature + i / 4 * 16;
                auto write = [&](int row, int feature, float value) {
                    write_product(part, out_row(row), feature, value, own_rows.expert);
                };
                if (at < rows) write(at, to, sum.x), write(at, to + 8, sum.z);
                if (at + 1 < rows) write(at + 1, to, sum.y), write(at + 1, to + 8, sum.w);
            }
        }
        __threadfence_block();
        __syncwarp();
        if (lane == 0) *turn = segment + 1;
    }
}
