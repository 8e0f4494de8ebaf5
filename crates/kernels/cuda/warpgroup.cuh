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

// Waits for all groups but the last `LEFT`; `d` is theirs and may be read after this.
template <int LEFT>
__device__ __forceinline__ void warpgroup_wait(int (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : REGISTERS_32(d, 0) : "n"(LEFT) : "memory");
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

// Describes columns of 64 bytes in shared memory: cores of 8 columns by 16 bytes, each 128 bytes on end, four
// cores for 8 columns.
constexpr u32 COLUMNS_HIGH = 512 >> 4;
__device__ __forceinline__ u64 describe_columns(u32 address) {
    return (u64)(address >> 4) | (u64)(128 >> 4) << 16 | (u64)COLUMNS_HIGH << 32;
}
