// Device helpers shared by all kernels. Self-contained: NVRTC compiles these sources without headers.
//
// Compile with --fmad=false: every fused multiply-add that is meant is written as __fmaf_rn, so that
// results equal those of the CPU kernels bit for bit.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// Inputs of one segment of a quantised product: partial sums start from zero at each segment and are
// added in ascending order, whatever the grid, the number of rows or the instruction.
constexpr int SEGMENT = 512;
// Inputs that share a scale, a bias and a step.
constexpr int GROUP = 64;
constexpr int GROUPS = SEGMENT / GROUP;
// Output features of a tile: the rows of one tensor core instruction.
constexpr int TILE = 16;
// Bytes of a tile's segment: 4-bit codes in fragment order, then a scale and a bias in bfloat16 for
// each group and feature.
constexpr int CODE_BYTES = TILE * SEGMENT / 2;
constexpr int BLOCK_BYTES = CODE_BYTES + GROUPS * TILE * 4;

__device__ __forceinline__ u32 shared_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n .reg .pred done;\n"
        "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        " @!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ u64 evict_first() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Copies contiguous global memory to shared memory; `barrier` counts the bytes.
__device__ __forceinline__ void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

// Programmatic dependent launch: lets the next kernel start, and waits for the previous one.
__device__ __forceinline__ void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// c[16 features][8 columns] += a[16][32] u8 * b[32][8] s8, exact.
__device__ __forceinline__ void mma_u8_s8(int* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
