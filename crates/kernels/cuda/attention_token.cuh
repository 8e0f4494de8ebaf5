// Attention of a single token (attention.cuh) in three operations of a persistent kernel, with the same bits: scores of
// some keys, for which CTAs make the queries and the token's key (heads.cuh), sums of some columns of a block's values,
// and a merge of all blocks.
#pragma once
#include "attention.cuh"
#include "block.cuh"
#include "heads.cuh"

// Queries of a key head that are computed together.
constexpr int QUAD = 4;
// Columns of values that are summed together.
constexpr int SLICE = 64, PARTIAL = SLICE + 4;
// Keys that a warp scores together: a lane for each key and query.
constexpr int SCORE_KEYS = 32 / QUAD;

struct TokenAttention {
    // The token's own values, which are not in the cache before its scores are made.
    const float* v;
    float* out;
    // [kv_heads][quads][blocks * KEY_BLOCK][QUAD]
    float* scores;
    // [kv_heads][quads][slices][blocks][QUAD][PARTIAL]: sums, then the largest score and the sum of weights.
    float* partials;
    HeadOutputs outputs;
    int heads, kv_heads;
    // Quads of queries of a key head, and blocks of keys.
    int quads, blocks;
    float scale;
    int dim;
    // Keys before those that the token sees, of the first block.
    int hidden;
};

template <int DIM>
struct ScoreShared {
    // No two of a warp's keys, and no two queries, start at the same bank. Warps that score.
    static constexpr int PITCH = DIM + 4, WARPS = DIM == 256 ? 8 : 16;
    // Quads of queries that are there at once.
    static constexpr int QUADS = 2;
    __align__(16) float queries[QUADS * QUAD][PITCH];
    __align__(16) float keys[WARPS][SCORE_KEYS][PITCH];
    float query_weight[DIM], key_weight[DIM];
    // Of the token's position: sine and cosine of each pair.
    float2 rotations[DIM / 2];

    // By all threads, which synchronise afterwards.
    __device__ __forceinline__ void prepare(const HeadSizes& sizes, const HeadArrays& arrays, int position) {
        const int thread = thread_index();
        // All are loaded before the first is used.
        const bool has_weight = thread < DIM && arrays.query_weight, has_key_weight = thread < DIM && arrays.key_weight;
        const float of_query = has_weight ? arrays.query_weight[thread] : 0.0f;
        const float of_key = has_key_weight ? arrays.key_weight[thread] : 0.0f;
        if (thread < sizes.half) rotations[thread] = rotation(sizes, arrays.frequencies, thread, position);
        if (has_weight) query_weight[thread] = of_query;
        if (has_key_weight) key_weight[thread] = of_key;
    }

    // The query or key `from` goes to `x` after its norm and rotation, by a warp.
    __device__ __forceinline__ void make_head(float* x, const float* from, bool query, const HeadSizes& sizes,
                                              const HeadArrays& arrays) {
        float own[DIM / 32];
        const int lane = thread_index() & 31;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) own[i] = from[lane + i * 32];
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) x[lane + i * 32] = own[i];
        const bool has_norm = query ? arrays.query_weight : arrays.key_weight;
        const float* weight = query ? query_weight : key_weight;
        norm_head(x, has_norm ? weight : nullptr, DIM, query ? sizes.query_eps : sizes.key_eps);
        rotate_head(x, sizes, [&](int pair) { return rotations[pair]; });
    }
};

// Threads of a team that sums values, teams of a CTA, and keys whose values are there at once, for all teams.
constexpr int VALUE_THREADS = 256, VALUE_TEAMS = 2, VALUE_ROOM = 256;

// What a team has for itself.
struct __align__(16) ValueTeam {
    float weights[QUAD][KEY_BLOCK];
    float maxima[VALUE_THREADS / 32][QUAD];
    float largest[QUAD], totals[QUAD];
};

struct ValueShared {
    __align__(16) float values[VALUE_ROOM][SLICE];
    ValueTeam teams[VALUE_TEAMS];
};

// a / b, which takes little time where b is 1, as it is in most cases.
__device__ __forceinline__ int quotient(int a, int b) { return b == 1 ? a : a / b; }

