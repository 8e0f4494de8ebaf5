// Attention of prompts (attention.cuh): as in attention_many.cu, but a thread has 8 times 8 scores, then 8
// queries and up to 8 columns of the outputs, so that it reads less shared memory for a multiply-add.
//
// Copies bring stages in the order of their use: parts of 16 numbers of all keys of a pass, then some values.
// Lanes of a warp are 4 over queries and 8 over keys or columns; a load of 16 bytes takes no longer where
// neighbouring lanes, or every other one, read the same: bits 0 and 4 of a lane are those over queries.
#include "attention.cuh"

template <int DIM, int ROWS>
struct PromptChunk {
    static constexpr int THREADS = 128, STAGES = 2, PART_OF_KEY = 16, FOURS = PART_OF_KEY / 4;
    // A warp has 32 queries, and 64 keys or the columns of its share.
    static constexpr int ACROSS = 4 / (ROWS / 32), KEYS = ACROSS * 64, PARTS = DIM / PART_OF_KEY;
    static constexpr int SHARE = DIM / ACROSS, COLUMNS = SHARE / 8;
    // Numbers of a stage, and values in it.
    static constexpr int STAGE = KEYS * PART_OF_KEY, PIECE = STAGE / DIM;
    static_assert(PIECE % 8 == 0 && COLUMNS % 4 == 0 && KEY_BLOCK % KEYS == 0, "sizes");

    // 16 bytes of key k are at place `four ^ k / 2 % 4`, 4 weights of it at place `fours ^ k % 8`: without
    // conflicts of banks.
    __align__(16) float stages[STAGES][STAGE];
    __align__(16) float queries[DIM][ROWS];
    __align__(16) float weights[KEY_BLOCK][ROWS];
    // The largest scores of a block, and then, in the first two rows, the factors that merge it.
    __align__(16) float maxima[ACROSS][ROWS];
    // The largest score and the sum so far.
    __align__(16) float most[ROWS], all[ROWS];
};

// Two chunks with heads of 128 take all shared memory of a Hopper multiprocessor.
constexpr int prompt_shared(int dim, int queries) {
    const int keys = 4 / (queries / 32) * 64;
    return (2 * 16 * keys + dim * queries + 256 * queries + (keys / 64 + 2) * queries) * 4;
}

// What a thread computes with a chunk.
template <int DIM, int ROWS>
struct PromptThread {
    using Own = PromptChunk<DIM, ROWS>;
    Own& shared;
    const AttentionRow& row;
    // The chunk's first query, and the queries of a token that share a key head.
    int first, group;
    // Keys and values of the sequence's head, as many as the chunk sees.
    const float *keys, *values;
    int end;
    // Whether the chunk has any of the warp's queries.
    bool active;
    // The first of the thread's queries, of which it has 4 and the 4 after the next 12; its first key of a
    // pass, of which it has every 8th; the first of its columns, of which it has 4, and 4 after the next 28.
    int query, key, column;
    // What is to be brought next: the thread's place in it, the keys or values from there on, and stages left of
    // the same kind. The block after it, and the pass, or 0 for values. The slots of stages to bring and to use.
    const float* next;
    int rows, left, next_base, next_pass, next_slot, slot;

