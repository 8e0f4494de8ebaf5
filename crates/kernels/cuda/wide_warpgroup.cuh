// Products of many rows by warpgroups (Hopper), with the weights, segments and arithmetic of wide.cu.
//
// Inputs: [rows / 64][K / 64] blocks of 64 rows and a group: 8,192 bytes of integers, then what rows share.
//
// With 8 bits integers are two bytes, and rows share 64 steps (the step, and the step times the sum). The high byte of
// input i of row r is at
//   r / 8 * 1024 + r % 2 * 512 + i / 16 * 128 + r % 8 / 2 * 32 + i % 16, the low byte 16 bytes after it:
// columns of a wgmma in cores of 8 columns by 16 bytes, such that a lane's fragment holds both bytes' sums of
// rows 8 j + 2 t and 8 j + 2 t + 1 (t = lane % 4).
//
// With 4 bits integers are halves (quantize.cuh), whose products with codes float32 adds up exactly. That of input i of
// row r is at r / 8 * 1024 + i / 16 * 256 + i % 2 * 128 + r % 8 * 16 + i % 16 / 2 * 2. After 32 sums of rows come their
// steps, and those of the next 32 rows (place_of_sum). Nearly always a segment's groups share a row's step, by which
// the segment's sums are multiplied then; a negative step is its group's alone, whose products it multiplies.
//
// A CTA stays and takes one tile of features and rows after another. A warpgroup computes 64 features of the
// tile's rows, some columns (a chunk) at a time; one more warp brings weights and inputs to shared memory.
// While a warpgroup scales and adds the sums of one chunk, the next one's or another warpgroup's are computed.
#pragma once
#include "warpgroup.cuh"

// Groups of inputs that come together.
constexpr int WIDE_PAIR = 2;

// For measurements: leave parts out. Products of other modes than 0 are wrong.
constexpr int NO_PRODUCTS = 1, NO_SCALING = 2, NO_COPIES = 4;

// `EACH` times 64 features for each of the `WARPGROUPS`, `ROWS` of a tile, `COLUMNS` of a wgmma (two for a row of
// bytes, one for a row of halves), `BUFFERS` of exact sums.
template <int BITS_, int WARPGROUPS_, int EACH_, int ROWS_, int COLUMNS_, int BUFFERS_>
struct Tiling {
    static constexpr int BITS = BITS_, WARPGROUPS = WARPGROUPS_, ROWS = ROWS_, COLUMNS = COLUMNS_;
    static constexpr int BUFFERS = BUFFERS_, EACH = EACH_, FEATURE_BLOCKS = WARPGROUPS * EACH;
    static constexpr int TILES = FEATURE_BLOCKS * 4, FEATURES = FEATURE_BLOCKS * 64, THREADS = WARPGROUPS * 128;
    // With those that bring data. A thread starts with its share of 65,536 registers, in eights; then those that
    // bring data keep few, and the others take theirs.
    static constexpr int ALL_THREADS = THREADS + 128, SHARE = 65536 / ALL_THREADS / 8 * 8;
    static constexpr int KEPT = WARPGROUPS == 2 ? 24 : 32;
    static constexpr int TAKEN = (SHARE * (WARPGROUPS + 1) - KEPT) / WARPGROUPS / 8 * 8;
    static constexpr bool HALVES = BITS == 4;
    static constexpr int CHUNKS = ROWS * (HALVES ? 1 : 2) / COLUMNS, BLOCKS = ROWS / BLOCK_OF_ROWS;
    // Sums of a thread for 64 features; sums and exact sums of a chunk.
    static constexpr int SUMS = ROWS / 2, CHUNK_SUMS = SUMS / CHUNKS, EXACT = COLUMNS / 2;
    // Groups of a piece of weights, which comes with the first of their inputs.
    static constexpr int PIECE = BITS == 4 ? 2 * WIDE_PAIR : WIDE_PAIR;
    // Codes of a group and of a piece, and all bytes of a piece, for a tile of 16 features.
    static constexpr int GROUP_CODES = TILE * GROUP * BITS / 8, PIECE_CODES = PIECE * GROUP_CODES;
    static constexpr int PIECE_BYTES = PIECE_CODES + PIECE * TILE * 4;
    // Shared memory: totals of whole segments, pieces of weights, pairs of inputs, barriers. With no more than
    // MOST_SLOTS, a piece's place is free when the slot of its first pair is.
    static constexpr int TOTALS = FEATURES * ROWS * 4, PIECES = BITS == 4 ? 2 : 3, STAGE = TILES * PIECE_BYTES;
    static constexpr int SLOT = BLOCKS * WIDE_PAIR * BLOCK_OF_INPUTS;
    static constexpr int ROOM = (227 << 10) - TOTALS - PIECES * STAGE - 512, MOST_SLOTS = (PIECES - 1) * PIECE / WIDE_PAIR + 1;
    static constexpr int SLOTS = ROOM / SLOT < MOST_SLOTS ? ROOM / SLOT : MOST_SLOTS;
    static constexpr int SHARED = TOTALS + PIECES * STAGE + SLOTS * SLOT + 512;
    static_assert(SLOTS >= 2 && CHUNKS * EACH % BUFFERS == 0);
    static_assert(!HALVES || COLUMNS == BLOCK_OF_ROWS);
};

