// Weights of a step's products, on their way to shared memory: one warp copies them to slots in the order of their use,
// while earlier operations run and CTAs wait for each other, and another one brings those that come after them to the
// L2 cache.
#pragma once
#include "persistent.cuh"

// Slots that are copied at the same time: of the product that is being multiplied, and of later ones, as what CTAs tell
// each other comes after what is under way.
constexpr int SLOTS_COMING = 3, LATER_SLOTS_COMING = 1;
// Slots after those of shared memory that are prefetched, and the least cycles from one to the next: more than the
// memory needs, for the same reason.
constexpr int SLOTS_PREFETCHED = 12, PREFETCH_CYCLES = 1500;

// Jobs of a CTA in a product, each a segment of a tile.
__device__ __forceinline__ int own_jobs(int tiles, int segments) {
    return (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * segments;
}

// The CTA's jobs of all products, slot after slot. A slot has jobs of one product.
struct SlotStream {
    const ProductWeights* product;
    const ProductWeights* end;
    // Jobs of the product that are left; the next one's tile of the CTA and segment.
    int left, tile, segment;

    __device__ __forceinline__ SlotStream(const ProductWeights* products, int count) {
        product = products, end = products + count, left = 0;
        if (count) start();
    }

    // Begins with the product, or with the first one after it of which the CTA has a tile.
    __device__ __forceinline__ void start() {
        tile = segment = 0;
#pragma unroll 1
        while (product < end && (left = own_jobs(product->all_tiles, product->segments)) == 0) product++;
    }

    __device__ __forceinline__ bool has_slot() const { return left > 0; }
    // Jobs of the next slot.
    __device__ __forceinline__ int jobs() const { return min(left, SLOT_JOBS); }

    // Goes on to the slot after the next one, whose weights `take` gets, some neighbouring jobs at a time: their
    // address and bytes.
    template <class Take>
    __device__ __forceinline__ void advance(const Take& take) {
        int count = jobs();
        left -= count;
        const int segments = product->segments;
#pragma unroll 1
        while (count) {
            const int run = min(count, segments - segment);
            int at = blockIdx.x + tile * gridDim.x, part = 0;
#pragma unroll 1
            while (part + 1 < MAX_PARTS && at >= product->tiles[part]) at -= product->tiles[part++];
            take(product->weights[part] + ((size_t)at * segments + segment) * BLOCK_BYTES, run * BLOCK_BYTES);
            count -= run, segment += run;
            if (segment == segments) segment = 0, tile++;
        }
        if (left == 0) product++, start();
    }
};

// Fills slots, by one thread.
__device__ __forceinline__ void load_weights(StepShared& shared, SlotStream stream) {
    const u32 full = shared_address(shared.full_barriers), empty = shared_address(shared.empty_barriers);
    volatile u32* loaded = &shared.loaded;
    const volatile u32* current_end = &shared.current_end;
#pragma unroll 1
    for (u32 slot = 0; stream.has_slot(); slot++) {
        const u32 place = slot % SLOTS, round = slot / SLOTS;
        if (round) barrier_wait(empty + place * 8, round - 1 & 1);
        const u32 most = slot < *current_end ? SLOTS_COMING : LATER_SLOTS_COMING, coming = slot - most;
        if (slot >= most) barrier_wait(full + coming % SLOTS * 8, coming / SLOTS & 1);
        const int jobs = stream.jobs();
        barrier_expect(full + place * 8, jobs * BLOCK_BYTES);
        // Nobody uses the places of missing jobs.
#pragma unroll 1
        for (int i = jobs; i < SLOT_JOBS; i++) barrier_arrive(empty + place * 8);
        u32 to = shared_address(shared.weights[place]);
        stream.advance([&](const u8* from, int bytes) {
            bulk_copy(to, from, bytes, full + place * 8, evict_first());
            to += bytes;
        });
        *loaded = slot + 1;
    }
}

// Brings slots that are not loaded yet to the L2 cache, by one thread.
__device__ __forceinline__ void prefetch_weights(StepShared& shared, SlotStream stream) {
    const volatile u32* loaded = &shared.loaded;
    u32 last = clock_cycles() - PREFETCH_CYCLES;
#pragma unroll 1
    for (u32 slot = 0; stream.has_slot(); slot++) {
        while ((int)(slot - *loaded) >= SLOTS_PREFETCHED) pause_polling();
        while (slot >= *loaded && clock_cycles() - last < PREFETCH_CYCLES) pause_polling();
        const bool is_ahead = slot >= *loaded;
        if (is_ahead) last = clock_cycles();
        stream.advance([&](const u8* from, int bytes) {
            if (is_ahead) prefetch(from, bytes);
        });
    }
}
