// Products of many rows: every kernel's bits against a scalar model and against today's kernel, and its time
// on the shapes of a prompt.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>
#include <tuple>

#include "bench.h"

void micro(int sms);

namespace {

constexpr int ROW_BLOCK = 64, BLOCK = ROW_BLOCK * (2 * GROUP + 8);
int sms;

__device__ __host__ u32 mix(u32 x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

// Cases: 0 random, 1 the largest sums, 2 many zeros.
__global__ void fill_weights(u32* words, size_t count, int bits, u32 seed, int kind) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        const int at = i * 4 % block_bytes(bits);
        const u32 r = mix((u32)i * 2654435761u + seed);
        if (at < code_bytes(bits)) {
            words[i] = kind == 1 ? (r % 5 ? 0xffffffffu : r) : kind == 2 ? r & mix(r + 1) & mix(r + 2) : r;
        } else {
            // Positive scales and negative biases near 1/64, or any sign.
            const u32 scale = 0x3c00 + r % 0x100 + (kind ? (r >> 30 & 1) << 15 : 0);
            const u32 bias = 0xbd00 + (r >> 8) % 0x100;
            words[i] = scale | bias << 16;
        }
    }
}

__device__ int input_of(size_t row, int i, int inputs, u32 seed, int kind) {
    const u32 r = mix((u32)(row * inputs + i) + seed * 977u);
    if (kind == 1) return r % 7 ? 32639 : -32639;
    if (kind == 2 && r % 3) return 0;
    const int wide = (int)(mix(r) % 65279) - 32639;
    return i % 64 == r % 64 ? (r & 1 ? 32639 : -32639) : wide >> (r >> 28 & 7);
}

// A thread a group of a row: integers, and both layouts.
__global__ void fill_inputs(short* x, float2* steps, u8* old_planes, float2* old_steps, u8* blocks, int rows, int inputs,
                            u32 seed, int kind) {
    const int groups = inputs / GROUP;
    const size_t all = (size_t)rows * groups;
    for (size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x; n < all; n += (size_t)gridDim.x * blockDim.x) {
        const int row = n / groups, group = n % groups;
        int total = 0;
        const size_t old_at = (size_t)(row / 128) * groups + group, at = (size_t)(row / ROW_BLOCK) * groups + group;
        u8* to = blocks + at * BLOCK;
        const int r = row % ROW_BLOCK;
        for (int i = 0; i < GROUP; i++) {
            const int v = input_of(row, group * GROUP + i, inputs, seed, kind);
            x[(size_t)row * inputs + group * GROUP + i] = v, total += v;
            const int low = (signed char)(v & 255), high = (v - low) / 256;
            u8* planes = old_planes + (old_at * 128 + row % 128) * 128;
            const int place = i % 16 / 4 * 16 + i / 16 * 4 + i % 4, swapped = (row & 1) * 64;
            planes[place + swapped] = high, planes[place + (swapped ^ 64)] = low;
            u8* own = to + r / 8 * 1024 + r % 2 * 512 + i / 16 * 128 + r % 8 / 2 * 32 + i % 16;
            own[0] = high, own[16] = low;
        }
        const float step = kind == 2 && mix(n) % 5 == 0 ? 0.0f : __uint_as_float(0x38000000 + mix((u32)n + seed) % 0x1000000);
        const float2 both = make_float2(step, (float)total * step);
        steps[n] = both;
        old_steps[old_at * 128 + row % 128] = both;
        ((float2*)(to + ROW_BLOCK * 2 * GROUP))[r] = both;
    }
}

__global__ void fill_floats(float* to, size_t count, u32 seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        to[i] = (int)(mix((u32)i + seed) >> 8) / 8388608.0f - 1.0f;
}

__global__ void compare(const u32* a, const u32* b, size_t count, unsigned long long* differ) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        if (a[i] != b[i]) atomicAdd(differ, 1ull);
}

struct Matrix {
    u8* weights;
    float *out, *bias, *stream;
    int features;
    size_t bytes;
};

// Matrices of one input, and inputs of rows.
struct Problem {
    int bits, inputs, rows;
    std::vector<Matrix> matrices;
    short* x;
    float2 *steps, *old_steps;
    u8 *old_planes, *blocks;