// A place in a ring, and the parity of its round.
struct Turn {
    int at = 0;
    u32 parity = 0;
    __device__ __forceinline__ void next(int places) {
        if (++at == places) at = 0, parity ^= 1;
    }
};

template <class T>
struct WideRings {
    u32 slots, pieces, full, empty;

    __device__ __forceinline__ WideRings(u32 shared) {
        pieces = shared + T::TOTALS;
        slots = pieces + T::PIECES * T::STAGE;
        full = slots + T::SLOTS * T::SLOT, empty = full + T::SLOTS * 8;
    }

    __device__ __forceinline__ void init() const {
        for (int i = 0; i < T::SLOTS; i++) {
            barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, T::WARPGROUPS * 4);
        }
        barrier_fence();
    }
};

// The number of 64-feature blocks of all parts.
__device__ __forceinline__ int feature_blocks(const Parts& parts) {
    int tiles = 0;
#pragma unroll
    for (int i = 0; i < MAX_PARTS; i++) tiles += parts.part[i].tiles;
    return tiles / 4;
}

// Brings what the warpgroups need, by a warp.
template <class T>
__device__ __forceinline__ void bring(const Parts& parts, const WideRings<T>& rings, const u8* x, int segments,
                                      int rows, int lane) {
    const int groups = segments * GROUPS;
    const int blocks = (rows + BLOCK_OF_ROWS - 1) / BLOCK_OF_ROWS, row_tiles = (blocks + T::BLOCKS - 1) / T::BLOCKS;
    const int feature_tiles = (feature_blocks(parts) + T::FEATURE_BLOCKS - 1) / T::FEATURE_BLOCKS;
    const int tiles = row_tiles * feature_tiles, all_weights = feature_blocks(parts) * 4;
    const u64 keep = evict_last();
    Turn slot, piece;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int block = tile % row_tiles * T::BLOCKS, count = min(T::BLOCKS, blocks - block);
        const int first = tile / row_tiles * T::TILES, weights = min(T::TILES, all_weights - first);
        const u8* codes = nullptr;
        if (lane < weights) {
            int at = first + lane;
            const Part& part = parts.part[find_part(parts, at)];
            codes = part.weights + (size_t)at * segments * block_bytes(T::BITS);
        }
        const u8* inputs = x + (size_t)(block + lane) * groups * BLOCK_OF_INPUTS;
#pragma unroll 1
        for (int group = 0; group < groups; group += WIDE_PAIR, inputs += WIDE_PAIR * BLOCK_OF_INPUTS) {
            const u32 barrier = rings.full + slot.at * 8;
            const bool has_weights = group % T::PIECE == 0;
            barrier_wait(rings.empty + slot.at * 8, slot.parity ^ 1);
            if (lane == 0)
                barrier_expect(barrier, count * WIDE_PAIR * BLOCK_OF_INPUTS + (has_weights ? weights * T::PIECE_BYTES : 0));
            __syncwarp();
            if (has_weights) {
                if (lane < weights) {
                    const u32 to = rings.pieces + piece.at * T::STAGE + lane * T::PIECE_BYTES;
                    const u8* from = codes + (size_t)(group / GROUPS) * block_bytes(T::BITS);
                    const int in = group % GROUPS;
                    bulk_copy(to, from + in * T::GROUP_CODES, T::PIECE_CODES, barrier, keep);
                    bulk_copy(to + T::PIECE_CODES, from + code_bytes(T::BITS) + in * TILE * 4, T::PIECE * TILE * 4, barrier, keep);
                }
                piece.next(T::PIECES);
            }
            if (lane < count)
                bulk_copy(rings.slots + slot.at * T::SLOT + lane * WIDE_PAIR * BLOCK_OF_INPUTS, inputs,
                          WIDE_PAIR * BLOCK_OF_INPUTS, barrier, keep);
            slot.next(T::SLOTS);
        }
    }
}

