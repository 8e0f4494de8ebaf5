// The merge of the blocks of a token's attention (attention_token.cuh), from first to last.
#pragma once
#include "attention_token.cuh"

// Columns of a query that a CTA merges at a time, and blocks that are there at once.
constexpr int MERGED_COLUMNS = 32, MERGED_BLOCKS = 512;

struct MergeShared {
    __align__(16) float sums[MERGED_BLOCKS][MERGED_COLUMNS];
    float totals[MERGED_BLOCKS];
    // Factors of what was there before a block, and of the block.
    float before[MERGED_BLOCKS], now[MERGED_BLOCKS];
    // The largest score of each warp's blocks.
    float largest[MERGED_BLOCKS / 32];
};

// Factors of `count` blocks, whose largest scores and sums of weights are at `parts`, by a thread for each block. `most`
// is the largest score before them, and then that with them.
template <int THREADS>
__device__ __forceinline__ void merged_factors(MergeShared& shared, const float* parts, int count, float& most) {
    const int thread = thread_index(), lane = thread & 31, warp = thread / 32;
    float2 part = make_float2(-INFINITY, 0.0f);
    if (thread < count) part = *(const float2*)(parts + (size_t)thread * QUAD * PARTIAL);
    // Maxima do not depend on their order.
    float next = part.x > -INFINITY ? part.x : -INFINITY;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const float other = __shfl_sync(0xffffffffu, next, lane < distance ? lane : lane - distance);
        next = other > next ? other : next;
    }
    if (lane == 31) shared.largest[warp] = next;
    sync_threads(0, THREADS);
    float earlier = most;
    for (int w = 0; w < MERGED_BLOCKS / 32; w++) {
        const float other = shared.largest[w];
        if (w < warp) earlier = other > earlier ? other : earlier;
        most = other > most ? other : most;
    }
    next = earlier > next ? earlier : next;
    float previous = __shfl_sync(0xffffffffu, next, lane ? lane - 1 : 0);
    if (lane == 0) previous = earlier;
    if (thread >= count) return;
    shared.totals[thread] = part.y;
    shared.before[thread] = exact_exp(previous - next), shared.now[thread] = exact_exp(part.x - next);
}

// Merges and writes the quotients: of MERGED_COLUMNS columns of a query head at a time, a lane of the first warp for each.
template <int THREADS, class Wait>
__device__ __forceinline__ void attention_merge(MergeShared& shared, const TokenAttention& own, const Wait& wait) {
    static_assert(THREADS == MERGED_BLOCKS && MERGED_COLUMNS == 32, "a thread has a block");
    constexpr int FOURS = MERGED_COLUMNS / 4;
    const int thread = thread_index(), slices = own.dim / MERGED_COLUMNS, jobs = own.heads * slices;
    const int group = own.heads / own.kv_heads;
    bool waited = false;
#pragma unroll 1
    for (int job = blockIdx.x; job < jobs || !waited; job += gridDim.x) {
        const bool has = job < jobs, has_output = has && thread < MERGED_COLUMNS;
        const int head = job / slices, column = job % slices * MERGED_COLUMNS, key_head = head / group, query = head % group;
        const size_t quad = key_head * own.quads + query / QUAD;
        const size_t slice = quad * (own.dim / SLICE) + column / SLICE;
        const float* parts = own.partials + (slice * own.blocks * QUAD + query % QUAD) * PARTIAL;
        const float gate = has_output ? own.outputs.load(head, column + thread) : 0.0f;
        if (!waited) wait();
        waited = true;
        if (!has) break;
        float most = -INFINITY, total = 0, sum = 0;
#pragma unroll 1
        for (int start = 0; start < own.blocks; start += MERGED_BLOCKS) {
            const int count = min(MERGED_BLOCKS, own.blocks - start);
            const float* from = parts + (size_t)start * QUAD * PARTIAL;
#pragma unroll 1
            for (int i = thread; i < count * FOURS; i += THREADS)
                copy_16(shared_address(&shared.sums[i / FOURS][i % FOURS * 4]),
                        from + (size_t)(i / FOURS) * QUAD * PARTIAL + column % SLICE + i % FOURS * 4);
            commit_copies();
            merged_factors<THREADS>(shared, from + SLICE, count, most);
            wait_for_copies<0>();
            sync_threads(0, THREADS);
            if (has_output) {
#pragma unroll 4
                for (int b = 0; b < count; b++) {
                    const float before = shared.before[b], now = shared.now[b];
                    total = __fmaf_rn(before, total, now * shared.totals[b]);
                    sum = __fmaf_rn(before, sum, shared.sums[b][thread] * now);
                }
            }
            sync_threads(0, THREADS);
        }
        if (has_output) {
            if (own.outputs.sinks) sum = sum * own.outputs.add_sink(total, most, head);
            own.out[(size_t)head * own.dim + column + thread] = gated_output(own.outputs, sum / total, gate);
        }
    }
}
