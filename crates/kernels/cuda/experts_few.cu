// Products of rows and experts, a row with one expert each: for few tokens. Weights are those of skinny.cu, an expert's
// tiles after those of the one before; so are the inputs and the arithmetic.
//
// A warp has a tile of 16 features of one expert and row. It brings the tile's segments by bulk copies, several at a
// time, and adds their sums in ascending order.
#include "experts.cuh"

// Segments of a warp that are on their way together, and warps of a CTA.
constexpr int expert_depth(int format) { return bits_of(format) == 4 ? 4 : 2; }
constexpr int EXPERT_WARPS = 8;

// A lane's inputs of a group: those of its columns, if it has the row's.
struct RowGroup {
    uint4 planes;
    float2 step;
};

template <int FORMAT>
__device__ __forceinline__ void multiply_row(float2& sum, const unsigned char* block, const RowGroup (&row)[GROUPS]) {
    const int lane = threadIdx.x & 31, g = lane >> 2;
    const u32* scales = (const u32*)(block + code_bytes(FORMAT));
    float2 acc = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        u32 a[8];
        load_codes<FORMAT>(a, (const uint4*)block, i, lane);
        add_group<FORMAT>(acc, a, scales[i * TILE + g], scales[i * TILE + g + 8], row[i].planes, row[i].step);
    }
    sum.x = sum.x + acc.x, sum.y = sum.y + acc.y;
}

// `stacks` stacks and, for rows of an expert that all tokens have, as many matrices, each of the size of an expert. Row r
// of the first `assignments` has expert chosen[r] and row r / `share` of the inputs, of which there are `rows`; after
// them `shared` rows have the matrices and the inputs from `shared_inputs` on.
struct ExpertRowCounts {
    int stacks, assignments, shared, share, shared_inputs, rows, segments;
};

template <int FORMAT>
__device__ __forceinline__ void experts(const Parts& parts, const u32* chosen, const uint4* x, const float2* steps,
                                        const ExpertRowCounts& counts) {
    constexpr int BLOCK = block_bytes(FORMAT), DEPTH = expert_depth(FORMAT);
    DYNAMIC_SHARED(memory);
    __shared__ __align__(8) u64 barriers[EXPERT_WARPS * DEPTH];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    unsigned char* ring = memory + warp * DEPTH * BLOCK;
    const u32 ring_address = shared_address(ring), barrier = shared_address(barriers + warp * DEPTH);
    const u64 policy = evict_first();
    int tiles = 0;
#pragma unroll
    for (int i = 0; i < MAX_PARTS; i++) tiles += i < counts.stacks ? parts.part[i].tiles : 0;
    const int all = tiles * (counts.assignments + counts.shared), stride = gridDim.x * EXPERT_WARPS;
    const int segments = counts.segments;
    if (lane == 0) {
        for (int i = 0; i < DEPTH; i++) barrier_init(barrier + i * 8, 1);
        barrier_fence();
    }
    __syncwarp();
    launch_dependents();
    wait_for_previous();
    u32 done = 0;
#pragma unroll 1
    for (int at = blockIdx.x + gridDim.x * warp; at < all; at += stride) {
        const int row = at / tiles;
        int tile = at % tiles;
        const bool is_shared = row >= counts.assignments;
        const Part& part = parts.part[find_part(parts, tile) + (is_shared ? counts.stacks : 0)];
        const size_t expert = is_shared ? 0 : chosen[row];
        const u8* from = part.weights + (expert * part.tiles + tile) * segments * BLOCK;
        auto fetch = [&](int segment, u32 slot) {
            barrier_expect(barrier + slot * 8, BLOCK);
            bulk_copy(ring_address + slot * BLOCK, from + (size_t)segment * BLOCK, BLOCK, barrier + slot * 8, policy);
        };
        if (lane == 0) {
            for (int i = 0; i < min(DEPTH, segments); i++) fetch(i, (done + i) % DEPTH);
        }
        const int input = is_shared ? counts.shared_inputs + row - counts.assignments : row / counts.share;
        const uint4* planes = x + (size_t)input * segments * GROUPS * 8 + (g & 1) * 4 + t;
        const float2* own_steps = steps + input;
        float2 sum = make_float2(0, 0);
#pragma unroll 1
        for (int segment = 0; segment < segments; segment++, done++) {
            // Columns 0 and 1 are the row's, sums are those of lanes with t = 0.
            RowGroup own[GROUPS];
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                const int group = segment * GROUPS + i;
                own[i] = RowGroup{make_uint4(0, 0, 0, 0), make_float2(0, 0)};
                if (g < 2) own[i].planes = planes[group * 8];
                if (t == 0) own[i].step = own_steps[(size_t)group * counts.rows];
            }
            const u32 slot = done % DEPTH;
            barrier_wait(barrier + slot * 8, done / DEPTH & 1);
            multiply_row<FORMAT>(sum, ring + slot * BLOCK, own);
            __syncwarp();
            if (lane == 0 && segment + DEPTH < segments) fetch(segment + DEPTH, slot);
        }
        if (t == 0) {
            write_product(part, row, tile * TILE + g, sum.x, expert);
            write_product(part, row, tile * TILE + g + 8, sum.y, expert);
        }
    }
}

#define EXPERTS(name, format)                                                                                          \
    extern "C" __global__ void __launch_bounds__(EXPERT_WARPS * 32, 1) experts_few_##name(                                 \
        const __grid_constant__ Parts parts, const u32* chosen, const uint4* x, const float2* steps,                   \
        ExpertRowCounts counts) {                                                                                      \
        experts<format>(parts, chosen, x, steps, counts);                                                              \
    }

EXPERTS(4, 4)
EXPERTS(8, 8)
EXPERTS(mxfp4, MXFP4)
