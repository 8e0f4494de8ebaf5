// Products of 9 to 64 rows by warpgroups (Hopper), with the weights, segments and arithmetic of medium.cu and the
// inputs of wide_warpgroup.cuh.
//
// A CTA computes one tile of features and rows after another. Its warpgroups are workers: each takes every n-th
// segment of the CTA's tiles. Sums of segments are added in ascending order, each warp after the same warp of the
// worker before. For each worker one more warp brings weights and inputs to a ring: weights before the previous
// kernel has ended. While a warpgroup scales and adds, products of the others are computed.
#pragma once
#include "experts.cuh"
#include "warpgroup.cuh"

// For measurements: leave parts out. Products of other modes than 0 are wrong.
constexpr int WITHOUT_PRODUCTS = 1, WITHOUT_SCALING = 2, WITHOUT_COPIES = 4;

// Weights come by pieces of this many groups.
constexpr int MEDIUM_PIECE = 4;

// Tiles of 64 features and `CHUNKS` times 32 rows; with `EXPERTS` those of one expert.
template <int FORMAT_, int CHUNKS_, int MODE_ = 0, bool EXPERTS_ = false>
struct MediumTiling {
    static constexpr int FORMAT = FORMAT_, BITS = bits_of(FORMAT), CHUNKS = CHUNKS_, MODE = MODE_, WORKERS = 4;
    static constexpr bool EXPERTS = EXPERTS_;
    static constexpr int TILES = 4, ROWS = CHUNKS * 32, THREADS = WORKERS * 128;
    // With those that bring data, a warp for each worker: they give registers to the others.
    static constexpr int ALL_THREADS = THREADS + 128, SHARE = 65536 / ALL_THREADS / 8 * 8, KEPT = 32;
    static constexpr int TAKEN = (SHARE * ALL_THREADS - KEPT * 128) / THREADS / 8 * 8;
    // Sums of a thread.
    static constexpr int SUMS = CHUNKS * 16;
    // Codes of a group and of a piece, and all bytes of a piece, for a tile of 16 features.
    static constexpr int GROUP_CODES = TILE * GROUP * BITS / 8, PIECE_CODES = MEDIUM_PIECE * GROUP_CODES;
    static constexpr int PIECE_BYTES = PIECE_CODES + MEDIUM_PIECE * TILE * 4;
    // Shared memory: totals of segments; turns of warps to add to them, the number of all segments and each warp's
    // next one; a ring for each worker.
    static constexpr int TOTALS = 64 * ROWS * 4, PIECES = 2, STAGE = TILES * PIECE_BYTES;
    static constexpr int PLANES = ROWS * 2 * GROUP, SLOT = PLANES + ROWS * 8;
    // Turns are 4, the number of all segments has 16 bytes.
    static constexpr int ALL = TOTALS + 16, NEXT = ALL + 16, TURNS = 128, BARRIERS = 256;
    static constexpr int ROOM = ((227 << 10) - TOTALS - TURNS) / WORKERS - PIECES * STAGE - BARRIERS;
    // A segment's groups begin at the first slot.
    static constexpr int SLOTS = ROOM / SLOT < 4 ? 2 : ROOM / SLOT < 8 ? 4 : 8;
    // Groups that straight code computes; more of them need more registers than there are.
    static constexpr int STRAIGHT = CHUNKS == 1 ? MEDIUM_PIECE : FORMAT == 4 ? 2 : 1;
    // Groups of inputs that come under one barrier.
    static constexpr int TOGETHER = SLOTS < 4 || STRAIGHT < 2 ? 1 : 2;
    static constexpr int RING = PIECES * STAGE + SLOTS * SLOT + BARRIERS, SHARED = TOTALS + TURNS + WORKERS * RING;
    // In a ring: groups of inputs after pieces, then barriers: of slots that are full and empty, of pieces.
    static constexpr int INPUTS = PIECES * STAGE, FULL = RING - BARRIERS, EMPTY = FULL + SLOTS * 8;
    static constexpr int PIECE_FULL = EMPTY + SLOTS * 8, PIECE_EMPTY = PIECE_FULL + PIECES * 8;
    static_assert(ROOM / SLOT >= SLOTS && PIECES * MEDIUM_PIECE == GROUPS && NEXT + WORKERS * 16 <= TOTALS + TURNS && ROWS <= 64);
};

