// Arrays whose memory is a GPU's, for kernels of ours: MLX passes them on and never reads them.
#include <mutex>
#include <unordered_set>

#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

namespace {

// The beginnings of all such memory.
struct Registry {
  std::mutex mutex;
  std::unordered_set<const void*> buffers;
};

// Never destroyed: arrays may outlive `main`.
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

Out device_array(Ints shape, Dtype dtype, size_t pointer, size_t bytes) {
  auto* memory = reinterpret_cast<void*>(pointer);
  {
    auto& [mutex, buffers] = registry();
    std::lock_guard lock(mutex);
    buffers.insert(memory);
  }
  auto free = [bytes](mx::allocator::Buffer buffer) {
    {
      auto& [mutex, buffers] = registry();
      std::lock_guard lock(mutex);
      buffers.erase(buffer.ptr());
    }
    free_device(reinterpret_cast<size_t>(buffer.ptr()), bytes);
  };
  return std::make_unique<array>(
      array(mx::allocator::Data(mx::allocator::Buffer(memory), std::move(free)), to_shape(shape), to_mlx(dtype)));
}

size_t device_address(const array& a) {
  // MLX owns all memory but this.
  if (!a.is_available() || a.data_shared_ptr() == nullptr || a.data_shared_ptr()->is_owned()) return 0;
  const void* memory = a.buffer().ptr();
  auto& [mutex, buffers] = registry();
  std::lock_guard lock(mutex);
  return buffers.contains(memory) ? reinterpret_cast<size_t>(memory) + static_cast<size_t>(a.offset()) : 0;
}

}  // namespace lanner
