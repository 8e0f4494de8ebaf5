// Inputs of the gated delta rule (delta.metal): causal convolution with SiLU, norms of queries and keys, and gates, in
// float32. A SIMD-group has a head of a token: those of queries, of keys, then of values. Grid: 32, 2 KEY_HEADS +
// VALUE_HEADS, tokens.
//
// x [tokens][channels]: queries, keys and values; past [WIDTH - 1][channels], the inputs before the first token; taps
// [channels][WIDTH]; b and a [tokens][VALUE_HEADS]. Outputs: queries, keys and values [tokens][heads][dim], decays and
// betas [tokens][VALUE_HEADS], and the inputs `next` of the tokens to come, like `past`. The two sizes of heads are
// multiples of 16, and a key's is up to 256.
constexpr int KEYS = KEY_HEADS * KEY_DIM, CHANNELS = 2 * KEYS + VALUE_HEADS * VALUE_DIM;
constexpr int OWN = ((KEY_DIM > VALUE_DIM ? KEY_DIM : VALUE_DIM) + 31) / 32;
const uint lane = thread_index_in_simdgroup;
const int head = thread_position_in_grid.y, token = thread_position_in_grid.z, tokens = threads_per_grid.z;
const bool is_value = head >= 2 * KEY_HEADS, is_key = head >= KEY_HEADS;
const int value_head = head - 2 * KEY_HEADS, key_head = is_key ? head - KEY_HEADS : head;
const int dim = is_value ? VALUE_DIM : KEY_DIM;
const int first = is_value ? 2 * KEYS + value_head * VALUE_DIM : head * KEY_DIM;
float own[OWN];
for (int i = 0; i < OWN; i++) {
    own[i] = 0;
    if ((int)lane + 32 * i >= dim) continue;
    const int channel = first + lane + 32 * i;
    float sum = 0;
    for (int j = 0; j < WIDTH; j++) {
        const int from = token + j - (WIDTH - 1);
        const float input = static_cast<float>(from >= 0 ? x[(size_t)from * CHANNELS + channel]
                                                         : past[(size_t)(from + WIDTH - 1) * CHANNELS + channel]);
        sum = fma(input, static_cast<float>(taps[(size_t)channel * WIDTH + j]), sum);
    }
    own[i] = lanner::silu(sum);
    const int kept = token - (tokens - (WIDTH - 1));
    if (kept >= 0) next[(size_t)kept * CHANNELS + channel] = x[(size_t)token * CHANNELS + channel];
    // With few tokens some inputs before them are kept, too.
    for (int j = 0; token == 0 && j + tokens < WIDTH - 1; j++)
        next[(size_t)j * CHANNELS + channel] = past[(size_t)(j + tokens) * CHANNELS + channel];
}
if (is_value) {
    const size_t gate = (size_t)token * VALUE_HEADS + value_head;
    for (int i = 0; i < OWN; i++)
        if ((int)lane + 32 * i < VALUE_DIM) values[gate * VALUE_DIM + lane + 32 * i] = own[i];
    if (lane == 0) {
        const float rate = static_cast<float>(neg_exp_a[value_head]), shift = static_cast<float>(dt_bias[value_head]);
        decays[gate] = lanner::exact_exp(rate * lanner::softplus(static_cast<float>(a[gate]) + shift));
        betas[gate] = lanner::sigmoid(static_cast<float>(b[gate]));
    }
    return;
}
// Number i of the head is one of sum i % 16 of the norm; lanes i and i + 16 hold those of a sum in turns.
float squares = 0;
for (int i = 0; i < KEY_DIM / 16; i++) {
    const float number = simd_shuffle(own[i / 2], (ushort)((lane & 15) + i % 2 * 16));
    squares = fma(number, number, squares);
}
const float eps = as_type<float>(is_key ? KEY_EPS : QUERY_EPS);
const float factor = lanner::norm_factor(lanner::sum_of_16(squares), KEY_DIM, eps);
const size_t at = ((size_t)token * KEY_HEADS + key_head) * KEY_DIM;
for (int i = 0; i < OWN; i++) {
    const int number = lane + 32 * i;
    if (number >= KEY_DIM) continue;
    if (is_key)
        keys[at + number] = own[i] * factor * static_cast<float>(key_weight[number]);
    else
        queries[at + number] = own[i] * factor * static_cast<float>(query_weight[number]);
}
