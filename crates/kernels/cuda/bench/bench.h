// Shared by the parts of the measurement: entries of kernels to try.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../common.cuh"

// A kernel of many rows; `old` has wide.cu's layout of inputs and one CTA for each tile.
struct Entry {
    std::string name;
    int mode, bits, warpgroups, rows;
    const void* kernel;
    int threads, shared, slots;
    bool old;
};
inline std::vector<Entry>& entries() {
    static std::vector<Entry> all;
    return all;
}
struct Register {
    explicit Register(Entry entry) { entries().push_back(std::move(entry)); }
};

// A kernel of up to 64 rows; without `rows` medium.cu's, with -1 the variants of skinny.cu.
struct FewEntry {
    std::string name;
    int mode, bits, rows;
    const void* kernel;
    int threads, shared, slots;
};
inline std::vector<FewEntry>& few_entries() {
    static std::vector<FewEntry> all;
    return all;
}
struct RegisterFew {
    explicit RegisterFew(FewEntry entry) { few_entries().push_back(std::move(entry)); }
};

// A variant of skinny.cu, the engine's first choices first.
struct SkinnyVariant {
    const void* kernel;
    int warps, depth, sets;
};
inline std::vector<SkinnyVariant>& skinny_variants() {
    static std::vector<SkinnyVariant> all;
    return all;
}

// Its shared memory for passes of `segments`.
int shared_of(const SkinnyVariant& variant, int segments, int rows);

#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        const cudaError_t error_ = (call);                                                                 \
        if (error_ != cudaSuccess) {                                                                       \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));              \
            fflush(stdout);                                                                                \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)
