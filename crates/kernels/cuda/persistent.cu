// A step of decoding as one launch: CTAs that stay execute a list of operations, each after all CTAs have finished
// the one before. Each operation computes what the kernel of its own (skinny.cu, heads.cu and so on) computes.
//
// Weights do not depend on operations before them: a warp of its own copies them to shared memory (load_weights.cuh).
#include "delta_token.cuh"
#include "embed.cuh"
#include "persistent_product.cuh"
#include "sample.cuh"

// One token through a Gated DeltaNet, in the order of delta_token.cu, a CTA for each DELTA_VALUES values of a head.
// The state is loaded before waiting for the previous operation, which does not write it.
template <int DIM>
struct DeltaShared {
    // Queries, then keys, then values.
    float channels[2 * DIM + DELTA_VALUES];
    float factors[2], rates[2];
};

template <int DIM>
__device__ __forceinline__ void delta_operation(unsigned char* scratch, ArgumentReader arguments,
                                             PreviousOperation wait) {
    const DeltaSizes& sizes = arguments.take<DeltaSizes>();
    const float* x = arguments.take<const float*>();
    const float* taps = arguments.take<const float*>();
    const float* b = arguments.take<const float*>();
    const float* a = arguments.take<const float*>();
    const float* neg_exp_a = arguments.take<const float*>();
    const float* dt_bias = arguments.take<const float*>();
    float* out = arguments.take<float*>();
    const DeltaTokenRow& row = arguments.take<DeltaTokenRow>();
    auto& shared = *in_shared((DeltaShared<DIM>*)scratch);
    constexpr int PARTS = DIM / DELTA_VALUES, OWN = DIM / 8;
    const int thread = thread_index(), lane = thread & 7, keys = sizes.key_heads * DIM;
    const int blocks = sizes.value_heads * PARTS, sharing = sizes.value_heads / sizes.key_heads;
    // A thread has a channel, and a number of every eighth of a row of the state.
    const bool has_channel = thread < 2 * DIM + DELTA_VALUES, has_row = thread < DELTA_VALUES * 8;
    bool waited = false;
#pragma unroll 1
    for (int i = blockIdx.x; i < blocks || !waited; i += gridDim.x) {
        const bool has = i < blocks;
        const int head = i / PARTS, part = i % PARTS, key_head = head / sharing;
        const int channel = thread < DIM         ? key_head * DIM + thread
                            : thread < 2 * DIM ? keys + key_head * DIM + thread - DIM
                                               : 2 * keys + head * DIM + part * DELTA_VALUES + thread - 2 * DIM;
        const size_t state = ((size_t)head * DIM + part * DELTA_VALUES + thread / 8) * DIM + lane;
        float s[OWN];
        if (has && has_row) {
#pragma unroll
            for (int j = 0; j < OWN; j++) s[j] = row.before[state + j * 8];
        }
        const bool has_rates = has && thread == STEP_THREADS - 1;
        float rate = 0, bias = 0;
        if (has_rates) rate = neg_exp_a[head], bias = dt_bias[head];
        if (!waited) wait();
        waited = true;
        if (!has) break;
        if (has_channel) {
            Channel own;
            own.load(sizes, row.past, x, taps, channel);
            shared.channels[thread] = own.convolved(sizes.width);
            // One of the CTAs that need the same keys and queries keeps the inputs.
            if (thread >= 2 * DIM || (part == 0 && head % sharing == 0)) own.keep(sizes, row.next, channel);
        }
        if (has_rates) {
            shared.rates[0] = exact_exp(rate * softplus(a[head] + bias));
            shared.rates[1] = sigmoid(b[head]);
        }
        sync_step();
        if (thread < 64) {
            const bool is_key = thread >= 32;
            const float factor = row_factor(shared.channels + is_key * DIM, DIM, is_key ? sizes.key_eps : sizes.query_eps);
            if ((thread & 31) == 0) shared.factors[is_key] = factor;
        }
        sync_step();
        if (thread < 2 * DIM) {
            const bool is_key = thread >= DIM;
            shared.channels[thread] = shared.channels[thread] * shared.factors[is_key] *
                                      (is_key ? sizes.key_weight : sizes.query_weight);
        }
        sync_step();
        if (has_row) {
            const float decay = shared.rates[0], beta = shared.rates[1];
            const float* q = shared.channels + lane;
            const float* k = q + DIM;
            float sums[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < OWN; j++) sums[j & 1] = __fmaf_rn(s[j], __fmul_rn(decay, k[j * 8]), sums[j & 1]);
            const float seen = sum_lanes(__fadd_rn(sums[0], sums[1]));
            const float delta = __fmul_rn(__fsub_rn(shared.channels[2 * DIM + thread / 8], seen), beta);
            sums[0] = sums[1] = 0;
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                const float next = __fmaf_rn(delta, k[j * 8], __fmul_rn(s[j], decay));
                sums[j & 1] = __fmaf_rn(next, q[j * 8], sums[j & 1]);
                row.after[state + j * 8] = next;
            }
            const float output = sum_lanes(__fadd_rn(sums[0], sums[1]));
            if (lane == 0) out[head * DIM + part * DELTA_VALUES + thread / 8] = output;
        }
        sync_step();
    }
}