    Problem(int bits, std::vector<int> features, int inputs, int rows, int kind, u32 seed, bool extras)
        : bits(bits), inputs(inputs), rows(rows) {
        const size_t groups = inputs / GROUP, room = (rows + 127) / 128 * 128;
        CHECK(cudaMalloc(&x, (size_t)rows * inputs * 2));
        CHECK(cudaMalloc(&steps, rows * groups * 8));
        CHECK(cudaMalloc(&old_planes, room * groups * 128));
        CHECK(cudaMalloc(&old_steps, room * groups * 8));
        CHECK(cudaMalloc(&blocks, room * groups * 136));
        // Rows of padding are not numbers.
        CHECK(cudaMemset(old_planes, 0xff, room * groups * 128));
        CHECK(cudaMemset(old_steps, 0xff, room * groups * 8));
        CHECK(cudaMemset(blocks, 0xff, room * groups * 136));
        fill_inputs<<<4 * sms, 256>>>(x, steps, old_planes, old_steps, blocks, rows, inputs, seed, kind);
        for (int f : features) {
            Matrix m{};
            m.features = f;
            m.bytes = (size_t)((f + 127) / 128 * 8) * (inputs / SEGMENT) * block_bytes(bits);
            CHECK(cudaMalloc(&m.weights, m.bytes));
            CHECK(cudaMalloc(&m.out, (size_t)rows * f * 4));
            fill_weights<<<4 * sms, 256>>>((u32*)m.weights, m.bytes / 4, bits, seed + f, kind);
            if (extras) {
                CHECK(cudaMalloc(&m.bias, f * 4));
                CHECK(cudaMalloc(&m.stream, (size_t)rows * f * 4));
                fill_floats<<<4 * sms, 256>>>(m.bias, f, seed);
                fill_floats<<<4 * sms, 256>>>(m.stream, (size_t)rows * f, seed + 1);
            }
            matrices.push_back(m);
        }
        CHECK(cudaDeviceSynchronize());
    }
    Problem(const Problem&) = delete;
    ~Problem() {
        for (auto& m : matrices) cudaFree(m.weights), cudaFree(m.out), cudaFree(m.bias), cudaFree(m.stream);
        cudaFree(x), cudaFree(steps), cudaFree(old_planes), cudaFree(old_steps), cudaFree(blocks);
    }
    double flops() const {
        double sum = 0;
        for (auto& m : matrices) sum += 2.0 * m.features * inputs * rows;
        return sum;
    }
    Parts parts() const {
        Parts parts{};
        for (size_t i = 0; i < matrices.size(); i++) {
            const Matrix& m = matrices[i];
            parts.part[i] = {m.weights, m.out, m.bias, m.stream, m.features, (m.features + 127) / 128 * 8};
        }
        return parts;
    }
    void launch(const Entry& e) const {
        Parts p = parts();
        int tiles = 0;
        for (auto& part : p.part) tiles += part.tiles;
        int segments = inputs / SEGMENT, count = rows;
        const void* first = e.old ? old_planes : blocks;
        const void* second = old_steps;
        void* old_arguments[] = {&p, &first, &second, &segments, &count};
        void* arguments[] = {&p, &first, &segments, &count};
        const int work = (rows + e.rows - 1) / e.rows * ((tiles / 4 + e.warpgroups - 1) / e.warpgroups);
        const int grid = e.old ? work : std::min(work, sms);
        CHECK(cudaLaunchKernel(e.kernel, dim3(grid), dim3(e.threads), e.old ? old_arguments : arguments, e.shared, 0));
    }
};

// The CPU's arithmetic: an output of part `m`.
float model(const Problem& p, const u8* weights, const short* x, const float2* steps, int feature) {
    const int segments = p.inputs / SEGMENT, tile = feature / 16, f = feature % 16;
    const u8* own = weights + (size_t)tile * segments * block_bytes(p.bits);
    float total = 0;
    for (int s = 0; s < segments; s++, own += block_bytes(p.bits)) {
        float sum = 0;
        for (int g = 0; g < GROUPS; g++) {
            int dot = 0;
            for (int i = 0; i < GROUP; i++) {
                const int lane = f % 8 * 4 + i % 16 / 4, upper = f / 8;
                const int code =
                    p.bits == 4 ? own[g * 512 + lane * 16 + (upper * 2 + i / 32) * 4 + i % 4] >> (i % 32 / 16 * 4) & 15
                                : own[g * 1024 + i / 32 * 512 + lane * 16 + (i % 32 / 16 * 2 + upper) * 4 + i % 4];
                dot += code * x[s * SEGMENT + g * GROUP + i];
            }
            u32 pair;
            memcpy(&pair, own + code_bytes(p.bits) + (g * 16 + f) * 4, 4);
            const u32 scale_bits = pair << 16, bias_bits = pair & 0xffff0000u;
            float scale, bias;
            memcpy(&scale, &scale_bits, 4), memcpy(&bias, &bias_bits, 4);
            const float2 step = steps[s * GROUPS + g];
            volatile float scaled = (float)dot * step.x;
            sum = fmaf(scale, scaled, sum);
            sum = fmaf(bias, step.y, sum);
        }
        total = total + sum;
    }
    return total;
}

