// One token of several sequences through a Gated DeltaNet (delta_token.cuh).
#include "delta_token.cuh"

// Grid: value_heads * dim / DELTA_VALUES, sequences; 128 threads.
#define DELTA_TOKEN(dim)                                                                                        \
    extern "C" __global__ void __launch_bounds__(128, 4)                                                        \
        delta_token_##dim(const __grid_constant__ DeltaTokenRows rows, const __grid_constant__ DeltaSizes sizes, \
                          const float* x, const float* taps, const float* b, const float* a,                    \
                          const float* neg_exp_a, const float* dt_bias, float* out) {                           \
        __shared__ DeltaTokenShared<dim> shared;                                                                \
        const DeltaTokenRow& row = rows.row[blockIdx.y];                                                        \
        if (threadIdx.x == 0) prefetch_state<dim>(row, blockIdx.x);                                             \
        launch_dependents();                                                                                    \
        wait_for_previous();                                                                                    \
        delta_token<dim>(Cta(), blockIdx.x, shared, row, sizes, x, taps, b, a, neg_exp_a, dt_bias, out);        \
    }

DELTA_TOKEN(64)
DELTA_TOKEN(128)