// An output after its gate, if there are gates.
__device__ __forceinline__ float gated_output(const HeadOutputs& outputs, float value, float gate) {
    return outputs.gates ? value * sigmoid(gate) : value;
}

// Adds `count` products, a multiple of twice as many as `Numbers` has, in their order: those of some are loaded while
// others are added.
template <class Numbers, class Load, class Sum>
__device__ __forceinline__ void add_ahead(int count, const Load& load, Sum& sum) {
    constexpr int COUNT = Numbers::COUNT;
    Numbers now, next;
    load(now, 0);
#pragma unroll 1
    for (int i = 0; i < count; i += 2 * COUNT) {
        load(next, i + COUNT);
        now.add_to(sum);
        // The last round loads its own numbers again.
        load(now, i + 2 * COUNT < count ? i + 2 * COUNT : i);
        next.add_to(sum);
    }
}

// Neighbouring numbers of a query and a key.
struct ScoreNumbers {
    static constexpr int COUNT = 8;
    float4 query[COUNT / 4], key[COUNT / 4];

    __device__ __forceinline__ void load(const float* from_query, const float* from_key) {
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            query[i] = *(const float4*)(from_query + i * 4);
            key[i] = *(const float4*)(from_key + i * 4);
        }
    }

    __device__ __forceinline__ void add_to(float& score) const {
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            score = __fmaf_rn(query[i].x, key[i].x, score);
            score = __fmaf_rn(query[i].y, key[i].y, score);
            score = __fmaf_rn(query[i].z, key[i].z, score);
            score = __fmaf_rn(query[i].w, key[i].w, score);
        }
    }
};

// The product of a query and a key, of LENGTH of their numbers, added to `score`.
template <int LENGTH>
__device__ __forceinline__ float add_dot(float score, const float* query, const float* key) {
    add_ahead<ScoreNumbers>(LENGTH, [&](ScoreNumbers& to, int i) { to.load(query + i, key + i); }, score);
    return score;
}

// What scores of a token are made of: its heads, and the keys and values of its sequence.
struct TokenHeads {
    const TokenAttention& own;
    const HeadSizes& sizes;
    const HeadArrays& arrays;
    const HeadRow& row;
};

