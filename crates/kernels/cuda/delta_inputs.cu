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

// Most tokens of a CTA, and those whose inputs are read at once.
constexpr int MAX_RUN = 8, AHEAD = 4;

// A channel's inputs before a token, for convolutions of up to 4.
struct Window {
    float taps[4], before[3];
    // Taps that the convolution does not have; their products would not be zero where an input is infinite.
    int missing;

    __device__ __forceinline__ void load_taps(const DeltaSizes& sizes, const float* from, int channel) {
        missing = 4 - sizes.width;
#pragma unroll
        for (int j = 0; j < 4; j++)
            taps[j] = j >= missing ? from[(size_t)(j - missing) * sizes.channels + channel] : 0.0f;
    }

    // Token `t` of the sequence whose inputs are `x`.
    __device__ __forceinline__ void start(const DeltaSizes& sizes, const float* past, const float* x, int t,
                                          int channel) {
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const int from = t + j - 3;
            const bool used = j >= missing;
            before[j] = 0.0f;
            if (used && from >= 0) {
                before[j] = x[(size_t)from * sizes.channels + channel];
            } else if (used && past) {
                before[j] = past[(size_t)(from + sizes.width - 1) * sizes.channels + channel];
            }
        }
    }

    // As `convolved` of the next token, whose input is `now`.
    __device__ __forceinline__ float next(float now) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (j >= missing) sum = __fmaf_rn(before[j], taps[j], sum);
        sum = __fmaf_rn(now, taps[3], sum);
        before[0] = before[1], before[1] = before[2], before[2] = now;
        return silu(sum);
    }
};

// Calls `use` with the place in the run, the sequence and the convolved channels `first` and `second` of each token
// of the run, which begins at token `start` of all.
template <class Use>
__device__ __forceinline__ void convolve_run(const DeltaTokensOf& all, const DeltaSizes& sizes, const float* x,
                                             const float* taps, int start, int count, int first, int second,
                                             const Use& use) {
    Window windows[2];
    if (sizes.width <= 4) windows[0].load_taps(sizes, taps, first), windows[1].load_taps(sizes, taps, second);
    // Inputs of the tokens to come.
    float ahead[AHEAD][2] = {};
    const auto load = [&](int i, float (&to)[2]) {
        const float* own = x + (size_t)(start + i) * sizes.channels;
        if (i < count) to[0] = own[first], to[1] = own[second];
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(i, ahead[i]);
    int r = -1;
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const float now[2] = {ahead[0][0], ahead[0][1]};
#pragma unroll
        for (int j = 0; j + 1 < AHEAD; j++) ahead[j][0] = ahead[j + 1][0], ahead[j][1] = ahead[j + 1][1];
        load(i + AHEAD, ahead[AHEAD - 1]);
        const int token = start + i, before = r;
        if (r < 0) r = 0;
        while (r + 1 < all.count && token >= all.row[r + 1].start) r++;
        const DeltaTokens& row = all.row[r];
        const int t = token - row.row_start;
        const float* from = x + (size_t)row.row_start * sizes.channels;
        float outs[2];
        if (sizes.width > 4) {
            outs[0] = convolved(sizes, row.past, from, taps, t, first);
            outs[1] = convolved(sizes, row.past, from, taps, t, second);
        } else {
            if (r != before) {
                windows[0].start(sizes, row.past, from, t, first);
                windows[1].start(sizes, row.past, from, t, second);
            }
            outs[0] = windows[0].next(now[0]), outs[1] = windows[1].next(now[1]);
        }
        use(i, row, outs[0], outs[1]);
    }
}

// x [tokens][channels]: queries, keys and values; taps [width][channels]; b, a [tokens][value_heads].
// Grid: runs of up to `run` tokens, key_heads + value_heads / 2 rounded up; DIM threads.
template <int DIM>
__device__ __forceinline__ void delta_inputs(const DeltaTokensOf& all, const DeltaSizes& sizes, const float* x,
                                             const float* taps, const float* b, const float* a,
                                             const float* neg_exp_a, const float* dt_bias, int run) {
    __shared__ float vectors[MAX_RUN][2][DIM];
    __shared__ float factors[MAX_RUN][2];
    launch_dependents();
    wait_for_previous();
    const DeltaTokens& end = all.row[all.count - 1];
    const int start = blockIdx.x * run, count = min(run, end.start + end.tokens - start), i = threadIdx.x;
    if ((int)blockIdx.y < sizes.key_heads) {
        const int head = blockIdx.y, query = head * DIM + i, key = sizes.key_heads * DIM + query;
        convolve_run(all, sizes, x, taps, start, count, key, query,
                     [&](int at, const DeltaTokens&, float key, float query) {
                         vectors[at][0][i] = key, vectors[at][1][i] = query;
                     });
        __syncthreads();
        // Half a warp for each norm, always whole warps.
#pragma unroll 1
        for (int at = i / 16; at < 2 * count; at += DIM / 16) {
            const float own = row_factor(vectors[at / 2][at % 2], DIM, at % 2 ? sizes.query_eps : sizes.key_eps);
            if (i % 16 == 0) factors[at / 2][at % 2] = own;
        }
        __syncthreads();
        int r = 0;
#pragma unroll 1
        for (int at = 0; at < count; at++) {
            while (r + 1 < all.count && start + at >= all.row[r + 1].start) r++;
            const DeltaTokens& row = all.row[r];
            const size_t own = (size_t)head * row.tokens + (start + at - row.start);
            float* to = row.keys + own * 2 * DIM + i / 32 * 32 + i % 8 * 4 + i / 8 % 4;
            to[0] = vectors[at][0][i] * factors[at][0] * sizes.key_weight;
            to[DIM] = vectors[at][1][i] * factors[at][1] * sizes.query_weight;
        }
    } else {
        // Two heads, of which the second may not exist.
        const int head = (blockIdx.y - sizes.key_heads) * 2, channel = (2 * sizes.key_heads + head) * DIM + i;
        const bool both = head + 1 < sizes.value_heads;
        convolve_run(all, sizes, x, taps, start, count, channel, both ? channel + DIM : channel,
                     [&](int at, const DeltaTokens& row, float first, float second) {
                         const int own = start + at - row.start;
                         row.values[((size_t)head * row.tokens + own) * DIM + i] = first;
                         if (both) row.values[((size_t)(head + 1) * row.tokens + own) * DIM + i] = second;
                     });
        const int at = i / 2, value_head = head + i % 2;
        if (at >= count || value_head >= sizes.value_heads) return;
        int r = 0;
        while (r + 1 < all.count && start + at >= all.row[r + 1].start) r++;
        const DeltaTokens& row = all.row[r];
        const size_t gate = (size_t)(start + at) * sizes.value_heads + value_head;
        const float decay = exact_exp(neg_exp_a[value_head] * softplus(a[gate] + dt_bias[value_head]));
        const float2 pair = make_float2(decay, sigmoid(b[gate]));
        row.gates[(size_t)value_head * ((row.tokens + 1) / 2 * 2) + (start + at - row.start)] = pair;
    }
}

#define DELTA_INPUTS(dim)                                                                                    \
    extern "C" __global__ void __launch_bounds__(dim) delta_inputs_##dim(                                     \
        const __grid_constant__ DeltaTokensOf all, const __grid_constant__ DeltaSizes sizes, const float* x, \
        const float* taps, const float* b, const float* a, const float* neg_exp_a, const float* dt_bias, int run) { \
        delta_inputs<dim>(all, sizes, x, taps, b, a, neg_exp_a, dt_bias, run);                               \
    }

DELTA_INPUTS(64)
DELTA_INPUTS(128)

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
