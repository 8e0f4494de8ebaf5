// Product of many rows and a quantised weight (affine, 4 bits, groups of 64), for prompts, with the
// matrix instructions of compute capability 9.0.
//
// The same weights, the same segments and the same arithmetic as skinny.cu: which of the two computes a
// row changes no bit of it.
//
// Inputs: [rows / 128][K / 64] blocks. First [128 rows][128] bytes: of a row and group the high parts of
// its integers (of 12 bits; signed) and then the low ones (4 bits), 64 each in natural order; the 16-byte piece p of row r lies at
// p ^ (r % 8), the 128-byte swizzle of matrix descriptors. Then [128] steps: the step, and the step
// times the sum.
//
// A CTA computes 128 features of 128 rows: two warpgroups of 64 rows. One half of a warpgroup's features
// is scaled and added while the tensor cores multiply the other.
#include "common.cuh"

constexpr int WIDE_ROWS = 128, WIDE_FEATURES = 128, WIDE_THREADS = 256;
constexpr int WIDE_TILES = WIDE_FEATURES / TILE;
// A group of a CTA's inputs: planes and steps; swizzled memory begins at multiples of 1024.
constexpr int WIDE_PLANES = WIDE_ROWS * 2 * GROUP, WIDE_STEPS = WIDE_ROWS * 8;
constexpr int WIDE_BYTES = WIDE_PLANES + WIDE_STEPS;
// A divisor of GROUPS: a group's slot is known when this is compiled.
constexpr int WIDE_DEPTH = 4;
// A segment of a CTA's weights; two of them.
constexpr int WIDE_WEIGHTS = WIDE_TILES * BLOCK_BYTES;
// Sums of whole segments stay in shared memory: registers hold those of the current one.
constexpr int WIDE_TOTALS = WIDE_ROWS * WIDE_FEATURES * 4;
constexpr int WIDE_SHARED = WIDE_TOTALS + WIDE_DEPTH * WIDE_BYTES + 2 * WIDE_WEIGHTS + (WIDE_DEPTH + 2) * 16;

// d[64 features][64 rows] (+)= a[64][32] u8 * b[32][64] s8, asynchronous.
__device__ __forceinline__ void wgmma(int* d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %37, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p;\n}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate));
}

// Keeps the compiler from moving accumulators across a wait.
__device__ __forceinline__ void pin(int* d) {
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+r"(d[i])::"memory");
}

