// A primitive whose CPU evaluation is a Rust function, run in order on MLX's CPU stream.
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "mlx/src/bridge.rs.h"

namespace lanner {

namespace {

// An array of no elements may have no memory at all.
template <typename Byte>
rust::Slice<Byte> buffer(array& a) {
  if (a.nbytes() == 0) return {};
  Byte* data = a.data<std::uint8_t>();
  if (data == nullptr) throw std::bad_alloc();
  return {data, a.nbytes()};
}

class RustKernel : public mx::Primitive {
 public:
  RustKernel(mx::Stream stream, rust::Box<Kernel> kernel, Ints shared)
      : mx::Primitive(stream),
        kernel_(std::make_shared<rust::Box<Kernel>>(std::move(kernel))),
        name_(std::string(kernel_name(**kernel_))),
        shared_(shared.begin(), shared.end()) {}

  const char* name() const override { return name_.c_str(); }

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    std::vector<array> ins, outs;
    for (const auto& in : inputs) {
      if (!in.flags().row_contiguous) {
        throw std::logic_error(name_ + " got an input that is not row-contiguous");
      }
      ins.push_back(array::unsafe_weak_copy(in));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (shared_.at(i) < 0) {
        outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
      } else {
        outputs[i].copy_shared_buffer(inputs.at(shared_[i]));
        // One view of the memory only: the output's.
        ins.at(shared_[i]) = array(mx::allocator::malloc(0), mx::Shape{0}, outputs[i].dtype());
      }
      outs.push_back(array::unsafe_weak_copy(outputs[i]));
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [kernel = kernel_, ins = std::move(ins), outs = std::move(outs)]() mutable { run(*kernel, ins, outs); });
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error(name_ + " has no GPU kernel");
  }

 private:
  static void run(rust::Box<Kernel>& kernel, std::vector<array>& ins, std::vector<array>& outs) {
    std::vector<View> inputs;
    std::vector<ViewMut> outputs;
    for (auto& in : ins) {
      inputs.push_back(View{from_mlx(in.dtype()), shape_of(in), buffer<const std::uint8_t>(in)});
    }
    for (auto& out : outs) {
      outputs.push_back(ViewMut{from_mlx(out.dtype()), shape_of(out), buffer<std::uint8_t>(out)});
    }
    run_kernel(*kernel, {inputs.data(), inputs.size()}, {outputs.data(), outputs.size()});
  }

  std::shared_ptr<rust::Box<Kernel>> kernel_;
  std::string name_;
  std::vector<std::int32_t> shared_;
};

}  // namespace

std::unique_ptr<Arrays> apply_kernel(
    rust::Box<Kernel> kernel, const Arrays& inputs, rust::Slice<const OutputSpec> outputs, Ints shared) {
  std::vector<array> contiguous_inputs;
  for (const auto& in : inputs.list) {
    // Weights, the common case, are evaluated and contiguous already: no node for them.
    bool ready = in.is_available() && in.flags().row_contiguous;
    contiguous_inputs.push_back(ready ? in : mx::contiguous(in));
  }
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& out : outputs) {
    shapes.emplace_back(out.shape.begin(), out.shape.end());
    dtypes.push_back(to_mlx(out.dtype));
  }
  auto primitive = std::make_shared<RustKernel>(mx::default_stream(mx::Device::cpu), std::move(kernel), shared);
  return std::make_unique<Arrays>(
      Arrays{array::make_arrays(std::move(shapes), dtypes, primitive, contiguous_inputs)});
}

}  // namespace lanner
