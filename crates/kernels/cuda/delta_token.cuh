// One token of several sequences through a Gated DeltaNet: what delta_inputs.cu and delta.cu compute, in one
// operation and with the same bits.
#pragma once
#include "block.cuh"
#include "delta.cuh"

// A sequence whose next token is `token` of all.
struct DeltaTokenRow {
    // Inputs of the convolution before and after the token, [width - 1][channels]: not the same memory. No
    // inputs before: null.
    const float* past;
    float* next;
    // The state before and after it, which may be the same memory.
    const float* before;
    float* after;
    int token;
};
constexpr int MAX_DELTA_TOKEN_ROWS = 64;
struct DeltaTokenRows {
    DeltaTokenRow row[MAX_DELTA_TOKEN_ROWS];
};

// Most inputs of a convolution.
constexpr int MAX_TAPS = 4;

// Inputs of a channel's convolution, the token's last, and its weights.
struct Channel {
    float inputs[MAX_TAPS], taps[MAX_TAPS];

    __device__ __forceinline__ void load(const DeltaSizes& sizes, const float* past, const float* x,
                                         const float* weights, int channel) {
#pragma unroll
        for (int j = 0; j < MAX_TAPS; j++) {
            inputs[j] = taps[j] = 0;
            if (j >= sizes.width) continue;
            const size_t at = (size_t)j * sizes.channels + channel;
            taps[j] = weights[at];
            inputs[j] = j == sizes.width - 1 ? x[channel] : past ? past[at] : 0.0f;
        }
    }

    __device__ __forceinline__ float convolved(int width) const {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < MAX_TAPS; j++)
            if (j < width) sum = __fmaf_rn(inputs[j], taps[j], sum);
        return silu(sum);
    }

    // Writes the inputs for the next token.
    __device__ __forceinline__ void keep(const DeltaSizes& sizes, float* next, int channel) const {
#pragma unroll
        for (int j = 1; j < MAX_TAPS; j++)
            if (j < sizes.width) next[(size_t)(j - 1) * sizes.channels + channel] = inputs[j];
    }
};

// Every group of 8 lanes has so many rows of the state.
constexpr int DELTA_ROWS = 2;
// Values of a head that a block computes.
constexpr int DELTA_VALUES = 16 * DELTA_ROWS;

// Shared by the threads of a block.
template <int DIM>
struct DeltaTokenShared {
    float query[DIM], key[DIM], values[DELTA_VALUES];
    float factors[2], rates[2];
};

// Brings the block's rows of the state to the L2 cache.
template <int DIM>
__device__ __forceinline__ void prefetch_state(const DeltaTokenRow& row, int index) {
    prefetch(row.before + (size_t)index * DELTA_VALUES * DIM, DELTA_VALUES * DIM * 4);
}

// Block `index` of value_heads * DIM / DELTA_VALUES, by 128 threads. x [tokens][channels], b and a
// [tokens][value_heads], out [tokens][value_heads][DIM]; taps [width][channels], width 2 to MAX_TAPS.
template <int DIM, class Block>
__device__ __forceinline__ void delta_token(const Block& block, int index, DeltaTokenShared<DIM>& shared,
                                            const DeltaTokenRow& row, const DeltaSizes& sizes, const float* x,
                                            const float* taps, const float* b, const float* a,
                                            const float* neg_exp_a, const float* dt_bias, float* out) {
    constexpr int THREADS = 128, ROWS = DELTA_ROWS, VALUES = DELTA_VALUES, PARTS = DIM / VALUES, OWN = DIM / 8;
    float(&query)[DIM] = shared.query, (&key)[DIM] = shared.key, (&values)[VALUES] = shared.values;
    float(&factors)[2] = shared.factors, (&rates)[2] = shared.rates;
    const int thread = block.thread(), lane = thread & 7, head = index / PARTS, part = index % PARTS;
    const int sharing = sizes.value_heads / sizes.key_heads, key_head = head / sharing;
    const int first = thread / 8 * ROWS;
    const size_t state = ((size_t)head * DIM + part * VALUES + first) * DIM + lane;
    float s[ROWS][OWN];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < OWN; j++) s[r][j] = row.before[state + r * DIM + j * 8];
    x += (size_t)row.token * sizes.channels;
    // Several CTAs need the same keys and queries: one of them keeps the inputs.
    const bool keeps = part == 0 && head % sharing == 0;
    const int keys = sizes.key_heads * DIM;
    // Everything is on its way before the first of it is used.
    const bool has_head = DIM == THREADS || thread < DIM, has_value = thread < VALUES;
    const int own = key_head * DIM + thread, value = 2 * keys + head * DIM + part * VALUES + thread;
    Channel of_query, of_key, of_value;
    const size_t gate = (size_t)row.token * sizes.value_heads + head;
    const float rate = neg_exp_a[head], shift = a[gate] + dt_bias[head], own_b = b[gate];
    if (has_head) of_query.load(sizes, row.past, x, taps, own), of_key.load(sizes, row.past, x, taps, keys + own);
    if (has_value) of_value.load(sizes, row.past, x, taps, value);
    if (has_head) {
        query[thread] = of_query.convolved(sizes.width), key[thread] = of_key.convolved(sizes.width);
        if (keeps) of_query.keep(sizes, row.next, own), of_key.keep(sizes, row.next, keys + own);
    }
    if (has_value) {
        values[thread] = of_value.convolved(sizes.width);
        of_value.keep(sizes, row.next, value);
    }
    if (thread == THREADS - 1) {
        rates[0] = exact_exp(rate * softplus(shift));
        rates[1] = sigmoid(own_b);
    }
    block.sync();
    if (thread < 64) {
        const bool is_key = thread >= 32;
        const float own = inverse_rms(is_key ? key : query, DIM, is_key ? sizes.key_eps : sizes.query_eps);
        if ((thread & 31) == 0) factors[is_key] = own;
    }
    block.sync();
    const float decay = rates[0], beta = rates[1];
    float k[OWN], q[OWN];
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        k[j] = key[lane + j * 8] * factors[1] * sizes.key_weight;
        q[j] = query[lane + j * 8] * factors[0] * sizes.query_weight;
    }
    float result = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sums[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < OWN; j++) sums[j & 1] = __fmaf_rn(s[r][j], __fmul_rn(decay, k[j]), sums[j & 1]);
        const float seen = sum_lanes(__fadd_rn(sums[0], sums[1]));
        const float delta = __fmul_rn(__fsub_rn(values[first + r], seen), beta);
        sums[0] = sums[1] = 0;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            s[r][j] = __fmaf_rn(delta, k[j], __fmul_rn(s[r][j], decay));
            sums[j & 1] = __fmaf_rn(s[r][j], q[j], sums[j & 1]);
            row.after[state + r * DIM + j * 8] = s[r][j];
        }
        const float output = sum_lanes(__fadd_rn(sums[0], sums[1]));
        if (lane == r) result = output;
    }
    if (lane < ROWS) out[((size_t)row.token * sizes.value_heads + head) * DIM + part * VALUES + first + lane] = result;
}