// A worker's ring.
template <class T>
__device__ __forceinline__ u32 medium_ring(u32 shared, int worker) { return shared + T::TOTALS + T::TURNS + worker * T::RING; }

template <class T>
__device__ __forceinline__ void medium_init(u32 ring) {
    for (int i = 0; i < T::SLOTS; i++) {
        barrier_init(ring + T::FULL + i * 8, 1), barrier_init(ring + T::EMPTY + i * 8, 4);
    }
    for (int i = 0; i < T::PIECES; i++) {
        barrier_init(ring + T::PIECE_FULL + i * 8, 1), barrier_init(ring + T::PIECE_EMPTY + i * 8, 4);
    }
    barrier_fence();
}

// The tiles of a CTA.
template <class T>
struct MediumTiles {
    int blocks, row_tiles, count;
    const ExpertTile* experts;

    __device__ __forceinline__ MediumTiles(const Parts& parts, int rows, const ExpertRows& list) {
        experts = list.tiles;
        blocks = all_tiles(parts) / 4, row_tiles = T::EXPERTS ? experts[0].expert : (rows + T::ROWS - 1) / T::ROWS;
        count = ((int)(row_tiles * blocks - blockIdx.x + gridDim.x) - 1) / (int)gridDim.x;
    }
    // Of the CTA's tile `n`: its block of 64 features, its expert, and the first row.
    __device__ __forceinline__ int block(int n) const {
        const int tile = (int)(blockIdx.x + n * gridDim.x);
        return T::EXPERTS ? tile % blocks : tile / row_tiles;
    }
    __device__ __forceinline__ ExpertTile expert(int n) const {
        return experts[1 + (int)(blockIdx.x + n * gridDim.x) / blocks];
    }
    __device__ __forceinline__ int first_row(int n) const {
        return T::EXPERTS ? expert(n).first : (int)(blockIdx.x + n * gridDim.x) % row_tiles * T::ROWS;
    }
};

