// MLX's fused operations and its quantised formats.
#include "mlx/src/bridge.rs.h"

namespace lanner {

namespace {
std::unique_ptr<Arrays> wrap_all(std::vector<array> list) {
  return std::make_unique<Arrays>(Arrays{std::move(list)});
}
}  // namespace

Out rms_norm(const array& x, const array& weight, float eps) {
  return wrap(mx::fast::rms_norm(x, weight, eps));
}

Out rms_norm_plain(const array& x, float eps) { return wrap(mx::fast::rms_norm(x, std::nullopt, eps)); }

Out attention(const array& q, const array& k, const array& v, float scale, bool causal) {
  return wrap(mx::fast::scaled_dot_product_attention(q, k, v, scale, causal ? "causal" : ""));
}

std::unique_ptr<Arrays> gated_delta(
    const array& q, const array& k, const array& v, const array& g, const array& beta, const array& state) {
  return wrap_all(mx::fast::gated_delta_update(q, k, v, g, beta, state));
}

Out quantized_matmul(
    const array& x, const array& w, const array& scales, const array& biases, std::int32_t group_size,
    std::int32_t bits) {
  return wrap(mx::quantized_matmul(x, w, scales, biases, true, group_size, bits));
}

Out dequantize(
    const array& w, const array& scales, const array& biases, std::int32_t group_size, std::int32_t bits) {
  return wrap(mx::dequantize(w, scales, biases, group_size, bits));
}

std::unique_ptr<Arrays> quantize(const array& w, std::int32_t group_size, std::int32_t bits) {
  return wrap_all(mx::quantize(w, group_size, bits));
}

}  // namespace lanner
