// Sums of the values of a token's attention (attention_token.cuh) after few others: a CTA has some columns of all blocks
// of keys, which it merges itself.
#pragma once
#include "attention_token.cuh"

// Columns that a CTA sums up, and blocks of keys at most.
constexpr int SHORT_COLUMNS = 8, SHORT_BLOCKS = 6, SHORT_KEYS = SHORT_BLOCKS * KEY_BLOCK;
static_assert(SHORT_BLOCKS == 6 && PARTIAL == 68, "the numbers that parameters.rs has");

struct ShortShared {
    __align__(16) float values[SHORT_KEYS][SHORT_COLUMNS];
    // Rows start at other banks.
    __align__(16) float weights[QUAD][SHORT_KEYS + 4];
    __align__(16) float maxima[SHORT_BLOCKS][KEY_BLOCK / 32][QUAD];
    __align__(16) float largest[SHORT_BLOCKS][QUAD];
    float totals[SHORT_BLOCKS][QUAD];
    // Factors of a merge: of what was there before a block, and of the block.
    float before[SHORT_BLOCKS][QUAD], now[SHORT_BLOCKS][QUAD];
    float sums[SHORT_BLOCKS][QUAD * SHORT_COLUMNS];
};

// Values of some neighbouring keys, of a column, and their weights for a query.
struct ShortValues {
    static constexpr int COUNT = 8;
    float values[COUNT], weights[COUNT];

    __device__ __forceinline__ void load(const float* from, const float* of_query) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) values[i] = from[i * SHORT_COLUMNS];
        load_8(weights, of_query);
    }

    __device__ __forceinline__ void add_to(float& sum) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) sum = __fmaf_rn(weights[i], values[i], sum);
    }
};

// Adds the values of `count` keys in their order.
__device__ __forceinline__ float sum_short(const float* values, const float* weights, int count) {
    const int whole = count & ~(2 * ShortValues::COUNT - 1);
    auto load = [&](ShortValues& to, int key) { to.load(values + key * SHORT_COLUMNS, weights + key); };
    float sum = 0;
    if (whole) add_ahead<ShortValues>(whole, load, sum);
#pragma unroll 1
    for (int k = whole; k < count; k++) sum = __fmaf_rn(weights[k], values[k * SHORT_COLUMNS], sum);
    return sum;
}

// Numerators of all keys of a quad, and the largest scores of each block, by all threads: a team for each block, a
// thread for each key.
template <int THREADS>
__device__ __forceinline__ void short_weights(ShortShared& shared, const float* scores, int queries, int length) {
    constexpr int TEAMS = THREADS / KEY_BLOCK;
    const int key = thread_index() % KEY_BLOCK, lane = key & 31, first = thread_index() / KEY_BLOCK;
    const int blocks = (length + KEY_BLOCK - 1) / KEY_BLOCK;
    auto load = [&](int at) {
        float4 score = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        return at < length ? *(const float4*)(scores + (size_t)at * QUAD) : score;
    };
    // Those of the next two blocks are on their way meanwhile.
    float4 next = load(first * KEY_BLOCK + key), after = load((first + TEAMS) * KEY_BLOCK + key);
#pragma unroll 1
    for (int block = first; block < blocks; block += TEAMS) {
        const int at = block * KEY_BLOCK + key;
        float most[QUAD] = {next.x, next.y, next.z, next.w};
        next = after, after = load(at + 2 * TEAMS * KEY_BLOCK);
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            most[i] = i < queries ? most[i] : -INFINITY;
            shared.weights[i][at] = most[i];
            most[i] = largest_of_lanes(most[i]);
        }
        if (lane == 0) *(float4*)shared.maxima[block][key / 32] = make_float4(most[0], most[1], most[2], most[3]);
    }
    sync_threads(0, THREADS);
#pragma unroll 1
    for (int block = first; block < blocks; block += TEAMS) {
        float4 most = *(const float4*)shared.maxima[block][0];
#pragma unroll
        for (int w = 1; w < KEY_BLOCK / 32; w++) {
            const float4 other = *(const float4*)shared.maxima[block][w];
            most.x = other.x > most.x ? other.x : most.x, most.y = other.y > most.y ? other.y : most.y;
            most.z = other.z > most.z ? other.z : most.z, most.w = other.w > most.w ? other.w : most.w;
        }
        const float largest[QUAD] = {most.x, most.y, most.z, most.w};
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            // The thread wrote the score.
            float& weight = shared.weights[i][block * KEY_BLOCK + key];
            weight = weight == -INFINITY ? 0.0f : exact_exp(weight - largest[i]);
        }
        if (key == 0) *(float4*)shared.largest[block] = most;
    }
}

