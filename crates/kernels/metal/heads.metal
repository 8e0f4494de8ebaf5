// Norms and rotation of the heads of queries and of keys. A SIMD-group has a head of a token: those of queries, then
// those of keys. Grid: 32, HEADS + KV_HEADS, tokens.
//
// q [tokens][HEADS][QUERY_STRIDE], of which DIM numbers are read, k [tokens][KV_HEADS][DIM]; positions
// [tokens][COLUMNS], and with several columns the one of each pair in `axes`; frequencies [PAIRS]. Outputs are
// without gaps. Numbers that are not whole come as their bits.
const uint lane = thread_index_in_simdgroup;
const int head = thread_position_in_grid.y, token = thread_position_in_grid.z;
const bool is_query = head < HEADS;
const int own_head = is_query ? head : head - HEADS;
const device T* x = is_query ? q + ((size_t)token * HEADS + own_head) * QUERY_STRIDE
                             : k + ((size_t)token * KV_HEADS + own_head) * DIM;
device T* to = is_query ? rotated_q + ((size_t)token * HEADS + own_head) * DIM
                        : rotated_k + ((size_t)token * KV_HEADS + own_head) * DIM;
float factor = 1;
if (NORM) factor = lanner::row_factor(x, DIM, as_type<float>(is_query ? QUERY_EPS : KEY_EPS), lane);
for (int pair = lane; pair < PAIRS; pair += 32) {
    const int first = ADJACENT ? 2 * pair : pair, second = first + (ADJACENT ? 1 : PAIRS);
    float a = static_cast<float>(x[first]), b = static_cast<float>(x[second]);
    if (NORM) {
        a = a * factor * static_cast<float>(is_query ? query_weight[first] : key_weight[first]);
        b = b * factor * static_cast<float>(is_query ? query_weight[second] : key_weight[second]);
    }
    const int column = COLUMNS > 1 ? (int)axes[pair] : 0;
    float sine, cosine;
    lanner::sin_cos((float)positions[token * COLUMNS + column] * frequencies[pair], sine, cosine);
    sine = sine * as_type<float>(SCALE), cosine = cosine * as_type<float>(SCALE);
    to[first] = static_cast<T>(a * cosine - b * sine);
    to[second] = static_cast<T>(b * cosine + a * sine);
}
for (int i = 2 * PAIRS + lane; i < DIM; i += 32) {
    float a = static_cast<float>(x[i]);
    if (NORM) a = a * factor * static_cast<float>(is_query ? query_weight[i] : key_weight[i]);
    to[i] = static_cast<T>(a);
}
