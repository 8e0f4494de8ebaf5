// A CUDA driver and an NVRTC whose device is this program: memory is the host's, kernels are those
// compiled below. Built as a shared library that tests load in place of libcuda and libnvrtc.
#include "emulation.h"
#include "warpgroup.h"

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../attention.cu"
#include "../attention_many.cu"
#include "../attention_prompt.cu"
#include "../delta.cu"
#include "../delta_inputs.cu"
#include "../delta_token.cu"
#include "../heads.cu"
#include "../medium.cu"
#include "../quantize.cu"
#include "../quantize_many.cu"
#include "../rows.cu"
#include "../sample.cu"
#include "../skinny.cu"
#include "../wide.cu"
#include "../wide_warpgroup.cu"

Index threadIdx, blockIdx, blockDim, gridDim;
unsigned char* emulated_shared;

namespace {

constexpr size_t STACK = 256 << 10, SHARED = 256 << 10;

struct Fiber {
    void* stack;
    void* memory;
    bool done;
    PendingProducts products;
};

std::vector<Fiber> fibers;
void* scheduler;
size_t current;
std::function<void()> body;
Exchange exchanges[32];
// Threads that have arrived, and how often all have: of the block, then of each warp.
unsigned arrived[33], rounds[33];

extern "C" void switch_fiber(void** from, void* to);
asm(R"(
switch_fiber:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

extern "C" void run_fiber() {
    body();
    if (!fibers[current].products.products.empty()) {
        fprintf(stderr, "a thread ended before its products\n");
        abort();
    }
    fibers[current].done = true;
    yield_thread();
}

void start(Fiber& fiber) {
    if (!fiber.memory) fiber.memory = malloc(STACK);
    auto* top = (void**)(((uintptr_t)fiber.memory + STACK) & ~(uintptr_t)15);
    *--top = nullptr;
    *--top = (void*)run_fiber;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack = top;
    fiber.done = false;
    fiber.products = {};
}

void sync(int group, unsigned count) {
    const unsigned round = rounds[group];
    if (++arrived[group] == count) {
        arrived[group] = 0;
        rounds[group]++;
    } else {
        while (rounds[group] == round) yield_thread();
    }
}

void run_block(unsigned threads) {
    memset(emulated_shared, 0xff, SHARED);
    memset(arrived, 0, sizeof(arrived));
    while (fibers.size() < threads) fibers.push_back({});
    for (unsigned i = 0; i < threads; i++) start(fibers[i]);
    for (bool running = true; running;) {
        running = false;
        for (unsigned i = 0; i < threads; i++) {
            // Every other launch in the opposite order.
            current = blockIdx.x % 2 ? threads - 1 - i : i;
            if (fibers[current].done) continue;
            running = true;
            threadIdx.x = current;
            switch_fiber(&scheduler, fibers[current].stack);
        }
    }
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** values, std::index_sequence<I...>) {
    kernel(*(A*)values[I]...);
}
using Launch = std::function<void(void**)>;
template <class... A>
Launch launch_of(void (*kernel)(A...)) {
    return [kernel](void** values) { call(kernel, values, std::index_sequence_for<A...>()); };
}

#define KERNEL(name) {#name, launch_of(name)}
const std::map<std::string, Launch>& kernels() {
    static const std::map<std::string, Launch> all = {
        KERNEL(skinny_4_16_2_1), KERNEL(skinny_4_16_1_1), KERNEL(skinny_4_12_2_1), KERNEL(skinny_4_8_2_1), KERNEL(skinny_4_8_1_1),
        KERNEL(skinny_4_16_1_2), KERNEL(skinny_4_8_2_2), KERNEL(skinny_4_8_1_2), KERNEL(skinny_8_8_2_1),
        KERNEL(skinny_8_8_1_1), KERNEL(skinny_8_8_2_2), KERNEL(skinny_8_8_1_2), KERNEL(wide_4), KERNEL(wide_8),
        KERNEL(wide_warpgroup_4), KERNEL(wide_warpgroup_8),
        KERNEL(skinny_row_4_16_2), KERNEL(skinny_row_4_16_1), KERNEL(skinny_row_4_8_2),
        KERNEL(skinny_row_4_8_1), KERNEL(skinny_row_8_8_2), KERNEL(skinny_row_8_8_1), KERNEL(medium_4_32), KERNEL(medium_4_64), KERNEL(medium_8_32), KERNEL(medium_8_64),
        KERNEL(delta_64), KERNEL(delta_128), KERNEL(delta_inputs_64), KERNEL(delta_inputs_128), KERNEL(conv_state), KERNEL(delta_token_64), KERNEL(delta_token_128),
        KERNEL(heads), KERNEL(quantize), KERNEL(quantize_norm), KERNEL(quantize_gated),
        KERNEL(quantize_gated_norm), KERNEL(rms_norm), KERNEL(embed_4), KERNEL(embed_8),
        KERNEL(attend_few_64_4), KERNEL(attend_few_64_4_deep), KERNEL(attend_few_64_16), KERNEL(attend_many_64), KERNEL(attend_few_128_4), KERNEL(attend_few_128_4_deep),
        KERNEL(attend_few_128_16), KERNEL(attend_many_128), KERNEL(attend_few_256_4), KERNEL(attend_few_256_4_deep), KERNEL(attend_few_256_16),
        KERNEL(attend_many_256), KERNEL(attend_prompt_64), KERNEL(attend_prompt_128), KERNEL(attend_prompt_256),
        KERNEL(quantize_many), KERNEL(quantize_many_norm), KERNEL(quantize_many_gated), KERNEL(quantize_many_gated_norm),
        KERNEL(sample_blocks), KERNEL(sample_finish),
    };
    return all;
}

}  // namespace

void yield_thread() { switch_fiber(&fibers[current].stack, scheduler); }
void sync_block() { sync(0, blockDim.x); }
void sync_warp() { sync(1 + threadIdx.x / 32, 32); }
PendingProducts& own_products() { return fibers[current].products; }
Exchange& own_warp() { return exchanges[threadIdx.x / 32]; }

extern "C" {

struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void* stream;
    void* attributes;
    unsigned num_attributes;
};
struct Copy2D {
    size_t from_x, from_y;
    int from_kind;
    const void* from_host;
    const void* from_device;
    void* from_array;
    size_t from_pitch, to_x, to_y;
    int to_kind;
    void* to_host;
    void* to_device;
    void* to_array;
    size_t to_pitch, width, height;
};

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int) { return *device = 0, 0; }
int cuDeviceGetName(char* name, int length, int) { return snprintf(name, length, "emulated"), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    // Multiprocessors; major and minor compute capability.
    *value = attribute == 16 ? 4 : attribute == 75 ? 9 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = nullptr, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuStreamCreate(void** stream, unsigned) { return *stream = nullptr, 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = nullptr, 0; }
int cuEventDestroy_v2(void*) { return 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventSynchronize(void*) { return 0; }
int cuEventElapsedTime(float* ms, void*, void*) { return *ms = 0, 0; }
int cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = (size_t)8 << 30, 0; }
int cuMemAlloc_v2(void** memory, size_t bytes) {
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!*memory) return 2;
    // Not a number: what reads it before writing shows.
    memset(*memory, 0xff, bytes);
    return 0;
}
int cuMemFree_v2(void* memory) { return free(memory), 0; }
int cuMemAllocHost_v2(void** memory, size_t bytes) { return *memory = malloc(bytes), 0; }
int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void*) { return memcpy(to, from, bytes), 0; }
int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void*) { return memcpy(to, from, bytes), 0; }
int cuMemsetD8Async(void* to, unsigned char value, size_t bytes, void*) { return memset(to, value, bytes), 0; }
int cuMemcpy2DAsync_v2(const Copy2D* copy, void*) {
    for (size_t row = 0; row < copy->height; row++) {
        memcpy((char*)copy->to_device + row * copy->to_pitch, (const char*)copy->from_device + row * copy->from_pitch,
               copy->width);
    }
    return 0;
}
int cuModuleLoadData(void** module, const void*) { return *module = (void*)1, 0; }
int cuModuleGetFunction(const void** function, void*, const char* name) {
    const auto found = kernels().find(name);
    if (found == kernels().end()) return 500;
    *function = &found->second;
    return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuGetErrorString(int error, const char** text) {
    *text = error == 2 ? "out of memory" : error == 500 ? "named symbol not found" : "an error";
    return 0;
}

int cuLaunchKernelEx(const LaunchConfig* config, const Launch* kernel, void** values, void**) {
    if (!emulated_shared) emulated_shared = (unsigned char*)aligned_alloc(1024, SHARED);
    if (config->shared > 227 << 10 || config->block_x % 32 || config->block_x > 1024) return 1;
    blockDim = {config->block_x, 1, 1}, gridDim = {config->grid_x, config->grid_y, config->grid_z};
    body = [&] { (*kernel)(values); };
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) run_block(config->block_x);
    return 0;
}

int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
    return *program = (void*)1, 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcGetCUBINSize(void*, size_t* bytes) { return *bytes = 1, 0; }
int nvrtcGetCUBIN(void*, char* image) { return *image = 0, 0; }
int nvrtcGetProgramLogSize(void*, size_t* bytes) { return *bytes = 1, 0; }
int nvrtcGetProgramLog(void*, char* log) { return *log = 0, 0; }
int nvrtcDestroyProgram(void**) { return 0; }
const char* nvrtcGetErrorString(int) { return "an error"; }
}
