// One token of several sequences through a Gated DeltaNet: what delta_inputs.cu and delta.cu compute, in one
// launch and with the same bits.
#include "delta_token.cuh"

constexpr int MAX_DELTA_TOKEN_ROWS = 64;
struct DeltaTokenRows {
    DeltaTokenRow row[MAX_DELTA_TOKEN_ROWS];
};

// Every group of 8 lanes has `ROWS` rows of the state. x [tokens][channels], b and a [tokens][value_heads], out
// [tokens][value_heads][DIM]; taps [width][channels], width 2 to MAX_TAPS. Grid: value_heads * DIM / DELTA_VALUES,
// sequences; 128 threads.
template <int DIM>
__device__ __forceinline__ void delta_token(const DeltaTokenRow& row, const DeltaSizes& sizes, const float* x,
                                            const float* taps, const float* b, const float* a,
                                            const float* neg_exp_a, const float* dt_bias, float* out) {
    constexpr int THREADS = 128, VALUES = DELTA_VALUES, ROWS = VALUES / 16, PARTS = DIM / VALUES, OWN = DIM / 8;
    __shared__ float query[DIM], key[DIM], values[VALUES];
    __shared__ float factors[2], rates[2];
    const int thread = threadIdx.x, lane = thread & 7, head = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
    const int sharing = sizes.value_heads / sizes.key_heads, key_head = head / sharing;
    const int first = thread / 8 * ROWS;
    const size_t state = ((size_t)head * DIM + part * VALUES + first) * DIM + lane;
    if (thread == 0) prefetch(row.before + (size_t)blockIdx.x * VALUES * DIM, VALUES * DIM * 4);
    launch_dependents();
    wait_for_previous();
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
    __syncthreads();
    if (thread < 64) {
        const bool is_key = thread >= 32;
        const float own = row_factor(is_key ? key : query, DIM, is_key ? sizes.key_eps : sizes.query_eps);
        if ((thread & 31) == 0) factors[is_key] = own;
    }
    __syncthreads();
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

#define DELTA_TOKEN(dim)                                                                                        \
    extern "C" __global__ void __launch_bounds__(128, 4)                                                        \
        delta_token_##dim(const __grid_constant__ DeltaTokenRows rows, const __grid_constant__ DeltaSizes sizes, \
                          const float* x, const float* taps, const float* b, const float* a,                    \
                          const float* neg_exp_a, const float* dt_bias, float* out) {                           \
        delta_token<dim>(rows.row[blockIdx.y], sizes, x, taps, b, a, neg_exp_a, dt_bias, out);                  \
    }

DELTA_TOKEN(64)
DELTA_TOKEN(128)