// Brings what a worker needs, by a warp.
template <class T>
__device__ __forceinline__ void medium_bring(const Parts& parts, u32 ring, int worker, const u8* x, int segments, int rows,
                                             const ExpertRows& list) {
    constexpr int PER_SEGMENT = GROUPS / MEDIUM_PIECE, LATE = T::SLOTS / MEDIUM_PIECE - 1;
    const int lane = thread_index() & 31;
    const MediumTiles<T> tiles(parts, rows, list);
    const int all = tiles.count * segments, blocks = (all - worker + T::WORKERS - 1) / T::WORKERS * PER_SEGMENT;
    // The same weights are read again for other rows.
    const u64 keep = evict_last(), once = tiles.row_tiles == 1 ? evict_first() : keep;
    // The first pieces, then blocks of as many groups of inputs: a piece when the one in its place has been used.
#pragma unroll 1
    for (int block = -T::PIECES; block < blocks + (LATE > 0 ? LATE : 0); block++) {
        const int piece = block < 0 ? block + T::PIECES : block + T::PIECES - 1 - T::SLOTS / MEDIUM_PIECE;
        if ((block < 0 || piece >= T::PIECES) && piece < blocks) {
            const int n = worker + piece / PER_SEGMENT * T::WORKERS, in = piece % PER_SEGMENT * MEDIUM_PIECE;
            const u32 at = piece % T::PIECES, barrier = ring + T::PIECE_FULL + at * 8;
            barrier_wait(ring + T::PIECE_EMPTY + at * 8, piece / T::PIECES & 1 ^ 1);
            if (lane == 0) barrier_expect(barrier, T::STAGE);
            __syncwarp();
            if (lane < T::TILES) {
                int tile = tiles.block(n / segments) * T::TILES + lane;
                const Part& part = parts.part[find_part(parts, tile)];
                if (T::EXPERTS) tile += tiles.expert(n / segments).expert * part.tiles;
                const u8* from = part.weights + ((size_t)tile * segments + n % segments) * block_bytes(T::FORMAT);
                const u32 to = ring + at * T::STAGE + lane * T::PIECE_BYTES;
                bulk_copy(to, from + in * T::GROUP_CODES, T::PIECE_CODES, barrier, once);
                bulk_copy(to + T::PIECE_CODES, from + code_bytes(T::FORMAT) + in * TILE * 4, MEDIUM_PIECE * TILE * 4, barrier, once);
            }
            __syncwarp();
        }
        // Weights do not depend on the previous kernel; everything below does.
        if (block == -1) wait_for_previous();
        if (block < 0 || block >= blocks) continue;
        const int n = worker + block / PER_SEGMENT * T::WORKERS;
        int row = tiles.first_row(n / segments);
        const u8* from = x + ((size_t)(n % segments) * GROUPS + block % PER_SEGMENT * MEDIUM_PIECE) * BLOCK_OF_INPUTS;
        if (T::EXPERTS) from += (size_t)(row / BLOCK_OF_ROWS) * segments * GROUPS * BLOCK_OF_INPUTS, row %= BLOCK_OF_ROWS;
#pragma unroll 1
        for (int i = 0; i < MEDIUM_PIECE; i += T::TOGETHER, from += T::TOGETHER * BLOCK_OF_INPUTS) {
            const u32 group = block * MEDIUM_PIECE + i, at = group % T::SLOTS;
            const u32 barrier = ring + T::FULL + at / T::TOGETHER * 8, to = ring + T::INPUTS + at * T::SLOT;
            barrier_wait(ring + T::EMPTY + at / T::TOGETHER * 8, group / T::SLOTS & 1 ^ 1);
            if (lane == 0) {
                barrier_expect(barrier, T::TOGETHER * T::SLOT);
                // A slot of 64 rows is a block of inputs, so those of a pair lie on end.
                if (T::CHUNKS == 2) {
                    bulk_copy(to, from, T::TOGETHER * T::SLOT, barrier, keep);
                } else {
#pragma unroll
                    for (int g = 0; g < T::TOGETHER; g++) {
                        const u8* group = from + g * BLOCK_OF_INPUTS;
                        bulk_copy(to + g * T::SLOT, group + row / 32 * T::PLANES, T::PLANES, barrier, keep);
                        bulk_copy(to + g * T::SLOT + T::PLANES, group + BLOCK_PLANES + row * 8, 32 * 8, barrier, keep);
                    }
                }
            }
            __syncwarp();
        }
    }
}

// sums += the products of 32 rows, scaled.
__device__ __forceinline__ void medium_scale(float* sums, const int (&d)[32], const u32 (&scales)[2], const uint4 (&steps)[4]) {
    const float scale[2] = {low_bf16(scales[0]), low_bf16(scales[1])};
    const float bias[2] = {high_bf16(scales[0]), high_bf16(scales[1])};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint4 pair = steps[i / 4];
        const float step = __uint_as_float(i / 2 % 2 ? pair.z : pair.x), sum = __uint_as_float(i / 2 % 2 ? pair.w : pair.y);
        const float dot = (float)(d[2 * i] * 256 + d[2 * i + 1]);
        sums[i] = __fmaf_rn(scale[i % 2], __fmul_rn(dot, step), sums[i]);
        sums[i] = __fmaf_rn(bias[i % 2], sum, sums[i]);
    }
}

// The same of half a group of floats of 4 bits.
__device__ __forceinline__ void scale_half(float* sums, const int (&d)[32], const float2& scale, const uint4 (&steps)[4]) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint4 pair = steps[i / 4];
        const float dot = (float)(d[2 * i] * 256 + d[2 * i + 1]);
        const float step = __uint_as_float(i / 2 % 2 ? pair.z : pair.x);
        sums[i] = __fmaf_rn(i % 2 ? scale.y : scale.x, __fmul_rn(dot, step), sums[i]);
    }
}

