// Warpgroups' matrix instructions (wgmma of sm_90a): 64 features of four neighbouring warps, codes in
// registers, the other operand in shared memory.
//
// A wgmma is asynchronous: from warpgroup_begin to the wait for its group its registers belong to it.
#pragma once
#include "common.cuh"

#ifndef EMULATED
// Before the first wgmma that reads registers which other instructions have written.
__device__ __forceinline__ void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Ends a group of wgmmas, which may be empty.
__device__ __forceinline__ void warpgroup_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// The registers hold their values from here on: the compiler moves no instruction that makes them to a place
// after it.
__device__ __forceinline__ void pin(u32 (&a)[8]) {
    asm volatile(""
                 : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]), "+r"(a[4]), "+r"(a[5]), "+r"(a[6]), "+r"(a[7])
                 :
                 : "memory");
}

__device__ __forceinline__ void pin(u32 (&a)[16]) {
    asm volatile(""
                 : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]), "+r"(a[4]), "+r"(a[5]), "+r"(a[6]), "+r"(a[7]), "+r"(a[8]),
                   "+r"(a[9]), "+r"(a[10]), "+r"(a[11]), "+r"(a[12]), "+r"(a[13]), "+r"(a[14]), "+r"(a[15])
                 :
                 : "memory");
}

// Reads shared memory at a register and a constant, at this place of the program.
template <int OFFSET>
__device__ __forceinline__ uint4 load_shared_16(u32 from) {
    uint4 to;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + %5];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "r"(from), "n"(OFFSET)
                 : "memory");
    return to;
}
template <int OFFSET>
__device__ __forceinline__ u32 load_shared_4(u32 from) {
    u32 to;
    asm volatile("ld.shared.u32 %0, [%1 + %2];" : "=r"(to) : "r"(from), "n"(OFFSET) : "memory");
    return to;
}

// The registers are used, so that what makes them stays.
template <int N>
__device__ __forceinline__ void use(const u32 (&a)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" ::"r"(a[i]));
}

// From here on the register may hold another value: what is computed from it is computed here.
__device__ __forceinline__ void hold(u32& value) { asm volatile("" : "+r"(value)); }

__device__ __forceinline__ void trap() {
    asm volatile("trap;");
}

#define REGISTERS_8(d, i)                                                                                \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]),             \
        "+r"(d[i + 6]), "+r"(d[i + 7])
#define NEW_REGISTERS_8(d, i)                                                                            \
    "=r"(d[i]), "=r"(d[i + 1]), "=r"(d[i + 2]), "=r"(d[i + 3]), "=r"(d[i + 4]), "=r"(d[i + 5]),             \
        "=r"(d[i + 6]), "=r"(d[i + 7])
#define NEW_REGISTERS_32(d, i) \
    NEW_REGISTERS_8(d, i), NEW_REGISTERS_8(d, i + 8), NEW_REGISTERS_8(d, i + 16), NEW_REGISTERS_8(d, i + 24)
#define REGISTERS_32(d, i) REGISTERS_8(d, i), REGISTERS_8(d, i + 8), REGISTERS_8(d, i + 16), REGISTERS_8(d, i + 24)

#define FLOATS_8(d, i)                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),             \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define FLOATS_32(d) FLOATS_8(d, 0), FLOATS_8(d, 8), FLOATS_8(d, 16), FLOATS_8(d, 24)

