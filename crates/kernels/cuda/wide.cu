// Product of many rows and a quantised weight (affine, 4 bits, groups of 64), for prompts.
//
// The same weights, the same segments and the same arithmetic as skinny.cu: which of the two computes a
// row changes no bit of it.
//
// Inputs: [rows / 128][K / 64][128 rows][128] bytes: of a row and group the two planes of 64 bytes as in
// skinny.cu, the high plane first in even rows and second in odd ones, so that the fragments of two
// rows lie in different banks. Steps [rows / 128][K / 64][128]: the step, and the step times the sum.
//
// A CTA computes 128 features of 128 rows: 8 warps of 64 features and 32 rows.
#include "common.cuh"

constexpr int WIDE_ROWS = 128, WIDE_FEATURES = 128;
constexpr int WIDE_TILES = WIDE_FEATURES / TILE;
// One group of a CTA's weights and inputs: codes, scales, planes, steps.
constexpr int WIDE_CODES = WIDE_TILES * TILE * GROUP / 2, WIDE_SCALES = WIDE_TILES * TILE * 4;
constexpr int WIDE_PLANES = WIDE_ROWS * 2 * GROUP, WIDE_STEPS = WIDE_ROWS * 8;
constexpr int WIDE_BYTES = WIDE_CODES + WIDE_SCALES + WIDE_PLANES + WIDE_STEPS;
constexpr int WIDE_DEPTH = 6;
constexpr int WIDE_THREADS = 256;
// Sums of whole segments stay in shared memory: registers hold those of the current one.
constexpr int WIDE_TOTALS = WIDE_ROWS * WIDE_FEATURES * 4;
constexpr int WIDE_SHARED = WIDE_TOTALS + WIDE_DEPTH * (WIDE_BYTES + 16) + 128;

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)
    wide(const unsigned char* __restrict__ weights, const unsigned char* __restrict__ x,
         const float2* __restrict__ steps, float* __restrict__ y, int segments, int rows, int stride) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned char* memory = shared + WIDE_TOTALS;
    float4* totals = (float4*)shared + threadIdx.x;
    const u32 full = shared_address(memory + WIDE_DEPTH * WIDE_BYTES), empty = full + WIDE_DEPTH * 8;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int groups = segments * GROUPS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_DEPTH; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    // Neighbouring CTAs share weights: rows change first.
    const int row_blocks = (rows + WIDE_ROWS - 1) / WIDE_ROWS;
    const int row_block = blockIdx.x % row_blocks, feature_block = blockIdx.x / row_blocks;

    u64 keep;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    // By the first warp.
    auto fetch = [&](int group) {
        const int slot = group % WIDE_DEPTH, in = group % GROUPS;
        const u32 to = shared_address(memory + slot * WIDE_BYTES), barrier = full + slot * 8;
        if (lane == 0) barrier_expect(barrier, WIDE_BYTES);
        __syncwarp();
        if (lane < WIDE_TILES) {
            const size_t tile = (size_t)feature_block * WIDE_TILES + lane;
            const unsigned char* from = weights + (tile * segments + group / GROUPS) * BLOCK_BYTES;
            bulk_copy(to + lane * 512, from + in * 512, 512, barrier, keep);
            bulk_copy(to + WIDE_CODES + lane * 64, from + CODE_BYTES + in * 64, 64, barrier, keep);
        } else if (lane == WIDE_TILES) {
            const size_t at = (size_t)row_block * groups + group;
            const u32 planes = to + WIDE_CODES + WIDE_SCALES;
            bulk_copy(planes, x + at * WIDE_PLANES, WIDE_PLANES, barrier, keep);
            bulk_copy(planes + WIDE_PLANES, steps + at * WIDE_ROWS, WIDE_STEPS, barrier, keep);
        }
    };
    launch_dependents();
    wait_for_previous();
    if (warp == 0) {
        for (int group = 0; group < min(WIDE_DEPTH - 1, groups); group++) fetch(group);
    }
    const int feature_half = warp & 1, row_quarter = warp >> 1;
    float acc[4][4][4];
