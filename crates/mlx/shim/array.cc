// Creating, reading and evaluating arrays; devices and memory.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <variant>

#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

namespace {
// Without this variable MLX rounds float32 products on CUDA to 10 bits of mantissa (TF32). Set before
// `main`, while no other thread reads the environment.
[[maybe_unused]] const int no_tf32 = setenv("MLX_ENABLE_TF32", "0", 0);
}  // namespace

// Settings of jemalloc (ADR 45); only a program that links it reads them. Steps allocate arrays of
// the same sizes again and again, so freed memory, that of the largest arrays too, is kept for two
// seconds, in an idle process for up to four. Two arenas: free memory of one does not serve the
// other, and with a single one threads that compute at the same time would wait for each other.
extern "C" const char* malloc_conf =
    "background_thread:true,max_background_threads:1,narenas:2,dirty_decay_ms:2000,muzzy_decay_ms:0,"
    "oversize_threshold:0";

mx::Dtype to_mlx(Dtype dtype) {
  switch (dtype) {
    case Dtype::Bool: return mx::bool_;
    case Dtype::Uint8: return mx::uint8;
    case Dtype::Uint16: return mx::uint16;
    case Dtype::Uint32: return mx::uint32;
    case Dtype::Uint64: return mx::uint64;
    case Dtype::Int8: return mx::int8;
    case Dtype::Int16: return mx::int16;
    case Dtype::Int32: return mx::int32;
    case Dtype::Int64: return mx::int64;
    case Dtype::Float16: return mx::float16;
    case Dtype::Bfloat16: return mx::bfloat16;
    case Dtype::Float32: return mx::float32;
  }
  throw std::invalid_argument("unknown dtype");
}

Dtype from_mlx(mx::Dtype dtype) {
  switch (dtype.val()) {
    case mx::Dtype::Val::bool_: return Dtype::Bool;
    case mx::Dtype::Val::uint8: return Dtype::Uint8;
    case mx::Dtype::Val::uint16: return Dtype::Uint16;
    case mx::Dtype::Val::uint32: return Dtype::Uint32;
    case mx::Dtype::Val::uint64: return Dtype::Uint64;
    case mx::Dtype::Val::int8: return Dtype::Int8;
    case mx::Dtype::Val::int16: return Dtype::Int16;
    case mx::Dtype::Val::int32: return Dtype::Int32;
    case mx::Dtype::Val::int64: return Dtype::Int64;
    case mx::Dtype::Val::float16: return Dtype::Float16;
    case mx::Dtype::Val::bfloat16: return Dtype::Bfloat16;
    case mx::Dtype::Val::float32: return Dtype::Float32;
    default: throw std::invalid_argument("an array has a dtype Lanner does not use");
  }
}

array view(const array& a, mx::Shape shape, size_t offset) {
  size_t size = 1, most = 1;
  mx::Strides strides(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = static_cast<std::int64_t>(size);
    size *= static_cast<size_t>(shape[i]);
    most = std::max(most, static_cast<size_t>(shape[i]));
  }
  array out(std::move(shape), a.dtype(), nullptr, {});
  array::Flags flags{.contiguous = true, .row_contiguous = true, .col_contiguous = size == most};
  out.copy_shared_buffer(a, strides, flags, size, static_cast<std::int64_t>(offset));
  out.set_status(array::Status::available);
  return out;
}

array allocate(mx::Shape shape, mx::Dtype dtype, size_t bytes) {
  constexpr size_t line = 64, large = 16 << 10;
  if (bytes < large || on_gpu()) return array(mx::allocator::malloc(bytes), std::move(shape), dtype);
  array whole(mx::allocator::malloc(bytes + line), shape, dtype);
  auto place = reinterpret_cast<std::uintptr_t>(whole.data<std::uint8_t>());
  return place == 0 ? whole : view(whole, std::move(shape), (line - place % line) % line / mx::size_of(dtype));
}

std::unique_ptr<Arrays> arrays() {
  auto arrays = std::make_unique<Arrays>();
  // As many as most operations take, in one allocation.
  arrays->list.reserve(8);
  return arrays;
}

Out clone_array(const array& a) { return wrap(a); }

Ints shape_of(const array& a) { return {a.shape().data(), a.shape().size()}; }

Dtype dtype_of(const array& a) { return from_mlx(a.dtype()); }