// Scores: each warp takes one job after another, SCORE_KEYS keys and a quad. CTAs have neighbouring jobs, so each
// has few quads, and makes their queries itself. Keys of earlier tokens are brought before `wait`, which returns once
// the previous operation is done; the warp that has the token's key makes it, and writes key and value to the cache.
// Half of the next keys are on their way while the other half is multiplied.
template <int DIM, int THREADS, class Wait>
__device__ __forceinline__ void attention_scores(ScoreShared<DIM>& shared, const TokenHeads& heads, const Wait& wait) {
    constexpr int WARPS = ScoreShared<DIM>::WARPS, QUADS = ScoreShared<DIM>::QUADS, QUERIES = QUADS * QUAD;
    constexpr int HALF = DIM / 2, FOURS = HALF / 4;
    static_assert(QUERIES * 32 <= THREADS && WARPS * 32 <= THREADS, "a warp makes a query");
    const TokenAttention& own = heads.own;
    const HeadRow& row = heads.row;
    const int warp = thread_index() / 32, lane = thread_index() & 31, length = row.past + 1;
    const int chunks = (length + SCORE_KEYS - 1) / SCORE_KEYS;
    const int jobs = own.kv_heads * own.quads * chunks, cta = blockIdx.x, grid = gridDim.x;
    int first = cta * (jobs / grid) + min(cta, jobs % grid);
    const int last = first + jobs / grid + (cta < jobs % grid);
    auto count_of = [&](int chunk) { return min(length - chunk * SCORE_KEYS, SCORE_KEYS); };
    // A half of earlier tokens' keys of a job, which is number `chunk` of its quad.
    auto fetch = [&](int quad, int chunk, int half) {
        const int count = chunk + 1 < chunks ? SCORE_KEYS : count_of(chunk) - 1;
        const size_t first_key = (size_t)quotient(quad, own.quads) * row.capacity + chunk * SCORE_KEYS;
        const float* keys = row.keys + first_key * DIM + half * HALF;
        // Unrolled, it takes more registers than the persistent kernel has.
#pragma unroll 1
        for (int i = lane; i < count * FOURS; i += 32)
            copy_16(shared_address(&shared.keys[warp][i / FOURS][half * HALF + i % FOURS * 4]),
                    keys + (size_t)(i / FOURS) * DIM + i % FOURS * 4);
        commit_copies();
    };
    // The token's key, if the job has it.
    auto make_key = [&](int quad, int chunk) {
        if (chunk + 1 < chunks) return;
        const int head = quotient(quad, own.quads);
        float* x = shared.keys[warp][count_of(chunk) - 1];
        shared.make_head(x, heads.arrays.k + head * DIM, false, heads.sizes, heads.arrays);
        if (quad != head * own.quads) return;
        const size_t cached = ((size_t)head * row.capacity + row.past) * DIM;
#pragma unroll 2
        for (int i = lane; i < DIM; i += 32)
            row.keys[cached + i] = x[i], row.values[cached + i] = heads.arrays.v[head * DIM + i];
    };
    // The query of a warp, of quads `from` to `to` of all key heads. Zeros where a quad has no more.
    auto make_query = [&](int from, int to) {
        const int i = warp - (THREADS / 32 - QUERIES), quad = from + i / QUAD, group = own.heads / own.kv_heads;
        if (i < 0 || quad > to) return;
        const int head = quotient(quad, own.quads), query = (quad - head * own.quads) * QUAD + i % QUAD;
        float* x = shared.queries[i];
        if (query < group) {
            const float* q = heads.arrays.q + (size_t)(head * group + query) * heads.sizes.query_stride;
            shared.make_head(x, q, true, heads.sizes, heads.arrays);
        } else {
#pragma unroll 1
            for (int k = lane; k < DIM; k += 32) x[k] = 0.0f;
        }
    };
    bool waited = false;
#pragma unroll 1
    while (first < last || !waited) {
        // The first quad, and the end of those that are there at once.
        const int quad = first / chunks, end = min(last, (quad + QUADS) * chunks);
        int job = first + warp;
        bool has = warp < WARPS && job < end;
        int at = job / chunks, chunk = job - at * chunks;
        if (has) fetch(at, chunk, 0), fetch(at, chunk, 1);
        if (!waited) {
            shared.prepare(heads.sizes, heads.arrays, row.position);
            wait();
            waited = true;
            if (first >= last) break;
        }
        make_query(quad, (end - 1) / chunks);
        if (has) make_key(at, chunk);
        sync_threads(0, THREADS);
        while (has) {
            const float* query = shared.queries[(at - quad) * QUAD + lane % QUAD];
            const float* key = shared.keys[warp][lane / QUAD];
            float* to = own.scores + ((size_t)at * own.blocks * KEY_BLOCK + chunk * SCORE_KEYS) * QUAD + lane;
            const bool exists = lane / QUAD < count_of(chunk), hidden = chunk * SCORE_KEYS + lane / QUAD < own.hidden;
            job += WARPS, chunk += WARPS, has = job < end;
            while (chunk >= chunks) chunk -= chunks, at++;
            float score = 0;
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                wait_for_copies<1>();
                __syncwarp();
                score = add_dot<HALF>(score, query + half * HALF, key + half * HALF);
                __syncwarp();
                if (has) {
                    fetch(at, chunk, half);
                } else {
                    // So that one batch is left to wait for.
                    commit_copies();
                }
            }
            if (exists) *to = hidden ? -INFINITY : score * own.scale;
            if (has) make_key(at, chunk);
        }
        sync_threads(0, THREADS);
        first = end;
    }
}

// Numerators of a block's first `count` keys and `queries` of a quad, and their largest scores, by a team: a thread
// for each key.
template <class Block>
__device__ __forceinline__ void block_weights(const Block& team, ValueTeam& shared, const float* scores, int queries,
                                              int count) {
    const int key = team.thread(), lane = key & 31;
    const float4 four = *(const float4*)(scores + key * QUAD);
    float score[QUAD] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        score[i] = key < count && i < queries ? score[i] : -INFINITY;
        const float most = largest_of_lanes(score[i]);
        if (lane == 0) shared.maxima[key / 32][i] = most;
    }
    team.sync();
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        float most = shared.maxima[0][i];
#pragma unroll
        for (int w = 1; w < VALUE_THREADS / 32; w++) {
            const float other = shared.maxima[w][i];
            most = other > most ? other : most;
        }
        shared.weights[i][key] = score[i] == -INFINITY ? 0.0f : exact_exp(score[i] - most);
        if (key == 0) shared.largest[i] = most;
    }
}