#pragma unroll
    for (int i = 0; i < 64; i++) (&acc[0][0][0])[i] = 0;
    for (int group = 0; group < groups; group++) {
        const int slot = group % WIDE_DEPTH;
        const unsigned char* from = memory + slot * WIDE_BYTES;
        const int next = group + WIDE_DEPTH - 1;
        if (warp == 0 && next < groups) {
            // Its slot was used by the group before this one.
            if (group > 0) barrier_wait(empty + next % WIDE_DEPTH * 8, (group - 1) / WIDE_DEPTH & 1);
            fetch(next);
        }
        barrier_wait(full + slot * 8, group / WIDE_DEPTH & 1);
        const uint4* codes = (const uint4*)from + feature_half * 128 + lane;
        const u32* scales = (const u32*)(from + WIDE_CODES) + feature_half * 64 + g;
        const unsigned char* planes = from + WIDE_CODES + WIDE_SCALES + (row_quarter * 32 + g) * 128 + t * 16;
        const float4* pairs =
            (const float4*)(from + WIDE_CODES + WIDE_SCALES + WIDE_PLANES) + row_quarter * 16 + t;
        const int high = (g & 1) * 64;
        uint4 b[4][2];
        float4 step[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            b[n][0] = *(const uint4*)(planes + n * 8 * 128 + high);
            b[n][1] = *(const uint4*)(planes + n * 8 * 128 + (high ^ 64));
            step[n] = pairs[n * 4];
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint4 w = codes[m * 32];
            const u32 first = scales[m * 16], second = scales[m * 16 + 8], mask = 0x0f0f0f0f;
            const u32 a00 = w.x & mask, a02 = w.x >> 4 & mask, a10 = w.y & mask, a12 = w.y >> 4 & mask;
            const u32 a01 = w.z & mask, a03 = w.z >> 4 & mask, a11 = w.w & mask, a13 = w.w >> 4 & mask;
            const float s0 = low_bf16(first), b0 = high_bf16(first);
            const float s1 = low_bf16(second), b1 = high_bf16(second);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int c[4] = {0, 0, 0, 0};
                mma_u8_s8(c, a00, a01, a02, a03, b[n][0].x, b[n][0].y);
                mma_u8_s8(c, a10, a11, a12, a13, b[n][0].z, b[n][0].w);
#pragma unroll
                for (int i = 0; i < 4; i++) c[i] <<= 8;
                mma_u8_s8(c, a00, a01, a02, a03, b[n][1].x, b[n][1].y);
                mma_u8_s8(c, a10, a11, a12, a13, b[n][1].z, b[n][1].w);
                float* a = acc[m][n];
                a[0] = __fmaf_rn(s0, __fmul_rn((float)c[0], step[n].x), a[0]);
                a[1] = __fmaf_rn(s0, __fmul_rn((float)c[1], step[n].z), a[1]);
                a[2] = __fmaf_rn(s1, __fmul_rn((float)c[2], step[n].x), a[2]);
                a[3] = __fmaf_rn(s1, __fmul_rn((float)c[3], step[n].z), a[3]);
                a[0] = __fmaf_rn(b0, step[n].y, a[0]);
                a[1] = __fmaf_rn(b0, step[n].w, a[1]);
                a[2] = __fmaf_rn(b1, step[n].y, a[2]);
                a[3] = __fmaf_rn(b1, step[n].w, a[3]);
            }
        }
        __syncwarp();
        if (lane == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + slot * 8) : "memory");
        if (group % GROUPS == GROUPS - 1) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float* a = acc[i / 4][i % 4];
                float4 sum = make_float4(a[0], a[1], a[2], a[3]);
                if (group >= GROUPS) {
                    const float4 before = totals[i * WIDE_THREADS];
                    sum.x = __fadd_rn(before.x, sum.x), sum.y = __fadd_rn(before.y, sum.y);
                    sum.z = __fadd_rn(before.z, sum.z), sum.w = __fadd_rn(before.w, sum.w);
                }
                totals[i * WIDE_THREADS] = sum;
                a[0] = a[1] = a[2] = a[3] = 0;
            }
        }
    }
    const int row = row_block * WIDE_ROWS + row_quarter * 32 + 2 * t;
    const int feature = feature_block * WIDE_FEATURES + feature_half * 64 + g;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float4 sum = totals[i * WIDE_THREADS];
        const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = row + i % 4 * 8 + (j & 1);
            if (at < rows) y[(size_t)at * stride + feature + i / 4 * 16 + (j >> 1) * 8] = values[j];
        }
    }
}