// Sums of the numerators of each block and query, by the 16 half warps after thread `first`.
__device__ __forceinline__ void short_totals(ShortShared& shared, int blocks, int first) {
#pragma unroll 1
    for (int at = (thread_index() - first) / 16; at < blocks * QUAD; at += 16) {
        const float sum = sum_weights(shared.weights[at % QUAD] + at / QUAD * KEY_BLOCK);
        if (thread_index() % 16 == 0) shared.totals[at / QUAD][at % QUAD] = sum;
    }
}

// Factors of a merge in the order of blocks (merge_block), by a thread for each block and query.
__device__ __forceinline__ void short_factors(ShortShared& shared, int blocks, int thread) {
    const int block = thread / QUAD, query = thread % QUAD;
    if (block >= blocks) return;
    float most = -INFINITY;
#pragma unroll 1
    for (int b = 0; b < block; b++) {
        const float largest = shared.largest[b][query];
        most = largest > most ? largest : most;
    }
    float before, now;
    merge_block(most, before, now, shared.largest[block][query]);
    shared.before[block][query] = before, shared.now[block][query] = now;
}

// Sums of SHORT_COLUMNS columns of the values of all blocks for a quad, their merge and their quotients. Values are
// brought before `wait`, as operations before the previous one wrote them.
template <int DIM, int THREADS, class Wait>
__device__ __forceinline__ void attention_short(ShortShared& shared, const TokenAttention& own, const AttentionRow& row,
                                                const Wait& wait) {
    constexpr int SLICES = DIM / SHORT_COLUMNS, HALVES = SHORT_COLUMNS / 4;
    static_assert(THREADS == 512 && SHORT_BLOCKS <= 6 && SHORT_COLUMNS * QUAD == 32, "warps have their tasks");
    const int thread = thread_index(), lane = thread & 31, warp = thread / 32, group = own.heads / own.kv_heads;
    const int items = own.kv_heads * own.quads * SLICES;
    bool waited = false;
#pragma unroll 1
    for (int at = blockIdx.x; at < items || !waited; at += gridDim.x) {
        const bool has = at < items;
        const int quad = at / SLICES, head = quotient(quad, own.quads), first = (quad - head * own.quads) * QUAD;
        const int column = at % SLICES * SHORT_COLUMNS, queries = min(QUAD, group - first);
        if (has) {
            const float* values = row.values + (size_t)head * row.capacity * DIM + column;
#pragma unroll 1
            for (int i = thread; i < row.length * HALVES; i += THREADS) {
                const int key = i / HALVES;
                const float* from = key + 1 == row.length ? own.v + head * DIM + column : values + (size_t)key * DIM;
                copy_16(shared_address(&shared.values[key][i % HALVES * 4]), from + i % HALVES * 4);
            }
            commit_copies();
        }
        // A lane of the first warp has a query and a column at the end.
        const int query = lane / SHORT_COLUMNS, own_column = column + lane % SHORT_COLUMNS;
        const size_t of_query = head * group + first + query;
        const bool has_output = has && warp == 0 && query < queries;
        const float gate = has_output ? own.outputs.load(of_query, own_column) : 0.0f;
        if (!waited) wait();
        waited = true;
        if (!has) break;
        short_weights<THREADS>(shared, own.scores + (size_t)quad * own.blocks * KEY_BLOCK * QUAD, queries, row.length);
        wait_for_copies<0>();
        sync_threads(0, THREADS);
        // A warp for each block, with a lane for each query and column.
        if (warp < own.blocks) {
            const int start = warp * KEY_BLOCK;
            shared.sums[warp][lane] = sum_short(&shared.values[start][lane % SHORT_COLUMNS], &shared.weights[query][start],
                                                min(KEY_BLOCK, row.length - start));
        } else if (warp >= 8) {
            short_totals(shared, own.blocks, 8 * 32);
        } else if (warp == 7) {
            short_factors(shared, own.blocks, lane);
        }
        sync_threads(0, THREADS);
        if (has_output) {
            float total = 0, sum = 0;
#pragma unroll 1
            for (int b = 0; b < own.blocks; b++) {
                const float before = shared.before[b][query], now = shared.now[b][query];
                total = __fmaf_rn(before, total, now * shared.totals[b][query]);
                sum = __fmaf_rn(before, sum, shared.sums[b][lane] * now);
            }
            if (own.outputs.sinks) {
                float most = shared.largest[0][query];
#pragma unroll 1
                for (int b = 1; b < own.blocks; b++) most = fmaxf(shared.largest[b][query], most);
                sum = sum * own.outputs.add_sink(total, most, of_query);
            }
            own.out[of_query * DIM + own_column] = gated_output(own.outputs, sum / total, gate);
        }
        sync_threads(0, THREADS);
    }
}
