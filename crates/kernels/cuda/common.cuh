// Device helpers shared by all kernels. Self-contained: NVRTC compiles these sources without headers,
// and g++ compiles them with EMULATED and emulation.h, where the primitives below are plain functions.
//
// Compile with --fmad=false: every fused multiply-add that is meant is written as __fmaf_rn, so that
// results equal those of the CPU kernels bit for bit.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef EMULATED
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
// Shared memory whose size the launch sets.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

__device__ __forceinline__ u32 shared_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}

// threadIdx.x, read anew: what a long kernel computes from it is computed where it is needed and takes no registers
// elsewhere.
__device__ __forceinline__ int thread_index() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}

// A pointer that the compiler does not know to point to shared memory, which takes fewer registers and less time.
template <class T>
__device__ __forceinline__ T* in_shared(T* p) {
    u32 address;
    asm("{\n .reg .u64 whole;\n cvta.to.shared.u64 whole, %1;\n cvt.u32.u64 %0, whole;\n}" : "=r"(address) : "l"(p));
    return (T*)__cvta_shared_to_generic(address);
}

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to bulk copies.
__device__ __forceinline__ void barrier_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
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

__device__ __forceinline__ u64 evict_last() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
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

// Starts bringing contiguous global memory to the L2 cache. Nothing is read yet: memory that the previous
// kernel writes may be named before waiting for that kernel.
__device__ __forceinline__ void prefetch(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Copies 16 bytes of global memory to shared memory, for the calling thread alone until it has waited and
// synchronised with others.
__device__ __forceinline__ void copy_16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Ends a batch of the thread's copies, which may be empty.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all batches but the last `LEFT`.
template <int LEFT>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Programmatic dependent launch: lets the next kernel start, and waits for the previous one.
__device__ __forceinline__ void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Waits for `count` threads, whole warps, that call this with the same `barrier`, 1 to 15.
__device__ __forceinline__ void sync_threads(int barrier, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Adds to a number in global memory, after everything that the caller has written or seen written.
__device__ __forceinline__ void add_release(u32* to, u32 value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Reads a number in global memory, before everything that the caller reads after it.
__device__ __forceinline__ u32 load_acquire(const u32* from) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// The largest of a warp's numbers, their sum and the least, in each lane.
__device__ __forceinline__ u32 max_of_warp(u32 x) { return __reduce_max_sync(0xffffffffu, x); }
__device__ __forceinline__ int sum_of_warp(int x) { return __reduce_add_sync(0xffffffffu, x); }
__device__ __forceinline__ u32 min_of_warp(u32 x) { return __reduce_min_sync(0xffffffffu, x); }

// Two numbers in half precision, rounded to the nearest, ties to even; and the two.
__device__ __forceinline__ u32 half_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ float2 floats_of_halves(u32 pair) {
    float2 both;
    asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;\n}"
        : "=f"(both.x), "=f"(both.y)
        : "r"(pair));
    return both;
}

// Four bytes of eight, each by the number in a nibble of `places`; with the nibble's first bit set 8 times its sign.
// (__byte_perm ignores that bit.)
__device__ __forceinline__ u32 permute_bytes(u32 low, u32 high, u32 places) {
    u32 bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(places));
    return bytes;
}

// Whether any lane of a warp says so.
__device__ __forceinline__ bool any_of_warp(bool own) { return __any_sync(0xffffffffu, own); }

// Called while polling shared memory: seldom, or as often as possible.
__device__ __forceinline__ void pause_polling() { asm volatile("nanosleep.u32 64;"); }
__device__ __forceinline__ void relax() {}

// A count of clock cycles, which overflows.
__device__ __forceinline__ u32 clock_cycles() {
    u32 cycles;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles));
    return cycles;
}

// Registers of each thread of a warpgroup, which gives some back or takes them.
template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// c[16 features][8 columns] += a[16][32] s8 * b[32][8] s8, exact; below with u8 for a.
__device__ __forceinline__ void mma_s8_s8(int* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_u8_s8(int* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// d = c + a * b, the same c everywhere: the compiler keeps it in registers of its own.
__device__ __forceinline__ void mma_u8_s8_from(int* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, int c) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c));
}
#endif

// Inputs of one segment of a quantised product: partial sums start from zero at each segment and are
// added in ascending order, whatever the grid, the number of rows or the instruction.
constexpr int SEGMENT = 512;
// Inputs that share a scale, a bias and a step.
constexpr int GROUP = 64;
constexpr int GROUPS = SEGMENT / GROUP;
// Output features of a tile: the rows of one tensor core instruction.
constexpr int TILE = 16;

// Formats of weights: affine codes of 4 or 8 bits, and floats of 4 bits (e2m1) with a scale for each half group.
constexpr int MXFP4 = 16 + 4;
constexpr int bits_of(int format) { return format & 15; }

// Bytes of a tile's segment: codes in fragment order, then a scale and a bias in bfloat16 for each group
// and feature, or the scales of the group's halves.
constexpr int code_bytes(int format) { return TILE * SEGMENT * bits_of(format) / 8; }
constexpr int block_bytes(int format) { return code_bytes(format) + GROUPS * TILE * 4; }
// Inputs for warpgroups (wide_warpgroup.cuh): rows of a block, bytes of its integers, and with steps.
constexpr int BLOCK_OF_ROWS = 64, BLOCK_PLANES = BLOCK_OF_ROWS * 2 * GROUP;
constexpr int BLOCK_OF_INPUTS = BLOCK_PLANES + BLOCK_OF_ROWS * 8;
constexpr int CODE_BYTES = code_bytes(4);
constexpr int BLOCK_BYTES = block_bytes(4);

