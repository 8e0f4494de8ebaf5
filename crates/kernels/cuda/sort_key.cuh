// Keys by which scores are sorted: the largest first, then by number, which is the lower half of a key.
#pragma once
#include "common.cuh"

constexpr u64 NO_KEY = ~(u64)0;

// The key of a score that is a number.
__device__ __forceinline__ u64 sort_key(float score, u32 number) {
    const u32 bits = __float_as_uint(score + 0.0f), ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)~ascending << 32 | number;
}

// The least of a warp's keys, in each lane.
__device__ __forceinline__ u64 least_of_warp(u64 own) {
    const u32 high = min_of_warp((u32)(own >> 32));
    return (u64)high << 32 | min_of_warp((u32)(own >> 32) == high ? (u32)own : 0xffffffffu);
}
