// Weights and inputs of products on the GPU, and the CPU's arithmetic.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include <cuda_fp16.h>

#include "bench.h"

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

// Of 11 significant bits.
__device__ int input_of(size_t row, int i, int inputs, u32 seed, int kind) {
    const u32 r = mix((u32)(row * inputs + i) + seed * 977u);
    if (kind == 1) return r % 7 ? 16384 : -16384;
    if (kind == 2 && r % 3) return 0;
    if (i % 64 == r % 64) return r & 1 ? 16384 : -16384;
    const int size = (mix(r) & 0x3fff) >> (r >> 28 & 7), unused = max(0, 21 - __clz(size));
    return (r & 2 ? 1 : -1) * (size >> unused << unused);
}

// A thread a group of a row: integers, and both layouts; blocks of halves or of bytes.
__global__ void fill_inputs(short* x, float2* steps, u8* old_planes, float2* old_steps, u8* blocks, int rows, int inputs,
                            u32 seed, int kind, bool halves) {
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
            if (halves) {
                *(__half*)(to + r / 8 * 1024 + i / 16 * 256 + i % 2 * 128 + r % 8 * 16 + i % 16 / 2 * 2) = __float2half_rn(v);
            } else {
                u8* own = to + r / 8 * 1024 + r % 2 * 512 + i / 16 * 128 + r % 8 / 2 * 32 + i % 16;
                own[0] = high, own[16] = low;
            }
        }
        // A segment's is the same.
        const float step = __uint_as_float((112 + mix((u32)(n / GROUPS) + seed) % 3) << 23);
        const float2 both = make_float2(step, (float)total * step);
        steps[n] = both;
        old_steps[old_at * 128 + row % 128] = both;
        float* own = (float*)(to + ROW_BLOCK * 2 * GROUP);
        if (halves) {
            own += r / 32 * 64 + r % 32 / 16 * 16 + r % 8 / 2 * 4 + r / 8 % 2 * 2 + r % 2;
            own[0] = total * 0x1p-24f, own[32] = step * 0x1p24f;
        } else {
            own[2 * r] = both.x, own[2 * r + 1] = both.y;
        }
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

// Products of one launch, which share their inputs, and how often a step of a model has them.
struct Product {
    std::vector<int> features;
    int inputs, count;
};
struct Model {
    const char* name;
    std::vector<Product> products;
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
        // Rows of padding are not numbers, and their steps not negative.
        CHECK(cudaMemset(old_planes, 0xff, room * groups * 128));
        CHECK(cudaMemset(old_steps, 0xff, room * groups * 8));
        CHECK(cudaMemset(blocks, 0x7f, room * groups * 136));
        const bool halves = bits == 4 && rows > 64;
        fill_inputs<<<4 * sms, 256>>>(x, steps, old_planes, old_steps, blocks, rows, inputs, seed, kind, halves);
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

}  // namespace