template <int BITS>
__device__ __forceinline__ void embed_operation(ArgumentReader arguments, PreviousOperation wait) {
    const u8* weights = arguments.take<const u8*>();
    const u32* id = arguments.take<const u32*>();
    float* out = arguments.take<float*>();
    const int inputs = arguments.take<int>(), segments = arguments.take<int>();
    wait();
    for (int i = blockIdx.x * STEP_THREADS + thread_index(); i < inputs; i += gridDim.x * STEP_THREADS)
        out[i] = embedded<BITS>(weights, *id, i, segments);
}

// An RMS norm, by one CTA.
__device__ __forceinline__ void norm_operation(unsigned char* scratch, ArgumentReader arguments, PreviousOperation wait) {
    const float* x = arguments.take<const float*>();
    const float* weight = arguments.take<const float*>();
    const float* stream = arguments.take<const float*>();
    float* out = arguments.take<float*>();
    const int length = arguments.take<int>();
    const float eps = arguments.take<float>();
    float* sums = in_shared((float*)scratch);
    float* row = sums + 2 * STEP_WARPS;
    wait();
    if (blockIdx.x) return;
    for (int i = thread_index(); i < length; i += STEP_THREADS) row[i] = x[i];
    const float factor = cta_row_factor<STEP_WARPS>(row, length, eps, sums);
    for (int i = thread_index(); i < length; i += STEP_THREADS) {
        const float normed = row[i] * factor * weight[i];
        out[i] = stream ? stream[i] + normed : normed;
    }
}

// Of a row of logits, by the first 256 threads of each CTA.
__device__ __forceinline__ void sample_operation(unsigned char* scratch, ArgumentReader arguments, bool finish,
                                              PreviousOperation wait) {
    const Draw& draw = arguments.take<Draw>();
    const float* logits = arguments.take<const float*>();
    const SampleMemory& memory = arguments.take<SampleMemory>();
    u32* arrived = arguments.take<u32*>();
    u32* token = arguments.take<u32*>();
    float* fault = arguments.take<float*>();
    const int size = arguments.take<int>();
    auto& shared = *in_shared((SampleShared*)scratch);
    wait();
    if (thread_index() >= 256) return;
    const Team<256> team;
    if (finish) {
        sample_row(team, shared, draw, logits, memory, arrived, token, fault, size, blockIdx.x, gridDim.x);
    } else {
        sample_part(team, shared, draw, logits, memory.parts, size, blockIdx.x, gridDim.x);
    }
}

template <int DIM>
__device__ __forceinline__ void scores_operation(unsigned char* scratch, ArgumentReader arguments, PreviousOperation wait) {
    const TokenAttention& own = arguments.take<TokenAttention>();
    const HeadSizes& sizes = arguments.take<HeadSizes>();
    const HeadArrays& arrays = arguments.take<HeadArrays>();
    const TokenHeads heads = {own, sizes, arrays, arguments.take<HeadRow>()};
    attention_scores<DIM, STEP_THREADS>(*in_shared((ScoreShared<DIM>*)scratch), heads, wait);
}

template <int DIM>
__device__ __forceinline__ void values_operation(unsigned char* scratch, ArgumentReader arguments, PreviousOperation wait) {
    const TokenAttention& own = arguments.take<TokenAttention>();
    const AttentionRow& row = arguments.take<AttentionRow>();
    attention_values<DIM, STEP_THREADS>(*in_shared((ValueShared*)scratch), own, row, wait);
}

__device__ __forceinline__ void merge_operation(unsigned char* scratch, ArgumentReader arguments, PreviousOperation wait) {
    attention_merge<STEP_THREADS>(*in_shared((MergeShared*)scratch), arguments.take<TokenAttention>(), wait);
}

template <int DIM>
__device__ __forceinline__ void short_operation(unsigned char* scratch, ArgumentReader arguments, PreviousOperation wait) {
    const TokenAttention& own = arguments.take<TokenAttention>();
    const AttentionRow& row = arguments.take<AttentionRow>();
    attention_short<DIM, STEP_THREADS>(*in_shared((ShortShared*)scratch), own, row, wait);
}

__device__ __forceinline__ void gated_operation(ArgumentReader arguments, PreviousOperation wait) {
    u8* planes = arguments.take<u8*>();
    float2* steps = arguments.take<float2*>();
    const float* gate = arguments.take<const float*>();
    const float* up = arguments.take<const float*>();
    const int inputs = arguments.take<int>(), groups = arguments.take<int>();
    const GateActivation activation = arguments.take<GateActivation>();
    wait();
    const int lane = thread_index() & 31;
#pragma unroll 1
    for (int group = blockIdx.x + (thread_index() >> 5) * gridDim.x; group < groups; group += STEP_WARPS * gridDim.x) {
        const int i = group * GROUP + 2 * lane;
        float first = 0, second = 0;
        if (i < inputs) {
            const float2 g = *(const float2*)(gate + i), u = *(const float2*)(up + i);
            first = gated_value(activation, g.x, u.x), second = gated_value(activation, g.y, u.y);
        }
        const QuantizedPair pair = quantize_pair(first, second);
        u8* to = planes + group * 128 + pair.at;
        *(unsigned short*)to = pair.high, *(unsigned short*)(to + 64) = pair.low;
        if (lane == 0) steps[group] = pair.step;
    }
}

