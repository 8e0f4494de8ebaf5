// Sampling without filters: the likeliest token, or a draw with Gumbel noise, as kernels/src/sample.rs
// chooses them, bit for bit.
#pragma once
#include "block.cuh"
#include "math.cuh"

// One row of logits.
struct Draw {
    // 0 chooses the likeliest token.
    float temperature;
    u32 seed[2];
    u32 position[2];
    // How many of `ids` are valid; only these may be chosen, or if negative all but these. 0: all.
    int listed;
    u32 ids[8];
};

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
    bool last;
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

// The token of a row: what `count` blocks choose together, of which this is block `index`. `parts` are those of
// sample_part, `best` has room for as many; `arrived` is zero before and afterwards. A fault is 1 if a logit is
// not finite.
template <class Block>
__device__ __forceinline__ void sample_row(const Block& block, SampleShared& shared, const Draw& draw,
                                           const float* logits, const Candidate* parts, Candidate* best,
                                           u32* arrived, u32* token, float* fault, int size, int index, int count) {
    const int thread = block.thread();
    Candidate own = {-INFINITY, 0xffffffffu, -INFINITY, 1};
    for (int i = thread; i < count; i += 256) {
        const Candidate part = parts[i];
        choose(own.value, own.token, part.value, part.token);
        own.finite &= part.finite;
        own.largest = part.largest > own.largest ? part.largest : own.largest;
    }
    own = reduce(block, shared, own);
    const u32 finite = own.finite;
    if (draw.temperature != 0.0f) {
        const float largest = own.largest;
        own.value = -INFINITY, own.token = 0xffffffffu;
        for (int four = index * 256 + thread; four * 4 < size; four += count * 256) {
            u32 words[4] = {(u32)four, 0, draw.position[0], draw.position[1]};
            philox(words, draw.seed[0], draw.seed[1]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int id = four * 4 + i;
                if (id < size && allows(draw, id))
                    choose(own.value, own.token, (logits[id] - largest) / draw.temperature + gumbel(words[i]), id);
            }
        }
        own = reduce(block, shared, own);
    }
    if (thread == 0) {
        best[index] = own;
        __threadfence();
        shared.last = atomicAdd(arrived, 1) == (u32)count - 1;
        if (shared.last) *arrived = 0;
    }
    block.sync();
    if (!shared.last) return;
    __threadfence();
    Candidate all = {-INFINITY, 0xffffffffu, -INFINITY, 1};
    for (int i = thread; i < count; i += 256) choose(all.value, all.token, best[i].value, best[i].token);
    all = reduce(block, shared, all);
    if (thread == 0) {
        *token = finite ? all.token : 0;
        *fault = finite ? 0.0f : 1.0f;
    }
}
