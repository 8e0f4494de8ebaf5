// Products of 9 to 64 rows by warpgroups (Hopper), with the weights, segments and arithmetic of medium.cu and the
// inputs of wide_warpgroup.cuh.
//
// A CTA computes one tile of features and rows after another. Its warpgroups are workers: each worker, one or
// more warpgroups side by side, takes every n-th segment of the CTA's tiles. Sums of segments are added in
// ascending order, each warp after the same warp of the worker before. One more warp brings weights and inputs, to
// a ring of each worker: weights before the previous kernel has ended. While a warpgroup scales and adds, products
// of the others are computed. A pair of CTAs (a cluster) may compute neighbouring features of the same rows: each
// brings every second group of inputs to both.
#pragma once
#include "warpgroup.cuh"

// For measurements: leave parts out. Products of other modes than 0 are wrong.
constexpr int WITHOUT_PRODUCTS = 1, WITHOUT_SCALING = 2, WITHOUT_COPIES = 4;

// Weights come by pieces of this many groups.
constexpr int MEDIUM_PIECE = 4;

// `EACH` times 64 features and `CHUNKS` times 32 rows of a warpgroup; of a worker, warpgroups side by side: `WIDE`
// for features, `HIGH` for rows. `CTAS` on a multiprocessor, `PAIRED` of a cluster.
template <int BITS_, int EACH_, int CHUNKS_, int WIDE_, int HIGH_, int WORKERS_, int CTAS_, int PAIRED_, int MODE_ = 0>
struct MediumTiling {
    static constexpr int BITS = BITS_, EACH = EACH_, CHUNKS = CHUNKS_, WIDE = WIDE_, HIGH = HIGH_;
    static constexpr int MODE = MODE_, WORKERS = WORKERS_, CTAS = CTAS_, PAIRED = PAIRED_, TEAM = WIDE * HIGH;
    static constexpr int FEATURE_BLOCKS = EACH * WIDE, TILES = FEATURE_BLOCKS * 4, HALVES = CHUNKS * HIGH;
    static constexpr int ROWS = HALVES * 32, THREADS = WORKERS * TEAM * 128;
    // With those that bring data, of which a warp does: they give registers to the others.
    static constexpr int ALL_THREADS = THREADS + 128, SHARE = 65536 / CTAS / ALL_THREADS / 8 * 8, KEPT = 32;
    static constexpr int TAKEN = (SHARE * ALL_THREADS - KEPT * 128) / THREADS / 8 * 8;
    // Sums of a thread.
    static constexpr int SUMS = EACH * CHUNKS * 16;
    // Codes of a group and of a piece, and all bytes of a piece, for a tile of 16 features.
    static constexpr int GROUP_CODES = TILE * GROUP * BITS / 8, PIECE_CODES = MEDIUM_PIECE * GROUP_CODES;
    static constexpr int PIECE_BYTES = PIECE_CODES + MEDIUM_PIECE * TILE * 4;
    // Shared memory: totals of segments, turns of warps to add to them and the number of all segments, a ring for
    // each worker.
    static constexpr int TOTALS = FEATURE_BLOCKS * 64 * ROWS * 4, PIECES = 2, STAGE = TILES * PIECE_BYTES;
    static constexpr int PLANES = HALVES * 32 * 2 * GROUP, SLOT = PLANES + HALVES * 32 * 8;
    static constexpr int MOST = CTAS == 1 ? 227 << 10 : (228 << 10) / CTAS - 1024;
    static constexpr int TURNS = TEAM * 16 + 16, BARRIERS = 256, ROOM = (MOST - TOTALS - TURNS) / WORKERS - PIECES * STAGE - BARRIERS;
    // A segment's groups begin at the first slot.
    static constexpr int SLOTS = ROOM / SLOT < 4 ? 2 : ROOM / SLOT < 8 ? 4 : 8;
    static constexpr int RING = PIECES * STAGE + SLOTS * SLOT + BARRIERS, SHARED = TOTALS + TURNS + WORKERS * RING;
    // In a ring: groups of inputs after pieces, then barriers: of slots that are full and empty, of pieces.
    static constexpr int INPUTS = PIECES * STAGE, FULL = RING - BARRIERS, EMPTY = FULL + SLOTS * 8;
    static constexpr int PIECE_FULL = EMPTY + SLOTS * 8, PIECE_EMPTY = PIECE_FULL + PIECES * 8;
    static_assert(ROOM / SLOT >= SLOTS && PIECES * MEDIUM_PIECE == GROUPS && TILES * WORKERS <= 32 && ROWS <= 64);
};

