// What a prompt needs besides products: every new kernel's bits against those of an earlier commit
// (prompt_old.cu), and the times of both.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>

#include "../attention_prompt.cu"
#include "../delta.cu"
#include "../delta_inputs.cu"
#include "../quantize_many.cu"
#include "bench.h"

extern "C" {
__global__ void old_quantize(ManyQuantized to, const float* x);
__global__ void old_quantize_norm(ManyQuantized to, const float* x, const float* weight, float eps);
__global__ void old_quantize_gated(ManyQuantized to, const float* gate, const float* up, int activation);
__global__ void old_quantize_gated_norm(ManyQuantized to, const float* x, const float* gate, const float* weight, int dim,
                                        float eps);
__global__ void old_delta_inputs_64(const __grid_constant__ DeltaTokensOf all, const __grid_constant__ DeltaSizes sizes,
                                    const float* x, const float* taps, const float* b, const float* a,
                                    const float* neg_exp_a, const float* dt_bias);
__global__ void old_delta_inputs_128(const __grid_constant__ DeltaTokensOf all, const __grid_constant__ DeltaSizes sizes,
                                     const float* x, const float* taps, const float* b, const float* a,
                                     const float* neg_exp_a, const float* dt_bias);
__global__ void old_delta_64(const __grid_constant__ DeltaRows rows, int key_heads, int value_heads);
__global__ void old_delta_128(const __grid_constant__ DeltaRows rows, int key_heads, int value_heads);
#define DECLARE(name)                                                                                          \
    __global__ void name(const __grid_constant__ AttentionRows rows, const float* q, float* out, int heads,    \
                         int kv_heads, float scale, const __grid_constant__ HeadOutputs outputs)
DECLARE(attend_many_64);
DECLARE(attend_many_128);
DECLARE(attend_many_256);
}

namespace {

int failures;
u64* counter;

__device__ u32 mix(u32 x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

// Numbers of up to `size`; with `odd`, some of zero, tiny, huge, infinite or not numbers, and groups of zeros.
__global__ void fill(float* to, size_t count, u32 seed, float size, bool odd) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        const u32 r = mix((u32)i * 2654435761u + seed);
        float value = ((int)(r >> 8) / 8388608.0f - 1.0f) * size;
        const u32 group = mix((u32)(i / 64) + seed * 31);
        if (odd && group % 11 == 0) value = r % 3 ? 0.0f : value * 1e-32f;
        if (odd && group % 13 == 0) value *= 1e30f;
        if (odd && group % 17 == 0 && r % 61 == 0) value = r & 1024 ? INFINITY : r & 2048 ? -INFINITY : NAN;
        to[i] = value;
    }
}

__global__ void compare(const u32* a, const u32* b, size_t count, u64* differ) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        if (a[i] != b[i]) atomicAdd(differ, 1ull);
}

struct Memory {
    float* at;
    size_t count;
    explicit Memory(size_t count) : count(count) { CHECK(cudaMalloc(&at, std::max<size_t>(count, 4) * 4)); }
    Memory(size_t count, u32 seed, float size, bool odd = false) : Memory(count) {
        fill<<<512, 256>>>(at, count, seed, size, odd);
    }
    Memory(const Memory&) = delete;
    ~Memory() { cudaFree(at); }
    void poison() { CHECK(cudaMemset(at, 0xff, count * 4)); }
};

// Median microseconds of a launch, of `repeats` at once.
float microseconds(const std::function<void()>& launch, int repeats) {
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    launch();
    std::vector<float> all;
    for (int i = 0; i < 5; i++) {
        CHECK(cudaEventRecord(from));
        for (int j = 0; j < repeats; j++) launch();
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        all.push_back(ms * 1000 / repeats);
    }
    std::sort(all.begin(), all.end());
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    return all[2];
}

