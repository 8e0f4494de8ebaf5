// Sampling: the likeliest token, or a draw with Gumbel noise from all tokens or the likeliest, as
// kernels/src/sample.rs chooses them, bit for bit.
#pragma once
#include "block.cuh"
#include "math.cuh"
#include "sort_key.cuh"

// One row of logits.
struct Draw {
    // 0 chooses the likeliest token.
    float temperature;
    u32 seed[2];
    u32 position[2];
    // How many of `ids` are valid; only these may be chosen, or if negative all but these. 0: all.
    int listed;
    u32 ids[8];
    // Scores below the floor are no candidates. Of the others the `top_k` likeliest are kept, up to MAX_KEPT, and of
    // these the likeliest that reach `top_p` together; 0: all.
    float floor;
    int top_k;
    float top_p;
};

constexpr int MAX_KEPT = 64;
// Most blocks that sample a row.
constexpr int MAX_PARTS_OF_ROW = 256;

// A candidate: its value, its token, and whether all logits were finite.
struct Candidate {
    float value;
    u32 token;
    float largest;
    u32 finite;
};

__device__ __forceinline__ bool allows(const Draw& draw, u32 id) {
    if (draw.listed == 0) return true;
    const int count = draw.listed < 0 ? -draw.listed : draw.listed;
    bool found = false;
    for (int i = 0; i < count; i++) found |= draw.ids[i] == id;
    return found == (draw.listed > 0);
}

// The larger value; the lower token among equals.
__device__ __forceinline__ void choose(float& value, u32& token, float other, u32 other_token) {
    if (other > value || (other == value && other_token < token)) value = other, token = other_token;
}

__device__ __forceinline__ void philox(u32* counter, u32 first_key, u32 second_key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 high_a = __umulhi(counter[0], 0xD2511F53u), low_a = counter[0] * 0xD2511F53u;
        const u32 high_c = __umulhi(counter[2], 0xCD9E8D57u), low_c = counter[2] * 0xCD9E8D57u;
        counter[0] = high_c ^ counter[1] ^ first_key;
        counter[2] = high_a ^ counter[3] ^ second_key;
        counter[1] = low_c, counter[3] = low_a;
        first_key += 0x9E3779B9u, second_key += 0xBB67AE85u;
    }
}

__device__ __forceinline__ float gumbel(u32 word) {
    float u = ((float)word + 0.5f) * (1.0f / 4294967296.0f);
    u = u < 1.0f - 5.9604645e-8f ? u : 1.0f - 5.9604645e-8f;
    const float complement = 1.0f - u;
    const float lost = (1.0f - complement) - u;
    return -exact_ln(-(exact_ln(complement) + lost / complement));
}

// Shared by the 256 threads of a block.
struct SampleShared {
    Candidate warps[8];
    u64 keys[8];
    u64 kept[MAX_KEPT];
    float probabilities[MAX_KEPT], largest[MAX_PARTS_OF_ROW], bound;
    int needed;
    bool last;
};

// What all blocks of a row write and read: parts those of sample_part, the blocks' best tokens, and of each block up to
// MAX_KEPT keys.
struct SampleMemory {
    Candidate* parts;
    Candidate* best;
    u64* kept;
};

// The value, token and largest logit of a block's threads.
template <class Block>
__device__ __forceinline__ Candidate reduce(const Block& block, SampleShared& shared, Candidate own) {
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, own.value, distance);
        const u32 token = __shfl_xor_sync(0xffffffffu, own.token, distance);
        const float largest = __shfl_xor_sync(0xffffffffu, own.largest, distance);
        own.finite &= __shfl_xor_sync(0xffffffffu, own.finite, distance);
        choose(own.value, own.token, value, token);
        own.largest = largest > own.largest ? largest : own.largest;
    }
    if ((block.thread() & 31) == 0) shared.warps[block.thread() >> 5] = own;
    block.sync();
    for (int i = 0; i < 8; i++) {
        const Candidate& other = shared.warps[i];
        choose(own.value, own.token, other.value, other.token);
        own.largest = other.largest > own.largest ? other.largest : own.largest;
        own.finite &= other.finite;
    }
    block.sync();
    return own;
}

