// Thin, fallible functions over MLX, one per operation. Exceptions cross the bridge as errors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "mlx/mlx.h"
#include "rust/cxx.h"

namespace lanner {

namespace mx = mlx::core;
using mx::array;

enum class Dtype : std::uint8_t;
struct Kernel;
struct OutputSpec;
struct MetalSource;
struct MetalTemplateArg;

// A growing list of arrays.
struct Arrays {
  std::vector<array> list;
  void push(const array& a) { list.push_back(a); }
  size_t len() const { return list.size(); }
  std::unique_ptr<array> get(size_t i) const { return std::make_unique<array>(list.at(i)); }
};

using Out = std::unique_ptr<array>;
using Ints = rust::Slice<const std::int32_t>;

// Whether this thread builds arrays for their shapes alone.
inline thread_local bool shapes_only = false;

// Every result passes here. MLX's CPU allocator does not check for failed allocations, so those that
// cannot succeed are refused beforehand.
inline Out wrap(array a) {
  if (!shapes_only && a.nbytes() > mx::get_memory_limit()) {
    throw std::runtime_error(
        "out of memory: an array of " + std::to_string(a.nbytes()) + " bytes, where the limit is " +
        std::to_string(mx::get_memory_limit()));
  }
  return std::make_unique<array>(std::move(a));
}
inline mx::Shape to_shape(Ints dims) { return mx::Shape(dims.begin(), dims.end()); }
mx::Dtype to_mlx(Dtype dtype);
Dtype from_mlx(mx::Dtype dtype);

// Part of a ready array from element `offset` on, in the same memory, without an operation.
array view(const array& a, mx::Shape shape, size_t offset);

// A new array of `bytes` bytes. Large ones are aligned to cache lines: kernels load and store whole
// lines, and an access that straddles two takes twice as long.
array allocate(mx::Shape shape, mx::Dtype dtype, size_t bytes);

std::unique_ptr<Arrays> arrays();

// array.cc
Out clone_array(const array& a);
Ints shape_of(const array& a);
Dtype dtype_of(const array& a);
Out empty(Ints shape, Dtype dtype);
rust::Slice<std::uint8_t> bytes_mut(array& a);
rust::Slice<const std::uint8_t> bytes_of(const array& a);
Out scalar(float value, Dtype dtype);
bool is_ready(const array& a);
rust::String mlx_version();
rust::String library_path();
rust::String device_name();
bool gpu_available();
void use_gpu(bool gpu);
bool on_gpu();
size_t active_memory();
size_t peak_memory();
void reset_peak_memory();
void set_cache_limit(size_t bytes);
void set_memory_limit(size_t bytes);
void build_shapes_only();
void wire_memory(size_t bytes);
void clear_cache();
// Returns the free memory of the heap to the system, if jemalloc allocates it.
void flush_thread_cache();
void release_heap();

// device.cc
// An array in a GPU's memory, which `free_device` gets back.
Out device_array(Ints shape, Dtype dtype, size_t pointer, size_t bytes);
// Where such an array lies; 0 for all others.
size_t device_address(const array& a);

// streams.cc
void lease_streams();
void return_streams();

// eval.cc
void set_run_ahead(size_t bytes);
void eval(const Arrays& list);
void async_eval(const Arrays& list);

// ops.cc
Out exp(const array& a);
Out log(const array& a);
Out negative(const array& a);
Out sigmoid(const array& a);
Out softplus(const array& a);
Out sin(const array& a);
Out cos(const array& a);
Out square(const array& a);
Out rsqrt(const array& a);
Out tanh(const array& a);
Out floor(const array& a);
Out contiguous(const array& a);
Out add(const array& a, const array& b);
Out subtract(const array& a, const array& b);
Out multiply(const array& a, const array& b);
Out divide(const array& a, const array& b);
Out maximum(const array& a, const array& b);
Out minimum(const array& a, const array& b);
Out matmul(const array& a, const array& b);
Out greater(const array& a, const array& b);
Out greater_equal(const array& a, const array& b);
Out less(const array& a, const array& b);
Out less_equal(const array& a, const array& b);
Out select(const array& condition, const array& yes, const array& no);
Out astype(const array& a, Dtype dtype);
Out reshape(const array& a, Ints shape);
Out transpose(const array& a, Ints axes);
Out broadcast_to(const array& a, Ints shape);
Out slice(const array& a, Ints start, Ints stop);
Out slice_update(const array& a, const array& update, Ints start, Ints stop);
Out concatenate(const Arrays& list, std::int32_t axis);
Out take(const array& a, const array& indices, std::int32_t axis);
Out take_along_axis(const array& a, const array& indices, std::int32_t axis);
Out put_along_axis(const array& a, const array& indices, const array& values, std::int32_t axis);
Out scatter_add_axis(const array& a, const array& indices, const array& values, std::int32_t axis);
Out arange(std::int32_t start, std::int32_t stop, Dtype dtype);
Out full(Ints shape, float value, Dtype dtype);
Out sum(const array& a, std::int32_t axis, bool keepdims);
Out max(const array& a, std::int32_t axis, bool keepdims);
Out argmax(const array& a, std::int32_t axis);
Out cumsum(const array& a, std::int32_t axis);
Out argsort(const array& a, std::int32_t axis);
Out logsumexp(const array& a, std::int32_t axis);
Out softmax(const array& a, std::int32_t axis);
Out gumbel(Ints shape, std::uint64_t seed);

// fast.cc
Out rms_norm(const array& x, const array& weight, float eps);
Out attention(
    const array& q, const array& k, const array& v, float scale, bool causal, const Arrays& mask,
    const Arrays& sinks);
std::unique_ptr<Arrays> gated_delta(
    const array& q, const array& k, const array& v, const array& g, const array& beta, const array& state);
Out quantized_matmul(
    const array& x, const Arrays& w, std::int32_t group_size, std::int32_t bits, rust::Str mode);
Out gather_qmm(
    const array& x, const Arrays& w, const array& indices, std::int32_t group_size, std::int32_t bits,
    rust::Str mode);
Out gather_mm(const array& x, const array& w, const array& indices);
Out dequantize(const Arrays& w, std::int32_t group_size, std::int32_t bits, rust::Str mode, Dtype dtype);
std::unique_ptr<Arrays> quantize(const array& w, std::int32_t group_size, std::int32_t bits, rust::Str mode);

// kernel.cc
// Bytes that a kernel of ours allocates to compute `a`; none for other operations.
std::optional<size_t> kernel_allocates(const array& a);
std::unique_ptr<Arrays> apply_kernel(
    rust::Box<Kernel> kernel, const Arrays& inputs, rust::Slice<const OutputSpec> outputs, Ints shared);

// metal.cc
// Whether this build of MLX runs on Metal, and there is a GPU.
bool metal_available();
// `threads` are those of the whole grid, and those of a threadgroup.
std::unique_ptr<Arrays> metal_launch(
    const MetalSource& kernel, const Arrays& inputs, rust::Slice<const OutputSpec> outputs,
    rust::Slice<const MetalTemplateArg> template_args, Ints threads);
// The source that MLX would compile for this launch.
rust::String metal_text(
    const MetalSource& kernel, const Arrays& inputs, rust::Slice<const OutputSpec> outputs,
    rust::Slice<const MetalTemplateArg> template_args, Ints threads);

}  // namespace lanner