__device__ __forceinline__ float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Twice the values of four floats of 4 bits, as signed bytes. Bytes are selected where a code's first bit is not set,
// and are zeros where it is.
__device__ __forceinline__ u32 doubled_floats(u32 codes) {
    constexpr u32 SMALL = 0x03020100, LARGE = 0x0c080604;
    const u32 positive = permute_bytes(SMALL, LARGE, codes), negative = permute_bytes(SMALL, LARGE, codes ^ 0x8888);
    return (positive + 0x80808080 - negative) ^ 0x80808080;
}

// The A fragments of a group's two m16n8k32.
template <int FORMAT>
__device__ __forceinline__ void load_codes(u32* a, const uint4* codes, int group, int lane) {
    if (FORMAT == MXFP4) {
        const uint4 q = codes[group * 32 + lane];
        a[0] = doubled_floats(q.x), a[1] = doubled_floats(q.z), a[2] = doubled_floats(q.x >> 16), a[3] = doubled_floats(q.z >> 16);
        a[4] = doubled_floats(q.y), a[5] = doubled_floats(q.w), a[6] = doubled_floats(q.y >> 16), a[7] = doubled_floats(q.w >> 16);
    } else if (FORMAT == 4) {
        const uint4 q = codes[group * 32 + lane];
        const u32 mask = 0x0f0f0f0f;
        a[0] = q.x & mask, a[1] = q.z & mask, a[2] = q.x >> 4 & mask, a[3] = q.z >> 4 & mask;
        a[4] = q.y & mask, a[5] = q.w & mask, a[6] = q.y >> 4 & mask, a[7] = q.w >> 4 & mask;
    } else {
        const uint4 p = codes[group * 64 + lane], q = codes[group * 64 + 32 + lane];
        a[0] = p.x, a[1] = p.y, a[2] = p.z, a[3] = p.w;
        a[4] = q.x, a[5] = q.y, a[6] = q.z, a[7] = q.w;
    }
}

// Adds the products of half a group of floats of 4 bits and a fragment of rows to sums: `scales` of the features.
__device__ __forceinline__ void add_half_group(float2& sum, u32 a0, u32 a1, u32 a2, u32 a3, const float2& scales, u32 b0,
                                               u32 b1, float step) {
    int c[4] = {0, 0, 0, 0};
    mma_s8_s8(c, a0, a1, a2, a3, b0, b1);
    sum.x = __fmaf_rn(scales.x, __fmul_rn((float)(c[0] * 256 + c[1]), step), sum.x);
    sum.y = __fmaf_rn(scales.y, __fmul_rn((float)(c[2] * 256 + c[3]), step), sum.y);
}

// Adds the products of a group and a fragment of rows to sums of the lane's features g and g + 8: `a` as load_codes has
// it, `first` and `second` the features' scales and biases, `b` the rows' planes and `step` that of the lane's row.
template <int FORMAT = 4>
__device__ __forceinline__ void add_group(float2& sum, const u32 (&a)[8], u32 first, u32 second, const uint4& b,
                                          const float2& step) {
    if (FORMAT == MXFP4) {
        const float2 low = make_float2(low_bf16(first), low_bf16(second)), high = make_float2(high_bf16(first), high_bf16(second));
        add_half_group(sum, a[0], a[1], a[2], a[3], low, b.x, b.y, step.x);
        add_half_group(sum, a[4], a[5], a[6], a[7], high, b.z, b.w, step.x);
        return;
    }
    int c[4] = {0, 0, 0, 0};
    mma_u8_s8(c, a[0], a[1], a[2], a[3], b.x, b.y);
    mma_u8_s8(c, a[4], a[5], a[6], a[7], b.z, b.w);
    const float d0 = __fmul_rn((float)(c[0] * 256 + c[1]), step.x);
    const float d1 = __fmul_rn((float)(c[2] * 256 + c[3]), step.x);
    sum.x = __fmaf_rn(low_bf16(first), d0, sum.x);
    sum.x = __fmaf_rn(high_bf16(first), step.y, sum.x);
    sum.y = __fmaf_rn(low_bf16(second), d1, sum.y);
    sum.y = __fmaf_rn(high_bf16(second), step.y, sum.y);
}

// The products of one launch: matrices that share their inputs, side by side.
struct Part {
    const u8* weights;
    float* out;
    // Both optional: a number per feature, and what the product is added to, like `out`.
    const float* bias;
    const float* stream;
    int features;
    int tiles;
};
constexpr int MAX_PARTS = 4;
struct Parts {
    Part part[MAX_PARTS];
};

// The part that tile `tile` of all belongs to, and its number there.
__device__ __forceinline__ int find_part(const Parts& parts, int& tile) {
    int i = 0;
    while (i + 1 < MAX_PARTS && tile >= parts.part[i].tiles) tile -= parts.part[i++].tiles;
    return i;
}

// Writes the product of a row and a feature, of a matrix of a stack; padding has no place.
__device__ __forceinline__ void write_product(const Part& part, int row, int feature, float sum, size_t matrix = 0) {
    if (feature >= part.features) return;
    const size_t at = (size_t)row * part.features + feature;
    if (part.bias) sum = sum + part.bias[matrix * part.features + feature];
    if (part.stream) sum = sum + part.stream[at];
    part.out[at] = sum;
}