// Runs both into `outs`, prints how many of 32 bits differ, and with `repeats` the times; `work` is in
// bytes or operations, told in `unit`s a second.
void versus(const std::string& name, const std::vector<Memory*>& outs, const std::function<void()>& old_kernel,
            const std::function<void()>& new_kernel, int repeats, double work = 0, const char* unit = "", double per_token = 0) {
    std::vector<float*> kept;
    for (auto* out : outs) out->poison();
    old_kernel();
    CHECK(cudaDeviceSynchronize());
    for (auto* out : outs) {
        float* copy;
        CHECK(cudaMalloc(&copy, out->count * 4));
        CHECK(cudaMemcpy(copy, out->at, out->count * 4, cudaMemcpyDeviceToDevice));
        kept.push_back(copy);
        out->poison();
    }
    new_kernel();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemset(counter, 0, 8));
    size_t all = 0;
    for (size_t i = 0; i < outs.size(); i++) {
        compare<<<512, 256>>>((u32*)outs[i]->at, (u32*)kept[i], outs[i]->count, counter);
        all += outs[i]->count;
    }
    u64 differ;
    CHECK(cudaMemcpy(&differ, counter, 8, cudaMemcpyDeviceToHost));
    for (auto* copy : kept) CHECK(cudaFree(copy));
    failures += differ != 0;
    printf("%-52s %llu of %zu differ", name.c_str(), differ, all);
    if (repeats) {
        const float before = microseconds(old_kernel, repeats), now = microseconds(new_kernel, repeats);
        printf("; %9.1f -> %9.1f us, x %.2f, %6.2f %s", before, now, before / now, work / now * 1e-6, unit);
        if (per_token) printf("; a token %6.2f -> %5.2f us", before * per_token, now * per_token);
    }
    printf("\n");
}

template <class... A>
void go(void (*kernel)(A...), dim3 grid, int threads, int shared, A... arguments) {
    void* pointers[] = {(void*)&arguments...};
    CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CHECK(cudaLaunchKernel((const void*)kernel, grid, dim3(threads), pointers, shared, 0));
}

enum Kind { PLAIN, NORM, GATED, GELU, GATED_NORM };
const char* const KINDS[] = {"quantize", "quantize_norm", "quantize_gated", "quantize_gated (GELU)", "quantize_gated_norm"};

// `layers`: launches for a token's model.
void quantized(Kind kind, int rows, int inputs, int layout, int dim, bool odd, int layers) {
    const int groups = (inputs + 511) / 512 * 8;
    const int blocks = layout == 2 ? (rows + 63) / 64 : (rows + 127) / 128;
    Memory planes((size_t)blocks * groups * (layout == 2 ? BLOCK_OF_INPUTS : 128 * 128) / 4);
    Memory steps(layout == 2 ? 0 : (size_t)blocks * groups * 128 * 2);
    const size_t size = (size_t)rows * inputs;
    Memory x(size, 1, 4, odd), y(kind > NORM ? size : 0, 2, 4, odd), weight(inputs, 3, 1);
    const ManyQuantized to{(u8*)planes.at, (float2*)steps.at, inputs, groups, rows, layout};
    const float *from = x.at, *second = y.at, *weights = weight.at;
    const dim3 each(groups / 8, rows), many(groups / 8, (rows + 7) / 8);
    const float eps = 1e-5f;
    auto old_kernel = [&] {
        if (kind == PLAIN) go(old_quantize, each, 256, 0, to, from);
        if (kind == NORM) go(old_quantize_norm, each, 256, inputs * 4, to, from, weights, eps);
        if (kind == GATED || kind == GELU) go(old_quantize_gated, each, 256, 0, to, from, second, (int)(kind == GELU));
        if (kind == GATED_NORM) go(old_quantize_gated_norm, each, 256, 0, to, from, second, weights, dim, eps);
    };
    auto new_kernel = [&] {
        if (kind == PLAIN) go(quantize_many, many, 256, 0, to, from);
        if (kind == NORM) go(quantize_many_norm, dim3(rows), 128, inputs * 4, to, from, weights, eps);
        if (kind == GATED || kind == GELU) go(quantize_many_gated, many, 256, 0, to, from, second, (int)(kind == GELU));
        if (kind == GATED_NORM) go(quantize_many_gated_norm, many, 256, 0, to, from, second, weights, dim, eps);
    };
    char name[100];
    snprintf(name, sizeof(name), "%s %dx%d%s%s", KINDS[kind], rows, inputs, layout == 2 ? ", blocks" : "", odd ? ", odd" : "");
    versus(name, {&planes, &steps}, old_kernel, new_kernel, layers ? 20 : 0, size * ((kind > NORM ? 8 : 4) + 2.125), "TB/s",
           (double)layers / rows);
}