// The likeliest token of part `index` of `count` of a row of logits that `draw` allows, to parts[index].
template <class Block>
__device__ __forceinline__ void sample_part(const Block& block, SampleShared& shared, const Draw& draw,
                                            const float* logits, Candidate* parts, int size, int index, int count) {
    Candidate own = {-INFINITY, 0xffffffffu, -INFINITY, 1};
    for (int i = index * 256 + block.thread(); i < size; i += count * 256) {
        const float logit = logits[i];
        own.finite &= (__float_as_uint(logit) & 0x7fffffffu) < 0x7f800000u;
        if (allows(draw, i)) choose(own.value, own.token, logit, i);
    }
    own.largest = own.value;
    own = reduce(block, shared, own);
    if (block.thread() == 0) parts[index] = own;
}

__device__ __forceinline__ float score_of(const Draw& draw, float logit, float largest) {
    return (logit - largest) / draw.temperature;
}

// The noise of a token.
__device__ __forceinline__ float noise_of(const Draw& draw, u32 id) {
    u32 words[4] = {id / 4, 0, draw.position[0], draw.position[1]};
    philox(words, draw.seed[0], draw.seed[1]);
    return gumbel(id % 4 == 0 ? words[0] : id % 4 == 1 ? words[1] : id % 4 == 2 ? words[2] : words[3]);
}

// The least of a block's keys, in each thread.
template <class Block>
__device__ __forceinline__ u64 least_key(const Block& block, SampleShared& shared, u64 own) {
    const u64 least_own = least_of_warp(own);
    if ((block.thread() & 31) == 0) shared.keys[block.thread() >> 5] = least_own;
    block.sync();
    u64 least = shared.keys[0];
#pragma unroll 1
    for (int i = 1; i < 8; i++) least = shared.keys[i] < least ? shared.keys[i] : least;
    block.sync();
    return least;
}

// A score that at least `top_k` tokens reach: that of the part which has the so many largest logit.
template <class Block>
__device__ __forceinline__ float bound_of(const Block& block, SampleShared& shared, const Draw& draw,
                                          const Candidate* parts, int count, float largest) {
    if (draw.top_k > count) return draw.floor;
    const int thread = block.thread();
    const float own = thread < count ? parts[thread].largest : 0.0f;
    shared.largest[thread] = own;
    block.sync();
    int larger = 0;
#pragma unroll 1
    for (int i = 0; i < count; i++) larger += shared.largest[i] > own || (shared.largest[i] == own && i < thread);
    if (thread < count && larger == draw.top_k - 1) shared.bound = own;
    block.sync();
    const float bound = score_of(draw, shared.bound, largest);
    return bound > draw.floor ? bound : draw.floor;
}

// The keys of the likeliest tokens of block `index` that reach the bound, least first, to `kept`: how many they are.
template <class Block>
__device__ __forceinline__ int keep_likeliest(const Block& block, SampleShared& shared, const Draw& draw, const float* logits,
                                              float largest, float bound, int size, int index, int count, u64* kept) {
    u64 last = 0;
    int number = 0;
#pragma unroll 1
    for (; number < draw.top_k; number++) {
        u64 own = NO_KEY;
#pragma unroll 1
        for (int i = index * 256 + block.thread(); i < size; i += count * 256) {
            const float score = score_of(draw, logits[i], largest);
            if (score < bound || !allows(draw, i)) continue;
            const u64 key = sort_key(score, i);
            if (key > last && key < own) own = key;
        }
        last = least_key(block, shared, own);
        if (last == NO_KEY) break;
        if (block.thread() == 0) kept[number] = last;
    }
    return number;
}