// A warpgroup's place in the worker's ring: codes and scales of the lane in a piece, the rows' steps of its first
// slot, the description of their columns, the slot's barriers.
struct MediumPlace {
    u32 codes, scales, steps, columns, barriers;
};

// Adds the products of a piece's group `IN` to the sums of its segment; `parity` of the slot's round.
template <class T, int IN>
__device__ __forceinline__ void medium_group(float (&sums)[T::SUMS], const MediumPlace& own, u32 parity) {
    constexpr int CODES = IN * T::GROUP_CODES, SCALES = IN * TILE * 4, AT = IN % T::SLOTS, STEPS = AT * T::SLOT;
    u32 a[8], columns = own.columns;
    // Otherwise the columns of all groups would be computed beforehand, and take registers.
    hold(columns);
    const uint4 first = load_shared_16<CODES>(own.codes);
    const uint4 both[2] = {first, T::BITS == 8 ? load_shared_16<CODES + 512>(own.codes) : first};
    const u32 scales[2] = {load_shared_4<SCALES>(own.scales), load_shared_4<SCALES + 32>(own.scales)};
    if (T::BITS == 4) {
        load_codes<T::FORMAT>(a, both, 0, 0);
    } else {
        a[0] = both[0].x, a[1] = both[0].y, a[2] = both[0].z, a[3] = both[0].w;
        a[4] = both[1].x, a[5] = both[1].y, a[6] = both[1].z, a[7] = both[1].w;
    }
    pin(a);
    if (!(T::MODE & WITHOUT_COPIES) && IN % T::TOGETHER == 0) {
        barrier_wait(own.barriers + T::FULL + AT / T::TOGETHER * 8, parity);
    }
#pragma unroll
    for (int c = 0; c < T::CHUNKS; c++) {
        int d[32];
        // An address takes less than the 14 bits that it has in a description, so it can be added to.
        const u32 b = columns + (AT * T::SLOT + c * 4096) / 16;
        const u64 half = (u64)b | (u64)COLUMNS_HIGH << 32, other_half = (u64)(b + 256 / 16) | (u64)COLUMNS_HIGH << 32;
        warpgroup_begin();
        if (T::FORMAT == MXFP4) {
            wgmma_s8_s8(d, a[0], a[1], a[2], a[3], half);
        } else if (!(T::MODE & WITHOUT_PRODUCTS)) {
            wgmma_u8_s8<false>(d, a[0], a[1], a[2], a[3], half);
            wgmma_u8_s8<true>(d, a[4], a[5], a[6], a[7], other_half);
        }
        warpgroup_commit();
        uint4 steps[4];
        steps[0] = c ? load_shared_16<STEPS + 256>(own.steps) : load_shared_16<STEPS>(own.steps);
        warpgroup_wait<0>(d);
        steps[1] = c ? load_shared_16<STEPS + 256 + 64>(own.steps) : load_shared_16<STEPS + 64>(own.steps);
        steps[2] = c ? load_shared_16<STEPS + 256 + 128>(own.steps) : load_shared_16<STEPS + 128>(own.steps);
        steps[3] = c ? load_shared_16<STEPS + 256 + 192>(own.steps) : load_shared_16<STEPS + 192>(own.steps);
        if (T::FORMAT == MXFP4) {
            scale_half(sums + c * 16, d, make_float2(low_bf16(scales[0]), low_bf16(scales[1])), steps);
            warpgroup_begin();
            wgmma_s8_s8(d, a[4], a[5], a[6], a[7], other_half);
            warpgroup_commit();
            warpgroup_wait<0>(d);
        }
        if (!(T::MODE & WITHOUT_COPIES) && c == T::CHUNKS - 1 && (IN + 1) % T::TOGETHER == 0) {
            // The slot has been read.
            __syncwarp();
            if ((thread_index() & 31) == 0) barrier_arrive(own.barriers + T::EMPTY + AT / T::TOGETHER * 8);
        }
        if (T::FORMAT == MXFP4) {
            scale_half(sums + c * 16, d, make_float2(high_bf16(scales[0]), high_bf16(scales[1])), steps);
        } else if (!(T::MODE & WITHOUT_SCALING)) {
            medium_scale(sums + c * 16, d, scales, steps);
        }
    }
}