// 64 rows of 128 swizzled bytes.
__device__ __forceinline__ u64 descriptor(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// 64 inputs times 64 features: 16 times the codes with the high parts, the codes with the low ones.
__device__ __forceinline__ void multiply(int* d, const uint4& w, u32 planes) {
    const u32 low = 0x0f0f0f0f, high = 0xf0f0f0f0;
    u32 a[16] = {w.x << 4 & high, w.z << 4 & high, w.x & high, w.z & high,
                 w.y << 4 & high, w.w << 4 & high, w.y & high, w.w & high,
                 w.x & low, w.z & low, w.x >> 4 & low, w.z >> 4 & low,
                 w.y & low, w.w & low, w.y >> 4 & low, w.w >> 4 & low};
    // Operands in registers may not change after the fence.
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+r"(a[i])::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma(d, a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], descriptor(planes + i * 32), i > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void scale_add(float* acc, const int* dots, u32 first, u32 second,
                                          const float4* steps) {
    const float s0 = low_bf16(first), b0 = high_bf16(first), s1 = low_bf16(second), b1 = high_bf16(second);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float4 step = steps[j * 4];
        float* a = acc + j * 4;
        const int* d = dots + j * 4;
        a[0] = __fmaf_rn(s0, __fmul_rn((float)d[0], step.x), a[0]);
        a[1] = __fmaf_rn(s0, __fmul_rn((float)d[1], step.z), a[1]);
        a[2] = __fmaf_rn(s1, __fmul_rn((float)d[2], step.x), a[2]);
        a[3] = __fmaf_rn(s1, __fmul_rn((float)d[3], step.z), a[3]);
        a[0] = __fmaf_rn(b0, step.y, a[0]);
        a[1] = __fmaf_rn(b0, step.w, a[1]);
        a[2] = __fmaf_rn(b1, step.y, a[2]);
        a[3] = __fmaf_rn(b1, step.w, a[3]);
    }
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)
    wide_90(const unsigned char* __restrict__ weights, const unsigned char* __restrict__ x,
            float* __restrict__ y, int segments, int rows, int stride) {
    extern __shared__ __align__(1024) unsigned char shared[];
    float4* totals = (float4*)shared + threadIdx.x;
    unsigned char* inputs = shared + WIDE_TOTALS;
    unsigned char* blocks = inputs + WIDE_DEPTH * WIDE_BYTES;
    // Barriers: slots of inputs filled and emptied, halves of the weights filled and emptied.
    const u32 full = shared_address(blocks + 2 * WIDE_WEIGHTS), empty = full + WIDE_DEPTH * 8;
    const u32 filled = empty + WIDE_DEPTH * 8, emptied = filled + 16;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int groups = segments * GROUPS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_DEPTH; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 8);
        for (int i = 0; i < 2; i++) barrier_init(filled + i * 8, 1), barrier_init(emptied + i * 8, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    // Neighbouring CTAs share weights: rows change first.
    const int row_blocks = (rows + WIDE_ROWS - 1) / WIDE_ROWS;
    const int row_block = blockIdx.x % row_blocks, feature_block = blockIdx.x / row_blocks;
    weights += (size_t)feature_block * WIDE_TILES * segments * BLOCK_BYTES;
    x += (size_t)row_block * groups * WIDE_BYTES;
    u64 keep;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    // Both by one thread.
    auto fetch_inputs = [&](int group) {
        const int slot = group % WIDE_DEPTH;
        barrier_expect(full + slot * 8, WIDE_BYTES);
        bulk_copy(shared_address(inputs) + slot * WIDE_BYTES, x + (size_t)group * WIDE_BYTES, WIDE_BYTES,
                  full + slot * 8, keep);
    };
    auto fetch_weights = [&](int segment) {
        const int half = segment & 1;
        barrier_expect(filled + half * 8, WIDE_WEIGHTS);
#pragma unroll 1
        for (int tile = 0; tile < WIDE_TILES; tile++)
            bulk_copy(shared_address(blocks) + half * WIDE_WEIGHTS + tile * BLOCK_BYTES,
                      weights + ((size_t)tile * segments + segment) * BLOCK_BYTES, BLOCK_BYTES, filled + half * 8,
                      keep);
    };
    launch_dependents();
    wait_for_previous();
    if (threadIdx.x == 0) {
        fetch_weights(0);
        for (int group = 0; group < WIDE_DEPTH; group++) fetch_inputs(group);
    }
    const int row_half = warp >> 2, tile = warp & 3;
    float acc[2][32];
    int dots[2][32];
#pragma unroll
    for (int i = 0; i < 64; i++) (&acc[0][0])[i] = 0;

    auto arrive = [&](u32 barrier) {
        if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    };
    for (int segment = 0; segment < segments; segment++) {
        const int first = segment * GROUPS;
        const unsigned char* block = blocks + (segment & 1) * WIDE_WEIGHTS;
        auto product = [&](int i, int half) {
            const uint4 w = ((const uint4*)(block + (half * 4 + tile) * BLOCK_BYTES))[i * 32 + lane];
            multiply(dots[half], w,
                     shared_address(inputs) + i % WIDE_DEPTH * WIDE_BYTES + row_half * 64 * 128);
        };
        auto add = [&](int i, int half) {
            const u32* scales = (const u32*)(block + (half * 4 + tile) * BLOCK_BYTES + CODE_BYTES) + i * TILE + g;
            const float4* pairs = (const float4*)(inputs + i % WIDE_DEPTH * WIDE_BYTES + WIDE_PLANES) + row_half * 32 + t;
            pin(dots[half]);
            scale_add(acc[half], dots[half], scales[0], scales[8], pairs);
        };
        if (threadIdx.x == 0 && segment + 1 < segments) {
            if (segment > 0) barrier_wait(emptied + (segment + 1 & 1) * 8, (segment - 1) / 2 & 1);
            fetch_weights(segment + 1);
        }
        __syncwarp();
        barrier_wait(filled + (segment & 1) * 8, segment / 2 & 1);
        barrier_wait(full, first / WIDE_DEPTH & 1);
        product(0, 0);
        // No product stays in flight over the end of a loop: the compiler would wait for each at once.
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const int group = first + i;
            // The slot of the group before the last one is filled anew: others have long left it.
            if (threadIdx.x == 0 && group >= 2 && group - 2 + WIDE_DEPTH < groups) {
                barrier_wait(empty + (i + WIDE_DEPTH - 2) % WIDE_DEPTH * 8, (group - 2) / WIDE_DEPTH & 1);
                fetch_inputs(group - 2 + WIDE_DEPTH);
            }
            __syncwarp();
            product(i, 1);
            wait_products<1>();
            add(i, 0);
            if (i + 1 < GROUPS) {
                barrier_wait(full + (i + 1) % WIDE_DEPTH * 8, (group + 1) / WIDE_DEPTH & 1);
                product(i + 1, 0);
                wait_products<1>();
            } else {
                wait_products<0>();
            }
            add(i, 1);
            __syncwarp();
            arrive(empty + i % WIDE_DEPTH * 8);
        }
        arrive(emptied + (segment & 1) * 8);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float* a = &acc[0][0] + i * 4;
            float4 sum = make_float4(a[0], a[1], a[2], a[3]);
            if (segment > 0) {
                const float4 before = totals[i * WIDE_THREADS];
                sum.x = __fadd_rn(before.x, sum.x), sum.y = __fadd_rn(before.y, sum.y);
                sum.z = __fadd_rn(before.z, sum.z), sum.w = __fadd_rn(before.w, sum.w);
            }
            totals[i * WIDE_THREADS] = sum;
            a[0] = a[1] = a[2] = a[3] = 0;
        }
    }
    const int row = row_block * WIDE_ROWS + row_half * 64 + 2 * t;
    const int feature = feature_block * WIDE_FEATURES + tile * TILE + g;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float4 sum = totals[i * WIDE_THREADS];
        const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = row + i % 8 * 8 + (j & 1);
            if (at < rows) y[(size_t)at * stride + feature + i / 8 * 64 + (j >> 1) * 8] = values[j];
        }
    }
}
