// One set of kernels of 9 to 64 rows (-DSET=n), so that sets compile in parallel.
#include "bench.h"
#if SET == 0
#include "../medium.cu"
namespace {
RegisterFew r0({"medium", 0, 4, 1, 0, 1, 1, (const void*)medium_4_64, 256, medium_shared(4), medium_depth(4)});
RegisterFew r1({"medium_32", 0, 4, 1, 0, 1, 1, (const void*)medium_4_32, 256, medium_shared(4), medium_depth(4)});
RegisterFew r2({"medium", 0, 8, 1, 0, 1, 1, (const void*)medium_8_64, 256, medium_shared(8), medium_depth(8)});
}
#else
#include "../medium_warpgroup.cuh"
template <class T>
__global__ void __launch_bounds__(T::ALL_THREADS, T::CTAS)
    few(const __grid_constant__ Parts parts, const u8* x, int segments, int rows) {
    medium_warpgroups<T>(parts, x, segments, rows);
}
template <class T>
__global__ void __cluster_dims__(2) __launch_bounds__(T::ALL_THREADS, T::CTAS)
    few_paired(const __grid_constant__ Parts parts, const u8* x, int segments, int rows) {
    medium_warpgroups<T>(parts, x, segments, rows);
}
namespace {
template <class T>
FewEntry entry(const char* name) {
    const void* kernel;
    if constexpr (T::PAIRED == 2) {
        kernel = (const void*)few_paired<T>;
    } else {
        kernel = (const void*)few<T>;
    }
    return {name, T::MODE, T::BITS, T::TEAM, T::ROWS, T::CTAS, T::PAIRED, kernel, T::ALL_THREADS, T::SHARED, T::SLOTS};
}
#define TRY_NAME(n) r##n
#define TRY_LINE(n, name, ...) RegisterFew TRY_NAME(n)(entry<MediumTiling<__VA_ARGS__>>(name))
// Bits, warpgroups of a worker, 32-row chunks, workers, CTAs a multiprocessor, CTAs of a cluster, parts left out.
#if SET == 1
TRY_LINE(0, "f64 r32 k4", 4, 1, 1, 4);
TRY_LINE(1, "f64 r64 k4", 4, 1, 2, 4);
TRY_LINE(2, "f128 r64 k2", 4, 2, 2, 2);
#elif SET == 2
TRY_LINE(0, "f256 r64 k1", 4, 4, 2, 1);
TRY_LINE(1, "f128 r32 k2", 4, 2, 1, 2);
TRY_LINE(2, "f192 r64 k1", 4, 3, 2, 1);
#elif SET == 3
TRY_LINE(0, "f64 r32 k4 pair", 4, 1, 1, 4, 1, 2);
TRY_LINE(1, "f64 r64 k4 pair", 4, 1, 2, 4, 1, 2);
TRY_LINE(2, "f128 r64 k2 pair", 4, 2, 2, 2, 1, 2);
#elif SET == 4
TRY_LINE(0, "f128 r64 k1 c2", 4, 2, 2, 1, 2);
TRY_LINE(1, "f64 r32 k2 c2", 4, 1, 1, 2, 2);
TRY_LINE(2, "f128 r32 k2 pair", 4, 2, 1, 2, 1, 2);
#elif SET == 5
TRY_LINE(0, "f128 r64 k2", 4, 2, 2, 2, 1, 1, WITHOUT_COPIES);
TRY_LINE(1, "f128 r64 k2", 4, 2, 2, 2, 1, 1, WITHOUT_SCALING);
TRY_LINE(2, "f128 r64 k2", 4, 2, 2, 2, 1, 1, WITHOUT_PRODUCTS);
#elif SET == 6
TRY_LINE(0, "f128 r64 k2", 4, 2, 2, 2, 1, 1, WITHOUT_COPIES | WITHOUT_SCALING);
TRY_LINE(1, "f128 r64 k2", 4, 2, 2, 2, 1, 1, WITHOUT_COPIES | WITHOUT_PRODUCTS);
TRY_LINE(2, "f128 r64 k2", 4, 2, 2, 2, 1, 1, WITHOUT_SCALING | WITHOUT_PRODUCTS);
#elif SET == 7
TRY_LINE(0, "f64 r64 k4", 8, 1, 2, 4);
TRY_LINE(1, "f128 r64 k2", 8, 2, 2, 2);
TRY_LINE(2, "f64 r32 k4 pair", 8, 1, 1, 4, 1, 2);
#endif
}
#endif