// Outputs of today's kernel that differ from the model, of `samples` (all if 0).
size_t against_model(const Problem& p, size_t samples, size_t& tried) {
    std::vector<short> x((size_t)p.rows * p.inputs);
    std::vector<float2> steps((size_t)p.rows * p.inputs / GROUP);
    CHECK(cudaMemcpy(x.data(), p.x, x.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(steps.data(), p.steps, steps.size() * 8, cudaMemcpyDeviceToHost));
    size_t wrong = 0;
    tried = 0;
    for (auto& m : p.matrices) {
        const size_t all = (size_t)p.rows * m.features, count = samples ? std::min(samples, all) : all;
        std::vector<u8> weights(m.bytes);
        std::vector<float> out(all), bias(m.features), stream(m.stream ? all : 0);
        CHECK(cudaMemcpy(weights.data(), m.weights, m.bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(out.data(), m.out, all * 4, cudaMemcpyDeviceToHost));
        if (m.stream) {
            CHECK(cudaMemcpy(bias.data(), m.bias, bias.size() * 4, cudaMemcpyDeviceToHost));
            CHECK(cudaMemcpy(stream.data(), m.stream, all * 4, cudaMemcpyDeviceToHost));
        }
        const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
        std::vector<size_t> found(threads);
        std::vector<std::thread> workers;
        for (unsigned t = 0; t < threads; t++)
            workers.emplace_back([&, t] {
                for (size_t n = t; n < count; n += threads) {
                    const size_t at = samples ? ((u64)mix((u32)n) << 32 | mix((u32)n + 7)) % all : n;
                    const size_t row = at / m.features;
                    const int feature = at % m.features;
                    float expected = model(p, weights.data(), x.data() + row * p.inputs,
                                           steps.data() + row * p.inputs / GROUP, feature);
                    if (m.stream) expected = (expected + bias[feature]) + stream[at];
                    found[t] += memcmp(&expected, &out[at], 4) != 0;
                }
            });
        for (auto& worker : workers) worker.join();
        for (size_t own : found) wrong += own;
        tried += count;
    }
    return wrong;
}

float milliseconds(const Problem& p, const Entry& e, int repeats) {
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    std::vector<float> all;
    for (int i = 0; i < repeats + 2; i++) {
        CHECK(cudaEventRecord(from));
        p.launch(e);
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (i >= 2) all.push_back(ms);
    }
    std::sort(all.begin(), all.end());
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    return all[all.size() / 2];
}

std::map<const void*, u64> differing;
u64* counter;

// All kernels of the format against today's, and today's against the model.
void check(int bits, std::vector<int> features, int inputs, int rows, int kind, size_t samples, bool extras) {
    Problem p(bits, features, inputs, rows, kind, rows * 31 + inputs + kind, extras);
    std::vector<u32*> outs;
    for (auto& e : entries()) {
        if (e.bits != bits || !e.old) continue;
        for (auto& m : p.matrices) CHECK(cudaMemset(m.out, 0xff, (size_t)rows * m.features * 4));
        p.launch(e);
        CHECK(cudaDeviceSynchronize());
        size_t tried;
        const size_t wrong = against_model(p, samples, tried);
        printf("  %d bits %5dx%-5d %4d rows kind %d: today %zu of %zu;", bits, features[0], inputs, rows, kind, wrong, tried);
        for (auto& m : p.matrices) {
            u32* copy;
            CHECK(cudaMalloc(&copy, (size_t)rows * m.features * 4));
            CHECK(cudaMemcpy(copy, m.out, (size_t)rows * m.features * 4, cudaMemcpyDeviceToDevice));
            outs.push_back(copy);
        }
    }
    u64 all = 0, kernels = 0;
    for (auto& e : entries()) {
        if (e.bits != bits || e.old || e.mode & 7) continue;
        for (auto& m : p.matrices) CHECK(cudaMemset(m.out, 0xff, (size_t)rows * m.features * 4));
        p.launch(e);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemset(counter, 0, 8));
        for (size_t i = 0; i < p.matrices.size(); i++)
            compare<<<4 * sms, 256>>>((u32*)p.matrices[i].out, outs[i], (size_t)rows * p.matrices[i].features, counter);
        u64 differ;
        CHECK(cudaMemcpy(&differ, counter, 8, cudaMemcpyDeviceToHost));
        differing[e.kernel] += differ, all += differ, kernels++;
    }
    printf(" %llu others %llu\n", kernels, all);
    fflush(stdout);
    for (auto* out : outs) CHECK(cudaFree(out));
}

struct Product {
    std::vector<int> features;
    int inputs, count;
};
struct Model {
    const char* name;
    std::vector<Product> products;
};
const Model MODELS[] = {
    {"9B", {{{12288, 12288}, 4096, 32}, {{4096}, 12288, 32}, {{8192, 4096, 32, 32}, 4096, 24}, {{8192, 1024, 1024}, 4096, 8}, {{4096}, 4096, 32}}},
    {"8B", {{{14336, 14336}, 4096, 32}, {{4096}, 14336, 32}, {{4096, 1024, 1024}, 4096, 32}, {{4096}, 4096, 32}}},
};

const char* mode_name(int mode) {
    static const char* names[] = {"", "no products", "no scaling", "copies only", "no copies", "scaling only", "products only", "none"};
    return names[mode & 7];
}

void speeds() {
    printf("Kernels (TFLOP/s: 2 a weight and row; the units' int8 peak is 990 so counted):\n");
    printf("%-16s %-13s %4s %5s %5s %6s %5s | %9s %9s | %9s %9s %9s %9s | %s\n", "kernel", "without", "bits", "regs", "local", "shared",
           "slots", "gate+up", "down", "9B 2048", "9B 512", "8B 2048", "8B 512", "bits that differ");
    printf("%67s | %9s %9s | %39s |\n", "", "TF 2048", "TF 2048", "tokens/s of the products alone");
    std::map<std::string, Problem*> problems;
    auto problem = [&](int bits, const Product& product, int rows) -> Problem& {
        std::string key = std::to_string(bits) + "/" + std::to_string(rows) + "/" + std::to_string(product.inputs);
        for (int f : product.features) key += "/" + std::to_string(f);
        auto& found = problems[key];
        if (!found) found = new Problem(bits, product.features, product.inputs, rows, 0, 5, false);
        return *found;
    };
    for (auto& e : entries()) {
        cudaFuncAttributes a;
        CHECK(cudaFuncGetAttributes(&a, e.kernel));
        const Model& nine = MODELS[0];
        double tf[2];
        for (int i = 0; i < 2; i++) {
            Problem& p = problem(e.bits, nine.products[i], 2048);
            tf[i] = p.flops() / milliseconds(p, e, 9) * 1e-9;
        }
        printf("%-16s %-13s %4d %5d %5d %6d %5d | %9.0f %9.0f |", e.name.c_str(), mode_name(e.mode), e.bits, a.numRegs,
               (int)a.localSizeBytes, e.shared, e.slots, tf[0], tf[1]);
        if (e.mode & 7) {
            printf("\n");
            continue;
        }
        for (auto& model : MODELS) {
            for (int rows : {2048, 512}) {
                double ms = 0;
                for (auto& product : model.products)
                    ms += product.count * milliseconds(problem(e.bits, product, rows), e, 5);
                printf(" %9.0f", rows / ms * 1000);
            }
        }
        printf(" | %llu\n", differing[e.kernel]);
        fflush(stdout);
    }
    for (auto& own : problems) delete own.second;
}

}  // namespace

