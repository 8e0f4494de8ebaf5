// The part of CUDA that the kernels use, for g++: a thread is a fiber; a block runs after
// another, and all of a cooperative launch together. Finds
// wrong indices, missing barriers, misaligned copies and data used before it is there; knows nothing of caches,
// registers or time.
#pragma once
#define EMULATED

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Index {
    unsigned x, y, z;
};
extern Index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
    return b > a ? b : a;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline int __float2int_rn(float x) { return (int)std::nearbyint(x); }
inline float __uint_as_float(unsigned x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
inline unsigned __float_as_uint(float x) {
    unsigned y;
    memcpy(&y, &x, 4);
    return y;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned places) {
    const unsigned long long all = (unsigned long long)y << 32 | x;
    unsigned bytes = 0;
    for (int i = 0; i < 4; i++) bytes |= (unsigned)(all >> (places >> 4 * i & 7) * 8 & 255) << 8 * i;
    return bytes;
}
inline unsigned permute_bytes(unsigned low, unsigned high, unsigned places) {
    unsigned bytes = __byte_perm(low, high, places);
    for (int i = 0; i < 4; i++) {
        if (places >> 4 * i & 8) bytes = bytes & ~(255u << 8 * i) | (bytes >> 8 * i & 128 ? 255u << 8 * i : 0);
    }
    return bytes;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }

// Lets the block's other threads run.
void yield_thread();
void sync_block();
void sync_warp();
void sync_threads(int barrier, int count);

// What the lanes of a warp exchange.
struct Exchange {
    unsigned long long value[32];
    unsigned fragment[32][6];
};
Exchange& own_warp();

inline void __syncthreads() { sync_block(); }
inline void __syncwarp() { sync_warp(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void relax() { yield_thread(); }
inline void pause_polling() { yield_thread(); }
inline unsigned clock_cycles() {
    static unsigned cycles = 0;
    return cycles += 50;
}
template <int REGISTERS>
void give_registers() {}
template <int REGISTERS>
void take_registers() {}

template <class T>
T exchange(T value, int from) {
    memcpy(&own_warp().value[threadIdx.x & 31], &value, sizeof(T));
    sync_warp();
    memcpy(&value, &own_warp().value[from & 31], sizeof(T));
    sync_warp();
    return value;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
    return exchange(value, (threadIdx.x & 31) ^ distance);
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
    return exchange(value, from);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
    const int lane = threadIdx.x & 31;
    return exchange(value, lane < distance ? lane : lane - distance);
}
template <class T>
T atomicAdd(T* to, int value) {
    const T before = *to;
    *to += value;
    return before;
}
template <class T>
T atomicMax(T* to, T value) {
    const T before = *to;
    *to = before < value ? value : before;
    return before;
}

inline unsigned max_of_warp(unsigned x) {
    for (int distance = 16; distance; distance /= 2) {
        const unsigned other = __shfl_xor_sync(0u, x, distance);
        x = other > x ? other : x;
    }
    return x;
}
inline unsigned min_of_warp(unsigned x) { return ~max_of_warp(~x); }
inline int sum_of_warp(int x) {
    for (int distance = 16; distance; distance /= 2) x += __shfl_xor_sync(0u, x, distance);
    return x;
}

extern unsigned char* emulated_shared;
#define DYNAMIC_SHARED(name) unsigned char* name = emulated_shared

inline int thread_index() { return threadIdx.x; }
template <class T>
T* in_shared(T* p) {
    return p;
}
inline unsigned shared_address(const void* p) { return (unsigned)((const unsigned char*)p - emulated_shared); }

// An mbarrier's 8 bytes.
struct Barrier {
    unsigned char expected, missing, phase, unused;
    int bytes;
};
inline Barrier& barrier_at(unsigned address) { return *(Barrier*)(emulated_shared + address); }
inline void barrier_check(Barrier& b) {
    if (b.missing == 0 && b.bytes == 0) b.phase ^= 1, b.missing = b.expected;
}
inline void barrier_init(unsigned address, unsigned count) {
    barrier_at(address) = {(unsigned char)count, (unsigned char)count, 0, 0, 0};
}
inline void barrier_fence() {}
inline void barrier_arrive(unsigned address) {
    Barrier& b = barrier_at(address);
    b.missing--;
    barrier_check(b);
}
inline void barrier_expect(unsigned address, unsigned bytes) {
    barrier_at(address).bytes += bytes;
    barrier_arrive(address);
}

// A bulk copy that was started.
struct PendingCopy {
    unsigned to;
    const void* from;
    unsigned bytes, barrier;
};
std::vector<PendingCopy>& own_copies();

// Copies end late and in any order, as those of a GPU may: when a thread waits for a barrier, one of its block's copies
// ends, or none.
inline void end_a_copy() {
    static unsigned random = 1;
    random = random * 1664525 + 1013904223;
    auto& copies = own_copies();
    if (copies.empty() || random >> 31) return;
    std::swap(copies[(random >> 8) % copies.size()], copies.back());
    const PendingCopy copy = copies.back();
    copies.pop_back();
    memcpy(emulated_shared + copy.to, copy.from, copy.bytes);
    barrier_at(copy.barrier).bytes -= copy.bytes;
    barrier_check(barrier_at(copy.barrier));
}
inline void barrier_wait(unsigned address, unsigned parity) {
    while (barrier_at(address).phase == parity) end_a_copy(), yield_thread();
}
// To the nearest number of half precision, ties to even.
inline unsigned half_of(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    const unsigned sign = bits >> 16 & 0x8000;
    const double size = fabs((double)x);
    if (size != size) return sign | 0x7e00;
    if (size >= 65520.0) return sign | 0x7c00;
    int exponent = size > 0 ? ilogb(size) : -14;
    if (exponent < -14) exponent = -14;
    const double units = nearbyint(ldexp(size, 10 - exponent));
    // A mantissa that is rounded up to the next power of two carries into the exponent.
    return sign | ((unsigned)units + ((unsigned)(exponent + 14) << 10));
}
inline float float_of_half(unsigned half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const double size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                        : exponent    ? ldexp(1024 + mantissa, exponent - 25)
                                      : ldexp(mantissa, -24);
    return (float)(half & 0x8000 ? -size : size);
}
inline unsigned half_pair(float low, float high) { return half_of(low) | half_of(high) << 16; }
inline float2 floats_of_halves(unsigned pair) { return {float_of_half(pair & 0xffff), float_of_half(pair >> 16)}; }
inline bool any_of_warp(bool own) { return max_of_warp(own ? 1 : 0) != 0; }
inline unsigned long long evict_first() { return 0; }
inline unsigned long long evict_last() { return 0; }
inline void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier, unsigned long long) {
    if ((to | bytes | (unsigned)(uintptr_t)from) % 16) {
        fprintf(stderr, "a bulk copy of %u bytes is not aligned\n", bytes);
        abort();
    }
    own_copies().push_back({to, from, bytes, barrier});
}
inline void prefetch(const void*, unsigned) {}
inline void copy_16(unsigned to, const void* from) {
    if ((to | (unsigned)(uintptr_t)from) % 16) {
        fprintf(stderr, "a copy of 16 bytes is not aligned\n");
        abort();
    }
    memcpy(emulated_shared + to, from, 16);
}
inline void commit_copies() {}
template <int LEFT>
void wait_for_copies() {}
inline void add_release(unsigned* to, unsigned value) { *to += value; }
inline unsigned load_acquire(const unsigned* from) { return *from; }
inline void launch_dependents() {}
inline void wait_for_previous() {}

template <class A>
void mma(int* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    const int lane = threadIdx.x & 31;
    const unsigned own[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(own_warp().fragment[lane], own, sizeof(own));
    sync_warp();
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 32; k++) {
            const unsigned a = own_warp().fragment[row % 8 * 4 + k % 16 / 4][row / 8 + k / 16 * 2];
            const unsigned b = own_warp().fragment[column * 4 + k % 16 / 4][4 + k / 16];
            c[i] += (int)(A)(a >> k % 4 * 8) * (int)(signed char)(b >> k % 4 * 8);
        }
    }
    sync_warp();
}
inline void mma_u8_s8(int* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    mma<unsigned char>(c, a0, a1, a2, a3, b0, b1);
}
inline void mma_s8_s8(int* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    mma<signed char>(c, a0, a1, a2, a3, b0, b1);
}
inline void mma_u8_s8_from(int* d, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, int c) {
    for (int i = 0; i < 4; i++) d[i] = c;
    mma_u8_s8(d, a0, a1, a2, a3, b0, b1);
}