// Computes a segment's sums; `round` is the number of those that the worker has computed.
template <class T>
__device__ __forceinline__ void medium_segment(float (&sums)[T::SUMS], u32 ring, int thread, u32 round) {
    const int lane = thread & 31;
    const u32 tile = ring + thread / 32 % T::TILES * T::PIECE_BYTES, slots = ring + T::INPUTS;
    const u32 steps = slots + T::PLANES + lane % 4 * 16, columns = (u32)describe_columns(slots);
    MediumPlace own{tile + lane * 16, tile + T::PIECE_CODES + lane / 4 * 4, steps, columns, ring};
#pragma unroll 1
    for (u32 group = 0; group < GROUPS; group += T::STRAIGHT) {
        const u32 piece = group / MEDIUM_PIECE;
        if (!(T::MODE & WITHOUT_COPIES) && group % MEDIUM_PIECE == 0) barrier_wait(ring + T::PIECE_FULL + piece * 8, round & 1);
        // A segment takes all slots once, twice or four times.
        const u32 parity = T::SLOTS == GROUPS ? round & 1 : group / T::SLOTS & 1;
        medium_group<T, 0>(sums, own, parity);
        if (T::STRAIGHT >= 2) medium_group<T, 1>(sums, own, parity);
        if (T::STRAIGHT == 4) medium_group<T, 2>(sums, own, parity), medium_group<T, 3>(sums, own, parity);
        own.codes += T::STRAIGHT * T::GROUP_CODES, own.scales += T::STRAIGHT * TILE * 4;
        if (T::SLOTS > T::STRAIGHT) {
            const bool wraps = T::SLOTS < GROUPS && (group + T::STRAIGHT) % T::SLOTS == 0;
            const int slots = wraps ? T::STRAIGHT - T::SLOTS : T::STRAIGHT;
            own.steps += slots * T::SLOT, own.columns += slots * T::SLOT / 16, own.barriers += slots / T::TOGETHER * 8;
        }
        if ((group + T::STRAIGHT) % MEDIUM_PIECE == 0) {
            // The piece has been read.
            if (!(T::MODE & WITHOUT_COPIES) && (thread_index() & 31) == 0) barrier_arrive(ring + T::PIECE_EMPTY + piece * 8);
            own.codes += T::STAGE - MEDIUM_PIECE * T::GROUP_CODES, own.scales += T::STAGE - MEDIUM_PIECE * TILE * 4;
        }
    }
}

// Writes the products of a tile of the CTA: totals of a thread.
template <class T>
__device__ __forceinline__ void medium_write(const Parts& parts, const float4* totals, int tile, u32 rows, int thread,
                                             const ExpertRows& list) {
    // Computed anew, as the thread's number is.
    hold(rows);
    const MediumTiles<T> tiles(parts, rows, list);
    const int lane = thread & 31;
    int weights = tiles.block(tile) * T::TILES;
    const Part& part = parts.part[find_part(parts, weights)];
    const int feature = (weights + thread / 32 % 4) * TILE + (lane >> 2);
    int row = tiles.first_row(tile) + 2 * (lane & 3);
    const int end = T::EXPERTS ? tiles.first_row(tile) + tiles.expert(tile).rows : (int)rows;
    auto write = [&](int row, int feature, float sum) {
        const size_t expert = T::EXPERTS ? tiles.expert(tile).expert : 0;
        write_product(part, T::EXPERTS ? (int)list.order[row] : row, feature, sum, expert);
    };
#pragma unroll 1
    for (int i = 0; i < T::SUMS / 4; i++, row += 8) {
        const float4 sum = totals[i * 128];
        if (row < end) write(row, feature, sum.x), write(row, feature + 8, sum.y);
        if (row + 1 >= end) continue;
        write(row + 1, feature, sum.z), write(row + 1, feature + 8, sum.w);
    }
}

