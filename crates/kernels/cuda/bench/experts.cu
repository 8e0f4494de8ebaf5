// Times of each kernel of a mixture of experts, launched alone: 256 experts of 2,048 by 512, 8 of them for each token.
#include "problem.h"

#include "../experts_few.cu"
#include "../experts_warpgroup.cu"
#include "../float_product.cu"
#include "../quantize.cu"
#include "../quantize_many.cu"
#include "../router.cu"
#include "../rows.cu"

namespace {

constexpr int EXPERTS = 256, PER_TOKEN = 8, HIDDEN = 2048, INNER = 512, LAYERS = 4;

__global__ void fill(u32* words, size_t count, u32 seed, u32 mask, u32 bits) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        words[i] = mix((u32)i * 2654435761u + seed) & mask | bits;
    }
}

template <class T>
T* memory(size_t count, u32 mask = 0xffffffffu, u32 bits = 0) {
    void* p;
    CHECK(cudaMalloc(&p, count * sizeof(T)));
    fill<<<1024, 256>>>((u32*)p, count * sizeof(T) / 4, 7, mask, bits);
    return (T*)p;
}

template <class F>
void time(const char* name, int tokens, F run) {
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    std::vector<float> all;
    for (int i = 0; i < 6; i++) {
        CHECK(cudaEventRecord(from));
        for (int layer = 0; layer < LAYERS; layer++) run(layer);
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (i) all.push_back(ms * 1000 / LAYERS);
    }
    CHECK(cudaGetLastError());
    std::sort(all.begin(), all.end());
    printf("%5d tokens %-28s %8.1f us\n", tokens, name, all[all.size() / 2]);
    fflush(stdout);
}

template <class K>
K* allow(K* kernel, int shared) {
    CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    return kernel;
}

