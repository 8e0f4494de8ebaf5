// MLX's fused operations and its quantised formats.
#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

namespace {
std::unique_ptr<Arrays> wrap_all(std::vector<array> list) {
  return std::make_unique<Arrays>(Arrays{std::move(list)});
}

std::optional<array> only(const Arrays& list) {
  return list.list.empty() ? std::nullopt : std::optional<array>(list.list.front());
}

// The biases of an affine matrix; other formats have none.
std::optional<array> third(const std::vector<array>& parts) {
  return parts.size() < 3 ? std::nullopt : std::optional<array>(parts[2]);
}
}  // namespace

Out rms_norm(const array& x, const array& weight, float eps) {
  return wrap(mx::fast::rms_norm(x, weight, eps));
}

Out attention(
    const array& q, const array& k, const array& v, float scale, bool causal, const Arrays& mask,
    const Arrays& sinks) {
  const std::string mode = causal ? "causal" : mask.list.empty() ? "" : "array";
  return wrap(mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, only(mask), only(sinks)));
}

std::unique_ptr<Arrays> gated_delta(
    const array& q, const array& k, const array& v, const array& g, const array& beta, const array& state) {
  return wrap_all(mx::fast::gated_delta_update(q, k, v, g, beta, state));
}

Out quantized_matmul(
    const array& x, const Arrays& w, std::int32_t group_size, std::int32_t bits, rust::Str mode) {
  const auto& parts = w.list;
  return wrap(mx::quantized_matmul(
      x, parts.at(0), parts.at(1), third(parts), true, group_size, bits, std::string(mode)));
}

Out gather_qmm(
    const array& x, const Arrays& w, const array& indices, std::int32_t group_size, std::int32_t bits,
    rust::Str mode) {
  const auto& parts = w.list;
  return wrap(mx::gather_qmm(
      x, parts.at(0), parts.at(1), third(parts), std::nullopt, indices, true, group_size, bits,
      std::string(mode)));
}

Out gather_mm(const array& x, const array& w, const array& indices) {
  return wrap(mx::gather_mm(x, mx::swapaxes(w, -1, -2), std::nullopt, indices));
}

Out dequantize(
    const Arrays& w, std::int32_t group_size, std::int32_t bits, rust::Str mode, Dtype dtype) {
  const auto& parts = w.list;
  return wrap(mx::dequantize(
      parts.at(0), parts.at(1), third(parts), group_size, bits, std::string(mode), std::nullopt, to_mlx(dtype)));
}

std::unique_ptr<Arrays> quantize(const array& w, std::int32_t group_size, std::int32_t bits, rust::Str mode) {
  return wrap_all(mx::quantize(w, group_size, bits, std::string(mode)));
}

}  // namespace lanner
