// Checks the CUDA kernels against scalar models of the CPU's arithmetic and measures them.
//
//     nvcc -O3 -std=c++17 --fmad=false -gencode=arch=compute_90a,code=sm_90a \
//          -I crates/kernels/cuda benchmarks/cuda/bench.cu -o bench && ./bench
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "delta.cu"
#include "skinny.cu"
namespace mma {
#include "wide.cu"
}
namespace wgmma_ {
#include "wide_90.cu"
}

#define CHECK(call)                                                                      \
    do {                                                                                 \
        cudaError_t e = (call);                                                          \
        if (e != cudaSuccess) {                                                          \
            printf("%s, line %d: %s\n", #call, __LINE__, cudaGetErrorString(e));         \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

SKINNY(skinny_8_2_1, 8, 2, 1)
SKINNY(skinny_8_3_1, 8, 3, 1)
SKINNY(skinny_16_1_1, 16, 1, 1)
SKINNY(skinny_16_2_1, 16, 2, 1)
SKINNY(skinny_12_2_1, 12, 2, 1)
SKINNY(skinny_8_2_2, 8, 2, 2)
SKINNY(skinny_16_1_2, 16, 1, 2)
SKINNY(skinny_8_4_1, 8, 4, 1)
SKINNY(skinny_12_2_2, 12, 2, 2)
SKINNY(skinny_16_2_2, 16, 2, 2)
DELTA(delta_4_2, 4, 2)
DELTA(delta_8_1, 8, 1)
DELTA(delta_4_1, 4, 1)
DELTA(delta_2_2, 2, 2)

static int sms;
static std::mt19937_64 randomness(1);

template <class T>
T* upload(const std::vector<T>& values) {
    T* device;
    CHECK(cudaMalloc(&device, values.size() * sizeof(T)));
    CHECK(cudaMemcpy(device, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}

static unsigned short to_bf16(float x) {
    u32 u;
    memcpy(&u, &x, 4);
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static float from_bf16(unsigned x) {
    u32 u = x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

// Rounds rows of x as the CPU does: integers of a group with one step.
struct Inputs {
    std::vector<int> integers;
    std::vector<unsigned char> planes;
    std::vector<float> steps;
    // Integers up to `limit`: high and low part are `base` apart.
    Inputs(const std::vector<float>& x, int rows, int k, float limit = 32639, int base = 256) : integers(x.size()), planes(x.size() * 2) {
        const int groups = k / GROUP;
        steps.resize((size_t)groups * rows * 2);
        for (int m = 0; m < rows; m++)
            for (int gi = 0; gi < groups; gi++) {
                const float* from = &x[(size_t)m * k + gi * GROUP];
                float most = 0;
                for (int i = 0; i < GROUP; i++) most = std::max(most, std::fabs(from[i]));
                const float step = most / limit;
                int total = 0;
                for (int i = 0; i < GROUP; i++) {
                    const int v = (int)std::nearbyint(from[i] / step);
                    const int low = base == 256 ? (signed char)(v & 255) : v & (base - 1), high = (v - low) / base;
                    integers[(size_t)m * k + gi * GROUP + i] = v;
                    total += v;
                    const size_t at = ((size_t)m * groups + gi) * 128 + i % 16 / 4 * 16 + i / 16 * 4 + i % 4;
                    planes[at] = high;
                    planes[at + 64] = low;
                }
                steps[((size_t)gi * rows + m) * 2] = step;
                steps[((size_t)gi * rows + m) * 2 + 1] = step * (float)total;
            }
    }
};

struct Weight {
    int n, k;
    std::vector<unsigned char> blocks;
    Weight(int n, int k) : n(n), k(k), blocks((size_t)n / TILE * (k / SEGMENT) * BLOCK_BYTES) {
        std::uniform_real_distribution<float> spread(1, 2);
        for (size_t block = 0; block < blocks.size() / BLOCK_BYTES; block++) {
            unsigned char* at = &blocks[block * BLOCK_BYTES];
            for (int i = 0; i < CODE_BYTES; i += 8) {
                u64 word = randomness();
                memcpy(at + i, &word, 8);
            }
            for (int i = 0; i < GROUPS * TILE; i++) {
                u32 pair = to_bf16(0.01f * spread(randomness)) | (u32)to_bf16(-0.08f * spread(randomness)) << 16;
                memcpy(at + CODE_BYTES + i * 4, &pair, 4);
            }
        }
    }
    // Code and the (scale, bias) of feature and input.
    int code(int feature, int input) const {
        const int g = feature % 8, upper = feature % 16 / 8, i = input % GROUP, t = i % 16 / 4;
        const unsigned char* at = block(feature, input) + (size_t)(input % SEGMENT / GROUP) * 512 +
                                  (g * 4 + t) * 16 + (upper * 2 + i / 32) * 4 + i % 4;
        return *at >> (i % 32 / 16 * 4) & 15;
    }
    const unsigned char* block(int feature, int input) const {
        return &blocks[((size_t)(feature / TILE) * (k / SEGMENT) + input / SEGMENT) * BLOCK_BYTES];
    }
    float scaled(int feature, int input, bool bias) const {
        u32 pair;
        memcpy(&pair, block(feature, input) + CODE_BYTES + (input % SEGMENT / GROUP * TILE + feature % TILE) * 4, 4);
        return from_bf16(bias ? pair >> 16 : pair & 0xffff);
    }
    float product(const Inputs& x, int row, int rows, int feature) const {
        float sum = 0;
        for (int segment = 0; segment < k / SEGMENT; segment++) {
            float part = 0;
            for (int gi = segment * GROUPS; gi < (segment + 1) * GROUPS; gi++) {
                int dot = 0;
                for (int i = gi * GROUP; i < (gi + 1) * GROUP; i++)
                    dot += code(feature, i) * x.integers[(size_t)row * k + i];
                const float* step = &x.steps[((size_t)gi * rows + row) * 2];
                part = std::fma(scaled(feature, gi * GROUP, false), (float)dot * step[0], part);
                part = std::fma(scaled(feature, gi * GROUP, true), step[1], part);
            }
            sum = segment == 0 ? part : sum + part;
        }
        return sum;
    }
};

// Times a graph of launches; microseconds for each.
template <class Launch>
float time_launches(int count, Launch launch) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t program;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < count; i++) launch(i, stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&program, graph, 0));
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < 12; i++) {
        CHECK(cudaEventRecord(start, stream));
        CHECK(cudaGraphLaunch(program, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, start, end));
        if (i > 1) times.push_back(ms);
    }
    CHECK(cudaGraphExecDestroy(program));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3f / count;
}

template <class Kernel, class... Args>
void launch_dependent(cudaStream_t stream, Kernel kernel, int grid, int threads, int shared, Args... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

typedef void (*Skinny)(const unsigned char*, const uint4*, const float2*, float*, int, int, int, int);
struct Variant {
    const char* name;
    Skinny kernel;
    int warps, depth, sets, per_sm;
};
static const Variant variants[] = {
    {"8 warps, 2 deep", skinny_8_2_1, 8, 2, 1, 1},    {"8 warps, 3 deep", skinny_8_3_1, 8, 3, 1, 1},
    {"8 warps, 4 deep", skinny_8_4_1, 8, 4, 1, 1},    {"16 warps, 1 deep", skinny_16_1_1, 16, 1, 1, 1},
    {"16 warps, 2 deep", skinny_16_2_1, 16, 2, 1, 1}, {"12 warps, 2 deep", skinny_12_2_1, 12, 2, 1, 1},
    {"8 warps, 2 deep, 2 CTAs", skinny_8_2_1, 8, 2, 1, 2},
    {"8 warps, 2 deep, 8 rows", skinny_8_2_2, 8, 2, 2, 1}, {"16 warps, 1 deep, 8 rows", skinny_16_1_2, 16, 1, 2, 1},
    {"12 warps, 2 deep, 8 rows", skinny_12_2_2, 12, 2, 2, 1}, {"16 warps, 2 deep, 8 rows", skinny_16_2_2, 16, 2, 2, 1},
};

static void products(int n, int k) {
    Weight weight(n, k);
    const size_t bytes = weight.blocks.size();
    const int copies = std::max(2, std::min(96, (int)(1200e6 / bytes) + 1)), segments = k / SEGMENT;
    std::vector<unsigned char*> copy(copies);
    for (auto& c : copy) c = upload(weight.blocks);
    std::vector<float> x((size_t)8 * k);
    std::normal_distribution<float> normal;
    for (auto& v : x) v = normal(randomness);
    printf("%d x %d (%.1f MB)\n", n, k, bytes / 1e6);
    for (const Variant& v : variants) {
        CHECK(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
        printf("  %-26s", v.name);
        std::vector<float> first;
        for (int rows : {1, 2, 4, 8}) {
            if (rows > v.sets * 4) continue;
            const int shared = skinny_shared(v.warps, v.depth, v.sets, segments, rows);
            if (shared * v.per_sm > 225 * 1024) {
                printf("  %d: too large", rows);
                continue;
            }
            Inputs inputs({x.begin(), x.begin() + (size_t)rows * k}, rows, k);
            auto* planes = (uint4*)upload(inputs.planes);
            auto* steps = (float2*)upload(inputs.steps);
            float* y = upload(std::vector<float>((size_t)rows * n, NAN));
            const int grid = std::min(sms * v.per_sm, n / TILE);
            const float us = time_launches(copies, [&](int i, cudaStream_t stream) {
                launch_dependent(stream, v.kernel, grid, v.warps * 32, shared, (const unsigned char*)copy[i],
                                 (const uint4*)planes, (const float2*)steps, y, n / TILE, segments, rows, n);
            });
            std::vector<float> got((size_t)rows * n);
            CHECK(cudaMemcpy(got.data(), y, got.size() * 4, cudaMemcpyDeviceToHost));
            int wrong = 0, checked = 0;
            for (int row = 0; row < rows; row++)
                for (int i = 0; i < 200; i++) {
                    const int feature = i < 32 ? n - 1 - i : (int)(randomness() % n);
                    const float expected = weight.product(inputs, row, rows, feature);
                    wrong += memcmp(&expected, &got[(size_t)row * n + feature], 4) != 0;
                    checked++;
                }
            if (first.empty()) first.assign(got.begin(), got.begin() + n);
            const bool same = !memcmp(first.data(), got.data(), n * 4);
            printf("  %d: %.2f us %.2f TB/s", rows, us, bytes / us / 1e6);
            if (wrong || !same) printf(" (%d of %d WRONG%s)", wrong, checked, same ? "" : ", row 0 DIFFERS");
            CHECK(cudaFree(planes));
            CHECK(cudaFree(steps));
            CHECK(cudaFree(y));
        }
        printf("\n");
        fflush(stdout);
    }
    for (auto c : copy) CHECK(cudaFree(c));
}

static float tree(float* lanes) {
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

static void delta(int tokens, int key_heads, int value_heads) {
    std::normal_distribution<float> normal(0, 0.09f);
    std::uniform_real_distribution<float> unit(0, 1);
    const int even = (tokens + 1) / 2 * 2;
    std::vector<float> q((size_t)key_heads * tokens * DIM), k(q.size()), keys(2 * q.size());
    std::vector<float> values((size_t)value_heads * tokens * DIM), gates((size_t)value_heads * even * 2);
    std::vector<float> state((size_t)value_heads * DIM * DIM), out((size_t)tokens * value_heads * DIM);
    for (auto* part : {&q, &k, &values, &state})
        for (auto& v : *part) v = normal(randomness);
    for (size_t i = 0; i < gates.size(); i += 2) gates[i] = 1 - 0.1f * unit(randomness), gates[i + 1] = unit(randomness);
    for (size_t i = 0; i < q.size(); i++) {
        const size_t row = i / DIM, j = i % DIM, at = row * 2 * DIM + j / 32 * 32 + j % 8 * 4 + j / 8 % 4;
        keys[at] = k[i];
        keys[at + DIM] = q[i];
    }
    float *d_keys = upload(keys), *d_values = upload(values), *d_gates = upload(gates), *d_out = upload(out);
    typedef void (*Kernel)(const float*, const float*, const float2*, float*, float*, int, int, int);
    struct Variant {
        Kernel kernel;
        int warps, rows;
    };
    for (const Variant& v : {Variant{delta_4_2, 4, 2}, {delta_8_1, 8, 1}, {delta_4_1, 4, 1}, {delta_2_2, 2, 2}}) {
        CHECK(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DELTA_SHARED));
        float* d_state = upload(state);
        const int grid = value_heads * DIM / (4 * v.rows * v.warps);
        auto run = [&](cudaStream_t stream) {
            launch_dependent(stream, v.kernel, grid, v.warps * 32, DELTA_SHARED, (const float*)d_keys,
                             (const float*)d_values, (const float2*)d_gates, d_state, d_out, tokens, key_heads,
                             value_heads);
        };
        run(0);
        CHECK(cudaDeviceSynchronize());
        std::vector<float> got(out.size()), end(state.size());
        CHECK(cudaMemcpy(got.data(), d_out, got.size() * 4, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(end.data(), d_state, end.size() * 4, cudaMemcpyDeviceToHost));
        int wrong = 0, checked = 0;
        for (int trial = 0; trial < 16; trial++) {
            const int head = randomness() % value_heads, row = randomness() % DIM;
            std::vector<float> s(state.begin() + ((size_t)head * DIM + row) * DIM,
                                 state.begin() + ((size_t)head * DIM + row + 1) * DIM);
            for (int t = 0; t < tokens; t++) {
                const size_t at = ((size_t)(head / (value_heads / key_heads)) * tokens + t) * DIM;
                const float decay = gates[((size_t)head * even + t) * 2];
                float lanes[16] = {};
                for (int j = 0; j < DIM; j++) lanes[j % 16] = std::fma(s[j], decay * k[at + j], lanes[j % 16]);
                const float d = (values[((size_t)head * tokens + t) * DIM + row] - tree(lanes)) *
                                gates[((size_t)head * even + t) * 2 + 1];
                float sums[16] = {};
                for (int j = 0; j < DIM; j++) {
                    s[j] = std::fma(d, k[at + j], s[j] * decay);
                    sums[j % 16] = std::fma(s[j], q[at + j], sums[j % 16]);
                }
                const float expected = tree(sums);
                wrong += memcmp(&expected, &got[((size_t)t * value_heads + head) * DIM + row], 4) != 0;
                checked++;
            }
            wrong += memcmp(s.data(), &end[((size_t)head * DIM + row) * DIM], DIM * 4) != 0;
        }
        const float us = time_launches(24, [&](int, cudaStream_t stream) { run(stream); });
        printf("  delta, %d key and %d value heads, %d tokens, %d warps of %d rows: %.1f us, %.3f us a token; %d of %d wrong\n",
               key_heads, value_heads, tokens, v.warps, v.rows, us, us / tokens, wrong, checked);
        CHECK(cudaFree(d_state));
    }
    fflush(stdout);
    for (float* p : {d_keys, d_values, d_gates, d_out}) CHECK(cudaFree(p));
}

// Both kernels for many rows: the one for all devices and the one for compute capability 9.0.
static void prompts(int n, int k, int rows) {
    constexpr int ROWS = 128, FEATURES = 128;
    Weight weight(n, k);
    const int groups = k / GROUP, blocks = (rows + ROWS - 1) / ROWS, padded = blocks * ROWS;
    std::vector<float> x((size_t)rows * k);
    std::normal_distribution<float> normal;
    for (auto& v : x) v = normal(randomness);
    Inputs inputs(x, rows, k), narrow(x, rows, k, 2047, 16);
    std::vector<unsigned char> planes((size_t)padded * groups * 128), swizzled((size_t)padded * groups * 136);
    std::vector<float> steps((size_t)padded * groups * 2);
    for (int m = 0; m < rows; m++)
        for (int gi = 0; gi < groups; gi++) {
            const size_t block = (size_t)(m / ROWS) * groups + gi, at = block * ROWS + m % ROWS;
            const unsigned char* from = &inputs.planes[((size_t)m * groups + gi) * 128];
            memcpy(&planes[at * 128], from + (m & 1) * 64, 64);
            memcpy(&planes[at * 128 + 64], from + (m & 1 ^ 1) * 64, 64);
            memcpy(&steps[at * 2], &inputs.steps[((size_t)gi * rows + m) * 2], 8);
            from = &narrow.planes[((size_t)m * groups + gi) * 128];
            memcpy(&swizzled[block * ROWS * 136 + ROWS * 128 + m % ROWS * 8], &narrow.steps[((size_t)gi * rows + m) * 2], 8);
            for (int i = 0; i < 128; i++) {
                const int in = i % 64;
                swizzled[block * ROWS * 136 + m % ROWS * 128 + (i / 16 ^ m % 8) * 16 + i % 16] = from[i / 64 * 64 + in % 16 / 4 * 16 + in / 16 * 4 + in % 4];
            }
        }
    auto* d_weight = upload(weight.blocks);
    auto* d_steps = (float2*)upload(steps);
    for (bool newest : {false, true}) {
        auto* d_planes = upload(newest ? swizzled : planes);
        float* y = upload(std::vector<float>((size_t)rows * n, NAN));
        const int grid = n / FEATURES * blocks;
        if (newest)
            CHECK(cudaFuncSetAttribute(wgmma_::wide_90, cudaFuncAttributeMaxDynamicSharedMemorySize, wgmma_::WIDE_SHARED));
        else
            CHECK(cudaFuncSetAttribute(mma::wide, cudaFuncAttributeMaxDynamicSharedMemorySize, mma::WIDE_SHARED));
        const float us = time_launches(4, [&](int, cudaStream_t stream) {
            if (newest)
                launch_dependent(stream, wgmma_::wide_90, grid, 256, wgmma_::WIDE_SHARED, (const unsigned char*)d_weight,
                                 (const unsigned char*)d_planes, y, k / SEGMENT, rows, n);
            else
                launch_dependent(stream, mma::wide, grid, 256, mma::WIDE_SHARED, (const unsigned char*)d_weight,
                                 (const unsigned char*)d_planes, (const float2*)d_steps, y, k / SEGMENT, rows, n);
        });
        std::vector<float> got((size_t)rows * n);
        CHECK(cudaMemcpy(got.data(), y, got.size() * 4, cudaMemcpyDeviceToHost));
        int wrong = 0, checked = 0;
        for (int i = 0; i < 2000; i++) {
            const int row = randomness() % rows, feature = randomness() % n;
            const float expected = weight.product(newest ? narrow : inputs, row, rows, feature);
            wrong += memcmp(&expected, &got[(size_t)row * n + feature], 4) != 0;
            checked++;
        }
        printf("  %s %d x %d, %d rows: %.1f us, %.0f TFLOP/s; %d of %d wrong\n", newest ? "wide_90" : "wide", n, k, rows, us,
               2e-6 * n * k * rows / us, wrong, checked);
        fflush(stdout);
        CHECK(cudaFree(d_planes));
        CHECK(cudaFree(y));
    }
    CHECK(cudaFree(d_weight));
    CHECK(cudaFree(d_steps));
}

// The products and delta rules of one decode step of the Qwen3.5-9B shape, in one captured graph, with
// weights of their own: 4.8 GB. Norms, attention, convolutions and sampling are missing.
static void step(int rows) {
    struct Product {
        int n, k;
        unsigned char* weights;
    };
    std::vector<Product> chain;
    Weight sample(4096, 4096);
    unsigned char* pattern = upload(sample.blocks);
    auto add = [&](int n, int k) {
        const size_t bytes = (size_t)n / TILE * (k / SEGMENT) * BLOCK_BYTES;
        unsigned char* weights;
        CHECK(cudaMalloc(&weights, bytes));
        for (size_t at = 0; at < bytes; at += sample.blocks.size())
            CHECK(cudaMemcpy(weights + at, pattern, std::min(bytes - at, sample.blocks.size()), cudaMemcpyDeviceToDevice));
        chain.push_back({n, k, weights});
    };
    size_t total = 0;
    for (int layer = 0; layer < 32; layer++) {
        const bool attention = layer % 4 == 3;
        add(attention ? 10240 : 12352, 4096);
        add(4096, 4096);
        add(24576, 4096);
        add(4096, 12288);
    }
    add(248320, 4096);
    for (auto& p : chain) total += (size_t)p.n / TILE * (p.k / SEGMENT) * BLOCK_BYTES;
    std::vector<float> x((size_t)rows * 12288);
    std::normal_distribution<float> normal;
    for (auto& v : x) v = normal(randomness);
    Inputs inputs(x, rows, 12288);
    auto* planes = (uint4*)upload(inputs.planes);
    auto* steps = (float2*)upload(inputs.steps);
    float* y = upload(std::vector<float>((size_t)rows * 248320));
    float *state = upload(std::vector<float>((size_t)24 * 32 * DIM * DIM)), *qkv = upload(x);
    float* out = upload(std::vector<float>((size_t)rows * 32 * DIM));
    std::vector<float> g(32 * ((rows + 1) / 2 * 2) * 2, 0.5f);
    auto* gates = (float2*)upload(g);
    float* keys = upload(std::vector<float>((size_t)16 * rows * 2 * DIM, 0.01f));
    float* values = upload(std::vector<float>((size_t)32 * rows * DIM, 0.01f));
    CHECK(cudaFuncSetAttribute(delta_2_2, cudaFuncAttributeMaxDynamicSharedMemorySize, DELTA_SHARED));
    Skinny narrow = rows > 4 ? skinny_16_1_2 : skinny_16_1_1, wide = rows > 4 ? skinny_16_1_2 : skinny_12_2_1;
    for (Skinny kernel : {narrow, wide})
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
    const float us = time_launches(1, [&](int, cudaStream_t stream) {
        int layer = 0;
        for (size_t i = 0; i < chain.size(); i++) {
            const Product& p = chain[i];
            const bool small = p.n * (size_t)p.k <= 4096 * 4096 || rows > 2;
            const int warps = small ? 16 : 12, depth = small ? 1 : 2;
            const int segments = p.k / SEGMENT, shared = skinny_shared(warps, depth, rows > 4 ? 2 : 1, segments, rows);
            if (i % 4 == 1 && i / 4 % 4 != 3)
                launch_dependent(stream, delta_2_2, 32 * DIM / 16, 64, DELTA_SHARED, (const float*)keys,
                                 (const float*)values, (const float2*)gates, state + (size_t)layer++ * 32 * DIM * DIM,
                                 out, rows, 16, 32);
            launch_dependent(stream, small ? narrow : wide, std::min(sms, p.n / TILE), warps * 32, shared,
                             (const unsigned char*)p.weights, (const uint4*)planes, (const float2*)steps, y, p.n / TILE,
                             segments, rows, p.n);
        }
    });
    printf("  step of %d rows: %.0f us, %.2f TB/s of weights, %.0f steps/s\n", rows, us, total / us / 1e6, 1e6 / us);
    fflush(stdout);
    for (auto& p : chain) CHECK(cudaFree(p.weights));
}

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    sms = device.multiProcessorCount;
    printf("%s, %d SMs\n", device.name, sms);
    for (int rows : {1, 2, 4}) step(rows);
    delta(1, 16, 32);
    delta(37, 16, 32);
    delta(512, 16, 32);
    delta(2048, 16, 32);
    for (auto [n, k] : {std::pair{4096, 4096}, {24576, 4096}, {4096, 12288}})
        for (int rows : {128, 512, 2048}) prompts(n, k, rows);
    for (auto [n, k] : {std::pair{4096, 4096}, {12288, 4096}, {24576, 4096}, {4096, 12288}, {248320, 4096}})
        products(n, k);
}