Out empty(Ints shape, Dtype dtype) {
  size_t bytes = mx::size_of(to_mlx(dtype));
  for (auto dim : shape) {
    if (dim < 0 || (dim > 0 && bytes > SIZE_MAX / static_cast<size_t>(dim))) {
      throw std::invalid_argument("a shape is negative or too large");
    }
    bytes *= static_cast<size_t>(dim);
  }
  const auto refuse = [&] {
    throw std::runtime_error("out of memory: no room for an array of " + std::to_string(bytes) + " bytes");
  };
  if (bytes > mx::get_memory_limit()) refuse();
  array out = allocate(to_shape(shape), to_mlx(dtype), bytes);
  if (bytes > 0 && out.data<std::uint8_t>() == nullptr) refuse();
  return wrap(std::move(out));
}

rust::Slice<std::uint8_t> bytes_mut(array& a) {
  if (device_address(a) != 0 || !a.is_available() || !a.flags().row_contiguous || !a.is_donatable()) {
    throw std::logic_error("bytes_mut needs a new, unshared array");
  }
  // An array of no elements may have no buffer at all.
  return a.nbytes() == 0 ? rust::Slice<std::uint8_t>{}
                         : rust::Slice<std::uint8_t>{a.data<std::uint8_t>(), a.nbytes()};
}

rust::Slice<const std::uint8_t> bytes_of(const array& a) {
  if (device_address(a) != 0 || !a.is_available() || !a.flags().row_contiguous) {
    throw std::logic_error("bytes_of needs an evaluated, row-contiguous array");
  }
  return a.nbytes() == 0 ? rust::Slice<const std::uint8_t>{}
                         : rust::Slice<const std::uint8_t>{a.data<std::uint8_t>(), a.nbytes()};
}

Out scalar(float value, Dtype dtype) { return wrap(array(value, to_mlx(dtype))); }

bool is_ready(const array& a) { return !on_gpu() && a.is_available() && a.flags().row_contiguous; }

rust::String mlx_version() { return mx::version(); }

// Empty if the loader does not know.
rust::String library_path() {
  Dl_info info;
  const bool found = dladdr(reinterpret_cast<const void*>(&mx::version), &info) != 0 && info.dli_fname != nullptr;
  return found ? rust::String::lossy(info.dli_fname) : rust::String();
}

// Name of the default device, a GPU, and its architecture where MLX knows it.
rust::String device_name() {
  std::string name = "gpu";
  const auto& info = mx::device_info();
  for (const char* key : {"device_name", "architecture"}) {
    const auto found = info.find(key);
    if (found == info.end()) continue;
    if (const auto* text = std::get_if<std::string>(&found->second)) name += " " + *text;
  }
  return rust::String::lossy(name);
}

bool gpu_available() { return mx::is_available(mx::Device::gpu); }

void use_gpu(bool gpu) { mx::set_default_device(gpu ? mx::Device::gpu : mx::Device::cpu); }

bool on_gpu() { return mx::default_device() == mx::Device::gpu; }

size_t active_memory() { return mx::get_active_memory(); }

size_t peak_memory() { return mx::get_peak_memory(); }

void reset_peak_memory() { mx::reset_peak_memory(); }

void set_cache_limit(size_t bytes) { mx::set_cache_limit(bytes); }

void set_memory_limit(size_t bytes) { mx::set_memory_limit(bytes); }

void build_shapes_only() { shapes_only = true; }

void wire_memory(size_t bytes) {
  if (!on_gpu() || !mx::metal::is_available()) {
    return;
  }
  // More than the recommended limit would be an error.
  const auto& info = mx::metal::device_info();
  auto most = info.find("max_recommended_working_set_size");
  if (most != info.end()) {
    mx::set_wired_limit(std::min(bytes, std::get<size_t>(most->second)));
  }
}

void clear_cache() { mx::clear_cache(); }

#ifdef __GLIBC__
// jemalloc's; missing in programs that do not link it.
extern "C" __attribute__((weak)) int mallctl(
    const char* name, void* old, size_t* old_size, void* value, size_t size);
#endif

void flush_thread_cache() {
#ifdef __GLIBC__
  if (mallctl != nullptr) mallctl("thread.tcache.flush", nullptr, nullptr, nullptr, 0);
#endif
}

void release_heap() {
  flush_thread_cache();
#ifdef __GLIBC__
  // Of all arenas: MALLCTL_ARENAS_ALL.
  if (mallctl != nullptr) mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);
#endif
}

}  // namespace lanner
