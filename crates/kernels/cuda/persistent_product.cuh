// Products of a single row by the persistent kernel: skinny.cu's arithmetic, weights from a ring that is filled
// across operations.
#pragma once
#include "input_row.cuh"
#include "persistent.cuh"

// Jobs of a CTA in a product, each a segment of a tile.
__device__ __forceinline__ int own_jobs(int tiles, int segments) {
    return (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * segments;
}

// A warp's weights, job after job of all products.
struct WeightStream {
    // The next job to be fetched: its product, number, tile of the CTA and segment.
    int product, job, tile, segment;
    // Jobs fetched and used so far.
    int fetched, used;

    __device__ __forceinline__ WeightStream() {
        product = fetched = used = tile = 0, job = segment = thread_index() >> 5;
    }

    // This warp's places in the ring, and their barriers: computed anew, so they take no registers elsewhere.
    static __device__ __forceinline__ u32 ring(const StepShared& shared) {
        return shared_address(shared.ring) + (thread_index() >> 5) * RING_DEPTH * BLOCK_BYTES;
    }
    static __device__ __forceinline__ u32 barriers(const StepShared& shared) {
        return shared_address(shared.ring_barriers + (thread_index() >> 5) * RING_DEPTH);
    }

    // Fills the ring, with weights of the first `known` products at most.
    __device__ __forceinline__ void fill(const StepShared& shared, int known) {
#pragma unroll 1
        while (fetched - used < RING_DEPTH && product < known) {
            const ProductWeights& own = shared.products[product % PRODUCTS_KNOWN];
            if (job >= own.jobs) {
                product++, job = segment = thread_index() >> 5, tile = 0;
                continue;
            }
            const int segments = own.segments;
#pragma unroll 1
            while (segment >= segments) segment -= segments, tile++;
            if ((thread_index() & 31) == 0) {
                int at = blockIdx.x + tile * gridDim.x, part = 0;
#pragma unroll 1
                while (part + 1 < MAX_PARTS && at >= own.tiles[part]) at -= own.tiles[part++];
                const u8* from = own.weights[part] + ((size_t)at * segments + segment) * BLOCK_BYTES;
                const int slot = fetched % RING_DEPTH;
                const u32 barrier = barriers(shared) + slot * 8;
                barrier_expect(barrier, BLOCK_BYTES);
                bulk_copy(ring(shared) + slot * BLOCK_BYTES, from, BLOCK_BYTES, barrier, evict_first());
            }
            fetched++, job += STEP_WARPS, segment += STEP_WARPS;
        }
    }
};

// What lies where in the scratch memory during a product.
struct ProductScratch {
    // [TILES_OPEN][segments][TILE]
    float* partial;
    uint4* inputs;
    float2* steps;
    // The row, its weights in the norm and its gates, which need not be there.
    float* row;

    __device__ __forceinline__ ProductScratch(unsigned char* scratch, int segments) {
        partial = in_shared((float*)scratch);
        inputs = (uint4*)(partial + TILES_OPEN * segments * TILE);
        steps = (float2*)(inputs + segments * GROUPS * 8);
        row = (float*)(steps + segments * GROUPS);
    }
};

// Starts copying `count` numbers, a multiple of 4, by all threads.
__device__ __forceinline__ void copy_numbers(float* to, const float* from, int count) {
#pragma unroll 1
    for (int i = thread_index() * 4; i < count; i += STEP_THREADS * 4) copy_16(shared_address(to + i), from + i);
}

// The integers of a row, by all threads.
__device__ __forceinline__ void quantize_row(const InputRow& from, unsigned char* memory, int groups,
                                          PreviousOperation wait) {
    const ProductScratch scratch(memory, groups / GROUPS);
    const int inputs = from.inputs, dim = from.dim;
    float* row = scratch.row;
    float* weights = row + inputs;
    float* gates = weights + dim;
    copy_numbers(weights, from.weight, dim);
    wait();
    copy_numbers(row, from.x, inputs);
    if (from.gate) copy_numbers(gates, from.gate, inputs);
    commit_copies();
    wait_for_copies<0>();
    float whole = 1.0f;
    if (dim) {
        // Sums of tiles come later.
        whole = norm_factors<STEP_WARPS>(from, row, scratch.partial, scratch.steps);
    } else {
        __syncthreads();
    }
    // Eight lanes have a group, each eight neighbours.
#pragma unroll 1
    for (int at = thread_index(); at < groups * 8; at += STEP_THREADS) {
        const int i = at * 8;
        float value[8];
#pragma unroll
        for (int k = 0; k < 8; k++) value[k] = 0.0f;
        if (i < inputs) {
            load_8(value, row + i);
            if (dim) {
                const float factor = from.has_parts() ? scratch.steps[at / 8].x : whole;
                float weight[8];
                load_8(weight, weights + (dim == inputs ? i : i % dim));
#pragma unroll
                for (int k = 0; k < 8; k++) value[k] = value[k] * factor * weight[k];
            }
            if (from.gate) {
#pragma unroll 1
                for (int k = 0; k < 8; k += 4) {
                    float4 gate = *(const float4*)(gates + i + k);
                    gate.x = silu(gate.x), gate.y = silu(gate.y), gate.z = silu(gate.z), gate.w = silu(gate.w);
                    *(float4*)(gates + i + k) = gate;
                }
                float gate[8];
                load_8(gate, gates + i);
#pragma unroll
                for (int k = 0; k < 8; k++) value[k] = value[k] * gate[k];
            }
        }
        const QuantizedEight eight = quantize_eight(value);
        // All lanes have read the factor.
        __syncwarp();
        store_eight(scratch.inputs, scratch.steps, at, eight);
    }
}

// The product of 16 features and a segment of one row: features g and g + 8 in the lanes with t == 0.
__device__ __forceinline__ float2 multiply_segment(const unsigned char* block, const uint4* inputs, const float2* steps,
                                                   int lane) {
    const int g = lane >> 2, t = lane & 3;
    const u32* scales = (const u32*)(block + CODE_BYTES) + g;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        u32 a[8];
        load_codes<4>(a, (const uint4*)block, i, lane);
        const u32 first = scales[i * TILE], second = scales[i * TILE + 8];
        uint4 b = make_uint4(0, 0, 0, 0);
        if (g < 2) b = inputs[i * 8 + g * 4 + t];
        const float2 step = steps[i];
        int c[4] = {0, 0, 0, 0};
        mma_u8_s8(c, a[0], a[1], a[2], a[3], b.x, b.y);
        mma_u8_s8(c, a[4], a[5], a[6], a[7], b.z, b.w);
        const float d0 = __fmul_rn((float)(c[0] * 256 + c[1]), step.x);
        const float d1 = __fmul_rn((float)(c[2] * 256 + c[3]), step.x);
        sum.x = __fmaf_rn(low_bf16(first), d0, sum.x);
        sum.x = __fmaf_rn(high_bf16(first), step.y, sum.x);
        sum.y = __fmaf_rn(low_bf16(second), d1, sum.y);
        sum.y = __fmaf_rn(high_bf16(second), step.y, sum.y);
    }
    return sum;
}

