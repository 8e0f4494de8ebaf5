// norm(x) * silu(gate), the norm over each head of DIM numbers. A SIMD-group has a head. Grid: 32, heads of all rows.
const uint lane = thread_index_in_simdgroup;
const size_t at = (size_t)thread_position_in_grid.y * DIM;
const float factor = lanner::row_factor(x + at, DIM, as_type<float>(EPS), lane);
for (int i = lane; i < DIM; i += 32) {
    const float normed = static_cast<float>(x[at + i]) * factor * static_cast<float>(weight[i]);
    out[at + i] = static_cast<T>(normed * lanner::silu(static_cast<float>(gate[at + i])));
}
