// One set of kernels of up to 64 rows (-DSET=n), so that sets compile in parallel.
#include "bench.h"
#if SET == 0
#include "../medium.cu"
namespace {
RegisterFew r0({"medium", 0, 4, 0, (const void*)medium_4_64, 256, medium_shared(4), medium_depth(4)});
RegisterFew r1({"medium_32", 0, 4, 0, (const void*)medium_4_32, 256, medium_shared(4), medium_depth(4)});
RegisterFew r2({"medium_32", 0, 8, 0, (const void*)medium_8_32, 256, medium_shared(8), medium_depth(8)});
RegisterFew r3({"medium", 0, 8, 0, (const void*)medium_8_64, 256, medium_shared(8), medium_depth(8)});
}
#elif SET == 5
#include "../skinny.cu"
#define SKINNY_VARIANT(warps, depth, sets) {(const void*)skinny_4_##warps##_##depth##_##sets, warps, depth, sets}
namespace {
RegisterFew r0({"skinny", 0, 4, -1, (const void*)skinny_4_16_1_2, 0, 0, 0});
const bool known = [] {
    skinny_variants() = {SKINNY_VARIANT(16, 2, 1), SKINNY_VARIANT(12, 2, 1), SKINNY_VARIANT(16, 1, 1),
                         SKINNY_VARIANT(8, 2, 1),  SKINNY_VARIANT(8, 1, 1),  SKINNY_VARIANT(16, 1, 2),
                         SKINNY_VARIANT(8, 2, 2),  SKINNY_VARIANT(8, 1, 2)};
    return true;
}();
}
int shared_of(const SkinnyVariant& variant, int segments, int rows) {
    return skinny_shared(4, variant.warps, variant.depth, variant.sets, segments, rows);
}
#else
#include "../medium_warpgroup.cuh"
template <class T>
__global__ void __launch_bounds__(T::ALL_THREADS, 1)
    few(const __grid_constant__ Parts parts, const u8* x, int segments, int rows) {
    medium_warpgroups<T>(parts, x, segments, rows);
}
namespace {
template <class T>
FewEntry entry(const char* name) {
    return {name, T::MODE, T::BITS, T::ROWS, (const void*)few<T>, T::ALL_THREADS, T::SHARED, T::SLOTS};
}
#define TRY_NAME(n) r##n
#define TRY_LINE(n, name, ...) RegisterFew TRY_NAME(n)(entry<MediumTiling<__VA_ARGS__>>(name))
// Bits, 32-row chunks, parts left out.
#if SET == 1
TRY_LINE(0, "64x32", 4, 1);
TRY_LINE(1, "64x64", 4, 2);
#elif SET == 2
TRY_LINE(0, "64x32", 8, 1);
TRY_LINE(1, "64x64", 8, 2);
#elif SET == 3
TRY_LINE(0, "64x64", 4, 2, WITHOUT_COPIES);
TRY_LINE(1, "64x64", 4, 2, WITHOUT_SCALING);
TRY_LINE(2, "64x64", 4, 2, WITHOUT_PRODUCTS);
#elif SET == 4
TRY_LINE(0, "64x64", 4, 2, WITHOUT_COPIES | WITHOUT_SCALING);
TRY_LINE(1, "64x64", 4, 2, WITHOUT_COPIES | WITHOUT_PRODUCTS);
TRY_LINE(2, "64x64", 4, 2, WITHOUT_SCALING | WITHOUT_PRODUCTS);
#endif
}
#endif
