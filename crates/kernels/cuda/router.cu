// Routers: each token's experts and their weights, as kernels/src/router.rs chooses them, bit for bit; and the tokens
// of each expert.
#include "experts.cuh"
#include "math.cuh"
#include "sort_key.cuh"

struct Rule {
    const float* bias;
    int experts;
    int per_token;
    int normalize;
    // 0 softmax, 1 sigmoid.
    int scores;
    float eps;
    float scale;
    int groups;
    int open_groups;
};

// Sort keys of the scores of experts: a lane has every 32nd expert.
template <int OWN>
struct Keys {
    u64 own[OWN];

    __device__ __forceinline__ void set(const float* scores, int count) {
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const int i = j * 32 + (threadIdx.x & 31);
            own[j] = i < count ? sort_key(scores[i], i) : NO_KEY;
            // NaN comes last.
            if (i < count && scores[i] != scores[i]) own[j] = (u64)0xffffffffu << 32 | i;
        }
    }

    // Takes the best of the experts from `first` to before `end`; of equal ones the first.
    __device__ __forceinline__ u32 take_best(int first, int end) {
        u64 best = NO_KEY;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const int i = j * 32 + (threadIdx.x & 31);
            if (i >= first && i < end && own[j] < best) best = own[j];
        }
        const u32 index = (u32)least_of_warp(best);
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            if (index == (u32)(j * 32 + (threadIdx.x & 31))) own[j] = NO_KEY;
        }
        return index;
    }
};

struct RouteShared {
    float scores[MAX_EXPERTS], choice[MAX_EXPERTS], group_scores[MAX_EXPERTS];
};

// Closes all groups but the best: their experts get minus infinity.
template <int OWN>
__device__ __forceinline__ void close_groups(const Rule& rule, RouteShared& shared) {
    const int size = rule.experts / rule.groups, lane = threadIdx.x & 31;
    Keys<OWN> keys;
    keys.set(shared.choice, rule.experts);
#pragma unroll 1
    for (int group = 0; group < rule.groups; group++) {
        float score = shared.choice[keys.take_best(group * size, group * size + size)];
        if (size > 1) score = score + shared.choice[keys.take_best(group * size, group * size + size)];
        if (lane == 0) shared.group_scores[group] = score;
    }
    __syncwarp();
    keys.set(shared.group_scores, rule.groups);
#pragma unroll 1
    for (int i = 0; i < rule.open_groups; i++) keys.take_best(0, rule.groups);
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        const int group = j * 32 + lane;
        if (group >= rule.groups || keys.own[j] == NO_KEY) continue;
        for (int i = group * size; i < group * size + size; i++) shared.choice[i] = __uint_as_float(0xff800000u);
    }
    __syncwarp();
}

template <int OWN>
__device__ __forceinline__ void route(const Rule& rule, const float* logits, u32* chosen, float* weights) {
    __shared__ RouteShared shared;
    const int lane = threadIdx.x, experts = rule.experts;
    launch_dependents();
    wait_for_previous();
    logits += (size_t)blockIdx.x * experts;
    float own[OWN];
#pragma unroll
    for (int j = 0; j < OWN; j++) own[j] = j * 32 + lane < experts ? logits[j * 32 + lane] : __uint_as_float(0xff800000u);
    if (rule.scores == 0) {
        float largest = own[0];
#pragma unroll
        for (int j = 1; j < OWN; j++) largest = fmaxf(largest, own[j]);
#pragma unroll
        for (int distance = 16; distance; distance /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            own[j] = exact_exp(own[j] - largest);
            if (j * 32 + lane < experts) shared.scores[j * 32 + lane] = own[j];
        }
        __syncwarp();
        float sum = 0;
#pragma unroll 4
        for (int i = lane & 15; i < experts; i += 16) sum = sum + shared.scores[i];
        sum = reduce_16(sum);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < OWN; j++) own[j] = own[j] / sum;
    } else {
#pragma unroll
        for (int j = 0; j < OWN; j++) own[j] = sigmoid(own[j]);
    }
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        const int i = j * 32 + lane;
        if (i < experts) shared.scores[i] = own[j], shared.choice[i] = rule.bias ? own[j] + rule.bias[i] : own[j];
    }
    __syncwarp();
    if (rule.open_groups < rule.groups) close_groups<OWN>(rule, shared);
    Keys<OWN> keys;
    keys.set(shared.choice, experts);
    chosen += (size_t)blockIdx.x * rule.per_token, weights += (size_t)blockIdx.x * rule.per_token;
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < rule.per_token; i++) {
        const u32 best = keys.take_best(0, experts);
        const float score = shared.scores[best];
        sum = sum + score;
        if (lane == 0) chosen[i] = best, weights[i] = score;
    }
    sum = sum + rule.eps;
    __syncwarp();
    for (int i = lane; i < rule.per_token; i += 32) weights[i] = (rule.normalize ? weights[i] / sum : weights[i]) * rule.scale;
}

// Up to 256 experts, and up to MAX_EXPERTS. Grid: tokens; 32 threads.
extern "C" __global__ void __launch_bounds__(32)
    route_256(const __grid_constant__ Rule rule, const float* logits, u32* chosen, float* weights) {
    route<8>(rule, logits, chosen, weights);
}

extern "C" __global__ void __launch_bounds__(32)
    route_1024(const __grid_constant__ Rule rule, const float* logits, u32* chosen, float* weights) {
    route<MAX_EXPERTS / 32>(rule, logits, chosen, weights);
}

// Tokens by expert, in tiles of `tile_rows` places, of which an expert's last tile may leave some empty. `order` has the
// assignment of each of `places`: token * experts per token + choice. An expert's assignments may be in any order.
// Grid: 1; 1024 threads.
extern "C" __global__ void __launch_bounds__(1024)
    group_experts(const u32* chosen, u32* order, ExpertTile* tiles, int assignments, int experts, int tile_rows, int places) {
    __shared__ int counts[MAX_EXPERTS], starts[MAX_EXPERTS + 1], sums[32];
    const int thread = threadIdx.x, lane = thread & 31;
    if (thread < MAX_EXPERTS) counts[thread] = 0;
    launch_dependents();
    wait_for_previous();
    __syncthreads();
    for (int i = thread; i < assignments; i += 1024) atomicAdd(counts + chosen[i], 1);
    __syncthreads();
    // Tiles before each expert's.
    const int count = thread < experts ? counts[thread] : 0, own = (count + tile_rows - 1) / tile_rows;
    int before = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, distance);
        if (lane >= distance) before += other;
    }
    if (lane == 31) sums[thread / 32] = before;
    __syncthreads();
    int start = before - own;
    for (int i = 0; i < thread / 32; i++) start += sums[i];
    if (thread < experts) starts[thread] = start * tile_rows;
    // With this thread's all are counted.
    __shared__ int end;
    if (thread == 1023) tiles[0] = ExpertTile{start + own, 0, 0, 0}, end = (start + own) * tile_rows;
    for (int i = 0; i < own; i++) {
        const int first = (start + i) * tile_rows, left = count - i * tile_rows;
        tiles[1 + start + i] = ExpertTile{thread, first, min(left, tile_rows), 0};
    }
    for (int i = count; i < own * tile_rows; i++) order[start * tile_rows + i] = NO_ROW;
    __syncthreads();
    for (int i = end + thread; i < places; i += 1024) order[i] = NO_ROW;
    for (int i = thread; i < assignments; i += 1024) order[atomicAdd(starts + chosen[i], 1)] = i;
}
