// A gate and what it multiplies: silu(gate) * x (KIND 0), gelu_tanh(gate) * x (1), x * sigmoid(gate) (2), or both up to
// LIMIT (3). Rows of `gate` are GATE_STRIDE apart, those of x and out WIDTH. Grid: WIDTH, rows.
const size_t row = thread_position_in_grid.y, i = thread_position_in_grid.x;
const float own = static_cast<float>(gate[row * GATE_STRIDE + GATE_OFFSET + i]);
const float value = static_cast<float>(x[row * WIDTH + i]);
if (KIND == 3) {
    out[row * WIDTH + i] = static_cast<T>(lanner::clamped_swish(own, value, as_type<float>(LIMIT)));
} else {
    const float opened = KIND == 0 ? lanner::silu(own) : KIND == 1 ? lanner::gelu_tanh(own) : lanner::sigmoid(own);
    out[row * WIDTH + i] = static_cast<T>(opened * value);
}
