// Experts: stacks of matrices of one size, of which each token takes some.
#pragma once
#include "common.cuh"

// Most experts of a layer.
constexpr int MAX_EXPERTS = 1024;

// Rows of one expert: places `first` and following of all. The first of a list has the number of those after it as its
// expert.
struct ExpertTile {
    int expert, first, rows, padding;
};

// A place without a row.
constexpr u32 NO_ROW = 0xffffffffu;

// Rows by expert: tiles of places, and the row of each place.
struct ExpertRows {
    const ExpertTile* tiles;
    const u32* order;
};

// Tiles of 16 features of all parts; of an expert, if parts are stacks.
__device__ __forceinline__ int all_tiles(const Parts& parts) {
    int tiles = 0;
#pragma unroll
    for (int i = 0; i < MAX_PARTS; i++) tiles += parts.part[i].tiles;
    return tiles;
}
