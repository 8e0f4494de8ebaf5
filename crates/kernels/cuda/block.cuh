// The threads that compute a block of an operation together: a launch's CTA, or a team of a persistent one.
#pragma once
#include "common.cuh"

struct Cta {
    __device__ __forceinline__ int thread() const { return thread_index(); }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
};

// `SIZE` neighbouring threads of a persistent CTA: whole warps.
template <int SIZE_>
struct Team {
    static constexpr int SIZE = SIZE_;
    __device__ __forceinline__ int index() const { return thread_index() / SIZE; }
    __device__ __forceinline__ int thread() const { return thread_index() % SIZE; }
    __device__ __forceinline__ void sync() const { sync_threads(1 + index(), SIZE); }
};