// What a CTA does for an operation, but for products.
__device__ __forceinline__ void execute(int kind, unsigned char* scratch, ArgumentReader arguments,
                                        PreviousOperation wait) {
    switch (kind) {
        case GATED: gated_operation(arguments, wait); break;
        case DELTA_TOKEN_64: delta_operation<64>(scratch, arguments, wait); break;
        case DELTA_TOKEN_128: delta_operation<128>(scratch, arguments, wait); break;
        case SCORES_64: scores_operation<64>(scratch, arguments, wait); break;
        case SCORES_128: scores_operation<128>(scratch, arguments, wait); break;
        case SCORES_256: scores_operation<256>(scratch, arguments, wait); break;
        case VALUES_64: values_operation<64>(scratch, arguments, wait); break;
        case VALUES_128: values_operation<128>(scratch, arguments, wait); break;
        case VALUES_256: values_operation<256>(scratch, arguments, wait); break;
        case MERGE: merge_operation(scratch, arguments, wait); break;
        case VALUES_SHORT_64: short_operation<64>(scratch, arguments, wait); break;
        case VALUES_SHORT_128: short_operation<128>(scratch, arguments, wait); break;
        case VALUES_SHORT_256: short_operation<256>(scratch, arguments, wait); break;
        case EMBED_4: embed_operation<4>(arguments, wait); break;
        case EMBED_8: embed_operation<8>(arguments, wait); break;
        case RMS_NORM: norm_operation(scratch, arguments, wait); break;
        case SAMPLE_PARTS: sample_operation(scratch, arguments, false, wait); break;
        case SAMPLE_ROW: sample_operation(scratch, arguments, true, wait); break;
    }
}

// `operations` are those of the step, the first two of these bytes; `products` the weights of its `count` products.
// `finished` counts CTAs that have finished an operation, from `before` on. Grid: at most the multiprocessors.
extern "C" __global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    persistent(const unsigned char* operations, int first_bytes, int second_bytes, const ProductWeights* products,
               int count, u32* finished, u32 before) {
    DYNAMIC_SHARED(memory);
    StepShared& shared = *(StepShared*)memory;
    const u32 operation_barrier = shared_address(shared.operation_barriers);
    auto fetch = [&](int bytes, int slot) {
        const u32 barrier = operation_barrier + slot * 8;
        barrier_expect(barrier, bytes);
        bulk_copy(shared_address(shared.operations[slot]), shared.next_operation, bytes, barrier, evict_first());
        shared.next_operation += bytes;
    };
    if (thread_index() == 0) {
        shared.next_operation = operations;
        shared.loaded = shared.current_end = shared.first_slot = shared.slots = 0;
#pragma unroll 1
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(shared_address(shared.full_barriers + i), 1);
            barrier_init(shared_address(shared.empty_barriers + i), SLOT_JOBS);
        }
        for (int i = 0; i < OPERATIONS_KNOWN; i++) barrier_init(operation_barrier + i * 8, 1);
        barrier_fence();
    }
    __syncthreads();
    if (thread_index() >= STEP_THREADS) {
        give_registers<LOADING_REGISTERS>();
        if (thread_index() == STEP_THREADS) load_weights(shared, SlotStream(products, count));
        if (thread_index() == STEP_THREADS + 32) prefetch_weights(shared, SlotStream(products, count));
        return;
    }
    take_registers<STEP_REGISTERS>();
    if (thread_index() == 0) {
        fetch(first_bytes, 0);
        if (second_bytes) fetch(second_bytes, 1);
    }
    PreviousOperation wait = {finished, before};
    int slot = 0;
    u32 parity = 0;
#pragma unroll 1
    for (bool more = true; more;) {
        barrier_wait(operation_barrier + slot * 8, parity);
        const OperationHead head = *(const OperationHead*)shared.operations[slot];
        more = head.next != 0;
        // The slot after the next one's was that of the previous operation.
        if (thread_index() == 0 && head.after) fetch(head.after, slot == 0 ? OPERATIONS_KNOWN - 1 : slot - 1);
        const ArgumentReader arguments = {shared.operations[slot] + sizeof(OperationHead)};
        if (head.kind <= PRODUCT_OF_INTEGERS) {
            product_operation(shared, head.kind, arguments, wait);
        } else {
            execute(head.kind, shared.scratch(), arguments, wait);
        }
        sync_step();
        if (thread_index() == 0) add_release(finished, 1);
        wait.target += gridDim.x;
        if (++slot == OPERATIONS_KNOWN) slot = 0, parity ^= 1;
    }
}