// A warp's weights of a group: codes as the fragments of two or four wgmmas, a scale and a bias of features g and g + 8.
template <class T>
struct Codes {
    u32 a[T::HALVES ? 16 : 8];
    u32 scale[2];
};

template <class T>
__device__ __forceinline__ void load_group(Codes<T>& to, const unsigned char* piece, int in, int lane) {
    if constexpr (T::HALVES) {
        halves_of_codes(to.a, ((const uint4*)piece)[in * 32 + lane]);
    } else {
        load_codes<T::BITS>(to.a, (const uint4*)piece, in, lane);
    }
    const u32* scales = (const u32*)(piece + T::PIECE_CODES) + in * TILE + (lane >> 2);
    to.scale[0] = scales[0], to.scale[1] = scales[8];
    pin(to.a);
}

template <int MODE, int N>
__device__ __forceinline__ void start_products(int (&d)[N], const u32 (&a)[8], u32 columns) {
    const u64 b = describe_columns(columns);
    warpgroup_begin();
    if (!(MODE & NO_PRODUCTS)) {
        wgmma_u8_s8<false>(d, a[0], a[1], a[2], a[3], b);
        wgmma_u8_s8<true>(d, a[4], a[5], a[6], a[7], b + 256 / 16);
    } else {
        use(a);
    }
    warpgroup_commit();
}

template <int MODE, int N>
__device__ __forceinline__ void start_products(float (&d)[N], const u32 (&a)[16], u32 columns) {
    const u64 b = describe_columns(columns, HALVES_HIGH);
    warpgroup_begin();
    if (!(MODE & NO_PRODUCTS)) {
        wgmma_f16<false>(d, a[0], a[1], a[2], a[3], b);
        wgmma_f16<true>(d, a[4], a[5], a[6], a[7], b + 256 / 16);
        wgmma_f16<true>(d, a[8], a[9], a[10], a[11], b + 512 / 16);
        wgmma_f16<true>(d, a[12], a[13], a[14], a[15], b + 768 / 16);
    } else {
        use(a);
    }
    warpgroup_commit();
}

// sums += the chunk's products, scaled.
template <int MODE, int N>
__device__ __forceinline__ void scale_products(float* sums, const int (&d)[N], const u32 (&scales)[2], const float4* steps) {
    if (MODE & NO_SCALING) return;
    const float scale[2] = {low_bf16(scales[0]), low_bf16(scales[1])};
    const float bias[2] = {high_bf16(scales[0]), high_bf16(scales[1])};
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float4 step = steps[i / 4];
        const int high = d[2 * i], low = d[2 * i + 1], f = i % 2;
        const float dot = (float)(high * 256 + low);
        sums[i] = __fmaf_rn(scale[f], __fmul_rn(dot, i / 2 % 2 ? step.z : step.x), sums[i]);
        sums[i] = __fmaf_rn(bias[f], i / 2 % 2 ? step.w : step.y, sums[i]);
    }
}

// Pairs of groups of a warpgroup, one after another.
template <class T, int MODE>
struct WideConsumer {
    const unsigned char* shared;
    WideRings<T> rings;
    int lane, tile;
    // The slot of the pair whose products are started next, the piece of its weights, and the group in the piece.
    Turn slot, piece;
    int in = 0;
    // The slot of the pair that is scaled.
    int current = 0;
    Codes<T> codes[2][T::EACH];
    typename Exact<T::HALVES>::Type d[T::BUFFERS][T::EXACT];
    float sums[T::EACH][T::SUMS];

    // Takes the weights of the next group.
    __device__ __forceinline__ void take(Codes<T> (&to)[T::EACH]) {
        const unsigned char* from = shared + T::TOTALS + piece.at * T::STAGE + tile * T::PIECE_BYTES;
#pragma unroll
        for (int e = 0; e < T::EACH; e++) load_group<T>(to[e], from + e * 4 * T::PIECE_BYTES, in, lane);
        in++;
    }

    // Waits for the next pair, if there is one, and takes the weights of its first group.
    __device__ __forceinline__ void take_pair(Codes<T> (&to)[T::EACH], bool more) {
        if (!(MODE & NO_COPIES) && more) barrier_wait(rings.full + slot.at * 8, slot.parity);
        if (in == T::PIECE) in = 0, piece.next(T::PIECES);
        take(to);
        current = slot.at;
        slot.next(T::SLOTS);
    }

