// Operations on rows in float32: norms and the rows of a quantised embedding.
#include "embed.cuh"
#include "math.cuh"

// RMS norm. Grid: rows; 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    rms_norm(const float* x, const float* weight, float* out, int length, float eps) {
    DYNAMIC_SHARED(memory);
    float* row = (float*)memory;
    __shared__ __align__(16) float sums[16];
    launch_dependents();
    wait_for_previous();
    x += (size_t)blockIdx.x * length;
    out += (size_t)blockIdx.x * length;
    for (int i = threadIdx.x; i < length; i += 256) row[i] = x[i];
    const float factor = cta_row_factor<8>(row, length, eps, sums);
    for (int i = threadIdx.x; i < length; i += 256) out[i] = row[i] * factor * weight[i];
}

// Rows `ids` of a weight as skinny.cu stores it. Grid: rows; 256 threads.
template <int BITS>
__device__ __forceinline__ void embed(const u8* weights, const u32* ids, float* out, int inputs, int segments) {
    launch_dependents();
    wait_for_previous();
    const u32 id = ids[blockIdx.x];
    out += (size_t)blockIdx.x * inputs;
    for (int i = threadIdx.x; i < inputs; i += 256) out[i] = embedded<BITS>(weights, id, i, segments);
}

extern "C" __global__ void __launch_bounds__(256)
    embed_4(const u8* weights, const u32* ids, float* out, int inputs, int segments) {
    embed<4>(weights, ids, out, inputs, segments);
}

extern "C" __global__ void __launch_bounds__(256)
    embed_8(const u8* weights, const u32* ids, float* out, int inputs, int segments) {
    embed<8>(weights, ids, out, inputs, segments);
}
