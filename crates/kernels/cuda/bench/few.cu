// Products of up to 64 rows: kernels' bits against a scalar model and against medium.cu, and their times on the
// shapes of a decoding step.
//
// Without arguments, each kernel runs in a process of its own with a time limit, so that one that waits for ever
// hides no other. Then steps of the fastest kernel for each shape are timed.
#include <map>

#include <unistd.h>

#include "problem.h"

namespace {

const Model STEPS[] = {
    {"9B", {{{8192, 4096, 32, 32}, 4096, 32}, {{4096}, 4096, 32}, {{12288, 12288}, 4096, 32}, {{4096}, 12288, 32}, {{248320}, 4096, 1}}},
    {"8B", {{{4096, 1024, 1024}, 4096, 32}, {{4096}, 4096, 32}, {{14336, 14336}, 4096, 32}, {{4096}, 14336, 32}, {{128256}, 4096, 1}}},
};
constexpr int ROW_COUNTS[] = {64, 32, 16, 8, 4};

// Programmatically dependent on the launch before it.
void launch_dependent(const void* kernel, int grid, int threads, int shared, void** arguments, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid), config.blockDim = dim3(threads), config.dynamicSmemBytes = shared;
    config.stream = stream, config.attrs = &attribute, config.numAttrs = 1;
    CHECK(cudaLaunchKernelExC(&config, kernel, arguments));
}

// By skinny.cu, as the engine launches it: in as few passes as fit.
void launch_skinny(Parts parts, const u8* planes, const float2* steps, int tiles, int segments, int rows, cudaStream_t stream) {
    const SkinnyVariant* found = nullptr;
    const bool small = tiles * segments <= 4096 / 16 * 4096 / 512;
    int most = 0, bytes = 0;
    for (int passes = 1; !found; passes++) {
        most = (segments + passes - 1) / passes;
        for (int again = 0; again < 2 && !found; again++)
            for (auto& v : skinny_variants()) {
                if (found || v.sets != (rows + 3) / 4 || (!again && small && v.depth > 1)) continue;
                bytes = shared_of(v, most, rows);
                if (passes > 1) bytes += (tiles + sms - 1) / sms * v.sets * 256;
                if (bytes <= 227 << 10) found = &v;
            }
    }
    void* arguments[] = {&parts, &planes, &steps, &tiles, &segments, &rows, &most};
    launch_dependent(found->kernel, std::min(tiles, sms), found->warps * 32, bytes, arguments, stream);
}

void launch(const FewEntry& e, Parts parts, const u8* blocks, const u8* planes, const float2* steps, int inputs, int rows,
            cudaStream_t stream) {
    int tiles = 0;
    for (auto& part : parts.part) tiles += part.tiles;
    int segments = inputs / SEGMENT, grid = tiles / 4;
    if (e.rows < 0) return launch_skinny(parts, planes, steps, tiles, segments, rows, stream);
    const void* first = e.rows ? blocks : planes;
    const void* second = steps;
    void* with_steps[] = {&parts, &first, &second, &segments, &rows};
    void* without[] = {&parts, &first, &segments, &rows};
    if (e.rows) {
        grid = std::min((rows + e.rows - 1) / e.rows * (tiles / 4), sms);
    }
    launch_dependent(e.kernel, grid, e.threads, e.shared, e.rows ? without : with_steps, stream);
}

void launch(const FewEntry& e, const Problem& p) {
    launch(e, p.parts(), p.blocks, p.old_planes, p.old_steps, p.inputs, p.rows, 0);
}

const FewEntry& medium_of(int bits, int rows) {
    for (auto& e : few_entries())
        if (!e.rows && e.bits == bits && (rows <= 32) == (e.name == "medium_32")) return e;
    exit(1);
}

// Outputs of `e` that differ from medium.cu's, of medium.cu that differ from the model, of all.
void check(const FewEntry& e, std::vector<int> features, int inputs, int rows, int kind, size_t samples, bool extras, u64 (&sums)[3]) {
    static u64* counter;
    if (!counter) CHECK(cudaMalloc(&counter, 8));
    Problem p(e.bits, features, inputs, rows, kind, rows * 31 + inputs + kind, extras);
    auto clear = [&] {
        for (auto& m : p.matrices) CHECK(cudaMemset(m.out, 0xff, (size_t)rows * m.features * 4));
    };
    clear();
    launch(medium_of(e.bits, rows), p);
    CHECK(cudaDeviceSynchronize());
    // The others are compared with it.
    size_t tried;
    if (!e.rows) sums[1] += against_model(p, samples, tried);
    std::vector<u32*> outs;
    for (auto& m : p.matrices) {
        outs.push_back(nullptr);
        CHECK(cudaMalloc(&outs.back(), (size_t)rows * m.features * 4));
        CHECK(cudaMemcpy(outs.back(), m.out, (size_t)rows * m.features * 4, cudaMemcpyDeviceToDevice));
    }
    CHECK(cudaMemset(counter, 0, 8));
    for (int repeat = 0; repeat < 3; repeat++) {
        clear();
        launch(e, p);
        CHECK(cudaDeviceSynchronize());
        for (size_t i = 0; i < p.matrices.size(); i++) {
            const size_t all = (size_t)rows * p.matrices[i].features;
            compare<<<4 * sms, 256>>>((u32*)p.matrices[i].out, outs[i], all, counter);
            sums[2] += all;
        }
    }
    u64 differ;
    CHECK(cudaMemcpy(&differ, counter, 8, cudaMemcpyDeviceToHost));
    sums[0] += differ;
    for (auto* out : outs) CHECK(cudaFree(out));
}