// attention_many.cu's.
constexpr int many_shared(int dim, int queries) {
    return (2 * KEY_BLOCK * KEY_STRIDE + queries * dim + KEY_BLOCK * (queries + 4) + 8 * queries) * 4;
}

struct Sequence {
    int tokens, past;
};

using Attend = void (*)(const AttentionRows, const float*, float*, int, int, float, const HeadOutputs);

void attention(int dim, int heads, int kv_heads, std::vector<Sequence> sequences, bool gated, bool odd, int layers) {
    int tokens = 0, longest = 0;
    size_t keys = 0;
    double products = 0;
    for (auto& s : sequences) {
        tokens += s.tokens, keys += (size_t)(s.tokens + s.past + 5) * kv_heads * dim;
        longest = std::max(longest, s.tokens);
        for (int i = 0; i < s.tokens; i++) products += (double)(s.past + i + 1) * heads * dim * 2;
    }
    // Scores of some size: with `odd`, differences of more than 87.
    Memory q((size_t)tokens * heads * dim * (gated ? 2 : 1), 1, odd ? 40 : 3), k(keys, 2, 3), v(keys, 3, 1);
    Memory queries((size_t)tokens * heads * dim, 4, odd ? 40 : 3), out((size_t)tokens * heads * dim);
    auto rows_of = [&](int queries) {
        AttentionRows rows{};
        size_t at = 0;
        int start = 0, chunks = 0;
        for (auto& s : sequences) {
            const int capacity = s.tokens + s.past + 5;
            rows.row[rows.count++] = {k.at + at, v.at + at, start, s.tokens, s.tokens + s.past, capacity, chunks, 0x7fffffff};
            at += (size_t)capacity * kv_heads * dim, start += s.tokens;
            chunks += (s.tokens * heads / kv_heads + queries - 1) / queries;
        }
        return std::make_pair(rows, chunks);
    };
    const int few = dim == 256 ? 16 : 32, many = dim == 256 ? 32 : 64;
    const auto before = rows_of(few), now = rows_of(many);
    const HeadOutputs outputs{gated ? q.at + dim : nullptr, nullptr, 2 * dim};
    const float scale = 1 / std::sqrt((float)dim);
    const float* from = queries.at;
    const Attend old = dim == 64 ? attend_many_64 : dim == 128 ? attend_many_128 : attend_many_256;
    const Attend own = dim == 64 ? attend_prompt_64 : dim == 128 ? attend_prompt_128 : attend_prompt_256;
    auto old_kernel = [&] {
        go(old, dim3(before.second, kv_heads), 256, many_shared(dim, few), before.first, from, out.at, heads, kv_heads, scale, outputs);
    };
    auto new_kernel = [&] {
        go(own, dim3(kv_heads, now.second), 128, prompt_shared(dim, many), now.first, from, out.at, heads, kv_heads, scale, outputs);
    };
    char name[100];
    snprintf(name, sizeof(name), "attention %d/%d of %d, %d tokens of %zu after %d%s%s", heads, kv_heads, dim, tokens, sequences.size(),
             sequences[0].past, gated ? ", gated" : "", odd ? ", odd" : "");
    versus(name, {&out}, old_kernel, new_kernel, layers ? (longest > 4000 ? 1 : 4) : 0, 2 * products, "TFLOP/s", (double)layers / tokens);
}

// Spans of tokens: those of a sequence follow each other with the same `row`.
struct Span {
    int row, tokens;
    bool past;
};