// The sum of a block's numerators, by half a warp: each lane adds every 16th key, then a tree.
__device__ __forceinline__ float sum_weights(const float* weights) {
    const int lane = thread_index() & 15;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEY_BLOCK; i += 16) sum = sum + weights[i + lane];
    return reduce_16(sum);
}

// Those of a quad's queries, by two warps.
__device__ __forceinline__ void add_weights(ValueTeam& shared, int thread) {
    const float sum = sum_weights(shared.weights[thread / 16]);
    if (thread % 16 == 0) shared.totals[thread / 16] = sum;
}

// Values of some neighbouring keys, of a column, and their weights for two queries.
struct WeightedValues {
    static constexpr int COUNT = 4;
    float values[COUNT];
    float4 weights[2][COUNT / 4];

    __device__ __forceinline__ void load(const float* own, const float* first) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) values[i] = own[i * SLICE];
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            weights[0][i] = *(const float4*)(first + i * 4);
            weights[1][i] = *(const float4*)(first + KEY_BLOCK + i * 4);
        }
    }

    __device__ __forceinline__ void add_to(float (&sums)[2]) const {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const float4 weight = weights[q][i / 4];
                sums[q] = __fmaf_rn(weight.x, values[i], sums[q]);
                sums[q] = __fmaf_rn(weight.y, values[i + 1], sums[q]);
                sums[q] = __fmaf_rn(weight.z, values[i + 2], sums[q]);
                sums[q] = __fmaf_rn(weight.w, values[i + 3], sums[q]);
            }
        }
    }
};

// Threads of a team that add up values: each has a column and two queries.
constexpr int SUM_THREADS = SLICE * QUAD / 2;

// Adds the values of `count` keys, of a column, in their order.
__device__ __forceinline__ void sum_values(const float* values, const float* weights, float (&sums)[2], int count) {
    const int whole = count & ~(2 * WeightedValues::COUNT - 1);
    auto load = [&](WeightedValues& to, int key) { to.load(values + key * SLICE, weights + key); };
    if (whole) add_ahead<WeightedValues>(whole, load, sums);
#pragma unroll 4
    for (int k = whole; k < count; k++) {
        sums[0] = __fmaf_rn(weights[k], values[k * SLICE], sums[0]);
        sums[1] = __fmaf_rn(weights[KEY_BLOCK + k], values[k * SLICE], sums[1]);
    }
}

// A block of keys, a quad and a slice: what a team sums up at a time.
template <int DIM>
struct ValueItem {
    static constexpr int SLICES = DIM / SLICE;
    // `quad` is one of all key heads'; `queries` of it exist.
    int block, slice, quad, head, queries, count;

    __device__ __forceinline__ ValueItem(const TokenAttention& own, const AttentionRow& row, int item) {
        slice = item % SLICES, item /= SLICES;
        quad = item / own.blocks, block = item - quad * own.blocks;
        head = quotient(quad, own.quads);
        queries = min(QUAD, own.heads / own.kv_heads - (quad - head * own.quads) * QUAD);
        count = min(KEY_BLOCK, row.length - block * KEY_BLOCK);
    }

    // The number of its slice among those of all quads.
    __device__ __forceinline__ int of_slices() const { return quad * SLICES + slice; }
    // The block's values, of the slice, and those of the token, which its last block has.
    __device__ __forceinline__ const float* values(const AttentionRow& row) const {
        return row.values + ((size_t)head * row.capacity + block * KEY_BLOCK) * DIM + slice * SLICE;
    }
    __device__ __forceinline__ const float* own_values(const TokenAttention& own) const {
        return block + 1 == own.blocks ? own.v + head * DIM + slice * SLICE : nullptr;
    }
};

// The values of a team's items, a stage of keys after another, two of them at a time.
template <int DIM>
struct ValueStages {
    float* room;
    // Keys of a stage; the values of the next one, and keys of its item from there on.
    int keys;
    const float* values;
    int left;
    // Those of the item's last key, if it is the token's own.
    const float* own_values;