// Adds a segment's sums to those before; after the last segment writes the products.
template <class T>
__device__ __forceinline__ void medium_add(const Parts& parts, unsigned char* shared, float (&sums)[T::SUMS], int segments, int rows,
                                           const ExpertRows& list) {
    // Read anew each time, so that no register is held while products are computed.
    const int thread = thread_index(), lane = thread & 31, warp = thread / 32 % 4;
    u32* next = (u32*)(shared + T::NEXT) + thread / 32;
    const int n = *next;
    __syncwarp();
    if (lane == 0) *next = n + T::WORKERS;
    float4* totals = (float4*)shared + thread % 128;
    volatile u32* turn = (volatile u32*)(shared + T::TOTALS) + warp;
    const int segment = n % segments;
    while (*turn != (u32)n) relax();
    __threadfence_block();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < T::SUMS / 4; i++) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (segment > 0) sum = totals[i * 128];
        const float* own = sums + 4 * i;
        sum.x = sum.x + own[0], sum.y = sum.y + own[1], sum.z = sum.z + own[2], sum.w = sum.w + own[3];
        totals[i * 128] = sum;
    }
    __syncwarp();
    if (segment == segments - 1) medium_write<T>(parts, totals, n / segments, rows, thread, list);
    __threadfence_block();
    __syncwarp();
    if (lane == 0) *turn = n + 1;
}

// A warpgroup's part of all tiles of the CTA.
template <class T>
__device__ __forceinline__ void medium_consume(const Parts& parts, unsigned char* shared, int segments, int rows,
                                               const ExpertRows& list) {
    const u32 base = shared_address(shared);
#pragma unroll 1
    while (true) {
        float sums[T::SUMS];
#pragma unroll
        for (int i = 0; i < T::SUMS; i++) sums[i] = 0;
        const int thread = thread_index();
        const u32 n = load_shared_4<T::NEXT>(base + thread / 32 * 4), ring = medium_ring<T>(base, thread / 128);
        if (n >= load_shared_4<T::ALL>(base)) break;
        medium_segment<T>(sums, ring, thread, n / T::WORKERS);
        medium_add<T>(parts, shared, sums, segments, rows, list);
    }
}

// Grid: tiles, or fewer CTAs; T::ALL_THREADS threads.
template <class T>
__device__ __forceinline__ void medium_warpgroups(const Parts& parts, const u8* __restrict__ x, int segments, int rows,
                                                  const ExpertRows& list) {
    DYNAMIC_SHARED(shared);
    const u32 base = shared_address(shared);
    // With fewer threads there are fewer registers than the warpgroups wait for, for ever.
    if (blockDim.x != T::ALL_THREADS) trap();
    // The rows of experts are known only now.
    if (T::EXPERTS) launch_dependents(), wait_for_previous();
    if (threadIdx.x < T::WORKERS) medium_init<T>(medium_ring<T>(base, threadIdx.x));
    if (threadIdx.x < 4) ((u32*)(shared + T::TOTALS))[threadIdx.x] = 0;
    if (threadIdx.x % 32 == 0 && threadIdx.x < T::THREADS) {
        ((u32*)(shared + T::NEXT))[threadIdx.x / 32] = threadIdx.x / 128;
    }
    if (threadIdx.x == 32) *(u32*)(shared + T::ALL) = MediumTiles<T>(parts, rows, list).count * segments;
    __syncthreads();
    launch_dependents();
    if (threadIdx.x >= T::THREADS) {
        give_registers<T::KEPT>();
        const int worker = (threadIdx.x - T::THREADS) / 32;
        if (worker < T::WORKERS && !(T::MODE & WITHOUT_COPIES)) {
            medium_bring<T>(parts, medium_ring<T>(base, worker), worker, x, segments, rows, list);
        }
    } else {
        take_registers<T::TAKEN>();
        wait_for_previous();
        medium_consume<T>(parts, shared, segments, rows, list);
    }
}