// All kernels for a number of tokens.
void measure(int tokens) {
    const int count = tokens * PER_TOKEN;
    const u32 unit = 0x007fffffu, one = 0x3f000000u;
    float* x = memory<float>((size_t)tokens * HIDDEN, 0x807fffffu, one);
    float* router = memory<float>((size_t)LAYERS * EXPERTS * HIDDEN, 0x807fffffu, 0x3c000000u);
    float* logits = memory<float>((size_t)tokens * EXPERTS, 0x80ffffffu, one);
    u32* chosen = memory<u32>(count);
    float* weights = memory<float>(count, unit, one);
    const int tile_rows = count >= 48 * EXPERTS ? 64 : 32, most = count / tile_rows + std::min(count, EXPERTS);
    const int places = most * tile_rows;
    u32* order = memory<u32>(places);
    ExpertTile* tiles = memory<ExpertTile>(most + 1);
    const size_t matrix = (size_t)EXPERTS * INNER * HIDDEN / TILE / SEGMENT * block_bytes(4);
    u8* stacks = memory<u8>(matrix * 3 * LAYERS, 0xbf7fbf7fu, 0);
    float* gate = memory<float>((size_t)count * INNER, 0x807fffffu, one);
    float* up = memory<float>((size_t)count * INNER, 0x807fffffu, one);
    float* outs = memory<float>((size_t)count * HIDDEN, 0x807fffffu, one);
    float* out = memory<float>((size_t)tokens * HIDDEN);
    u8* planes = memory<u8>((size_t)std::max(places, count) * HIDDEN * 3);
    float2* steps = memory<float2>((size_t)std::max(places, count) * HIDDEN / GROUP);

    time("router's product", tokens, [&](int layer) {
        const float* own = router + (size_t)layer * EXPERTS * HIDDEN;
        const FloatProduct product{x, own, nullptr, nullptr, logits, tokens, EXPERTS, HIDDEN};
        if (tokens < 16) {
            float_product_few<<<dim3(EXPERTS / 4, tokens), 64>>>(product);
        } else {
            float_product_many<<<dim3(EXPERTS / 64, (tokens + 3) / 4), 256>>>(product);
        }
    });
    const Rule rule{nullptr, EXPERTS, PER_TOKEN, 1, 0, 0.0f, 1.0f, 1, 1};
    time("route", tokens, [&](int) { route_256<<<tokens, 32>>>(rule, logits, chosen, weights); });
    Parts both{}, down{};
    const auto set = [&](int layer) {
        u8* own = stacks + matrix * 3 * layer;
        both.part[0] = {own, gate, nullptr, nullptr, INNER, INNER / TILE};
        both.part[1] = {own + matrix, up, nullptr, nullptr, INNER, INNER / TILE};
        down.part[0] = {own + 2 * matrix, outs, nullptr, nullptr, HIDDEN, HIDDEN / TILE};
    };
    if (count <= 64) {
        const auto kernel = allow(experts_few_4, EXPERT_WARPS * 4 * block_bytes(4));
        const int shared = EXPERT_WARPS * 4 * block_bytes(4);
        const Quantized wide{planes, steps, HIDDEN, HIDDEN / GROUP, tokens, 0}, narrow{planes, steps, INNER, INNER / GROUP, count, 0};
        time("integers", tokens, [&](int) { quantize<<<dim3(HIDDEN / SEGMENT, tokens), 256>>>(wide, x); });
        time("gate and up", tokens, [&](int layer) {
            set(layer);
            const ExpertRowCounts counts{2, count, 0, PER_TOKEN, 0, tokens, HIDDEN / SEGMENT};
            kernel<<<sms, 256, shared>>>(both, chosen, (const uint4*)planes, steps, counts);
        });
        time("gated integers", tokens, [&](int) { quantize_gated<<<dim3(INNER / SEGMENT, count), 256>>>(narrow, gate, up, 0); });
        time("down", tokens, [&](int layer) {
            set(layer);
            const ExpertRowCounts counts{1, count, 0, 1, 0, count, INNER / SEGMENT};
            kernel<<<sms, 256, shared>>>(down, chosen, (const uint4*)planes, steps, counts);
        });
    } else {
        using Narrow = MediumTiling<4, 1, 0, true>;
        using Wide = MediumTiling<4, 2, 0, true>;
        const auto kernel = tile_rows == 64 ? allow(experts_warpgroup_4_64, Wide::SHARED) : allow(experts_warpgroup_4_32, Narrow::SHARED);
        const int shared = tile_rows == 64 ? Wide::SHARED : Narrow::SHARED;
        const ExpertRows list{tiles, order};
        const ManyQuantized wide{planes, nullptr, HIDDEN, HIDDEN / GROUP, places, 2}, narrow{planes, nullptr, INNER, INNER / GROUP, places, 2};
        time("order by expert", tokens, [&](int) { group_experts<<<1, 1024>>>(chosen, order, tiles, count, EXPERTS, tile_rows, places); });
        time("integers", tokens, [&](int) { quantize_many<<<dim3(HIDDEN / SEGMENT, (places + 7) / 8), 256>>>(wide, x, RowOrder{order, PER_TOKEN}); });
        time("gate and up", tokens, [&](int layer) {
            set(layer);
            kernel<<<sms, Narrow::ALL_THREADS, shared>>>(both, planes, HIDDEN / SEGMENT, list);
        });
        time("gated integers", tokens, [&](int) {
            quantize_many_gated<<<dim3(INNER / SEGMENT, (places + 7) / 8), 256>>>(narrow, gate, up, 0, RowOrder{order, 1});
        });
        time("down", tokens, [&](int layer) {
            set(layer);
            kernel<<<sms, Narrow::ALL_THREADS, shared>>>(down, planes, INNER / SEGMENT, list);
        });
    }
    time("sum of experts", tokens, [&](int) {
        combine_experts<<<dim3(tokens, HIDDEN / 256), 256>>>(outs, weights, CombineWith{nullptr, nullptr, x}, out, PER_TOKEN, HIDDEN);
    });
    for (void* p : std::vector<void*>{x, router, logits, chosen, weights, order, tiles, stacks, gate, up, outs, out, planes, steps}) {
        CHECK(cudaFree(p));
    }
}

}  // namespace

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    sms = device.multiProcessorCount;
    for (int tokens : {1, 8, 64, 512, 2048}) measure(tokens);
}
