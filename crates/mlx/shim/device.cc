// Arrays whose memory is a GPU's, for kernels of ours: MLX passes them on and never reads them.
#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

namespace {

// Set in the addresses that MLX holds of such memory. No pointer of the host's has it, so a read by
// mistake fails at once.
constexpr size_t DEVICE = size_t{1} << 63;

size_t tagged(mx::allocator::Buffer buffer) { return reinterpret_cast<size_t>(buffer.ptr()); }

}  // namespace

Out device_array(Ints shape, Dtype dtype, size_t pointer, size_t bytes) {
  auto free = [bytes](mx::allocator::Buffer buffer) { free_device(tagged(buffer) & ~DEVICE, bytes); };
  mx::allocator::Buffer memory(reinterpret_cast<void*>(pointer | DEVICE));
  return std::make_unique<array>(
      array(mx::allocator::Data(memory, std::move(free)), to_shape(shape), to_mlx(dtype)));
}

size_t device_address(const array& a) {
  // Another thread may give an array memory until it is available. MLX owns all memory but this.
  const bool available = a.status() == array::Status::available || a.is_available();
  if (!available || a.data_shared_ptr() == nullptr || a.data_shared_ptr()->is_owned()) return 0;
  const size_t memory = tagged(a.buffer());
  return memory & DEVICE ? (memory & ~DEVICE) + static_cast<size_t>(a.offset()) : 0;
}

}  // namespace lanner
