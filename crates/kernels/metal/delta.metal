// The gated delta rule, token by token: S *= g; S += beta (v - S k) kT; out = S q (Yang et al., "Gated Delta
// Networks", 2024), in float32 and in the CPU kernel's order of summation.
//
// A dot product is 16 sums, number i of elements i, i + 16, ...; they are added as a tree of distances 8, 4, 2, 1. Here
// 8 lanes hold a row of the state: lane l elements l, l + 8, ..., which are sums l and l + 8, so the first level of the
// tree is its own. A SIMD-group has 4 ROWS rows. Grid: 32, VALUE_DIM / (4 ROWS), VALUE_HEADS.
//
// q, k [1][tokens][KEY_HEADS][KEY_DIM]; v [1][tokens][VALUE_HEADS][VALUE_DIM]; g and beta [1][tokens][VALUE_HEADS],
// with BY_CHANNEL a decay for each number of a key; states [VALUE_HEADS][VALUE_DIM][KEY_DIM].
constexpr int OWN = KEY_DIM / 8;
const int lane = thread_index_in_simdgroup & 7, head = thread_position_in_grid.z, tokens = v_shape[1];
const int first = (thread_position_in_grid.y * 4 + thread_index_in_simdgroup / 8) * ROWS;
const int key_head = head / (VALUE_HEADS / KEY_HEADS);
const size_t at = ((size_t)head * VALUE_DIM + first) * KEY_DIM + lane;
float s[ROWS][OWN];
for (int r = 0; r < ROWS; r++)
    for (int j = 0; j < OWN; j++) s[r][j] = state[at + r * KEY_DIM + j * 8];
for (int t = 0; t < tokens; t++) {
    const size_t key = ((size_t)t * KEY_HEADS + key_head) * KEY_DIM + lane, gate = (size_t)t * VALUE_HEADS + head;
    float own_k[OWN], own_q[OWN], decay[OWN];
    for (int j = 0; j < OWN; j++) {
        own_k[j] = static_cast<float>(k[key + j * 8]), own_q[j] = static_cast<float>(q[key + j * 8]);
        decay[j] = g[BY_CHANNEL ? gate * KEY_DIM + lane + j * 8 : gate];
    }
    float result = 0;
#pragma clang loop unroll(full)
    for (int r = 0; r < ROWS; r++) {
        float sums[2] = {0, 0};
#pragma clang loop unroll(full)
        for (int j = 0; j < OWN; j++) sums[j & 1] = fma(s[r][j], decay[j] * own_k[j], sums[j & 1]);
        const float value = static_cast<float>(v[gate * VALUE_DIM + first + r]);
        const float delta = (value - lanner::sum_of_8(sums[0] + sums[1])) * beta[gate];
        sums[0] = sums[1] = 0;
#pragma clang loop unroll(full)
        for (int j = 0; j < OWN; j++) {
            s[r][j] = fma(delta, own_k[j], s[r][j] * decay[j]);
            sums[j & 1] = fma(s[r][j], own_q[j], sums[j & 1]);
        }
        const float output = lanner::sum_of_8(sums[0] + sums[1]);
        if (lane == r) result = output;
    }
    if (lane < ROWS) out[gate * VALUE_DIM + first + lane] = static_cast<T>(result);
}
for (int r = 0; r < ROWS; r++)
    for (int j = 0; j < OWN; j++) after[at + r * KEY_DIM + j * 8] = s[r][j];
