// The gated delta rule, token by token: S *= g; S += beta (v - S k) kT; out = S q (Yang et al.,
// "Gated Delta Networks", 2024), in float32 and in the CPU kernel's order of summation, bit for bit.
//
// A dot product of 128 is 16 partial sums, number i of elements i, i + 16, ...; they are added as a tree
// of distances 8, 4, 2, 1. Here 8 lanes hold a row of the state: lane l elements l, l + 8, ..., which are
// partial sums l and l + 8, so the first level of the tree is its own.
//
// keys [key_heads][tokens][2][DIM]: key and query of a token, element l + 8 (4 a + b) at 32 a + 4 l + b.
// values [value_heads][tokens][DIM]; gates [value_heads][tokens, rounded up to even][2]: decay and beta.
// state [value_heads][DIM values][DIM keys]; out [tokens][value_heads][DIM]. delta_inputs.cu makes keys,
// values and gates.
#include "delta.cuh"

// Tokens of a stage, and stages in flight.
constexpr int STAGE = 16;
constexpr int STAGES = 3;
constexpr int stage_bytes(int dim) { return STAGE * (3 * dim * 4 + 8); }
constexpr int delta_shared(int dim) { return STAGES * stage_bytes(dim) + STAGES * 8 + 1024; }

// One sequence's first `tokens`.
struct DeltaRow {
    const float* keys;
    const float* values;
    const float2* gates;
    // The state before the tokens, or null for zeros; the state after them, which may be the same memory.
    const float* before;
    float* after;
    // Null if outputs are not needed.
    float* out;
    int tokens;
    // Tokens that `keys`, `values` and `gates` have.
    int stride;
};
constexpr int MAX_DELTA_ROWS = 16;
struct DeltaRows {
    DeltaRow row[MAX_DELTA_ROWS];
};

