// Products of many rows: every kernel's bits against a scalar model and against today's kernel, and its time
// on the shapes of a prompt.
#include <map>
#include <tuple>

#include "problem.h"

void micro(int sms);

namespace {

void launch(const Problem& problem, const Entry& e) {
    Parts p = problem.parts();
    int tiles = 0;
    for (auto& part : p.part) tiles += part.tiles;
    int segments = problem.inputs / SEGMENT, count = problem.rows;
    const void* first = e.old ? problem.old_planes : problem.blocks;
    const void* second = problem.old_steps;
    void* old_arguments[] = {&p, &first, &second, &segments, &count};
    void* arguments[] = {&p, &first, &segments, &count};
    const int work = (count + e.rows - 1) / e.rows * ((tiles / 4 + e.warpgroups - 1) / e.warpgroups);
    const int grid = e.old ? work : std::min(work, sms);
    CHECK(cudaLaunchKernel(e.kernel, dim3(grid), dim3(e.threads), e.old ? old_arguments : arguments, e.shared, 0));
}

float milliseconds(const Problem& p, const Entry& e, int repeats) {
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    std::vector<float> all;
    for (int i = 0; i < repeats + 2; i++) {
        CHECK(cudaEventRecord(from));
        launch(p, e);
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
        launch(p, e);
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
        launch(p, e);
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
