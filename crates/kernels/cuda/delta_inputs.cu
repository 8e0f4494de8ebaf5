// Inputs of the gated delta rule (delta.cu): causal convolution with SiLU, norms of keys and queries, and
// gates; in the CPU kernels' order of rounding.
#include "delta.cuh"

// Consecutive tokens of one sequence.
struct DeltaTokens {
    // Inputs of the convolution before the sequence's first token of this step, [width - 1][channels], or
    // null for zeros.
    const float* past;
    // See delta.cu.
    float* keys;
    float* values;
    float2* gates;
    // The sequence's first token of this step, and these tokens' first, among those of all sequences.
    int row_start;
    int start;
    int tokens;
};
constexpr int MAX_DELTA_TOKENS = 32;
struct DeltaTokensOf {
    DeltaTokens row[MAX_DELTA_TOKENS];
    int count;
};

// x [tokens][channels]: queries, keys and values; taps [width][channels]; b, a [tokens][value_heads].
// Grid: tokens, key_heads + value_heads; DIM threads.
template <int DIM>
__device__ __forceinline__ void delta_inputs(const DeltaTokensOf& all, const DeltaSizes& sizes, const float* x,
                                             const float* taps, const float* b, const float* a,
                                             const float* neg_exp_a, const float* dt_bias) {
    __shared__ float query[DIM], key[DIM];
    __shared__ float factors[2];
    launch_dependents();
    wait_for_previous();
    const int token = blockIdx.x, i = threadIdx.x;
    int r = 0;
    while (r + 1 < all.count && token >= all.row[r + 1].start) r++;
    const DeltaTokens& row = all.row[r];
    const int own = token - row.start, t = token - row.row_start;
    const float* from = x + (size_t)row.row_start * sizes.channels;
    if ((int)blockIdx.y < sizes.key_heads) {
        const int head = blockIdx.y, keys = sizes.key_heads * DIM;
        query[i] = convolved(sizes, row.past, from, taps, t, head * DIM + i);
        key[i] = convolved(sizes, row.past, from, taps, t, keys + head * DIM + i);
        __syncthreads();
        if (i < 32) {
            const float own_query = inverse_rms(query, DIM, sizes.query_eps);
            const float own_key = inverse_rms(key, DIM, sizes.key_eps);
            if (i == 0) factors[0] = own_query, factors[1] = own_key;
        }
        __syncthreads();
        float* to = row.keys + ((size_t)head * row.tokens + own) * 2 * DIM + i / 32 * 32 + i % 8 * 4 + i / 8 % 4;
        to[0] = key[i] * factors[1] * sizes.key_weight;
        to[DIM] = query[i] * factors[0] * sizes.query_weight;
    } else {
        const int head = blockIdx.y - sizes.key_heads, channel = 2 * sizes.key_heads * DIM + head * DIM + i;
        row.values[((size_t)head * row.tokens + own) * DIM + i] = convolved(sizes, row.past, from, taps, t, channel);
        if (i == 0) {
            const size_t gate = (size_t)token * sizes.value_heads + head;
            const float decay = exact_exp(neg_exp_a[head] * softplus(a[gate] + dt_bias[head]));
            const float2 pair = make_float2(decay, sigmoid(b[gate]));
            row.gates[(size_t)head * ((row.tokens + 1) / 2 * 2) + own] = pair;
        }
    }
}

extern "C" __global__ void __launch_bounds__(128)
    delta_inputs_128(const __grid_constant__ DeltaTokensOf all, const __grid_constant__ DeltaSizes sizes,
                     const float* x, const float* taps, const float* b, const float* a, const float* neg_exp_a,
                     const float* dt_bias) {
    delta_inputs<128>(all, sizes, x, taps, b, a, neg_exp_a, dt_bias);
}

extern "C" __global__ void __launch_bounds__(64)
    delta_inputs_64(const __grid_constant__ DeltaTokensOf all, const __grid_constant__ DeltaSizes sizes,
                    const float* x, const float* taps, const float* b, const float* a, const float* neg_exp_a,
                    const float* dt_bias) {
    delta_inputs<64>(all, sizes, x, taps, b, a, neg_exp_a, dt_bias);
}

// One sequence's inputs of the convolution: the last `width - 1` of `past` and `tokens` of `x`.
struct ConvRow {
    const float* past;
    const float* x;
    float* next;
    int tokens;
};
constexpr int MAX_CONV_ROWS = 32;
struct ConvRows {
    ConvRow row[MAX_CONV_ROWS];
};

// Grid: channels / 256, sequences; 256 threads. `next` is not `past`.
extern "C" __global__ void __launch_bounds__(256)
    conv_state(const __grid_constant__ ConvRows rows, int channels, int width) {
    launch_dependents();
    wait_for_previous();
    const ConvRow& row = rows.row[blockIdx.y];
    const int channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= channels) return;
    for (int i = 0; i < width - 1; i++) {
        const int from = i + row.tokens - (width - 1);
        float value = 0;
        if (from >= 0) {
            value = row.x[(size_t)from * channels + channel];
        } else if (row.past) {
            value = row.past[(size_t)(from + width - 1) * channels + channel];
        }
        row.next[(size_t)i * channels + channel] = value;
    }
}
