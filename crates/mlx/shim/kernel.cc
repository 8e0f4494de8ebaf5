// Rust functions as operations: run at once if their inputs are evaluated, else as primitives of MLX's
// graph, in order on its CPU stream.
#include <algorithm>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

namespace {

// An array as a kernel sees it. Its buffer outlives the kernel's run: MLX keeps the inputs and outputs
// of queued operations.
struct Memory {
  Dtype dtype;
  mx::Shape shape;
  std::uint8_t* data;
  size_t bytes;

  // An array of no elements may have no memory at all.
  explicit Memory(array& a)
      : dtype(from_mlx(a.dtype())),
        shape(a.shape()),
        data(a.nbytes() == 0 ? nullptr : a.data<std::uint8_t>()),
        bytes(a.nbytes()) {
    if (bytes > 0 && data == nullptr) throw std::bad_alloc();
  }

  // No memory: an input whose memory an output has taken over.
  explicit Memory(Dtype dtype) : dtype(dtype), shape{0}, data(nullptr), bytes(0) {}

  Ints dims() const { return {shape.data(), shape.size()}; }

  template <typename Byte>
  rust::Slice<Byte> contents() const {
    return bytes == 0 ? rust::Slice<Byte>{} : rust::Slice<Byte>{data, bytes};
  }
};

void run(const Kernel& kernel, const std::vector<Memory>& ins, const std::vector<Memory>& outs) {
  std::vector<View> inputs;
  std::vector<ViewMut> outputs;
  inputs.reserve(ins.size());
  outputs.reserve(outs.size());
  for (const auto& in : ins) {
    inputs.push_back(View{in.dtype, in.dims(), in.contents<const std::uint8_t>()});
  }
  for (const auto& out : outs) {
    outputs.push_back(ViewMut{out.dtype, out.dims(), out.contents<std::uint8_t>()});
  }
  run_kernel(kernel, {inputs.data(), inputs.size()}, {outputs.data(), outputs.size()});
}

class RustKernel : public mx::Primitive {
 public:
  // `failure` is the error of a kernel that ran at once; evaluation reports it.
  RustKernel(mx::Stream stream, rust::Box<Kernel> kernel, Ints shared, std::string failure)
      : mx::Primitive(stream),
        kernel_(std::make_shared<rust::Box<Kernel>>(std::move(kernel))),
        name_(std::string(kernel_name(**kernel_))),
        shared_(shared.begin(), shared.end()),
        failure_(std::move(failure)) {}

  const char* name() const override { return name_.c_str(); }

  // Outputs that take over an input's memory do not count.
  size_t allocates(const std::vector<array>& outputs) const {
    size_t bytes = 0;
    for (size_t i = 0; i < outputs.size(); ++i) bytes += shared_.at(i) < 0 ? outputs[i].nbytes() : 0;
    return bytes;
  }

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    if (!failure_.empty()) throw std::runtime_error(failure_);
    std::vector<Memory> ins, outs;
    ins.reserve(inputs.size());
    outs.reserve(outputs.size());
    for (array in : inputs) {
      if (!in.flags().row_contiguous) {
        throw std::logic_error(name_ + " got an input that is not row-contiguous");
      }
      ins.emplace_back(in);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (shared_.at(i) < 0) {
        outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
      } else {
        outputs[i].copy_shared_buffer(inputs.at(shared_[i]));
        // One view of the memory only: the output's.
        ins.at(shared_[i]) = Memory(ins[shared_[i]].dtype);
      }
      outs.emplace_back(outputs[i]);
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [kernel = kernel_, ins = std::move(ins), outs = std::move(outs)] { run(**kernel, ins, outs); });
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error(name_ + " has no GPU kernel");
  }

 private:
  std::shared_ptr<rust::Box<Kernel>> kernel_;
  std::string name_;
  std::vector<std::int32_t> shared_;
  std::string failure_;
};

// Whether an array is, or will be, row-major: evaluated arrays tell, and kernels write no other layout.
bool is_row_major(const array& a) {
  if (a.is_available()) return a.flags().row_contiguous;
  return a.has_primitive() && dynamic_cast<const RustKernel*>(&a.primitive()) != nullptr;
}

// The kernel's outputs, computed by the calling thread.
std::unique_ptr<Arrays> run_now(
    const Kernel& kernel, const std::vector<array>& inputs, rust::Slice<const OutputSpec> outputs, Ints shared) {
  std::vector<Memory> ins, outs;
  ins.reserve(inputs.size());
  outs.reserve(outputs.size());
  for (array in : inputs) ins.emplace_back(in);
  auto results = std::make_unique<Arrays>();
  results->list.reserve(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    mx::Shape shape(outputs[i].shape.begin(), outputs[i].shape.end());
    auto dtype = to_mlx(outputs[i].dtype);
    if (shared[i] < 0) {
      size_t bytes = mx::size_of(dtype);
      for (auto dim : shape) bytes *= dim;
      results->list.push_back(allocate(std::move(shape), dtype, bytes));
    } else {
      array out(std::move(shape), dtype, nullptr, {});
      out.copy_shared_buffer(inputs.at(shared[i]));
      out.set_status(array::Status::available);
      // One view of the memory only: the output's.
      ins.at(shared[i]) = Memory(ins[shared[i]].dtype);
      results->list.push_back(std::move(out));
    }
    outs.emplace_back(results->list.back());
  }
  run(kernel, ins, outs);
  return results;
}

}  // namespace

std::optional<size_t> kernel_allocates(const array& a) {
  const auto* kernel = dynamic_cast<const RustKernel*>(&a.primitive());
  return kernel ? std::optional(kernel->allocates(a.outputs())) : std::nullopt;
}

std::unique_ptr<Arrays> apply_kernel(
    rust::Box<Kernel> kernel, const Arrays& inputs, rust::Slice<const OutputSpec> outputs, Ints shared) {
  std::string failure;
  if (std::all_of(inputs.list.begin(), inputs.list.end(), is_ready)) {
    // A failure is reported by the evaluation, like that of any other operation.
    try {
      return run_now(*kernel, inputs.list, outputs, shared);
    } catch (const std::exception& e) {
      failure = e.what();
    }
  }
  std::vector<array> contiguous_inputs;
  for (const auto& in : inputs.list) {
    // No copy where none is needed.
    contiguous_inputs.push_back(is_row_major(in) ? in : mx::contiguous(in));
  }
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& out : outputs) {
    shapes.emplace_back(out.shape.begin(), out.shape.end());
    dtypes.push_back(to_mlx(out.dtype));
  }
  auto primitive = std::make_shared<RustKernel>(
      mx::default_stream(mx::Device::cpu), std::move(kernel), shared, std::move(failure));
  return std::make_unique<Arrays>(
      Arrays{array::make_arrays(std::move(shapes), dtypes, primitive, contiguous_inputs)});
}

}  // namespace lanner
