// Products of many rows and an affine matrix in groups of 64, with the arithmetic of product.metal, by matrices of 8 x 8:
// codes and integers are exact in half precision, and a group's sums in float, in whatever order a GPU adds them.
//
// A SIMD-group has 16 features and 32 rows, in matrices [feature][row]. Of each, a lane has two neighbouring numbers of a
// row of the matrix. Grid: 32, features / 16 rounded up, rows / 32.
//
// integers [rows, padded to a multiple of 32][INPUTS] and steps: see integers.metal; codes, scales, biases and out: see
// product.metal.
constexpr int GROUPS = INPUTS / 64, WORDS = 2 * BITS, SPLIT = BITS > 4 ? 2 : 1;
const int lane = thread_index_in_simdgroup, outputs = codes_shape[0], rows = steps_shape[0];
// The lane's row of a matrix, and the first of its columns.
const int own_row = (lane / 4 & 4) + lane / 2 % 4, own_column = (lane / 4 & 2) * 2 + lane % 2 * 2;
const int first = thread_position_in_grid.y * 16, first_row = thread_position_in_grid.z * 32;
float sums[2][4][2], parts[2][4][2];
for (int f = 0; f < 2; f++)
    for (int r = 0; r < 4; r++) sums[f][r][0] = sums[f][r][1] = parts[f][r][0] = parts[f][r][1] = 0;
for (int group = 0; group < GROUPS; group++) {
    simdgroup_matrix<float, 8, 8> dots[SPLIT][2][4];
#pragma clang loop unroll(full)
    for (int s = 0; s < SPLIT; s++)
        for (int f = 0; f < 2; f++)
            for (int r = 0; r < 4; r++) dots[s][f][r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma clang loop unroll(full)
    for (int k = 0; k < 64; k += 8) {
        simdgroup_matrix<half, 8, 8> x[4];
#pragma clang loop unroll(full)
        for (int r = 0; r < 4; r++) {
            const device half* from = integers + (size_t)(first_row + 8 * r) * INPUTS + group * 64 + k;
            simdgroup_load(x[r], from, INPUTS, ulong2(0, 0), true);
        }
#pragma clang loop unroll(full)
        for (int f = 0; f < 2; f++) {
            const size_t feature = min(first + 8 * f + own_row, outputs - 1);
            // Two neighbouring codes, of which the first has an even place.
            const int bit = (k + own_column) * BITS, shift = bit % 32;
            const size_t at = (feature * GROUPS + group) * WORDS + bit / 32;
            uint pair = codes[at] >> shift;
            if (32 % (2 * BITS) != 0 && shift + 2 * BITS > 32) pair |= codes[at + 1] << (32 - shift);
            half low[2], high[2];
            for (int c = 0; c < 2; c++) {
                const uint code = pair >> (c * BITS);
                low[c] = static_cast<half>((float)(code & ((1 << (BITS < 4 ? BITS : 4)) - 1)));
                high[c] = static_cast<half>((float)(code >> 4 & ((1 << (BITS > 4 ? BITS - 4 : 0)) - 1)));
            }
            for (int s = 0; s < SPLIT; s++) {
                simdgroup_matrix<half, 8, 8> own;
                own.thread_elements()[0] = s ? high[0] : low[0], own.thread_elements()[1] = s ? high[1] : low[1];
                for (int r = 0; r < 4; r++) simdgroup_multiply_accumulate(dots[s][f][r], own, x[r], dots[s][f][r]);
            }
        }
    }
    for (int f = 0; f < 2; f++) {
        const size_t feature = min(first + 8 * f + own_row, outputs - 1);
        const float scale = static_cast<float>(scales[feature * GROUPS + group]);
        const float bias = static_cast<float>(biases[feature * GROUPS + group]);
        for (int r = 0; r < 4; r++) {
            for (int c = 0; c < 2; c++) {
                const size_t row = min(first_row + 8 * r + own_column + c, rows - 1), step = (row * GROUPS + group) * 2;
                float dot = dots[0][f][r].thread_elements()[c];
                if (SPLIT == 2) dot = (float)((int)dots[SPLIT - 1][f][r].thread_elements()[c] * 16 + (int)dot);
                parts[f][r][c] = fma(scale, dot * steps[step], parts[f][r][c]);
                parts[f][r][c] = fma(bias, steps[step + 1], parts[f][r][c]);
                // A segment ends.
                if (group % 8 == 7 || group == GROUPS - 1) {
                    sums[f][r][c] = sums[f][r][c] + parts[f][r][c];
                    parts[f][r][c] = 0;
                }
            }
        }
    }
}
for (int f = 0; f < 2; f++) {
    for (int r = 0; r < 4; r++) {
        for (int c = 0; c < 2; c++) {
            const int feature = first + 8 * f + own_row, row = first_row + 8 * r + own_column + c;
            if (feature < outputs && row < rows) out[(size_t)row * outputs + feature] = static_cast<T>(sums[f][r][c]);
        }
    }
}