int main(int argc, char** argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    CHECK(cudaMalloc(&counter, 8));
    printf("%s, %d multiprocessors\n", properties.name, sms);
    // Today's kernels first.
    std::stable_sort(entries().begin(), entries().end(), [](const Entry& a, const Entry& b) {
        return std::make_tuple(!a.old, a.bits, a.mode & 7) < std::make_tuple(!b.old, b.bits, b.mode & 7);
    });
    for (auto& e : entries()) CHECK(cudaFuncSetAttribute(e.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, e.shared));
    printf("Outputs that differ: today's kernel from the scalar model, other kernels from today's:\n");
    for (int bits : {4, 8}) {
        check(bits, {200}, 512, 65, 0, 0, true);
        check(bits, {128, 130, 64}, 1024, 130, 1, 0, true);
        check(bits, {96, 32}, 1536, 193, 2, 0, false);
        check(bits, {640}, 4096, 257, 0, 40000, true);
        check(bits, {8192, 4096, 32, 32}, 4096, 1000, 0, 20000, false);
        check(bits, {4096}, 12288, 2047, 1, 5000, true);
        check(bits, {14336, 14336}, 4096, 700, 2, 20000, false);
        check(bits, {4096}, 14336, 127, 0, 5000, false);
        for (int rows = 65; rows < 140; rows += 21) check(bits, {320}, 512, rows, rows % 3, 2000, false);
    }
    if (argc < 2 || strcmp(argv[1], "bits")) {
        micro(sms);
        speeds();
    }
}
