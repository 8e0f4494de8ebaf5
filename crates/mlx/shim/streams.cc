// Streams that outlive the threads that use them: MLX makes one for each thread and device, and never
// ends the thread that runs it.
#include <mutex>
#include <vector>

#include "mlx/scheduler.h"
#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

namespace {

struct Pool {
  std::mutex mutex;
  std::vector<mx::Stream> idle;
};

// Never destroyed: threads may outlive `main`.
Pool& pool() {
  static auto* pool = new Pool;
  return *pool;
}

thread_local std::vector<mx::Stream> leased;

mx::Stream take(mx::Device device) {
  auto& [mutex, idle] = pool();
  std::lock_guard lock(mutex);
  for (auto it = idle.begin(); it != idle.end(); ++it) {
    if (it->device == device) {
      auto stream = *it;
      idle.erase(it);
      return stream;
    }
  }
  return mx::new_thread_unsafe_stream(device);
}

void lease(mx::Device device) {
  // A thread that has computed already has its own stream.
  if (mx::peek_default_stream(device)) return;
  leased.push_back(take(device));
  mx::set_default_stream(leased.back());
}

}  // namespace

void lease_streams() {
  lease(mx::Device(mx::Device::cpu));
  if (gpu_available()) lease(mx::Device(mx::Device::gpu));
}

void return_streams() {
  auto& [mutex, idle] = pool();
  for (const auto& stream : leased) {
    // The next thread that leases it must not get this thread's errors.
    try {
      mx::synchronize(stream);
    } catch (const std::exception&) {
    }
    try {
      mx::scheduler::check_error(stream);
    } catch (const std::exception&) {
    }
    std::lock_guard lock(mutex);
    idle.push_back(stream);
  }
  leased.clear();
}

}  // namespace lanner