    // Offsets of a chunk's columns and of what its rows share in its slot, for the first or second group of the pair.
    static constexpr int PER_BLOCK = T::CHUNKS / T::BLOCKS;
    static __device__ constexpr int block_at(int second, int chunk) {
        return (chunk / PER_BLOCK * WIDE_PAIR + second) * BLOCK_OF_INPUTS;
    }
    static __device__ constexpr int columns_at(int second, int chunk) {
        return block_at(second, chunk) + chunk % PER_BLOCK * T::COLUMNS * GROUP;
    }
    static __device__ constexpr int shared_at(int second, int chunk) {
        return block_at(second, chunk) + BLOCK_PLANES + chunk % PER_BLOCK * T::COLUMNS * 4;
    }
    __device__ __forceinline__ const unsigned char* slot_at(int slot) const {
        return shared + T::TOTALS + T::PIECES * T::STAGE + slot * T::SLOT;
    }

    // The address from which on the lane needs what rows share, but for shared_at.
    __device__ __forceinline__ u32 shared_address_at(int slot) const { return rings.slots + slot * T::SLOT + (lane & 3) * 16; }

    template <int BUFFER, int SECOND>
    __device__ __forceinline__ void start(const Codes<T>& codes, int slot, int chunk) {
        start_products<MODE>(d[BUFFER], codes.a, rings.slots + slot * T::SLOT + columns_at(SECOND, chunk));
    }

    // Computes and adds a group's products, the first or the second one of a pair. Between the two products go on,
    // after them none is pending, since the compiler keeps registers of pending products only in straight code.
    template <int SECOND, bool OWN_STEPS>
    __device__ __forceinline__ void group(int slot, bool more) {
        Codes<T>(&own)[T::EACH] = codes[SECOND], (&next)[T::EACH] = codes[SECOND ^ 1];
        constexpr int COUNT = T::CHUNKS * T::EACH, PARTS = T::HALVES ? 4 : T::EXACT / 8;
        const float4* from = (const float4*)slot_at(slot) + (lane & 3);
        float4 steps[PARTS];
        if (T::BUFFERS == 2 && SECOND == 0) start<0, 0>(own[0], slot, 0);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int c = i / T::EACH, e = i % T::EACH, ahead = i + 1;
            if (T::BUFFERS == 1) start<0, SECOND>(own[e], slot, c);
            if (ahead == COUNT) {
                SECOND ? take_pair(next, more) : take(next);
                if (T::BUFFERS == 2 && SECOND == 0) start<0, 1>(next[0], slot, 0);
            } else if (T::BUFFERS == 2) {
                i % 2 ? start<0, SECOND>(own[ahead % T::EACH], slot, ahead / T::EACH)
                      : start<T::BUFFERS - 1, SECOND>(own[ahead % T::EACH], slot, ahead / T::EACH);
            }
            if (!(MODE & NO_SCALING) && e == 0 && !OWN_STEPS) {
#pragma unroll
                for (int j = 0; j < PARTS; j++) {
                    const float4* at = from + shared_at(SECOND, c) / 16;
                    steps[j] = at[T::HALVES ? j / 2 * 16 + j % 2 * 4 : j * 4];
                }
            }
            auto& done = d[i % T::BUFFERS];
            if (T::BUFFERS == 1 || (SECOND == 1 && ahead == COUNT)) {
                warpgroup_wait<0>(done);
            } else {
                warpgroup_wait<1>(done);
            }
            if constexpr (T::HALVES) {
                float* to = sums[e] + c * T::CHUNK_SUMS;
                if (OWN_STEPS) {
                    scale_halves_by_steps(to, done, own[e].scale, shared_address_at(slot) + shared_at(SECOND, c));
                } else if (!(MODE & NO_SCALING)) {
                    scale_halves(to, done, own[e].scale, steps);
                }
            } else {
                scale_products<MODE>(sums[e] + c * T::CHUNK_SUMS, done, own[e].scale, steps);
            }
        }
    }

    // A pair, which may be a segment's last.
    template <bool OWN_STEPS>
    __device__ __forceinline__ void pair(bool is_end, bool more) {
        const int slot = current;
        group<0, OWN_STEPS>(slot, more);
        group<1, OWN_STEPS>(slot, more);
        if constexpr (T::HALVES && !OWN_STEPS) {
            if (is_end) {
#pragma unroll
                for (int i = 0; i < T::CHUNKS * T::EACH; i++) {
                    float* to = sums[i % T::EACH] + i / T::EACH * T::CHUNK_SUMS;
                    multiply_by_steps<T::CHUNK_SUMS>(to, shared_address_at(slot) + shared_at(0, i / T::EACH));
                }
            }
        }
        if (!(MODE & NO_COPIES)) {
            __syncwarp();
            if (lane == 0) barrier_arrive(rings.empty + slot * 8);
        }
    }

    template <bool OWN_STEPS>
    __device__ __forceinline__ void pairs(bool last) {
        constexpr int PAIRS = GROUPS / WIDE_PAIR;
#pragma unroll 1
        for (int i = 0; i < PAIRS; i++) pair<OWN_STEPS>(i == PAIRS - 1, !last || i < PAIRS - 1);
    }

    // The pairs of a segment, which may be the last of all.
    __device__ __forceinline__ void segment(bool last) {
        if constexpr (T::HALVES) {
            const u32 steps = rings.slots + current * T::SLOT + BLOCK_PLANES;
            if (has_own_steps<T::ROWS>(steps, WIDE_PAIR * BLOCK_OF_INPUTS)) return pairs<true>(last);
        }
        pairs<false>(last);
    }
};