// A place in a ring, and the parity of its round.
struct MediumPlace {
    int at = 0;
    u32 parity = 0;
    __device__ __forceinline__ void next(int places) {
        if (++at == places) at = 0, parity ^= 1;
    }
};

template <class T>
__device__ __forceinline__ u32 medium_ring(u32 shared, int worker) { return shared + T::TOTALS + T::TURNS + worker * T::RING; }

template <class T>
__device__ __forceinline__ void medium_init(u32 ring) {
    for (int i = 0; i < T::SLOTS; i++) {
        barrier_init(ring + T::FULL + i * 8, 1), barrier_init(ring + T::EMPTY + i * 8, T::PAIRED * T::TEAM * 4);
    }
    for (int i = 0; i < T::PIECES; i++) {
        barrier_init(ring + T::PIECE_FULL + i * 8, 1), barrier_init(ring + T::PIECE_EMPTY + i * 8, T::TEAM * 4);
    }
    barrier_fence();
}

// The tiles of a CTA: those of its pair are neighbours.
template <class T>
struct MediumTiles {
    int blocks, row_tiles, step, rank, own, count;

    __device__ __forceinline__ MediumTiles(const Parts& parts, int rows) {
        int tiles = 0;
#pragma unroll
        for (int i = 0; i < MAX_PARTS; i++) tiles += parts.part[i].tiles;
        blocks = tiles / 4, row_tiles = (rows + T::ROWS - 1) / T::ROWS;
        constexpr int TOGETHER = T::FEATURE_BLOCKS * T::PAIRED;
        const int all = row_tiles * ((blocks + TOGETHER - 1) / TOGETHER);
        rank = blockIdx.x % T::PAIRED, own = blockIdx.x / T::PAIRED, step = gridDim.x / T::PAIRED;
        count = (all - own + step - 1) / step;
    }
    // Of the CTA's tile `n`: the first block of 64 features, and the first row.
    __device__ __forceinline__ int first_block(int n) const {
        return ((own + n * step) / row_tiles * T::PAIRED + rank) * T::FEATURE_BLOCKS;
    }
    __device__ __forceinline__ int first_row(int n) const { return (own + n * step) % row_tiles * T::ROWS; }
};

// Brings what the warpgroups need, by a warp.
template <class T>
__device__ __forceinline__ void medium_bring(const Parts& parts, u32 shared, const u8* x, int segments, int rows) {
    const int lane = thread_index() & 31;
    constexpr int PER_SEGMENT = GROUPS / MEDIUM_PIECE;
    const MediumTiles<T> tiles(parts, rows);
    const int all = tiles.count * segments;
    // Weights: 16 features of a worker for each lane.
    const u64 once = tiles.row_tiles == 1 ? evict_first() : evict_last();
    const u32 own = medium_ring<T>(shared, lane / T::TILES % T::WORKERS);
    MediumPlace place;
    int piece = 0;
    auto fetch_pieces = [&]() {
        const int n = lane / T::TILES + piece / PER_SEGMENT * T::WORKERS;
        if (lane < T::TILES * T::WORKERS && n < all) {
            const int first = tiles.first_block(n / segments) * 4, tile = lane % T::TILES;
            const int left = tiles.blocks * 4 - first, count = left > 0 ? min(T::TILES, left) : 0;
            const u32 barrier = own + T::PIECE_FULL + place.at * 8;
            barrier_wait(own + T::PIECE_EMPTY + place.at * 8, place.parity ^ 1);
            // The barrier cannot complete before this: nothing else arrives.
            if (tile == 0) barrier_expect(barrier, count * T::PIECE_BYTES);
            if (tile < count) {
                int at = first + tile;
                const Part& part = parts.part[find_part(parts, at)];
                const u8* from = part.weights + ((size_t)at * segments + n % segments) * block_bytes(T::BITS);
                const u32 to = own + place.at * T::STAGE + tile * T::PIECE_BYTES;
                const int in = piece % PER_SEGMENT * MEDIUM_PIECE;
                bulk_copy(to, from + in * T::GROUP_CODES, T::PIECE_CODES, barrier, once);
                bulk_copy(to + T::PIECE_CODES, from + code_bytes(T::BITS) + in * TILE * 4, MEDIUM_PIECE * TILE * 4, barrier, once);
            }
        }
        __syncwarp();
        piece++, place.next(T::PIECES);
    };
#pragma unroll 1
    for (int i = 0; i < T::PIECES; i++) fetch_pieces();
    // Weights do not depend on the previous kernel; everything below does.
    wait_for_previous();
    const u64 keep = evict_last();
    const u32 ring = medium_ring<T>(shared, lane % T::WORKERS);
    MediumPlace slot;
    // Groups brought so far, less than those after which a piece has been used.
    int since = -T::SLOTS;
#pragma unroll 1
    for (int first = 0; first < all; first += T::WORKERS) {
        const int n = first + lane, row = tiles.first_row(n / segments);
        const u8* from = x + (size_t)(n % segments) * GROUPS * BLOCK_OF_INPUTS;
#pragma unroll 1
        for (int group = 0; group < GROUPS; group++, from += BLOCK_OF_INPUTS) {
            if (lane < T::WORKERS && n < all) {
                const u32 barrier = ring + T::FULL + slot.at * 8, to = ring + T::INPUTS + slot.at * T::SLOT;
                barrier_wait(ring + T::EMPTY + slot.at * 8, slot.parity ^ 1);
                barrier_expect(barrier, T::SLOT);
                if (T::PAIRED == 2) {
                    if ((group & 1) == tiles.rank) {
                        if (T::HALVES == 2) {
                            bulk_copy_pair(to, from, T::SLOT, barrier, keep);
                        } else {
                            bulk_copy_pair(to, from + row / 32 * T::PLANES, T::PLANES, barrier, keep);
                            bulk_copy_pair(to + T::PLANES, from + BLOCK_PLANES + row * 8, 32 * 8, barrier, keep);
                        }
                    }
                } else if (T::HALVES == 2) {
                    bulk_copy(to, from, T::SLOT, barrier, keep);
                } else {
                    bulk_copy(to, from + row / 32 * T::PLANES, T::PLANES, barrier, keep);
                    bulk_copy(to + T::PLANES, from + BLOCK_PLANES + row * 8, 32 * 8, barrier, keep);
                }
            }
            __syncwarp();
            slot.next(T::SLOTS);
            // The slot's group before was the last of a piece: that piece has been used.
            if (++since == MEDIUM_PIECE) since = 0, fetch_pieces();
        }
    }
}

