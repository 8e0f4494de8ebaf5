// Speed of each unit alone: matrix instructions by shape, layout and number of warpgroups, and
// instructions of the epilogue.
#include "bench.h"
#include "../warpgroup.cuh"

template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_u8_s8(int (&d)[128], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %133, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n256k32.s32.u8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, p;\n}"
        : REGISTERS_32(d, 0), REGISTERS_32(d, 32), REGISTERS_32(d, 64), REGISTERS_32(d, 96)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(ACCUMULATE ? 1 : 0));
}
template <int LEFT>
__device__ __forceinline__ void warpgroup_wait(int (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %128;"
                 : REGISTERS_32(d, 0), REGISTERS_32(d, 32), REGISTERS_32(d, 64), REGISTERS_32(d, 96)
                 : "n"(LEFT)
                 : "memory");
}

namespace {

// SWIZZLE: 0 none, 1 of 128 bytes, 2 of 64.
template <int N, int BUFFERS, int SWIZZLE>
__global__ void __launch_bounds__(N == 256 ? 384 : 512, 1) matrix(int* out, long long* clocks, int rounds) {
    extern __shared__ __align__(1024) unsigned char shared[];
    for (int i = threadIdx.x; i < 65536 / 4; i += blockDim.x) ((u32*)shared)[i] = i * 2654435761u;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    int d[BUFFERS][N / 2] = {};
    const u32 a = threadIdx.x * 2654435761u, at = shared_address(shared) + threadIdx.x / 128 * 8192;
    const u64 b = (u64)(at >> 4) | (u64)((SWIZZLE ? 16 : 128) >> 4) << 16 |
                  (u64)((SWIZZLE == 1 ? 1024 : 512) >> 4) << 32 | (u64)SWIZZLE << 62;
    const int step = SWIZZLE ? 32 / 16 : 256 / 16;
    const long long before = clock64();
    for (int i = 0; i < rounds; i++) {
#pragma unroll
        for (int buffer = 0; buffer < BUFFERS; buffer++) {
            warpgroup_begin();
            wgmma_u8_s8<false>(d[buffer], a, a + 1, a + 2, a + 3, b);
            wgmma_u8_s8<true>(d[buffer], a + 4, a + 5, a + 6, a + 7, b + step);
            warpgroup_commit();
            warpgroup_wait<BUFFERS - 1>(d[(buffer + 1) % BUFFERS]);
        }
    }
#pragma unroll
    for (int buffer = 0; buffer < BUFFERS; buffer++) warpgroup_wait<0>(d[buffer]);
    const long long after = clock64();
    int sum = 0;
    for (int i = 0; i < N / 2; i++)
        for (int buffer = 0; buffer < BUFFERS; buffer++) sum += d[buffer][i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) clocks[blockIdx.x] = after - before;
}

// Loads of steps: 0 as the kernels read them (four places of 16 bytes, eight lanes each), 1 the same of 8
// bytes, 2 sixteen bytes for each lane.
template <int PATTERN>
__global__ void __launch_bounds__(512, 1) loads(int* out, long long* clocks, int rounds) {
    __shared__ __align__(16) float memory[4096];
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) memory[i] = i;
    __syncthreads();
    const int t = threadIdx.x & 3;
    float sum = 0;
    const long long before = clock64();
#pragma unroll 1
    for (int r = 0; r < rounds; r++) {
        const u32 at = shared_address(memory) + (PATTERN == 2 ? (threadIdx.x & 31) * 16 : t * (PATTERN ? 8 : 16));
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float4 v;
            if (PATTERN == 1) {
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at + i * 64));
                asm volatile("" ::"f"(v.x), "f"(v.y));
            } else {
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                             : "r"(at + i * 512));
                asm volatile("" ::"f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w));
            }
            if (i == 15) sum += v.x;
        }
    }
    const long long after = clock64();
    out[blockIdx.x * blockDim.x + threadIdx.x] = (int)sum;
    if (threadIdx.x == 0) clocks[blockIdx.x] = after - before;
}

double first_clocks(const long long* clocks) {
    long long first;
    CHECK(cudaMemcpy(&first, clocks, 8, cudaMemcpyDeviceToHost));
    return (double)first;
}