// d[64 features][64 columns] (+)= a[64][16] * b[16][columns] in half precision, d as fragments of mma_u8_s8 for
// each 8 columns. Exact in any order where the sums of products of integers, in the same units, have 24 bits at most.
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_f16(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
#define WGMMA_F16_64(p)                                                                                  \
    "{\n .reg .pred p;\n setp.ne.b32 p, " p ", 0;\n"                                                      \
    " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                               \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                    \
    "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
    // New sums take the registers of those before, or the compiler would keep both for longer.
    if (ACCUMULATE) {
        asm volatile(WGMMA_F16_64("1") : FLOATS_32(d) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
    } else {
        asm volatile(WGMMA_F16_64("0") : FLOATS_32(d) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
    }
}

// d[64 features][64 columns] (+)= a[64][32] u8 * b[32][64] s8, exact; d as fragments of mma_u8_s8 for each 8
// columns. `b` describes b in shared memory.
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_u8_s8(int (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    if (ACCUMULATE) {
        asm volatile(
            "{\n .reg .pred p;\n setp.ne.b32 p, 1, 0;\n"
            " wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "{%32, %33, %34, %35}, %36, p;\n}"
            : REGISTERS_32(d, 0)
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
    } else {
        asm volatile(
            "{\n .reg .pred p;\n setp.ne.b32 p, 0, 0;\n"
            " wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "{%32, %33, %34, %35}, %36, p;\n}"
            : NEW_REGISTERS_32(d, 0)
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
    }
}

// d[64 features][64 columns] = a[64][32] s8 * b[32][64] s8, exact; as above.
__device__ __forceinline__ void wgmma_s8_s8(int (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, 0, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p;\n}"
        : NEW_REGISTERS_32(d, 0)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}

// Waits for all groups but the last `LEFT`; `d` is theirs and may be read after this.
template <int LEFT>
__device__ __forceinline__ void warpgroup_wait(int (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : REGISTERS_32(d, 0) : "n"(LEFT) : "memory");
}

template <int LEFT>
__device__ __forceinline__ void warpgroup_wait(float (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : FLOATS_32(d) : "n"(LEFT) : "memory");
}

// d[64 features][128 columns] (+)= a[64][32] u8 * b[32][128] s8, exact; d as fragments of mma_u8_s8 for each 8
// columns. `b` describes b in shared memory.
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_u8_s8(int (&d)[64], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    if (ACCUMULATE) {
        asm volatile(
            "{\n .reg .pred p;\n setp.ne.b32 p, 1, 0;\n"
            " wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "{%64, %65, %66, %67}, %68, p;\n}"
            : REGISTERS_32(d, 0), REGISTERS_32(d, 32)
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
    } else {
        asm volatile(
            "{\n .reg .pred p;\n setp.ne.b32 p, 0, 0;\n"
            " wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "{%64, %65, %66, %67}, %68, p;\n}"
            : NEW_REGISTERS_32(d, 0), NEW_REGISTERS_32(d, 32)
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
    }
}

// Waits for all groups but the last `LEFT`; `d` is theirs and may be read after this.
template <int LEFT>
__device__ __forceinline__ void warpgroup_wait(int (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : REGISTERS_32(d, 0), REGISTERS_32(d, 32) : "n"(LEFT) : "memory");
}
#endif

// Describes columns of 64 bytes, or of 64 halves, in shared memory: cores of 8 columns by 16 bytes, each 128 bytes on
// end, four or eight cores for 8 columns.
constexpr u32 COLUMNS_HIGH = 512 >> 4, HALVES_HIGH = 1024 >> 4;
__device__ __forceinline__ u64 describe_columns(u32 address, u32 high = COLUMNS_HIGH) {
    return (u64)(address >> 4) | (u64)(128 >> 4) << 16 | (u64)high << 32;
}

// Codes of 4 bits of a group as the fragments of four wgmmas of 16 inputs, in half precision and times 2^-24. Of each
// 16 inputs the even ones come first. `codes` are as load_codes reads them.
__device__ __forceinline__ void halves_of_codes(u32 (&a)[16], const uint4& codes) {
    constexpr u32 MASK = 0x000f000f;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u32 first = k < 2 ? codes.x : codes.y, second = k < 2 ? codes.z : codes.w;
        const int shift = k % 2 * 4;
        a[4 * k] = first >> shift & MASK, a[4 * k + 1] = second >> shift & MASK;
        a[4 * k + 2] = first >> (shift + 8) & MASK, a[4 * k + 3] = second >> (shift + 8) & MASK;
    }
}

// Number `i` of four.
__device__ __forceinline__ float element(const float4& of, int i) { return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w; }

// Part `i` of the sums of rows of halves, or of their steps, as a thread needs them.
template <bool STEPS>
__device__ __forceinline__ float4 load_halves(u32 from, int i) {
    const uint4 bits = load_shared_16<STEPS * 128>(from + i / 2 * 256 + i % 2 * 64);
    return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w));
}

// sums += a group's products of 64 rows of halves, scaled.
template <int N>
__device__ __forceinline__ void scale_halves(float* sums, const float (&d)[N], const u32 (&scales)[2], const float4* row_sums) {
    const float scale[2] = {low_bf16(scales[0]), low_bf16(scales[1])};
    const float bias[2] = {high_bf16(scales[0]), high_bf16(scales[1])};
#pragma unroll
    for (int i = 0; i < N; i++) {
        // Rows 8 j + 2 t and the next one of features g, then of g + 8.
        sums[i] = __fmaf_rn(scale[i / 2 % 2], d[i], sums[i]);
        sums[i] = __fmaf_rn(bias[i / 2 % 2], element(row_sums[i / 8], i / 4 % 2 * 2 + i % 2), sums[i]);
    }
}

// The same where groups have steps of their own; `from` is the address of what rows share.
template <int N>
__device__ __forceinline__ void scale_halves_by_steps(float* sums, const float (&d)[N], const u32 (&scales)[2], u32 from) {
    const float scale[2] = {low_bf16(scales[0]), low_bf16(scales[1])};
    const float bias[2] = {high_bf16(scales[0]), high_bf16(scales[1])};
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float4 row_sums = load_halves<false>(from, j), steps = load_halves<true>(from, j);
#pragma unroll
        for (int i = 8 * j; i < 8 * j + 8; i++) {
            const int row = i / 4 % 2 * 2 + i % 2, f = i / 2 % 2;
            const float step = fabsf(element(steps, row));
            sums[i] = __fmaf_rn(scale[f], __fmul_rn(d[i], step), sums[i]);
            sums[i] = __fmaf_rn(bias[f], __fmul_rn(element(row_sums, row), step), sums[i]);
        }
    }
}

// Whether a group of any of `ROWS` has a step of its own; `apart` bytes lie from 64 rows to the next. By a warp.
template <int ROWS>
__device__ __forceinline__ bool has_own_steps(u32 shared_by_rows, int apart) {
    const int lane = thread_index() & 31, row = lane * 4;
    uint4 steps = make_uint4(0, 0, 0, 0);
    if (row < ROWS) steps = load_shared_16<128>(shared_by_rows + row / 64 * apart + row % 64 / 32 * 256 + row % 32 * 4);
    return any_of_warp((steps.x | steps.y | steps.z | steps.w) >> 31);
}

// A segment's sums of rows of halves times the steps that its groups share.
template <int N>
__device__ __forceinline__ void multiply_by_steps(float* sums, u32 from) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float4 steps = load_halves<true>(from, j);
#pragma unroll
        for (int i = 0; i < 8; i++) sums[j * 8 + i] = __fmul_rn(sums[j * 8 + i], element(steps, i / 4 * 2 + i % 2));
    }
}

template <bool HALVES>
struct Exact {
    using Type = float;
};
template <>
struct Exact<false> {
    using Type = int;
};