// A warp's weights of a group: codes as they are in memory, a scale and a bias of features g and g + 8.
template <int BITS>
struct MediumWeights {
    uint4 codes[BITS / 4];
    u32 scale[2];

    // From the lane's places of codes and scales.
    template <class T, int IN>
    __device__ __forceinline__ void load(u32 from, u32 pairs) {
        constexpr int CODES = IN * T::GROUP_CODES, SCALES = T::PIECE_CODES + IN * TILE * 4;
        codes[0] = load_shared_16<CODES>(from);
        if (BITS == 8) codes[BITS / 4 - 1] = load_shared_16<CODES + 512>(from);
        scale[0] = load_shared_4<SCALES>(pairs), scale[1] = load_shared_4<SCALES + 32>(pairs);
    }

    __device__ __forceinline__ void unpack(u32 (&a)[8]) const {
        if (BITS == 4) {
            load_codes<4>(a, codes, 0, 0);
        } else {
            const uint4 p = codes[0], q = codes[BITS / 4 - 1];
            a[0] = p.x, a[1] = p.y, a[2] = p.z, a[3] = p.w, a[4] = q.x, a[5] = q.y, a[6] = q.z, a[7] = q.w;
        }
        pin(a);
    }
};

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

// A segment's groups by a warpgroup.
template <class T>
struct MediumConsumer {
    // The worker's ring; the lane's places of a tile's codes and scales of the first piece, of the rows' steps of the
    // first slot; the description of its columns.
    u32 ring, codes, scales, steps, columns;
    int lane;
    // Of the ring's rounds: a segment takes each piece once.
    u32 parity;
    static_assert(T::EACH == 1 && T::PIECES == 2);

    __device__ __forceinline__ MediumConsumer(u32 shared, int thread, u32 round) : lane(thread & 31), parity(round) {
        const int warpgroup = thread / 128, member = warpgroup % T::TEAM, half = member / T::WIDE * T::CHUNKS;
        ring = medium_ring<T>(shared, warpgroup / T::TEAM);
        const u32 tile = ring + (member % T::WIDE * 4 + thread / 32 % 4) * T::PIECE_BYTES;
        codes = tile + lane * 16, scales = tile + lane / 4 * 4;
        steps = ring + T::INPUTS + T::PLANES + half * 256 + lane % 4 * 16;
        columns = (u32)describe_columns(ring + T::INPUTS + half * 4096);
        hold(ring), hold(codes), hold(scales), hold(steps), hold(columns);
    }

