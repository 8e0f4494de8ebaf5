// Single numbers of a quantised embedding.
#pragma once
#include "common.cuh"

// Number `i` of row `id` of a weight as skinny.cu stores it.
template <int FORMAT>
__device__ __forceinline__ float embedded(const u8* weights, u32 id, int i, int segments) {
    const u32 feature = id % TILE, g = feature % 8, upper = feature / 8;
    const u8* block = weights + ((size_t)(id / TILE) * segments + i / SEGMENT) * block_bytes(FORMAT);
    const int group = i % SEGMENT / GROUP, in = i % GROUP, lane = g * 4 + in % 16 / 4;
    u32 code;
    if (FORMAT == 4) {
        code = block[group * 512 + lane * 16 + (upper * 2 + in / 32) * 4 + in % 4] >> in % 32 / 16 * 4 & 15;
    } else if (FORMAT == MXFP4) {
        const u8* word = block + group * 512 + lane * 16 + (upper * 2 + in / 32) * 4;
        code = word[in % 32 / 16 * 2 + in % 4 / 2] >> in % 2 * 4 & 15;
    } else {
        code = block[group * 1024 + in / 32 * 512 + lane * 16 + (in % 32 / 16 * 2 + upper) * 4 + in % 4];
    }
    const u32 pair = ((const u32*)(block + code_bytes(FORMAT)))[group * TILE + feature];
    if (FORMAT == MXFP4) return (float)(signed char)doubled_floats(code) * (in < 32 ? low_bf16(pair) : high_bf16(pair));
    return (float)code * low_bf16(pair) + high_bf16(pair);
}