    __device__ __forceinline__ PromptThread(Own& shared, const AttentionRow& row, int head, int first, int group,
                                            int last_visible)
        : shared(shared), row(row), first(first), group(group), end(last_visible), left(0), next_base(first_block(row, first, group)), next_pass(0),
          next_slot(0), slot(0) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, across = warp % Own::ACROSS;
        const int over = (lane & 1) + (lane >> 4) * 2, along = lane >> 1 & 7;
        query = warp / Own::ACROSS * 32 + over * 4;
        key = across * 64 + along, column = across * Own::SHARE + along * 4;
        const size_t at = (size_t)head * row.capacity * DIM;
        keys = row.keys + at, values = row.values + at;
    }

    // Index `i` of a line's multiply-adds: neighbours share a number, also from one line to the next, so that fewer
    // are read from registers at a time.
    template <int COUNT>
    __device__ __forceinline__ static constexpr int there_and_back(int line, int i) {
        return line % 2 ? COUNT - 1 - i : i;
    }

    __device__ __forceinline__ static int row_of(int query, int i) { return query + i % 4 + i / 4 * 16; }

    // Copies the chunk's queries, by columns; zeros beyond the row's tokens.
    __device__ __forceinline__ void load(const float* q, int head, int heads) {
#pragma unroll 4
        for (int i = threadIdx.x; i < ROWS * DIM / 4; i += Own::THREADS) {
            // 16 queries and two fours of each in a warp.
            const int r = i / 32 % (ROWS / 16) * 16 + i % 16, column = (i / (2 * ROWS) * 2 + i / 16 % 2) * 4;
            const int token = (first + r) / group;
            float4 value = make_float4(0, 0, 0, 0);
            if (token < row.tokens) {
                const size_t at = (size_t)(row.start + token) * heads + head * group + (first + r) % group;
                value = *(const float4*)(q + at * DIM + column);
            }
            shared.queries[column][r] = value.x, shared.queries[column + 1][r] = value.y;
            shared.queries[column + 2][r] = value.z, shared.queries[column + 3][r] = value.w;
        }
        for (int r = threadIdx.x; r < ROWS; r += Own::THREADS) shared.most[r] = -INFINITY, shared.all[r] = 0;
        active = first + query / 32 * 32 < row.tokens * group;
        for (int i = 0; i < Own::STAGES - 1; i++) fetch();
    }

    // Starts copying the next stage, if there is one.
    __device__ __forceinline__ void fetch() {
        if (left == 0) begin_run();
        if (left > 0) {
            left--;
            constexpr int COPIES = Own::STAGE / 4 / Own::THREADS;
            const int thread = threadIdx.x, own = thread / Own::FOURS;
            const u32 to = shared_address(shared.stages[next_slot]);
            if (next_pass > 0) {
                const u32 place = to + (own * Own::FOURS + (thread ^ own / 2) % Own::FOURS) * 16;
#pragma unroll
                for (int i = 0; i < COPIES; i++)
                    if (i * Own::THREADS / Own::FOURS < rows)
                        copy_16(place + i * Own::THREADS * 16, next + i * Own::THREADS / Own::FOURS * DIM);
                next += Own::PART_OF_KEY;
            } else {
#pragma unroll
                for (int i = 0; i < COPIES; i++)
                    if (i * Own::THREADS * 4 / DIM < rows)
                        copy_16(to + (i * Own::THREADS + thread) * 16, next + i * Own::THREADS * 4);
                next += Own::STAGE, rows -= Own::PIECE;
            }
            next_slot = next_slot + 1 == Own::STAGES ? 0 : next_slot + 1;
        }
        commit_copies();
    }

    // The next stages to be brought: the keys of a pass, or a block's values.
    __device__ __forceinline__ void begin_run() {
        const int count = min(KEY_BLOCK, end - next_base), first = next_pass * Own::KEYS, thread = threadIdx.x;
        if (count <= 0) return;
        if (first < count) {
            const int own = first + thread / Own::FOURS;
            next = keys + (size_t)(next_base + own) * DIM + thread % Own::FOURS * 4;
            rows = count - own, left = Own::PARTS, next_pass++;
        } else {
            next = values + (size_t)next_base * DIM + thread * 4;
            rows = count - thread * 4 / DIM, left = (count + Own::PIECE - 1) / Own::PIECE;
            next_pass = 0, next_base += KEY_BLOCK;
        }
    }

    // The next stage to use, when all its copies have arrived; brings another in place of the last one.
    __device__ __forceinline__ const float* enter() {
        wait_for_copies<Own::STAGES - 2>();
        __syncthreads();
        fetch();
        const float* stage = shared.stages[slot];
        slot = slot + 1 == Own::STAGES ? 0 : slot + 1;
        return stage;
    }

    // Dot products of the thread's queries and its keys from `from_key` of the block on.
    __device__ __forceinline__ void multiply(int from_key, int count, float (&scores)[8][8]) {
        const bool needed = active && from_key + key / 64 * 64 < count;
        const int swap = key / 2 % Own::FOURS;
#pragma unroll
        for (int i = 0; i < 64; i++) (&scores[0][0])[i] = 0;
#pragma unroll 1
        for (int part = 0; part < Own::PARTS; part++) {
            const float* from = enter() + key * Own::PART_OF_KEY;
            if (!needed) continue;
            const float* x = &shared.queries[part * Own::PART_OF_KEY][query];
#pragma unroll
            for (int four = 0; four < Own::FOURS; four++) {
                float4 own[8];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    own[j] = *(const float4*)(from + j * 8 * Own::PART_OF_KEY + (four ^ swap) * 4);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float eight[8];
                    load_queries(eight, x + (four * 4 + i) * ROWS);
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        const float y = i == 0 ? own[j].x : i == 1 ? own[j].y : i == 2 ? own[j].z : own[j].w;
#pragma unroll
                        for (int k = 0; k < 8; k++) {
                            const int r = there_and_back<8>(j, k);
                            scores[j][r] = __fmaf_rn(eight[r], y, scores[j][r]);
                        }
                    }
                }
            }
        }
    }

    __device__ __forceinline__ static void load_queries(float (&to)[8], const float* from) {
        const float4 first = *(const float4*)from, second = *(const float4*)(from + 16);
        to[0] = first.x, to[1] = first.y, to[2] = first.z, to[3] = first.w;
        to[4] = second.x, to[5] = second.y, to[6] = second.z, to[7] = second.w;
    }

    // The weights of the thread's key `j` from `from_key` on, and its queries: 4, and 4 at `place ^ 16`.
    __device__ __forceinline__ float* weights_of(int from_key, int j, int half) const {
        return &shared.weights[from_key + key + j * 8][(query ^ (key & 7) * 4) ^ half * 16];
    }

    // Scales scores and hides those of keys that queries do not see; `largest` of all so far. Only with FROM there may be
    // such keys before those that are seen.
    template <bool FROM>
    __device__ __forceinline__ void mask(int base, int from_key, int count, float scale, float (&scores)[8][8],
                                         float (&largest)[8]) {
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const int visible = visible_keys(row, first + row_of(query, r), group, base);
            const int seen = min(visible, count) - from_key - key;
            const int hidden = FROM ? hidden_keys(row, first + row_of(query, r), group, base) - from_key - key : 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                scores[j][r] = j * 8 < seen && (!FROM || j * 8 >= hidden) ? scores[j][r] * scale : -INFINITY;
                largest[r] = fmaxf(scores[j][r], largest[r]);
            }
        }
    }

    // Scores in shared memory, where only this thread uses them for now.
    __device__ __forceinline__ void store(int from_key, const float (&scores)[8][8]) {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float* s = scores[j] + half * 4;
                *(float4*)weights_of(from_key, j, half) = make_float4(s[0], s[1], s[2], s[3]);
            }
    }

    // The thread's scores become numerators.
    __device__ __forceinline__ void exponentiate(int count, const float (&largest)[8]) {
        // Where no key is visible, every numerator is 0.
        float most[8];
#pragma unroll
        for (int r = 0; r < 8; r++) most[r] = largest[r] == -INFINITY ? 0.0f : largest[r];
#pragma unroll 1
        for (int from_key = 0; from_key < count; from_key += Own::KEYS) {
#pragma unroll 2
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float4& s = *(float4*)weights_of(from_key, j, half);
                    const float4 four = s;
                    s = make_float4(exact_exp<true>(four.x - most[half * 4]), exact_exp<true>(four.y - most[half * 4 + 1]),
                                    exact_exp<true>(four.z - most[half * 4 + 2]),
                                    exact_exp<true>(four.w - most[half * 4 + 3]));
                }
        }
    }

    // The largest score of each of the thread's queries among all keys.
    __device__ __forceinline__ void share_largest(float (&largest)[8]) {
#pragma unroll
        for (int distance = 2; distance < 16; distance *= 2)
#pragma unroll
            for (int r = 0; r < 8; r++)
                largest[r] = fmaxf(__shfl_xor_sync(0xffffffffu, largest[r], distance), largest[r]);
        if ((key & 7) == 0) {
#pragma unroll
            for (int r = 0; r < 8; r++) shared.maxima[key / 64][row_of(query, r)] = largest[r];
        }
        __syncthreads();
#pragma unroll
        for (int across = 0; across < Own::ACROSS; across++) {
            float others[8];
            load_queries(others, &shared.maxima[across][query]);
#pragma unroll
            for (int r = 0; r < 8; r++) largest[r] = fmaxf(others[r], largest[r]);
        }
    }

    // Numerators of a block in shared memory, and what merges it.
    __device__ __forceinline__ void weigh(int base, int count, float scale) {
        float largest[8];
#pragma unroll
        for (int r = 0; r < 8; r++) largest[r] = -INFINITY;
        int passed = 0;
#pragma unroll 1
        for (; passed < count; passed += Own::KEYS) {
            float scores[8][8];
            multiply(passed, count, scores);
            if (hidden_keys(row, first + ROWS - 1, group, base) > passed) {
                mask<true>(base, passed, count, scale, scores, largest);
            } else {
                mask<false>(base, passed, count, scale, scores, largest);
            }
            store(passed, scores);
        }
        share_largest(largest);
        exponentiate(count, largest);
        __syncthreads();
        sum_weights(base, passed);
    }

    // Half a warp for 4 queries: every 16th key, then a tree.
    __device__ __forceinline__ void sum_weights(int base, int keys) {
        const int lane = threadIdx.x & 15;
#pragma unroll 1
        for (int four = threadIdx.x / 16 * 4; four < ROWS; four += Own::THREADS / 16 * 4) {
            float sums[4] = {};
            const float* from = &shared.weights[lane][four ^ (lane & 7) * 4];
#pragma unroll 8
            for (int i = 0; i < keys; i += 16) {
                const float4 own = *(const float4*)(from + i * ROWS);
                sums[0] = sums[0] + own.x, sums[1] = sums[1] + own.y;
                sums[2] = sums[2] + own.z, sums[3] = sums[3] + own.w;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) sums[i] = reduce_16(sums[i]);
            const float sum = lane == 0 ? sums[0] : lane == 1 ? sums[1] : lane == 2 ? sums[2] : sums[3];
            if (lane < 4) merge(four + lane, sum, sees_block(row, first + four + lane, group, base));
        }
    }

    __device__ __forceinline__ void merge(int r, float sum, bool visible) {
        float highest = shared.most[r], old = 1, added = 0, largest = shared.maxima[0][r];
        if (visible) {
#pragma unroll
            for (int across = 1; across < Own::ACROSS; across++) largest = fmaxf(shared.maxima[across][r], largest);
            merge_block(highest, old, added, largest);
            shared.all[r] = __fmaf_rn(old, shared.all[r], added * sum);
            shared.most[r] = highest;
        }
        shared.maxima[0][r] = old, shared.maxima[1][r] = added;
    }

    // A value's numbers of the thread's columns, and its weights.
    struct Value {
        float4 columns[Own::COLUMNS / 4];
        float weights[8];
    };

    __device__ __forceinline__ static void load(Value& value, const float* from, const float* first,
                                                const float* second) {
#pragma unroll
        for (int c = 0; c < Own::COLUMNS / 4; c++) value.columns[c] = *(const float4*)(from + c * 32);
        const float4 a = *(const float4*)first, b = *(const float4*)second;
        value.weights[0] = a.x, value.weights[1] = a.y, value.weights[2] = a.z, value.weights[3] = a.w;
        value.weights[4] = b.x, value.weights[5] = b.y, value.weights[6] = b.z, value.weights[7] = b.w;
    }

    // Loads value `k` of a whole stage. Bit 4 of `query` is 0: the place of a key's weights is that of its last two
    // bits, or 16 after it.
    __device__ __forceinline__ void load(Value& value, const float* from, const float* weights, int k) const {
        const float* place = weights + (query ^ k % 4 * 4) + k * ROWS;
        const int far = k % 8 / 4 * 16;
        load(value, from + k * DIM, place + far, place + 16 - far);
    }

    __device__ __forceinline__ static void add(const Value& value, float (&own)[8][Own::COLUMNS]) {
#pragma unroll
        for (int r = 0; r < 8; r++)
#pragma unroll
            for (int k = 0; k < Own::COLUMNS; k++) {
                const int c = there_and_back<Own::COLUMNS>(r, k);
                const float4& four = value.columns[c / 4];
                const float column = c % 4 == 0 ? four.x : c % 4 == 1 ? four.y : c % 4 == 2 ? four.z : four.w;
                own[r][c] = __fmaf_rn(value.weights[r], column, own[r][c]);
            }
    }

    // Adds the block's values to the thread's columns of its queries.
    __device__ __forceinline__ void add_values(int count, float (&sums)[8][Own::COLUMNS]) {
        float own[8][Own::COLUMNS];
#pragma unroll
        for (int i = 0; i < 8 * Own::COLUMNS; i++) (&own[0][0])[i] = 0;
        if (!active) {
#pragma unroll 1
            for (int piece = 0; piece < count; piece += Own::PIECE) enter();
            return;
        }
        const int whole = count / Own::PIECE * Own::PIECE;
        if (whole > 0) {
            const float* from = enter() + column;
            Value even, odd;
            load(even, from, shared.weights[0], 0);
#pragma unroll 1
            for (int piece = 0; piece < whole; piece += Own::PIECE) {
#pragma unroll 1
                for (int eight = 0; eight < Own::PIECE; eight += 8) {
                    const float* weights = shared.weights[piece + eight];
#pragma unroll
                    for (int k = 0; k < 8; k += 2) {
                        load(odd, from, weights, k + 1);
                        add(even, own);
                        if (k < 6) {
                            load(even, from, weights, k + 2);
                        } else if (piece + eight + 8 < whole) {
                            from = eight + 8 < Own::PIECE ? from + 8 * DIM : enter() + column;
                            load(even, from, weights + 8 * ROWS, 0);
                        }
                        add(odd, own);
                    }
                }
            }
        }
        if (whole < count) {
            const float* from = enter() + column;
#pragma unroll 1
            for (int k = 0; k < count - whole; k++) {
                const float* place = shared.weights[whole + k];
                Value value;
                load(value, from + k * DIM, place + (query ^ k % 8 * 4), place + (query ^ 16 ^ k % 8 * 4));
                add(value, own);
            }
        }
        float old[8], added[8];
        load_queries(old, shared.maxima[0] + query), load_queries(added, shared.maxima[1] + query);
#pragma unroll
        for (int r = 0; r < 8; r++)
#pragma unroll
            for (int c = 0; c < Own::COLUMNS; c++) sums[r][c] = __fmaf_rn(old[r], sums[r][c], own[r][c] * added[r]);
    }

    // Writes the chunk's outputs, through the memory of weights.
    __device__ __forceinline__ void write(float* out, int head, int heads, const float (&sums)[8][Own::COLUMNS],
                                          const HeadOutputs& outputs) {
        static_assert(DIM <= KEY_BLOCK, "outputs have room");
        float* place = &shared.weights[0][0];
        __syncthreads();
        if (threadIdx.x < ROWS) {
            const int r = threadIdx.x;
            shared.most[r] = outputs.add_sink(shared.all[r], shared.most[r], head * group + (first + r) % group);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int c = 0; c < Own::COLUMNS; c += 4)
                *(float4*)(place + row_of(query, i) * DIM + column + c * 8) =
                    make_float4(sums[i][c], sums[i][c + 1], sums[i][c + 2], sums[i][c + 3]);
        __syncthreads();
#pragma unroll 2
        for (int i = threadIdx.x * 4; i < ROWS * DIM; i += Own::THREADS * 4) {
            const int r = i / DIM, token = (first + r) / group, at = i % DIM;
            if (token >= row.tokens) break;
            const size_t to = (size_t)(row.start + token) * heads + head * group + (first + r) % group;
            const float4 four = *(const float4*)(place + i);
            const float all = shared.all[r], factor = shared.most[r];
            *(float4*)(out + to * DIM + at) = make_float4(
                outputs.apply(four.x * factor / all, to, at), outputs.apply(four.y * factor / all, to, at + 1),
                outputs.apply(four.z * factor / all, to, at + 2), outputs.apply(four.w * factor / all, to, at + 3));
        }
    }
};

