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
#include "../attention_any.cu"
#include "../attention_many.cu"
#include "../attention_prompt.cu"
#include "../delta.cu"
#include "../delta_inputs.cu"
#include "../delta_token.cu"
#include "../experts_few.cu"
#include "../experts_many.cu"
#include "../experts_warpgroup.cu"
#include "../float_product.cu"
#include "../heads.cu"
#include "../medium.cu"
#include "../persistent.cu"
#include "../medium_warpgroup.cu"
#include "../quantize.cu"
#include "../quantize_many.cu"
#include "../router.cu"
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
    unsigned block, thread;
    PendingProducts products;
};

// A block that runs.
struct Block {
    unsigned char* shared = (unsigned char*)aligned_alloc(1024, SHARED);
    Index index;
    Exchange exchanges[32];
    // Threads that have arrived, and how often all have: of the block, of each warp, of each named barrier.
    unsigned arrived[49], rounds[49];
    std::vector<PendingCopy> copies;
};

std::vector<Fiber> fibers;
std::vector<Block> blocks;
void* scheduler;
size_t current;
std::function<void()> body;

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

Block& own_block() { return blocks[fibers[current].block]; }

void sync(int group, unsigned count) {
    Block& own = own_block();
    const unsigned round = own.rounds[group];
    if (++own.arrived[group] == count) {
        own.arrived[group] = 0;
        own.rounds[group]++;
    } else {
        while (own.rounds[group] == round) yield_thread();
    }
}

// Runs blocks, which may wait for each other.
void run_blocks(const std::vector<Index>& indices, unsigned threads) {
    while (blocks.size() < indices.size()) blocks.emplace_back();
    const size_t count = indices.size() * threads;
    while (fibers.size() < count) fibers.push_back({});
    for (size_t b = 0; b < indices.size(); b++) {
        blocks[b].index = indices[b];
        memset(blocks[b].shared, 0xff, SHARED);
        memset(blocks[b].arrived, 0, sizeof(blocks[b].arrived));
        for (unsigned i = 0; i < threads; i++) {
            Fiber& fiber = fibers[b * threads + i];
            start(fiber);
            fiber.block = b, fiber.thread = i;
        }
    }
    for (bool running = true; running;) {
        running = false;
        for (size_t i = 0; i < count; i++) {
            // Every other block in the opposite order.
            current = indices[0].x % 2 ? count - 1 - i : i;
            if (fibers[current].done) continue;
            running = true;
            threadIdx.x = fibers[current].thread;
            blockIdx = own_block().index;
            emulated_shared = own_block().shared;
            switch_fiber(&scheduler, fibers[current].stack);
        }
    }
    for (const Block& block : blocks) {
        if (block.copies.empty()) continue;
        fprintf(stderr, "a block ended before its copies\n");
        abort();
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
        KERNEL(experts_few_4), KERNEL(experts_few_8), KERNEL(experts_few_mxfp4), KERNEL(experts_many_4),
        KERNEL(experts_many_8), KERNEL(experts_many_mxfp4), KERNEL(experts_warpgroup_mxfp4_32), KERNEL(experts_warpgroup_mxfp4_64),
        KERNEL(experts_warpgroup_4_32), KERNEL(experts_warpgroup_4_64), KERNEL(experts_warpgroup_8_32),
        KERNEL(float_product_few), KERNEL(float_product_many), KERNEL(bfloat16_product_few), KERNEL(bfloat16_product_many),
        KERNEL(route_256), KERNEL(route_1024), KERNEL(group_experts), KERNEL(combine_experts),
        KERNEL(gather_float32), KERNEL(gather_bfloat16), KERNEL(gated), KERNEL(gated_norm),
        KERNEL(medium_warpgroup_4_64x32), KERNEL(medium_warpgroup_4_64x64), KERNEL(medium_warpgroup_8_64x32),
        KERNEL(delta_64), KERNEL(delta_128), KERNEL(delta_inputs_64), KERNEL(delta_inputs_128), KERNEL(conv_state), KERNEL(delta_token_64), KERNEL(delta_token_128),
        KERNEL(heads), KERNEL(persistent), KERNEL(quantize), KERNEL(quantize_norm), KERNEL(quantize_gated),
        KERNEL(quantize_gated_norm), KERNEL(rms_norm), KERNEL(embed_4), KERNEL(embed_8), KERNEL(embed_mxfp4), KERNEL(attend_any_4), KERNEL(attend_any_16), KERNEL(attend_any_split_4), KERNEL(attend_any_split_16), KERNEL(rope), KERNEL(append_heads), KERNEL(arithmetic), KERNEL(softcap), KERNEL(causal_conv),
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
void sync_threads(int barrier, int count) { sync(33 + barrier, count); }
PendingProducts& own_products() { return fibers[current].products; }
std::vector<PendingCopy>& own_copies() { return own_block().copies; }
Exchange& own_warp() { return own_block().exchanges[threadIdx.x / 32]; }

extern "C" {

struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void* stream;
    void* attributes;
    unsigned num_attributes;
};
struct LaunchAttribute {
    unsigned id, padding;
    unsigned long long value[8];
};
constexpr unsigned COOPERATIVE = 2;
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
int cuStreamQuery(void*) { return 0; }
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
    if (config->shared > 227 << 10 || config->block_x % 32 || config->block_x > 1024) return 1;
    blockDim = {config->block_x, 1, 1}, gridDim = {config->grid_x, config->grid_y, config->grid_z};
    body = [&] { (*kernel)(values); };
    std::vector<Index> all;
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x++) all.push_back({x, y, z});
    const auto* attribute = (const LaunchAttribute*)config->attributes;
    if (config->num_attributes == 1 && attribute->id == COOPERATIVE) {
        run_blocks(all, config->block_x);
    } else {
        for (const Index& index : all) run_blocks({index}, config->block_x);
    }
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
