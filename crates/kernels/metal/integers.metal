// Inputs of quantised products as integers, as on the CPU (kernels/src/linear/integer): a group of 64 numbers of a row
// gets one step, a power of two, and integers of 14 bits, of which the first 11 that are not zeros are kept, so that
// half precision holds them. A SIMD-group has a group. Grid: 32, groups of a row, rows; those that x does not have are its
// last one again.
//
// x [rows][inputs]; integers likewise; steps [rows of x][groups][2]: the step, and the step times the group's sum.
constexpr uint EXPONENT = 0x7f800000, SMALLEST = 0x0da24260, LARGEST = 0x7149f2ca;
constexpr uint SMALLEST_POWER = (127 + 10) << 23, ROUNDER = (13 << 23) | 0x00400000;
const uint lane = thread_index_in_simdgroup;
const size_t group = (size_t)thread_position_in_grid.z * threads_per_grid.y + thread_position_in_grid.y;
const size_t row = min((int)thread_position_in_grid.z, x_shape[0] - 1);
const size_t from = (row * threads_per_grid.y + thread_position_in_grid.y) * 64;
float numbers[2];
uint largest = 0;
for (int i = 0; i < 2; i++) {
    numbers[i] = static_cast<float>(x[from + 2 * lane + i]);
    largest = max(largest, as_type<uint>(numbers[i]) & 0x7fffffff);
}
largest = simd_max(largest);
// Groups below 1e-30 count as zeros; one with a NaN, or above 1e30, makes its row's products NaN.
const bool has_integers = largest >= SMALLEST && largest <= LARGEST;
const uint power = largest & EXPONENT;
const float inverse = has_integers ? as_type<float>(((254u + 13u) << 23) - power) : 0.0f;
int total = 0;
for (int i = 0; i < 2; i++) {
    const float exact = has_integers ? numbers[i] * inverse : 0.0f;
    const float rounder = as_type<float>(max(as_type<uint>(exact) & EXPONENT, SMALLEST_POWER) + ROUNDER);
    const float integer = (exact + rounder) - rounder;
    integers[group * 64 + 2 * lane + i] = static_cast<half>(integer);
    total += (int)integer;
}
total = simd_sum(total);
if (lane == 0 && (int)thread_position_in_grid.z < x_shape[0]) {
    const float none = largest <= LARGEST ? 0.0f : as_type<float>(0x7fc00000u);
    const float step = has_integers ? as_type<float>(power - (13u << 23)) : none;
    steps[group * 2] = step;
    steps[group * 2 + 1] = (float)total * step;
}