// The draw from the likeliest of what all blocks kept; best[i].token says how many block i did.
template <class Block>
__device__ __forceinline__ Candidate draw_from_kept(const Block& block, SampleShared& shared, const Draw& draw,
                                                    const float* logits, float largest, const SampleMemory& memory, int count) {
    const int thread = block.thread();
    const u64* own = memory.kept + (size_t)thread * MAX_KEPT;
    const int end = thread < count ? (int)memory.best[thread].token : 0;
    int at = 0, number = 0;
    u64 head = end ? own[0] : NO_KEY;
#pragma unroll 1
    for (; number < draw.top_k; number++) {
        const u64 least = least_key(block, shared, head);
        if (least == NO_KEY) break;
        if (head == least) at++, head = at < end ? own[at] : NO_KEY;
        if (thread == 0) shared.kept[number] = least;
    }
    block.sync();
    const u32 id = thread < number ? (u32)shared.kept[thread] : 0;
    const float score = thread < number ? score_of(draw, logits[id], largest) : 0.0f;
    if (thread < number) shared.probabilities[thread] = exact_exp(score);
    block.sync();
    if (thread == 0) {
        double total = 0, reached = 0;
#pragma unroll 1
        for (int i = 0; i < number; i++) total = total + (double)shared.probabilities[i];
        const double enough = (double)draw.top_p * total;
        int needed = 0;
        while (needed < number && (needed == 0 || reached < enough)) reached = reached + (double)shared.probabilities[needed++];
        shared.needed = draw.top_p < 1.0f ? needed : number;
    }
    block.sync();
    Candidate chosen = {-INFINITY, 0xffffffffu, -INFINITY, 1};
    if (thread < shared.needed) choose(chosen.value, chosen.token, score + noise_of(draw, id), id);
    return chosen;
}

// The token of a row: what `count` blocks choose together, of which this is block `index`. `arrived` is zero before and
// afterwards. A fault is 1 if a logit is not finite.
template <class Block>
__device__ __forceinline__ void sample_row(const Block& block, SampleShared& shared, const Draw& draw,
                                           const float* logits, const SampleMemory& memory, u32* arrived, u32* token,
                                           float* fault, int size, int index, int count) {
    const int thread = block.thread();
    Candidate own = {-INFINITY, 0xffffffffu, -INFINITY, 1};
    for (int i = thread; i < count; i += 256) {
        const Candidate part = memory.parts[i];
        choose(own.value, own.token, part.value, part.token);
        own.finite &= part.finite;
        own.largest = part.largest > own.largest ? part.largest : own.largest;
    }
    own = reduce(block, shared, own);
    const u32 finite = own.finite;
    const float largest = own.largest;
    const bool filtered = draw.temperature != 0.0f && draw.top_k > 0;
    if (filtered) {
        const float bound = bound_of(block, shared, draw, memory.parts, count, largest);
        u64* kept = memory.kept + (size_t)index * MAX_KEPT;
        own.token = keep_likeliest(block, shared, draw, logits, largest, bound, size, index, count, kept);
    } else if (draw.temperature != 0.0f) {
        own.value = -INFINITY, own.token = 0xffffffffu;
        for (int four = index * 256 + thread; four * 4 < size; four += count * 256) {
            u32 words[4] = {(u32)four, 0, draw.position[0], draw.position[1]};
            philox(words, draw.seed[0], draw.seed[1]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int id = four * 4 + i;
                if (id >= size || !allows(draw, id)) continue;
                const float score = score_of(draw, logits[id], largest);
                if (score >= draw.floor) choose(own.value, own.token, score + gumbel(words[i]), id);
            }
        }
        own = reduce(block, shared, own);
    }
    if (thread == 0) {
        memory.best[index] = own;
        __threadfence();
        shared.last = atomicAdd(arrived, 1) == (u32)count - 1;
        if (shared.last) *arrived = 0;
    }
    block.sync();
    if (!shared.last) return;
    __threadfence();
    Candidate all = {-INFINITY, 0xffffffffu, -INFINITY, 1};
    if (filtered) {
        all = draw_from_kept(block, shared, draw, logits, largest, memory, count);
    } else {
        for (int i = thread; i < count; i += 256) choose(all.value, all.token, memory.best[i].value, memory.best[i].token);
    }
    all = reduce(block, shared, all);
    if (thread == 0) {
        *token = finite ? all.token : 0;
        *fault = finite ? 0.0f : 1.0f;
    }
}