void delta(int dim, int key_heads, int value_heads, int width, std::vector<Span> spans, bool odd, int layers) {
    const DeltaSizes sizes{key_heads, value_heads, (2 * key_heads + value_heads) * dim, width, 1e-6f, 2e-6f, 0.088f, 1.0f};
    int tokens = 0;
    for (auto& span : spans) tokens += span.tokens;
    const size_t room = tokens + 2 * spans.size();
    Memory x((size_t)tokens * sizes.channels, 1, 4, odd), taps((size_t)width * sizes.channels, 2, 1);
    Memory past((size_t)(width - 1) * sizes.channels * spans.size(), 3, 4);
    Memory b((size_t)tokens * value_heads, 4, 4), a((size_t)tokens * value_heads, 5, 4), rates(value_heads, 6, 1), bias(value_heads, 7, 1);
    Memory keys(room * key_heads * 2 * dim), values(room * value_heads * dim), gates(room * value_heads * 2);
    DeltaTokensOf all{};
    int start = 0;
    for (auto& span : spans) {
        const size_t at = start + 2 * all.count;
        int row_start = start;
        for (int i = all.count - 1; i >= 0 && spans[i].row == span.row; i--) row_start = all.row[i].row_start;
        all.row[all.count++] = {span.past ? past.at + (size_t)span.row * (width - 1) * sizes.channels : nullptr,
                                keys.at + at * key_heads * 2 * dim, values.at + at * value_heads * dim,
                                (float2*)gates.at + at * value_heads, row_start, start, span.tokens};
        start += span.tokens;
    }
    int multiprocessors;
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    const int parts = key_heads + (value_heads + 1) / 2;
    const int run = odd ? 1 + tokens % 8 : std::max(1, std::min(MAX_RUN, tokens * parts / (8 * multiprocessors)));
    const float *from = x.at, *tap = taps.at, *second = b.at, *third = a.at, *rate = rates.at, *added = bias.at;
    auto old_kernel = [&] {
        go(dim == 64 ? old_delta_inputs_64 : old_delta_inputs_128, dim3(tokens, key_heads + value_heads), dim, 0, all, sizes, from, tap,
           second, third, rate, added);
    };
    auto new_kernel = [&] {
        go(dim == 64 ? delta_inputs_64 : delta_inputs_128, dim3((tokens + run - 1) / run, parts), dim, 0, all, sizes, from, tap, second,
           third, rate, added, run);
    };
    char name[100];
    snprintf(name, sizeof(name), "delta_inputs %d/%d of %d, width %d, %d tokens%s", key_heads, value_heads, dim, width, tokens,
             odd ? ", odd" : "");
    versus(name, {&keys, &values, &gates}, old_kernel, new_kernel, layers ? 20 : 0, (double)tokens * sizes.channels * 8, "TB/s",
           (double)layers / tokens);
}

void rule(int dim, int key_heads, int value_heads, std::vector<int> sequences, int layers) {
    size_t tokens = 0;
    for (int own : sequences) tokens += own + 2;
    Memory keys(tokens * key_heads * 2 * dim, 1, 0.12f), values(tokens * value_heads * dim, 2, 1), gates(tokens * value_heads * 2, 3, 0.9f);
    Memory state(sequences.size() * value_heads * dim * dim, 4, 1);
    Memory after(state.count), out(tokens * value_heads * dim);
    DeltaRows rows{};
    size_t at = 0;
    for (size_t i = 0; i < sequences.size(); i++) {
        const size_t own = i * value_heads * dim * dim;
        rows.row[i] = {keys.at + at * key_heads * 2 * dim, values.at + at * value_heads * dim, (float2*)gates.at + at * value_heads,
                       i % 2 ? nullptr : state.at + own, after.at + own, out.at + at * value_heads * dim, sequences[i], sequences[i]};
        at += sequences[i] + 2;
    }
    const unsigned count = sequences.size();
    auto old_kernel = [&] {
        go(dim == 64 ? old_delta_64 : old_delta_128, dim3(value_heads * dim / 16, count), 64, delta_shared(dim), rows, key_heads, value_heads);
    };
    auto new_kernel = [&] {
        go(dim == 64 ? delta_64 : delta_128, dim3(value_heads * dim / 32, count), 128, delta_shared(dim), rows, key_heads, value_heads);
    };
    char name[100];
    snprintf(name, sizeof(name), "delta rule %d/%d of %d, %d tokens of %u", key_heads, value_heads, dim, sequences[0], count);
    versus(name, {&after, &out}, old_kernel, new_kernel, layers ? 4 : 0, (double)tokens * value_heads * dim * dim * 9, "TFLOP/s",
           (double)layers / sequences[0]);
}