    __device__ __forceinline__ void segment(float (&sums)[T::SUMS]) {
#pragma unroll 1
        for (u32 p = 0; p < T::PIECES; p++) {
            if (!(T::MODE & WITHOUT_COPIES)) barrier_wait(ring + T::PIECE_FULL + p * 8, parity);
            const u32 own_codes = codes + p * T::STAGE, own_scales = scales + p * T::STAGE;
            MediumWeights<T::BITS> even, odd;
            even.template load<T, 0>(own_codes, own_scales);
            group<0>(sums, even, odd, own_codes, own_scales, p);
            group<1>(sums, odd, even, own_codes, own_scales, p);
            group<2>(sums, even, odd, own_codes, own_scales, p);
            group<3>(sums, odd, even, own_codes, own_scales, p);
        }
    }

    // A group's products; loads the next group's weights, if they are of the same piece.
    template <int IN>
    __device__ __forceinline__ void group(float (&sums)[T::SUMS], const MediumWeights<T::BITS>& own, MediumWeights<T::BITS>& next,
                                          u32 codes, u32 scales, u32 p) {
        constexpr int SLOT = IN % T::SLOTS, AT = SLOT * T::SLOT;
        // The piece's first slot.
        const u32 first = T::SLOTS == 8 ? p * MEDIUM_PIECE : 0, own_steps = steps + first * T::SLOT;
        u32 a[8];
        own.unpack(a);
        if (!(T::MODE & WITHOUT_COPIES)) barrier_wait(ring + first * 8 + T::FULL + SLOT * 8, T::SLOTS == 8 ? parity : T::SLOTS == 4 ? p : IN / 2);
#pragma unroll
        for (int c = 0; c < T::CHUNKS; c++) {
            int d[32];
            u32 b = columns + first * (T::SLOT / 16);
            hold(b);
            b += (AT + c * 4096) / 16;
            warpgroup_begin();
            if (!(T::MODE & WITHOUT_PRODUCTS)) {
                wgmma_u8_s8<false>(d, a[0], a[1], a[2], a[3], (u64)b | (u64)COLUMNS_HIGH << 32);
                wgmma_u8_s8<true>(d, a[4], a[5], a[6], a[7], (u64)(b + 256 / 16) | (u64)COLUMNS_HIGH << 32);
            }
            warpgroup_commit();
            if (IN + 1 < MEDIUM_PIECE && c == T::CHUNKS - 1) next.template load<T, IN + 1>(codes, scales);
            uint4 pairs[4];
            pairs[0] = c ? load_shared_16<AT + 256>(own_steps) : load_shared_16<AT>(own_steps);
            warpgroup_wait<0>(d);
            pairs[1] = c ? load_shared_16<AT + 256 + 64>(own_steps) : load_shared_16<AT + 64>(own_steps);
            pairs[2] = c ? load_shared_16<AT + 256 + 128>(own_steps) : load_shared_16<AT + 128>(own_steps);
            pairs[3] = c ? load_shared_16<AT + 256 + 192>(own_steps) : load_shared_16<AT + 192>(own_steps);
            if (c == T::CHUNKS - 1) release<IN>(ring + first * 8, p);
            if (!(T::MODE & WITHOUT_SCALING)) medium_scale(sums + c * 16, d, own.scale, pairs);
        }
    }

    // The slot, and before the last group the piece, have been read.
    template <int IN>
    __device__ __forceinline__ void release(u32 slots, u32 p) {
        if (T::MODE & WITHOUT_COPIES) return;
        __syncwarp();
        if (T::PAIRED == 2) {
            if (lane < 2) barrier_arrive_at(slots + T::EMPTY + IN % T::SLOTS * 8, lane);
        } else {
            if (lane == 0) barrier_arrive(slots + T::EMPTY + IN % T::SLOTS * 8);
        }
        if (IN == MEDIUM_PIECE - 2 && lane == 0) barrier_arrive(ring + T::PIECE_EMPTY + p * 8);
    }
};

