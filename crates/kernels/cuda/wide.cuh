// A group's products of 64 features and 32 rows by one warp, for kernels of many rows.
//
// Inputs: [rows / 128][K / 64][128 rows][128] bytes: of a row and group the two planes of 64 bytes as in
// skinny.cu, the high plane first in even rows and second in odd ones, so that the fragments of two
// rows lie in different banks. Steps [rows / 128][K / 64][128]: the step, and the step times the sum.
#pragma once
#include "common.cuh"

// Rows of a block of inputs, and the bytes of a group of it.
constexpr int WIDE_ROWS = 128, WIDE_PLANES = WIDE_ROWS * 2 * GROUP;

// Tiles whose products are computed before the oldest one's sums are scaled: tensor cores and arithmetic
// overlap.
constexpr int TILES_AHEAD = 2;

// acc[m][n] += the products of tile m and rows, half a group after the other: of floats of 4 bits.
__device__ __forceinline__ void multiply_halves(float (&acc)[4][4][4], const uint4* codes, const u32* scales,
                                                const uint4 (&b)[4][2], const float4 (&step)[4], int lane) {
    u32 a[8];
#pragma unroll
    for (int m = 0; m < 4; m++) {
        load_codes<MXFP4>(a, codes, m, lane);
        const u32 pairs[2] = {scales[m * 16], scales[m * 16 + 8]};
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
                const u32* own = a + half * 4;
                mma_s8_s8(high, own[0], own[1], own[2], own[3], half ? b[n][0].z : b[n][0].x, half ? b[n][0].w : b[n][0].y);
                mma_s8_s8(low, own[0], own[1], own[2], own[3], half ? b[n][1].z : b[n][1].x, half ? b[n][1].w : b[n][1].y);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float scale = half ? high_bf16(pairs[i / 2]) : low_bf16(pairs[i / 2]);
                    const float dot = (float)(high[i] * 256 + low[i]);
                    acc[m][n][i] = __fmaf_rn(scale, __fmul_rn(dot, i % 2 ? step[n].z : step[n].x), acc[m][n][i]);
                }
            }
        }
    }
}

// acc[m][n] += the products of tile m and rows 8 n and following, as a fragment of mma_u8_s8. In shared
// memory: `codes` of the group of four tiles, `scales` of them from feature g on, `planes` of 32 rows from
// row g and byte 16 t on, `pairs` of their steps from row 2 t on (g = lane / 4, t = lane % 4).
template <int FORMAT>
__device__ __forceinline__ void multiply_group(float (&acc)[4][4][4], const uint4* codes, const u32* scales,
                                               const unsigned char* planes, const float4* pairs, int lane) {
    const int high = (lane >> 2 & 1) * 64;
    uint4 b[4][2];
    float4 step[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        b[n][0] = *(const uint4*)(planes + n * 8 * 128 + high);
        b[n][1] = *(const uint4*)(planes + n * 8 * 128 + (high ^ 64));
        step[n] = pairs[n * 4];
    }
    if (FORMAT == MXFP4) return multiply_halves(acc, codes, scales, b, step, lane);
    u32 a[8], scale[2][2];
    int highs[TILES_AHEAD + 1][4], lows[TILES_AHEAD + 1][4];
#pragma unroll
    for (int tile = 0; tile < 16 + TILES_AHEAD; tile++) {
        if (tile < 16) {
            const int m = tile / 4, n = tile % 4, slot = tile % (TILES_AHEAD + 1);
            if (n == 0) {
                load_codes<FORMAT>(a, codes, m, lane);
                scale[m & 1][0] = scales[m * 16], scale[m & 1][1] = scales[m * 16 + 8];
            }
            mma_u8_s8_from(highs[slot], a[0], a[1], a[2], a[3], b[n][0].x, b[n][0].y, 0);
            mma_u8_s8_from(lows[slot], a[0], a[1], a[2], a[3], b[n][1].x, b[n][1].y, 0);
            mma_u8_s8(highs[slot], a[4], a[5], a[6], a[7], b[n][0].z, b[n][0].w);
            mma_u8_s8(lows[slot], a[4], a[5], a[6], a[7], b[n][1].z, b[n][1].w);
        }
        const int done = tile - TILES_AHEAD;
        if (done >= 0) {
            const int m = done / 4, n = done % 4, slot = done % (TILES_AHEAD + 1);
            float* sum = acc[m][n];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 pair = scale[m & 1][i / 2];
                const float dot = (float)(highs[slot][i] * 256 + lows[slot][i]);
                sum[i] = __fmaf_rn(low_bf16(pair), __fmul_rn(dot, i % 2 ? step[n].z : step[n].x), sum[i]);
                sum[i] = __fmaf_rn(high_bf16(pair), i % 2 ? step[n].w : step[n].y, sum[i]);
            }
        }
    }
}
