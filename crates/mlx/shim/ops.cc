// Element-wise, shape, order and reduction operations.
#include <algorithm>

#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

#define UNARY(name) \
  Out name(const array& a) { return wrap(mx::name(a)); }
#define BINARY(name) \
  Out name(const array& a, const array& b) { return wrap(mx::name(a, b)); }

UNARY(exp)
UNARY(log)
UNARY(negative)
UNARY(sigmoid)
UNARY(sin)
UNARY(cos)
UNARY(square)
UNARY(rsqrt)
UNARY(tanh)
UNARY(floor)

BINARY(add)
BINARY(subtract)
BINARY(multiply)
BINARY(divide)
BINARY(maximum)
BINARY(minimum)
BINARY(matmul)
BINARY(greater)
BINARY(greater_equal)
BINARY(less)
BINARY(less_equal)

Out softplus(const array& a) { return wrap(mx::logaddexp(a, array(0.0f, a.dtype()))); }

Out contiguous(const array& a) { return wrap(mx::contiguous(a)); }

Out select(const array& condition, const array& yes, const array& no) {
  return wrap(mx::where(condition, yes, no));
}

Out astype(const array& a, Dtype dtype) { return wrap(mx::astype(a, to_mlx(dtype))); }

Out reshape(const array& a, Ints shape) {
  auto to = to_shape(shape);
  bool known = std::all_of(to.begin(), to.end(), [](auto dim) { return dim > 0; });
  if (known && is_ready(a)) {
    size_t size = 1;
    for (auto dim : to) size *= dim;
    if (size == a.size()) return wrap(view(a, std::move(to), 0));
  }
  return wrap(mx::reshape(a, std::move(to)));
}

Out transpose(const array& a, Ints axes) {
  return wrap(mx::transpose(a, std::vector<int>(axes.begin(), axes.end())));
}

Out broadcast_to(const array& a, Ints shape) { return wrap(mx::broadcast_to(a, to_shape(shape))); }

Out slice(const array& a, Ints start, Ints stop) {
  if (is_ready(a) && a.size() > 0) {
    // Contiguous if axes before `cut` are single indices and axes after it are whole.
    size_t cut = 0, inner = 1;
    while (cut < start.size() && stop[cut] - start[cut] == 1) ++cut;
    bool whole = true;
    for (size_t i = cut + 1; i < start.size(); ++i) whole &= start[i] == 0 && stop[i] == a.shape(i);
    size_t offset = 0;
    for (size_t i = start.size(); i-- > 0; inner *= a.shape(i)) offset += start[i] * inner;
    mx::Shape shape;
    for (size_t i = 0; i < start.size(); ++i) shape.push_back(stop[i] - start[i]);
    if (whole && std::all_of(shape.begin(), shape.end(), [](auto dim) { return dim > 0; })) {
      return wrap(view(a, std::move(shape), offset));
    }
  }
  return wrap(mx::slice(a, to_shape(start), to_shape(stop)));
}

Out slice_update(const array& a, const array& update, Ints start, Ints stop) {
  return wrap(mx::slice_update(a, update, to_shape(start), to_shape(stop)));
}

Out concatenate(const Arrays& list, std::int32_t axis) { return wrap(mx::concatenate(list.list, axis)); }

Out take(const array& a, const array& indices, std::int32_t axis) { return wrap(mx::take(a, indices, axis)); }

Out take_along_axis(const array& a, const array& indices, std::int32_t axis) {
  return wrap(mx::take_along_axis(a, indices, axis));
}

Out put_along_axis(const array& a, const array& indices, const array& values, std::int32_t axis) {
  return wrap(mx::put_along_axis(a, indices, values, axis));
}

Out scatter_add_axis(const array& a, const array& indices, const array& values, std::int32_t axis) {
  return wrap(mx::scatter_add_axis(a, indices, values, axis));
}

Out arange(std::int32_t start, std::int32_t stop, Dtype dtype) {
  return wrap(mx::arange(static_cast<double>(start), static_cast<double>(stop), 1.0, to_mlx(dtype)));
}

Out full(Ints shape, float value, Dtype dtype) {
  return wrap(mx::full(to_shape(shape), array(value, to_mlx(dtype))));
}

Out sum(const array& a, std::int32_t axis, bool keepdims) { return wrap(mx::sum(a, axis, keepdims)); }

Out max(const array& a, std::int32_t axis, bool keepdims) { return wrap(mx::max(a, axis, keepdims)); }

Out argmax(const array& a, std::int32_t axis) { return wrap(mx::argmax(a, axis)); }

Out cumsum(const array& a, std::int32_t axis) { return wrap(mx::cumsum(a, axis)); }

Out argsort(const array& a, std::int32_t axis) { return wrap(mx::argsort(a, axis)); }

Out logsumexp(const array& a, std::int32_t axis) { return wrap(mx::logsumexp(a, axis)); }

Out softmax(const array& a, std::int32_t axis) { return wrap(mx::softmax(a, axis, true)); }

Out gumbel(Ints shape, std::uint64_t seed) {
  return wrap(mx::random::gumbel(to_shape(shape), mx::float32, mx::random::key(seed)));
}

}  // namespace lanner