void check_all(const FewEntry& e) {
    u64 sums[3] = {};
    for (int rows : {9, 16, 17, 31, 32, 33, 48, 63, 64}) {
        check(e, {200, 8, 130}, 1536, rows, rows % 3, 4000, true, sums);
        check(e, {320}, 512, rows, (rows + 1) % 3, 4000, false, sums);
    }
    for (int rows : {17, 64}) {
        check(e, {8192, 4096, 32, 32}, 4096, rows, 0, 4000, false, sums);
        check(e, {4096}, 12288, rows, 1, 4000, true, sums);
        check(e, {14336, 14336}, 4096, rows, 2, 4000, false, sums);
    }
    printf("%llu of %llu products differ from medium.cu's", sums[0], sums[2]);
    if (!e.rows) printf(", %llu of its samples from the model", sums[1]);
    printf("\n");
    fflush(stdout);
}

// Weights of their own for each launch, as in a model: from device memory, not from the L2 cache.
struct Pool {
    u8 *weights, *blocks, *planes;
    float* out;
    float2* steps;
    size_t bytes, at = 0;
    int bits;

    explicit Pool(int bits) : bytes((size_t)3 << 30), bits(bits) {
        CHECK(cudaMalloc(&weights, bytes));
        CHECK(cudaMalloc(&out, (size_t)64 * 248320 * 4));
        fill_weights<<<4 * sms, 256>>>((u32*)weights, bytes / 4, bits, 7, 0);
        const int inputs = 14336, groups = inputs / GROUP;
        short* x;
        float2* own;
        CHECK(cudaMalloc(&x, (size_t)64 * inputs * 2));
        CHECK(cudaMalloc(&own, (size_t)64 * groups * 8));
        CHECK(cudaMalloc(&planes, (size_t)128 * groups * 128));
        CHECK(cudaMalloc(&steps, (size_t)128 * groups * 8));
        CHECK(cudaMalloc(&blocks, (size_t)64 * groups * 136));
        fill_inputs<<<4 * sms, 256>>>(x, own, planes, steps, blocks, 64, inputs, 3, 0, false);
        CHECK(cudaDeviceSynchronize());
    }
    void launch(const FewEntry& e, const Product& shape, int rows, cudaStream_t stream) {
        Parts parts{};
        float* to = out;
        for (size_t i = 0; i < shape.features.size(); i++) {
            const int features = shape.features[i], tiles = (features + 127) / 128 * 8;
            const size_t size = (size_t)tiles * (shape.inputs / SEGMENT) * block_bytes(bits);
            if (at + size > bytes) at = 0;
            parts.part[i] = {weights + at, to, nullptr, nullptr, features, tiles};
            at += size, to += (size_t)rows * features;
        }
        ::launch(e, parts, blocks, planes, steps, shape.inputs, rows, stream);
    }
};