// `ROWS` rows of the state in each group of 8 lanes, 4 ROWS in a warp. Grid: value_heads * DIM / (4 ROWS
// WARPS), sequences.
template <int DIM, int WARPS, int ROWS>
__device__ __forceinline__ void gated_delta(const DeltaRow& row, int key_heads, int value_heads) {
    constexpr int KEY_BYTES = STAGE * 2 * DIM * 4, VALUE_BYTES = STAGE * DIM * 4, STAGE_BYTES = stage_bytes(DIM);
    // Elements of a row of the state in a lane.
    constexpr int OWN = DIM / 8;
    DYNAMIC_SHARED(memory);
    u64* barriers = (u64*)(memory + STAGES * STAGE_BYTES);
    constexpr int PARTS = DIM / (4 * ROWS * WARPS);
    const int lane = threadIdx.x & 7, head = blockIdx.x / PARTS, tokens = row.tokens;
    const int first = (blockIdx.x % PARTS * WARPS * 4 + (threadIdx.x >> 3)) * ROWS;
    const float* keys = row.keys + (size_t)(head / (value_heads / key_heads)) * row.stride * 2 * DIM;
    const float* values = row.values + (size_t)head * row.stride * DIM;
    const float2* gates = row.gates + (size_t)head * ((row.stride + 1) / 2 * 2);
    const size_t state = ((size_t)head * DIM + first) * DIM + lane;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(shared_address(barriers + i), 1);
        barrier_fence();
    }
    launch_dependents();
    wait_for_previous();
    auto fetch = [&](int stage) {
        const int at = stage * STAGE, n = min(STAGE, tokens - at), slot = stage % STAGES;
        if (n <= 0) return;
        const u32 to = shared_address(memory + slot * STAGE_BYTES), barrier = shared_address(barriers + slot);
        const u64 policy = evict_first();
        // Bulk copies take multiples of 16 bytes.
        const u32 gate_bytes = (n + 1) / 2 * 16;
        barrier_expect(barrier, n * (3 * DIM * 4) + gate_bytes);
        bulk_copy(to, keys + (size_t)at * 2 * DIM, n * 2 * DIM * 4, barrier, policy);
        bulk_copy(to + KEY_BYTES, values + (size_t)at * DIM, n * DIM * 4, barrier, policy);
        bulk_copy(to + KEY_BYTES + VALUE_BYTES, gates + at, gate_bytes, barrier, policy);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) fetch(i);
    }
    float s[ROWS][OWN];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < OWN; j++) s[r][j] = row.before ? row.before[state + r * DIM + j * 8] : 0.0f;
    __syncthreads();

    // A token's inputs, loaded while the one before it is computed.
    float k[OWN], q[OWN], v[ROWS];
    float2 rate;
    const float4* key;
    const float* value;
    const float2* gate;
    auto enter = [&](int stage) {
        const int slot = stage % STAGES;
        barrier_wait(shared_address(barriers + slot), stage / STAGES & 1);
        const unsigned char* from = memory + slot * STAGE_BYTES;
        key = (const float4*)from + lane;
        value = (const float*)(from + KEY_BYTES) + first;
        gate = (const float2*)(from + KEY_BYTES + VALUE_BYTES);
    };
    auto load = [&](float* k, float* q) {
#pragma unroll
        for (int a = 0; a < OWN / 4; a++) {
            const float4 part = key[a * 8], query = key[DIM / 4 + a * 8];
            k[4 * a] = part.x, k[4 * a + 1] = part.y, k[4 * a + 2] = part.z, k[4 * a + 3] = part.w;
            q[4 * a] = query.x, q[4 * a + 1] = query.y, q[4 * a + 2] = query.z, q[4 * a + 3] = query.w;
        }
    };
    enter(0);
    load(k, q);
    // An output is reduced together with the next token's dot product: shuffles take longest.
    float output[ROWS] = {};
    float* to = row.out + head * DIM + first + (lane < ROWS ? lane : 0);
    const int out_stride = value_heads * DIM;
    auto write = [&](const float* results) {
        float result = results[0];
#pragma unroll
        for (int r = 1; r < ROWS; r++) result = lane == r ? results[r] : result;
        if (lane < ROWS && row.out) *to = result;
        to += out_stride;
    };
    int left = tokens, stage = 0;
    while (true) {
        const int n = min(left, STAGE);
#pragma unroll 2
        for (int in = 0; in < n; in++) {
            rate = *gate++;
#pragma unroll
            for (int r = 0; r < ROWS; r++) v[r] = value[r];
            value += DIM, key += DIM / 2;
            float sums[ROWS][2], both[2 * ROWS], decayed_state[ROWS][OWN];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = 0;
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                const float decayed = __fmul_rn(rate.x, k[j]);
#pragma unroll
                for (int r = 0; r < ROWS; r++) sums[r][j & 1] = __fmaf_rn(s[r][j], decayed, sums[r][j & 1]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) both[r] = __fadd_rn(sums[r][0], sums[r][1]), both[ROWS + r] = output[r];
#pragma unroll
            for (int distance = 4; distance; distance /= 2) {
                float other[2 * ROWS];
#pragma unroll
                for (int r = 0; r < 2 * ROWS; r++) other[r] = __shfl_xor_sync(0xffffffffu, both[r], distance);
#pragma unroll
                for (int r = 0; r < 2 * ROWS; r++) both[r] = __fadd_rn(both[r], other[r]);
            }
#pragma unroll
            for (int j = 0; j < OWN; j++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) decayed_state[r][j] = __fmul_rn(s[r][j], rate.x);
            float delta[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                delta[r] = __fmul_rn(__fsub_rn(v[r], both[r]), rate.y);
                sums[r][0] = sums[r][1] = 0;
            }
#pragma unroll
            for (int j = 0; j < OWN; j++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    s[r][j] = __fmaf_rn(delta[r], k[j], decayed_state[r][j]);
                    sums[r][j & 1] = __fmaf_rn(s[r][j], q[j], sums[r][j & 1]);
                }
#pragma unroll
            for (int r = 0; r < ROWS; r++) output[r] = __fadd_rn(sums[r][0], sums[r][1]);
            // The token before the first one has no output.
            if (left != tokens || in > 0) write(both + ROWS);
            // Past a stage's end this reads what is not used.
            load(k, q);
        }
        left -= n;
        if (left == 0) break;
        stage++;
        __syncthreads();
        if (threadIdx.x == 0) fetch(stage + STAGES - 1);
        enter(stage);
        load(k, q);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) output[r] = sum_lanes(output[r]);
    write(output);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < OWN; j++) row.after[state + r * DIM + j * 8] = s[r][j];
}

// Four warps, one for each scheduler of a multiprocessor: two CTAs of two may share the same two schedulers.
extern "C" __global__ void __launch_bounds__(128)
    delta_128(const __grid_constant__ DeltaRows rows, int key_heads, int value_heads) {
    gated_delta<128, 4, 2>(rows.row[blockIdx.y], key_heads, value_heads);
}

extern "C" __global__ void __launch_bounds__(128)
    delta_64(const __grid_constant__ DeltaRows rows, int key_heads, int value_heads) {
    gated_delta<64, 4, 2>(rows.row[blockIdx.y], key_heads, value_heads);
}
