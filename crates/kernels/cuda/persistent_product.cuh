// Products of a single row by the persistent kernel: skinny.cu's arithmetic, weights from slots that another warp fills
// (load_weights.cuh).
#pragma once
#include "input_row.cuh"
#include "load_weights.cuh"

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

// Gates after their SiLU, by all threads; they are there once the threads have synchronised.
__device__ __forceinline__ void fetch_gates(float* to, const float* from, int count) {
    int i = thread_index() * 4;
    float4 next = i < count ? *(const float4*)(from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    while (i < count) {
        float4 gate = next;
        const int after = i + STEP_THREADS * 4;
        if (after < count) next = *(const float4*)(from + after);
        gate.x = silu(gate.x), gate.y = silu(gate.y), gate.z = silu(gate.z), gate.w = silu(gate.w);
        *(float4*)(to + i) = gate;
        i = after;
    }
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
    if (from.has_early_gates) fetch_gates(gates, from.gate, inputs);
    wait();
    copy_numbers(row, from.x, inputs);
    if (from.gate && !from.has_early_gates) fetch_gates(gates, from.gate, inputs);
    commit_copies();
    wait_for_copies<0>();
    float whole = 1.0f;
    if (dim) {
        // Sums of tiles come later.
        whole = norm_factors<STEP_WARPS>(from, row, scratch.partial, scratch.steps);
    } else {
        sync_step();
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
        add_group(sum, a, first, second, b, step);
    }
    return sum;
}

// The number of a job that no other warp has.
__device__ __forceinline__ int take_job(StepShared& shared) {
    u32 job = 0;
    if ((thread_index() & 31) == 0) job = atomicAdd(&shared.next_job, 1);
    return (int)__shfl_sync(0xffffffffu, job, 0);
}

// Products of one row, whose integers are in shared memory, by whichever warp is free; the last warp to finish a tile
// adds its segments in ascending order.
__device__ __forceinline__ void multiply_row(StepShared& shared, const ProductScratch& scratch, const Parts& parts,
                                             int segments, int jobs) {
    const int lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
    const u32 full = shared_address(shared.full_barriers), empty = shared_address(shared.empty_barriers);
    const u32 first_slot = shared.first_slot;
    int job = take_job(shared), tile = 0, segment = job;
#pragma unroll 1
    while (job < jobs) {
        while (segment >= segments) segment -= segments, tile++;
        const u32 slot = first_slot + job / SLOT_JOBS, place = slot % SLOTS;
        barrier_wait(full + place * 8, slot / SLOTS & 1);
        const float2 own = multiply_segment(shared.weights[place] + job % SLOT_JOBS * BLOCK_BYTES,
                                            scratch.inputs + segment * GROUPS * 8, scratch.steps + segment * GROUPS, lane);
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + place * 8);
        const int next = take_job(shared);

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
        segment += next - job, job = next;
    }
}

// A product of one row: its integers, then the tiles of the CTA.
__device__ __forceinline__ void product_operation(StepShared& shared, int kind, ArgumentReader arguments,
                                                  PreviousOperation wait) {
    const Parts& parts = arguments.take<Parts>();
    const int tiles = arguments.take<int>(), segments = arguments.take<int>(), jobs = own_jobs(tiles, segments);
    const ProductScratch scratch(shared.scratch(), segments);
    if (thread_index() < TILES_OPEN) shared.arrived[thread_index()] = 0;
    if (thread_index() == 0) {
        shared.next_job = 0;
        shared.first_slot += shared.slots, shared.slots = (jobs + SLOT_JOBS - 1) / SLOT_JOBS;
    }
    if (kind == PRODUCT_OF_ROW) {
        quantize_row(arguments.take<InputRow>(), shared.scratch(), segments * GROUPS, wait);
    } else {
        const uint4* planes = arguments.take<const uint4*>();
        const float2* steps = arguments.take<const float2*>();
        wait();
        for (int i = thread_index(); i < segments * GROUPS * 8; i += STEP_THREADS) scratch.inputs[i] = planes[i];
        for (int i = thread_index(); i < segments * GROUPS; i += STEP_THREADS) scratch.steps[i] = steps[i];
    }
    if (thread_index() == 0) *(volatile u32*)&shared.current_end = shared.first_slot + shared.slots;
    sync_step();
    multiply_row(shared, scratch, parts, segments, jobs);
}