// A warpgroup's part of all tiles of the CTA.
template <class T, int MODE>
__device__ __forceinline__ void consume(const Parts& parts, const WideRings<T>& rings, const unsigned char* shared, int segments,
                                        int rows, int lane) {
    const int row_tiles = (rows + T::ROWS - 1) / T::ROWS, blocks = feature_blocks(parts);
    const int tiles = row_tiles * ((blocks + T::FEATURE_BLOCKS - 1) / T::FEATURE_BLOCKS);
    const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    WideConsumer<T, MODE> consumer{shared, rings, lane, warpgroup * T::EACH * 4 + warp};
#pragma unroll
    for (int i = 0; i < T::EACH * T::SUMS; i++) (&consumer.sums[0][0])[i] = 0;
    float4* totals = (float4*)const_cast<unsigned char*>(shared) + threadIdx.x;
    consumer.take_pair(consumer.codes[0], true);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const bool last_tile = tile + (int)gridDim.x >= tiles;
#pragma unroll 1
        for (int segment = 0; segment < segments; segment++) {
            consumer.segment(last_tile && segment == segments - 1);
#pragma unroll
            for (int i = 0; i < T::EACH * T::SUMS / 4; i++) {
                float* own = &consumer.sums[0][0] + 4 * i;
                float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (segment > 0) sum = totals[i * T::THREADS];
                sum.x = sum.x + own[0], sum.y = sum.y + own[1], sum.z = sum.z + own[2], sum.w = sum.w + own[3];
                totals[i * T::THREADS] = sum;
                own[0] = own[1] = own[2] = own[3] = 0;
            }
        }
#pragma unroll 1
        for (int e = 0; e < T::EACH; e++) {
            const int block = tile / row_tiles * T::FEATURE_BLOCKS + warpgroup * T::EACH + e;
            int weights = block * 4;
            const Part& part = parts.part[find_part(parts, weights)];
            const int feature = (weights + warp) * TILE + (lane >> 2);
            const int row = tile % row_tiles * T::ROWS + 2 * (lane & 3);
#pragma unroll 2
            for (int i = 0; i < T::SUMS / 4; i++) {
                const float4 sum = totals[(e * T::SUMS / 4 + i) * T::THREADS];
                const int at = block < blocks ? row + 8 * i : rows;
                const float second = T::HALVES ? sum.y : sum.z, third = T::HALVES ? sum.z : sum.y;
                if (at < rows) write_product(part, at, feature, sum.x), write_product(part, at, feature + 8, third);
                if (at + 1 < rows) write_product(part, at + 1, feature, second), write_product(part, at + 1, feature + 8, sum.w);
            }
        }
    }
}

// Grid: tiles, or fewer CTAs; T::ALL_THREADS threads.
template <class T, int MODE>
__device__ __forceinline__ void wide_warpgroups(const Parts& parts, const u8* __restrict__ x, int segments, int rows) {
    DYNAMIC_SHARED(shared);
    const WideRings<T> rings(shared_address(shared));
    const int lane = threadIdx.x & 31;
    // With fewer threads there are fewer registers than the warpgroups wait for, for ever.
    if (blockDim.x != T::ALL_THREADS) trap();
    if (threadIdx.x == 0) rings.init();
    __syncthreads();
    launch_dependents();
    wait_for_previous();
    if (threadIdx.x >= T::THREADS) {
        give_registers<T::KEPT>();
        if (!(MODE & NO_COPIES) && threadIdx.x < T::THREADS + 32) bring<T>(parts, rings, x, segments, rows, lane);
    } else {
        take_registers<T::TAKEN>();
        consume<T, MODE>(parts, rings, shared, segments, rows, lane);
    }
}