template <int N, int BUFFERS, int SWIZZLE>
void try_matrix(int* out, long long* clocks, int sms) {
    const int rounds = 2000 / BUFFERS;
    CHECK(cudaFuncSetAttribute(matrix<N, BUFFERS, SWIZZLE>, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304));
    printf("  m64n%-3d buffers %d swizzle %3d:", N, BUFFERS, SWIZZLE == 1 ? 128 : SWIZZLE == 2 ? 64 : 0);
    for (int warpgroups = 1; warpgroups <= (N == 256 ? 3 : 4); warpgroups++) {
        for (int i = 0; i < 2; i++) matrix<N, BUFFERS, SWIZZLE><<<sms, warpgroups * 128, 98304>>>(out, clocks, rounds);
        const double spent = first_clocks(clocks);
        const double sums = 2.0 * rounds * BUFFERS * warpgroups * 64 * N * 32;
        printf("  %dwg %4.0f", warpgroups, sums / spent);
    }
    printf("   multiply-adds a clock and SM (peak 4096)\n");
}

// Instructions of the epilogue, 32 chains a thread.
template <int OP>
__global__ void __launch_bounds__(512, 1) lanes(int* out, long long* clocks, int rounds, int m, float s) {
    int v[32];
    float f[32];
#pragma unroll
    for (int i = 0; i < 32; i++) v[i] = threadIdx.x * 7 + i, f[i] = i;
    __syncthreads();
    const long long before = clock64();
#pragma unroll 1
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            asm volatile("" : "+r"(v[i]));
            if (OP == 0) v[i] = v[i] * m + r;
            if (OP == 1) v[i] = v[i] * 256 + r;
            if (OP == 2) f[i] = (float)v[i];
            if (OP == 3) f[i] = __fmaf_rn(f[i], s, s);
            if (OP == 4) f[i] = __fmul_rn(f[i], s);
            if (OP == 5 || OP == 6) {
                const float dot = (float)(v[i] * (OP == 5 ? 256 : m) + v[i ^ 1]);
                f[i] = __fmaf_rn(s, __fmul_rn(dot, s), f[i]);
                f[i] = __fmaf_rn(s, (float)1.5f, f[i]);
            }
            if (OP == 2) asm volatile("" ::"f"(f[i]));
        }
    }
    const long long after = clock64();
    int sum = 0;
    for (int i = 0; i < 32; i++) sum += v[i] + __float_as_int(f[i]);
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) clocks[blockIdx.x] = after - before;
}

template <int OP>
void try_lanes(const char* what, int* out, long long* clocks, int sms) {
    printf("  %-44s", what);
    for (int threads = 256; threads <= 512; threads += 128) {
        for (int i = 0; i < 2; i++) lanes<OP><<<sms, threads>>>(out, clocks, 1000, 256, 1.0f);
        printf("  %2d warps %6.1f", threads / 32, 1000.0 * 32 * threads / first_clocks(clocks));
    }
    printf("   a clock and SM\n");
}

template <int PATTERN>
void try_loads(const char* what, int* out, long long* clocks, int sms) {
    printf("  %-44s", what);
    for (int i = 0; i < 2; i++) loads<PATTERN><<<sms, 512>>>(out, clocks, 1000);
    printf("  %.2f clocks each\n", first_clocks(clocks) / (1000.0 * 16 * 16));
}

}  // namespace

void micro(int sms) {
    int* out;
    long long* clocks;
    CHECK(cudaMalloc(&out, sms * 512 * 4));
    CHECK(cudaMalloc(&clocks, sms * 8));
    printf("Matrix instructions alone (a in registers, u8 x s8):\n");
    try_matrix<64, 1, 0>(out, clocks, sms);
    try_matrix<64, 2, 0>(out, clocks, sms);
    try_matrix<64, 2, 2>(out, clocks, sms);
    try_matrix<64, 2, 1>(out, clocks, sms);
    try_matrix<128, 1, 0>(out, clocks, sms);
    try_matrix<128, 1, 2>(out, clocks, sms);
    try_matrix<256, 1, 0>(out, clocks, sms);
    try_matrix<256, 1, 2>(out, clocks, sms);
    printf("Instructions of the epilogue alone:\n");
    try_lanes<0>("integer multiply-add (register)", out, clocks, sms);
    try_lanes<1>("integer multiply-add (256)", out, clocks, sms);
    try_lanes<2>("integer to float", out, clocks, sms);
    try_lanes<3>("float multiply-add", out, clocks, sms);
    try_lanes<4>("float multiply", out, clocks, sms);
    try_lanes<5>("all five of an element (256)", out, clocks, sms);
    try_lanes<6>("all five of an element (register)", out, clocks, sms);
    try_loads<0>("loads of 16 bytes, 4 places", out, clocks, sms);
    try_loads<1>("loads of 8 bytes, 4 places", out, clocks, sms);
    try_loads<2>("loads of 16 bytes, 32 places", out, clocks, sms);
}
