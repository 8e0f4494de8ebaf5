// A row of inputs in float32, before a norm and a gate, of which every CTA makes the integers itself.
#pragma once
#include "quantize.cuh"

// A row of inputs in float32.
struct InputRow {
    const float* x;
    const float* weight;
    // Multiplied by each input's gate's SiLU, or null.
    const float* gate;
    int inputs;
    // A norm is over each `dim` inputs: all of them, or a multiple of GROUP. 0: no norm.
    int dim;
    float eps;
    // Whether the operation before this one does not write the gates: for operations of a persistent kernel.
    int has_early_gates;

    // Whether a norm is over a part of the row.
    __device__ __forceinline__ bool has_parts() const { return dim && dim < inputs; }
};

// A thread's inputs of a row, 8 neighbours: the input's weight in the norm, and its gate.
struct OwnInputs {
    float values[8], weights[8], gates[8];

    __device__ __forceinline__ void load_weights(const InputRow& from, int i) {
        if (from.dim && i < from.inputs) load_8(weights, from.weight + (from.dim == from.inputs ? i : i % from.dim));
    }

    __device__ __forceinline__ void load(const InputRow& from, int i) {
        if (i >= from.inputs) return;
        load_8(values, from.x + i);
        if (from.gate) load_8(gates, from.gate + i);
    }

    // After the norm, of which `factor` is that of these inputs, and gates.
    __device__ __forceinline__ void finish(const InputRow& from, int i, float factor) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (from.dim) values[k] = values[k] * factor * weights[k];
            if (from.gate) values[k] = values[k] * silu(gates[k]);
            if (i >= from.inputs) values[k] = 0.0f;
        }
    }
};

// The factor of the norm of a whole row in shared memory, by `WARPS` warps; `sums` as for cta_row_factor. Factors of
// norms of a row's parts are made by half a warp each and go where the steps of their groups will be.
template <int WARPS>
__device__ __forceinline__ float norm_factors(const InputRow& from, const float* row, float* sums, float2* steps) {
    if (!from.has_parts()) return cta_row_factor<WARPS>(row, from.dim, from.eps, sums);
    sync_threads(0, 32 * WARPS);
    const int lane = thread_index() & 31, warp = thread_index() >> 5;
    const int norms = from.inputs / from.dim, each = from.dim / GROUP;
#pragma unroll 1
    for (int first = warp * 2; first < norms; first += WARPS * 2) {
        const int norm = first + (lane >> 4);
        const float factor = row_factor(row + min(norm, norms - 1) * from.dim, from.dim, from.eps);
        if (norm < norms)
            for (int i = lane & 15; i < each; i += 16) steps[norm * each + i].x = factor;
    }
    sync_threads(0, 32 * WARPS);
    return 1.0f;
}

// The integers of a row, of which `own` has the thread's first inputs; `row` has room for it, `sums` as for
// cta_row_factor. By all threads.
template <int WARPS>
__device__ __forceinline__ void quantize_row(const InputRow& from, OwnInputs& own, float* row, float* sums,
                                             int groups, uint4* inputs, float2* input_steps) {
    constexpr int THREADS = WARPS * 32;
    float factor = 1.0f;
    if (from.dim) {
        if (thread_index() * 8 < from.inputs) store_8(row + thread_index() * 8, own.values);
        for (int i = (thread_index() + THREADS) * 8; i < from.inputs; i += THREADS * 8) {
            float other[8];
            load_8(other, from.x + i);
            store_8(row + i, other);
        }
        factor = norm_factors<WARPS>(from, row, sums, input_steps);
    }
    // A group is 8 threads'.
    for (int at = thread_index(); at < groups * 8; at += THREADS) {
        const int group = at / 8;
        own.finish(from, at * 8, from.has_parts() ? input_steps[group].x : factor);
        const QuantizedEight eight = quantize_eight(own.values);
        // All lanes have read the factor.
        __syncwarp();
        store_eight(inputs, input_steps, at, eight);
        own.load_weights(from, (at + THREADS) * 8);
        own.load(from, (at + THREADS) * 8);
    }
}