// Writes the products of a tile of the CTA: totals of a thread.
template <class T>
__device__ __forceinline__ void medium_write(const Parts& parts, const float4* totals, int tile, u32 rows, int thread) {
    // Computed anew, as the thread's number is.
    hold(rows);
    const MediumTiles<T> tiles(parts, rows);
    const int lane = thread & 31, member = thread / 128 % T::TEAM;
    const int block = tiles.first_block(tile) + member % T::WIDE;
    if (block >= tiles.blocks) return;
    int weights = block * 4;
    const Part& part = parts.part[find_part(parts, weights)];
    const int feature = (weights + thread / 32 % 4) * TILE + (lane >> 2);
    int row = tiles.first_row(tile) + member / T::WIDE * T::CHUNKS * 32 + 2 * (lane & 3);
#pragma unroll 1
    for (int i = 0; i < T::SUMS / 4; i++, row += 8) {
        const float4 sum = totals[i * T::TEAM * 128];
        if (row < (int)rows) write_product(part, row, feature, sum.x), write_product(part, row, feature + 8, sum.y);
        if (row + 1 < (int)rows) write_product(part, row + 1, feature, sum.z), write_product(part, row + 1, feature + 8, sum.w);
    }
}

// Adds a segment's sums to those before; after the last segment writes the products.
template <class T>
__device__ __forceinline__ void medium_add(const Parts& parts, unsigned char* shared, float (&sums)[T::SUMS], int first, int segments,
                                           int rows) {
    // Read anew each time, so that no register is held while products are computed.
    const int thread = thread_index(), lane = thread & 31, warp = thread / 32 % 4;
    const int member = thread / 128 % T::TEAM, n = first + thread / 128 / T::TEAM;
    float4* totals = (float4*)shared + member * 128 + thread % 128;
    volatile u32* turn = (volatile u32*)(shared + T::TOTALS) + member * 4 + warp;
    const int segment = n % segments;
    if (T::WORKERS > 1) {
        while (*turn != (u32)n) relax();
        __threadfence_block();
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < T::SUMS / 4; i++) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (segment > 0) sum = totals[i * T::TEAM * 128];
        const float* own = sums + 4 * i;
        sum.x = sum.x + own[0], sum.y = sum.y + own[1], sum.z = sum.z + own[2], sum.w = sum.w + own[3];
        totals[i * T::TEAM * 128] = sum;
    }
    if (segment == segments - 1) medium_write<T>(parts, totals, n / segments, rows, thread);
    if (T::WORKERS > 1) {
        __threadfence_block();
        __syncwarp();
        if (lane == 0) *turn = n + 1;
    }
}

// A warpgroup's part of all tiles of the CTA.
template <class T>
__device__ __forceinline__ void medium_consume(const Parts& parts, unsigned char* shared, int segments, int rows) {
    const u32 base = shared_address(shared);
#pragma unroll 1
    for (int first = 0;; first += T::WORKERS) {
        float sums[T::SUMS];
#pragma unroll
        for (int i = 0; i < T::SUMS; i++) sums[i] = 0;
        const int thread = thread_index(), n = first + thread / 128 / T::TEAM;
        if (n >= (int)load_shared_4<T::TOTALS + T::TEAM * 16>(base)) break;
        MediumConsumer<T>(base, thread, first / T::WORKERS & 1).segment(sums);
        medium_add<T>(parts, shared, sums, first, segments, rows);
    }
}

// Grid: tiles, or fewer CTAs, in pairs if T::PAIRED; T::ALL_THREADS threads.
template <class T>
__device__ __forceinline__ void medium_warpgroups(const Parts& parts, const u8* __restrict__ x, int segments, int rows) {
    DYNAMIC_SHARED(shared);
    const u32 base = shared_address(shared);
    // With fewer threads there are fewer registers than the warpgroups wait for, for ever.
    if (blockDim.x != T::ALL_THREADS) trap();
    if (threadIdx.x < T::WORKERS) medium_init<T>(medium_ring<T>(base, threadIdx.x));
    if (threadIdx.x < 4 * T::TEAM) ((u32*)(shared + T::TOTALS))[threadIdx.x] = 0;
    if (threadIdx.x == 32) *(u32*)(shared + T::TOTALS + 16 * T::TEAM) = MediumTiles<T>(parts, rows).count * segments;
    if (T::PAIRED == 2) {
        cluster_sync();
    } else {
        __syncthreads();
    }
    launch_dependents();
    if (threadIdx.x >= T::THREADS) {
        give_registers<T::KEPT>();
        if (threadIdx.x < T::THREADS + 32 && !(T::MODE & WITHOUT_COPIES)) medium_bring<T>(parts, base, x, segments, rows);
    } else {
        take_registers<T::TAKEN>();
        wait_for_previous();
        medium_consume<T>(parts, shared, segments, rows);
    }
    // The other CTA of a pair may still write to this one's memory.
    if (T::PAIRED == 2) __syncwarp(), cluster_sync();
}