template <class F>
double microseconds(F run) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run(stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> all;
    for (int i = 0; i < 6; i++) {
        CHECK(cudaEventRecord(from, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(to, stream));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (i) all.push_back(ms * 1000);
    }
    std::sort(all.begin(), all.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return all[all.size() / 2];
}

double tera(const Product& shape, int rows, double us) {
    double features = 0;
    for (int own : shape.features) features += own;
    return 2 * features * shape.inputs * rows / us * 1e-6;
}

const char* mode_name(int mode) {
    static const char* names[] = {"", " no products", " no scaling", " copies only", " no copies", " scaling only", " products only", " none"};
    return names[mode & 7];
}

// Times of all shapes; lines with RESULT are for the parent.
void times(int index) {
    const FewEntry& e = few_entries()[index];
    Pool pool(e.bits);
    for (int rows : ROW_COUNTS) {
        if (e.name == "medium_32" && rows == 64) continue;
        // Rows that nobody would give it.
        if ((e.rows < 0) != (rows <= 8)) continue;
        if (e.mode && rows != e.rows) continue;
        for (int s = 0; s < 2; s++) {
            double sum = 0;
            printf("  %2d rows %s:", rows, STEPS[s].name);
            for (size_t i = 0; i < STEPS[s].products.size(); i++) {
                const Product& shape = STEPS[s].products[i];
                const int repeats = i == 4 ? 3 : 24;
                const double us = microseconds([&](cudaStream_t stream) {
                                      for (int k = 0; k < repeats; k++) pool.launch(e, shape, rows, stream);
                                  }) / repeats;
                sum += us * shape.count;
                printf(" %6.1f us %3.0f TF |", us, tera(shape, rows, us));
                if (!e.mode && e.bits == 4) printf("\nRESULT %d %d %d %zu %f\n", index, rows, s, i, us);
            }
            double all = 0;
            for (auto& shape : STEPS[s].products) all += shape.count * tera(shape, rows, 1);
            printf(" step %5.0f us, %3.0f TF\n", sum, all / sum);
            fflush(stdout);
        }
    }
}

void step(int rows, int s, const int* chosen) {
    Pool pool(4);
    const auto& shapes = STEPS[s].products;
    const double us = microseconds([&](cudaStream_t stream) {
        for (int layer = 0; layer < 32; layer++)
            for (int i = 0; i < 4; i++) pool.launch(few_entries()[chosen[i]], shapes[i], rows, stream);
        pool.launch(few_entries()[chosen[4]], shapes[4], rows, stream);
    });
    double all = 0;
    for (auto& shape : shapes) all += shape.count * tera(shape, rows, 1);
    printf("%2d rows %s: a step of the fastest kernels %5.0f us, %3.0f TF:", rows, STEPS[s].name, us, all / us);
    for (int i = 0; i < 5; i++) printf(" %s;", few_entries()[chosen[i]].name.c_str());
    printf("\n");
}

// Runs this program with arguments, for so many seconds; prints its lines, keeps its results.
struct Result {
    int entry;
    double us;
};
std::map<std::vector<int>, Result> best;

void child(const std::string& arguments, int seconds) {
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = 0;
    const std::string command = "timeout -s KILL " + std::to_string(seconds) + " " + path + " " + arguments + " 2>&1";
    FILE* lines = popen(command.c_str(), "r");
    if (!lines) return;
    char line[1024];
    while (fgets(line, sizeof(line), lines)) {
        int entry, rows, s, shape;
        double us;
        if (sscanf(line, "RESULT %d %d %d %d %lf", &entry, &rows, &s, &shape, &us) == 5) {
            auto found = best.find({rows, s, shape});
            if (found == best.end() || us < found->second.us) best[{rows, s, shape}] = {entry, us};
        } else if (line[0] != '\n') {
            const size_t end = strlen(line);
            if (end && line[end - 1] == '\n' && strchr(line, '|') && !strstr(line, "step")) line[end - 1] = 0;
            printf("%s", line);
            fflush(stdout);
        }
    }
    const int status = pclose(lines);
    if (status) printf("  ended with status %d\n", status);
}

}  // namespace

int main(int argc, char** argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    // The order of initialisation may be another in each build, not in each run.
    std::stable_sort(few_entries().begin(), few_entries().end(), [](const FewEntry& a, const FewEntry& b) {
        return std::make_tuple(a.bits, a.mode, a.rows > 0, a.name) < std::make_tuple(b.bits, b.mode, b.rows > 0, b.name);
    });
    const std::string what = argc > 1 ? argv[1] : "";
    if (what.empty()) {
        for (size_t i = 0; i < few_entries().size(); i++) child("one " + std::to_string(i), 12);
        for (int rows : ROW_COUNTS)
            for (int s = 0; s < 2; s++) {
                std::string arguments = "step " + std::to_string(rows) + " " + std::to_string(s);
                bool all = true;
                for (int i = 0; i < 5; i++) {
                    const auto found = best.find({rows, s, i});
                    all = all && found != best.end();
                    if (all) arguments += " " + std::to_string(found->second.entry);
                }
                if (all) child(arguments, 12);
            }
        return 0;
    }
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    for (auto& v : skinny_variants()) CHECK(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
    for (auto& e : few_entries())
        if (e.rows >= 0) CHECK(cudaFuncSetAttribute(e.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, e.shared));
    if (what == "one") {
        const FewEntry& e = few_entries()[atoi(argv[2])];
        if (atoi(argv[2]) == 0) {
            printf("%s, %d multiprocessors. Shapes of 9B: 12352x4096, 4096x4096, 24576x4096, 4096x12288, 248320x4096;\n"
                   "of 8B: 6144x4096, 4096x4096, 28672x4096, 4096x14336, 128256x4096\n",
                   properties.name, sms);
        }
        cudaFuncAttributes a;
        CHECK(cudaFuncGetAttributes(&a, e.kernel));
        printf("%s%s, %d bits, %d registers, %d local, %d shared, %d slots: ", e.name.c_str(), mode_name(e.mode), e.bits, a.numRegs,
               (int)a.localSizeBytes, e.shared, e.slots);
        if (e.mode || e.rows < 0 || e.name == "medium_32") {
            printf("\n");
        } else {
            check_all(e);
        }
        times(atoi(argv[2]));
    } else if (what == "step" && argc == 9) {
        int chosen[5];
        for (int i = 0; i < 5; i++) chosen[i] = atoi(argv[4 + i]);
        step(atoi(argv[2]), atoi(argv[3]), chosen);
    }
}