// Products of one row, whose integers are in shared memory; the last warp to finish a tile adds its segments in
// ascending order.
__device__ __forceinline__ void multiply_row(StepShared& shared, WeightStream& stream, const ProductScratch& scratch,
                                             const Parts& parts, int segments, int jobs, int known) {
    const int lane = thread_index() & 31, warp = thread_index() >> 5, g = lane >> 2, t = lane & 3;
    int tile = 0, segment = warp;
    while (segment >= segments) segment -= segments, tile++;
#pragma unroll 1
    for (int job = warp; job < jobs; job += STEP_WARPS) {
        const int slot = stream.used % RING_DEPTH;
        barrier_wait(stream.barriers(shared) + slot * 8, stream.used / RING_DEPTH & 1);
        const float2 own = multiply_segment(shared.ring + (warp * RING_DEPTH + slot) * BLOCK_BYTES,
                                            scratch.inputs + segment * GROUPS * 8, scratch.steps + segment * GROUPS, lane);
        __syncwarp();
        stream.used++;
        stream.fill(shared, known);

        // A tile's partial sums are reused once its predecessor there is complete: arrivals only grow.
        const int open = tile % TILES_OPEN, generation = tile / TILES_OPEN;
        volatile u32* count = shared.arrived + open;
        while (*count < (u32)(generation * (segments + 1))) relax();
        float* sums = scratch.partial + open * segments * TILE;
        if (t == 0) sums[segment * TILE + g] = own.x, sums[segment * TILE + g + 8] = own.y;
        __threadfence_block();
        __syncwarp();
        u32 before = 0;
        if (lane == 0) before = atomicAdd(shared.arrived + open, 1);
        before = __shfl_sync(0xffffffffu, before, 0);
        if (before == (u32)(generation * (segments + 1) + segments - 1)) {
            __threadfence_block();
            int at = blockIdx.x + tile * gridDim.x;
            const Part& part = parts.part[find_part(parts, at)];
            if (lane < TILE) {
                float sum = 0;
#pragma unroll 4
                for (int i = 0; i < segments; i++) sum = sum + sums[i * TILE + lane];
                write_product(part, 0, at * TILE + lane, sum);
            }
            __threadfence_block();
            __syncwarp();
            if (lane == 0) atomicAdd(shared.arrived + open, 1);
        }
        segment += STEP_WARPS;
        while (segment >= segments) segment -= segments, tile++;
    }
}

// Product number `done` of the step, of one row: its integers, then the tiles of the CTA.
__device__ __forceinline__ void product_operation(StepShared& shared, WeightStream& stream, int kind,
                                                  ArgumentReader arguments, PreviousOperation wait, int done,
                                                  int known) {
    const ProductWeights& own = shared.products[done % PRODUCTS_KNOWN];
    const Parts& parts = arguments.take<Parts>();
    const int segments = own.segments;
    const ProductScratch scratch(shared.scratch(), segments);
    if (thread_index() < TILES_OPEN) shared.arrived[thread_index()] = 0;
    if (kind == PRODUCT_OF_ROW) {
        quantize_row(arguments.take<InputRow>(), shared.scratch(), segments * GROUPS, wait);
    } else {
        const uint4* planes = arguments.take<const uint4*>();
        const float2* steps = arguments.take<const float2*>();
        wait();
        for (int i = thread_index(); i < segments * GROUPS * 8; i += STEP_THREADS) scratch.inputs[i] = planes[i];
        for (int i = thread_index(); i < segments * GROUPS; i += STEP_THREADS) scratch.steps[i] = steps[i];
    }
    __syncthreads();
    multiply_row(shared, stream, scratch, parts, segments, own.jobs, known);
}