// Grid: kv_heads, chunks of all sequences; 128 threads.
template <int DIM, int ROWS>
__device__ __forceinline__ void attend_prompt(const AttentionRows& rows, const float* q, float* out, int heads,
                                              int kv_heads, float scale, const HeadOutputs& outputs) {
    using Own = PromptChunk<DIM, ROWS>;
    static_assert(sizeof(Own) == prompt_shared(DIM, ROWS), "the launch sets its size");
    DYNAMIC_SHARED(memory);
    launch_dependents();
    wait_for_previous();
    // The last chunks see most keys: they start first.
    const int chunk = gridDim.y - 1 - blockIdx.y, head = blockIdx.x, group = heads / kv_heads;
    const AttentionRow& row = row_of_chunk(rows, chunk);
    const int first = (chunk - row.first_chunk) * ROWS, last = min(first + ROWS, row.tokens * group) - 1;
    const int end = visible_keys(row, last, group, 0);
    PromptThread<DIM, ROWS> own(*(Own*)memory, row, head, first, group, end);
    own.load(q, head, heads);
    float sums[8][Own::COLUMNS];
#pragma unroll
    for (int i = 0; i < 8 * Own::COLUMNS; i++) (&sums[0][0])[i] = 0;
#pragma unroll 1
    for (int base = first_block(row, first, group); base < end; base += KEY_BLOCK) {
        const int count = min(KEY_BLOCK, end - base);
        own.weigh(base, count, scale);
        own.add_values(count, sums);
    }
    own.write(out, head, heads, sums, outputs);
}

#define ATTEND_PROMPT(dim, queries)                                                                          \
    extern "C" __global__ void __launch_bounds__(128, 2) attend_prompt_##dim(                                 \
        const __grid_constant__ AttentionRows rows, const float* q, float* out, int heads, int kv_heads,     \
        float scale, const __grid_constant__ HeadOutputs outputs) {                                            \
        attend_prompt<dim, queries>(rows, q, out, heads, kv_heads, scale, outputs);                            \
    }

ATTEND_PROMPT(64, 64)
ATTEND_PROMPT(128, 64)
ATTEND_PROMPT(256, 32)
