// Sampling (sample.cuh) of several rows.
#include "sample.cuh"

constexpr int MAX_DRAWS = 48;
struct Draws {
    Draw row[MAX_DRAWS];
};

// logits [rows][size]; parts [rows][gridDim.x]. Grid: parts, rows; 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    sample_blocks(const __grid_constant__ Draws draws, const float* logits, Candidate* parts, int size) {
    __shared__ SampleShared shared;
    launch_dependents();
    wait_for_previous();
    const int row = blockIdx.y;
    sample_part(Cta(), shared, draws.row[row], logits + (size_t)row * size, parts + (size_t)row * gridDim.x, size,
                blockIdx.x, gridDim.x);
}

// The same grid; best [rows][gridDim.x], kept [rows][gridDim.x][MAX_KEPT], arrived, tokens, faults [rows].
extern "C" __global__ void __launch_bounds__(256)
    sample_finish(const __grid_constant__ Draws draws, const float* logits, SampleMemory memory, u32* arrived, u32* tokens,
                  float* faults, int size) {
    __shared__ SampleShared shared;
    launch_dependents();
    wait_for_previous();
    const int row = blockIdx.y;
    const size_t own = (size_t)row * gridDim.x;
    memory.parts += own, memory.best += own, memory.kept += own * MAX_KEPT;
    sample_row(Cta(), shared, draws.row[row], logits + (size_t)row * size, memory, arrived + row, tokens + row, faults + row,
               size, blockIdx.x, gridDim.x);
}