    __device__ __forceinline__ float* stage(int place) const { return room + place * keys * SLICE; }

    // Goes on with item `next`, if there is one.
    __device__ __forceinline__ void start(const TokenAttention& own, const AttentionRow& row, int next, int items) {
        left = 0;
        if (next >= items) return;
        const ValueItem<DIM> item(own, row, next);
        left = item.count, values = item.values(row), own_values = item.own_values(own);
    }

    // Brings the next stage, if there is one.
    __device__ __forceinline__ void fetch(int thread, int place) {
        constexpr int FOURS = SLICE / 4;
        float* to = stage(place);
        const int count = min(keys, left) * FOURS;
#pragma unroll 4
        for (int i = thread; i < count; i += VALUE_THREADS) {
            const int key = i / FOURS;
            const float* from = own_values && key + 1 == left ? own_values : values + (size_t)key * DIM;
            copy_16(shared_address(to + i * 4), from + i % FOURS * 4);
        }
        values += (size_t)keys * DIM, left -= keys;
        commit_copies();
    }
};

// Sums of SLICE columns of the values of a block of keys for a quad, item after item, by teams. Values of the
// next items are brought while those of one are added; the first ones before `wait`, as operations before the
// previous one wrote them.
template <int DIM, int THREADS, class Wait>
__device__ __forceinline__ void attention_values(ValueShared& all, const TokenAttention& own, const AttentionRow& row,
                                                 const Wait& wait) {
    static_assert(THREADS == VALUE_THREADS * VALUE_TEAMS, "teams have all threads");
    const Team<VALUE_THREADS> team;
    const int thread = team.thread(), grid = gridDim.x;
    const int items = own.kv_heads * own.quads * (DIM / SLICE) * own.blocks;
    // One team has all the room if there are no more items than CTAs.
    const int teams = items > grid ? VALUE_TEAMS : 1, keys = VALUE_ROOM / teams / 2, step = teams * grid;
    const int first = team.index() < teams ? blockIdx.x + team.index() * grid : items;
    ValueTeam& shared = all.teams[team.index()];
    ValueStages<DIM> stages = {all.values[team.index() * 2 * keys % VALUE_ROOM], keys, nullptr, 0, nullptr};
    stages.start(own, row, first, items);
    stages.fetch(thread, 0);
    stages.fetch(thread, 1);
    // Teams without an item.
    if (first >= items) wait();
    int place = 0;
#pragma unroll 1
    for (int at = first; at < items; at += step) {
        const ValueItem<DIM> item(own, row, at);
        const float* scores = own.scores + ((size_t)item.quad * own.blocks + item.block) * KEY_BLOCK * QUAD;
        if (at == first) wait();
        block_weights(team, shared, scores, item.queries, item.count);
        float sums[2] = {0, 0};
#pragma unroll 1
        for (int from = 0; from < KEY_BLOCK; from += keys) {
            wait_for_copies<1>();
            team.sync();
            const int count = min(keys, item.count - from);
            if (thread < SUM_THREADS && count > 0)
                sum_values(stages.stage(place) + thread % SLICE, &shared.weights[thread / SLICE * 2][from], sums, count);
            // By warps that add up no values.
            if (from == 0 && thread >= VALUE_THREADS - 16 * QUAD) add_weights(shared, thread - (VALUE_THREADS - 16 * QUAD));
            team.sync();
            if (from + 2 * keys == KEY_BLOCK) stages.start(own, row, at + step, items);
            stages.fetch(thread, place);
            place ^= 1;
        }
        float* part = own.partials + ((size_t)item.of_slices() * own.blocks + item.block) * QUAD * PARTIAL;
        if (thread < SUM_THREADS) {
#pragma unroll
            for (int i = 0; i < 2; i++) part[(thread / SLICE * 2 + i) * PARTIAL + thread % SLICE] = sums[i];
        }
        if (thread < QUAD) {
            part[thread * PARTIAL + SLICE] = shared.largest[thread];
            part[thread * PARTIAL + SLICE + 1] = shared.totals[thread];
        }
        // The next item changes what was written.
        team.sync();
    }
}