void all_bits() {
    for (int dim : {64, 128})
        for (int tokens : {1, 2, 16, 17, 100, 1000}) rule(dim, 2, 4, {tokens, 33, 1, 48}, 0);

    for (int dim : {64, 128})
        for (int width : {2, 3, 4, 6}) {
            delta(dim, 2, 4, width, {{0, 37, false}, {1, 2, true}, {1, 5, true}, {2, 1, true}, {3, 77, true}}, true, 0);
            delta(dim, 2, 3, width, {{0, 1, true}, {1, 1, false}, {2, 2, true}, {2, 3, true}}, true, 0);
            delta(dim, 4, 8, width, {{0, 1000, false}, {1, 333, true}}, false, 0);
        }

    for (int layout : {1, 2})
        for (bool odd : {false, true})
            for (int rows : {9, 65, 130, 203}) {
                quantized(PLAIN, rows, 1088, layout, 0, odd, 0);
                quantized(NORM, rows, 448, layout, 0, odd, 0);
                quantized(NORM, rows, 4096, layout, 0, false, 0);
                quantized(GATED, rows, 640, layout, 0, odd, 0);
                quantized(GELU, rows, 64, layout, 0, odd, 0);
                for (int dim : {64, 128, 256}) quantized(GATED_NORM, rows, 1024, layout, dim, odd, 0);
            }
    for (int dim : {64, 128, 256})
        for (bool odd : {false, true}) {
            attention(dim, 8, 2, {{300, 0}}, false, odd, 0);
            attention(dim, 8, 2, {{17, 0}, {256, 700}, {1, 513}, {77, 1000}, {130, 127}}, true, odd, 0);
            attention(dim, 6, 2, {{61, 3}, {129, 255}, {64, 192}}, false, odd, 0);
            attention(dim, 7, 1, {{40, 5000}, {33, 2}}, true, odd, 0);
            attention(dim, 4, 4, {{511, 1}, {513, 0}}, false, odd, 0);
        }
}

void speeds() {
    printf("Times: a launch, before and now; 'a token' counts the layers of the model.\n");
    for (int rows : {512, 2048}) {
        quantized(NORM, rows, 4096, 2, 0, false, 64);
        quantized(GATED, rows, 12288, 2, 0, false, 32);
        quantized(GATED, rows, 14336, 2, 0, false, 32);
        quantized(GATED_NORM, rows, 4096, 2, 128, false, 24);
        quantized(PLAIN, rows, 4096, 2, 0, false, 32);
    }
    for (int tokens : {1, 5, 16, 32, 40, 64, 128, 256, 512, 2048}) delta(128, 16, 32, 4, {{0, tokens, true}}, false, 24);
    for (int tokens : {5, 512, 2048}) rule(128, 16, 32, {tokens}, 24);
    rule(128, 16, 32, {512, 512, 512, 512}, 24);
    rule(128, 16, 32, {5, 5, 5, 5, 5, 5, 5, 5}, 24);
    // The engine takes the kernels of before for few rows.
    for (int rows : {16, 24, 32, 48, 64, 65, 96, 128}) {
        const int layout = rows > 64 ? 2 : 1;
        quantized(NORM, rows, 4096, layout, 0, false, 64);
        quantized(GATED, rows, 14336, layout, 0, false, 32);
        quantized(GATED_NORM, rows, 4096, layout, 128, false, 24);
        quantized(PLAIN, rows, 4096, layout, 0, false, 32);
    }
    for (int tokens : {512, 2048, 8192}) {
        attention(128, 32, 8, {{tokens, 0}}, false, false, 32);
        attention(256, 16, 4, {{tokens, 0}}, true, false, 8);
    }
    attention(128, 32, 8, {{512, 7680}}, false, false, 32);
    attention(64, 16, 8, {{2048, 0}}, false, false, 24);
    // Few queries after many keys: chunks of half to three times the multiprocessors, where the engine
    // begins to take the kernel for prompts.
    for (int tokens : {8, 32, 64, 128, 160, 192, 224, 256, 272, 288, 320, 352, 384, 448, 512, 544, 576, 640, 768})
        attention(128, 32, 8, {{tokens, 8000}}, false, false, 32);
    for (int tokens : {8, 32, 64, 128, 144, 160, 192, 224, 256, 272, 288, 320, 384, 512, 544, 640, 768})
        attention(256, 16, 4, {{tokens, 8000}}, true, false, 8);
    for (int tokens : {256, 512, 544, 768, 1024, 1056, 1280}) attention(64, 16, 8, {{tokens, 8000}}, false, false, 24);
}

}  // namespace

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    // A kernel that waits for ever would keep the machine.
    signal(SIGALRM, [](int) { _exit(97); });
    alarm(60);
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
    CHECK(cudaMalloc(&counter, 8));
    all_bits();
    speeds();
    printf(failures ? "BITS DIFFER in %d cases\n" : "no bit differs\n", failures);
    return failures != 0;
}
