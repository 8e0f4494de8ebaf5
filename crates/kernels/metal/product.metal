// Products of few rows and an affine matrix in groups of 64, with the CPU's arithmetic (kernels/src/linear/integer):
// the sum over segments of 512 inputs of (the sum over their groups of scale * step * dot + bias * step * total).
//
// A dot product of a group is exact in float: codes of up to 4 bits times integers of up to 2^14 add up to less than
// 2^24. Longer codes are two numbers of up to 4 bits. So a row's bits do not depend on the order, nor on other rows.
//
// A threadgroup has 32 features and ROWS rows, a SIMD-group every SIMDS-th segment of these. For the dot products, lane
// 8 s + g has group g of features s, s + 4, ...; to add them up, lane f has feature f. Grid: 32 SIMDS, features / 32
// and rows / ROWS, both rounded up.
//
// integers and steps: see integers.metal; codes [outputs][INPUTS BITS / 32], a row one stream of bits; scales, biases
// [outputs][INPUTS / 64]; out [rows][outputs].
constexpr int GROUPS = INPUTS / 64, SEGMENTS = (GROUPS + 7) / 8, WORDS = 2 * BITS;
threadgroup float scaled[SIMDS][ROWS][32][9];
threadgroup float parts[SEGMENTS][ROWS][32];
const int outputs = codes_shape[0], rows = integers_shape[0];
const int lane = thread_index_in_simdgroup, simd = simdgroup_index_in_threadgroup;
const int first = threadgroup_position_in_grid.y * 32, first_row = threadgroup_position_in_grid.z * ROWS;
const int feature = min(first + lane, outputs - 1);
for (int segment = simd; segment < SEGMENTS; segment += SIMDS) {
    // The last segment may have fewer groups.
    const int group = min(segment * 8 + lane % 8, GROUPS - 1);
    for (int i = 0; i < 8; i++) {
        const size_t own = min(first + 4 * i + lane / 8, outputs - 1);
        uint words[WORDS + 1];
        const device uint* from = codes + (own * GROUPS + group) * WORDS;
        if (BITS % 2 == 0) {
            for (int w = 0; w < WORDS; w += 4) {
                const uint4 next = *(const device uint4*)(from + w);
                words[w] = next.x, words[w + 1] = next.y, words[w + 2] = next.z, words[w + 3] = next.w;
            }
        } else {
            for (int w = 0; w < WORDS; w += 2) {
                const uint2 next = *(const device uint2*)(from + w);
                words[w] = next.x, words[w + 1] = next.y;
            }
        }
        words[WORDS] = 0;
        float low[ROWS], high[ROWS];
        for (int r = 0; r < ROWS; r++) low[r] = high[r] = 0;
#pragma clang loop unroll(full)
        for (int four = 0; four < 16; four++) {
            float lows[4], highs[4];
#pragma clang loop unroll(full)
            for (int c = 0; c < 4; c++) {
                const int bit = (four * 4 + c) * BITS, word = bit / 32, shift = bit % 32;
                uint code = words[word] >> shift;
                if (shift + BITS > 32) code |= words[word + 1] << (32 - shift);
                lows[c] = (float)(code & ((1 << (BITS < 4 ? BITS : 4)) - 1));
                highs[c] = BITS > 4 ? (float)(code >> 4 & ((1 << (BITS > 4 ? BITS - 4 : 0)) - 1)) : 0.0f;
            }
            for (int r = 0; r < ROWS; r++) {
                const size_t row = min(first_row + r, rows - 1);
                const half4 x = ((const device half4*)(integers + (row * GROUPS + group) * 64))[four];
                const float four_of_x[4] = {x.x, x.y, x.z, x.w};
                for (int c = 0; c < 4; c++) {
                    low[r] = fma(lows[c], four_of_x[c], low[r]);
                    if (BITS > 4) high[r] = fma(highs[c], four_of_x[c], high[r]);
                }
            }
        }
        for (int r = 0; r < ROWS; r++) {
            const size_t row = min(first_row + r, rows - 1);
            const float dot = BITS > 4 ? (float)((int)high[r] * 16 + (int)low[r]) : low[r];
            scaled[simd][r][4 * i + lane / 8][lane % 8] = dot * steps[(row * GROUPS + group) * 2];
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int r = 0; r < ROWS; r++) {
        const size_t row = min(first_row + r, rows - 1);
        float part = 0;
        for (int i = 0; i < 8 && segment * 8 + i < GROUPS; i++) {
            const size_t at = (size_t)feature * GROUPS + segment * 8 + i;
            part = fma(static_cast<float>(scales[at]), scaled[simd][r][lane][i], part);
            part = fma(static_cast<float>(biases[at]), steps[(row * GROUPS + segment * 8 + i) * 2 + 1], part);
        }
        parts[segment][r][lane] = part;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int r = simd; r < ROWS && first_row + r < rows; r += SIMDS) {
    float sum = 0;
    for (int segment = 0; segment < SEGMENTS; segment++) sum = sum + parts[segment][r][lane];
    if (first + lane < outputs) out[(size_t)(first_row + r) * outputs + first + lane] = static_cast<T>(sum);
}
