// Kernels in Metal's language, which MLX compiles for its GPU and runs as operations of its graph.
#include <sstream>
#include <unordered_map>

#include "mlx/backend/metal/metal.h"
#include "mlx/export.h"
#include "mlx/fast_primitives.h"
#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

namespace {

// Names that are separated by spaces.
std::vector<std::string> split(rust::Str names) {
  std::vector<std::string> all;
  std::istringstream from{std::string(names)};
  for (std::string name; from >> name;) all.push_back(name);
  return all;
}

// MLX reads the whole source to make one of these, so a thread makes it once.
const mx::fast::CustomKernelFunction& function(const MetalSource& kernel) {
  thread_local std::unordered_map<std::string, mx::fast::CustomKernelFunction> made;
  std::string name(kernel.name);
  if (auto known = made.find(name); known != made.end()) return known->second;
  auto made_now = mx::fast::metal_kernel(
      name, split(kernel.inputs), split(kernel.outputs), std::string(kernel.body), std::string(kernel.header));
  return made.emplace(std::move(name), std::move(made_now)).first->second;
}

std::vector<array> launch(
    const MetalSource& kernel, const std::vector<array>& inputs, rust::Slice<const OutputSpec> outputs,
    rust::Slice<const MetalTemplateArg> template_args, Ints threads) {
  std::vector<std::pair<std::string, mx::fast::TemplateArg>> arguments;
  for (const auto& arg : template_args) {
    mx::fast::TemplateArg value = arg.value;
    if (arg.kind == MetalKind::Bool) value = arg.value != 0;
    if (arg.kind == MetalKind::Type) value = to_mlx(arg.dtype);
    arguments.emplace_back(std::string(arg.name), value);
  }
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& out : outputs) {
    shapes.emplace_back(out.shape.begin(), out.shape.end());
    dtypes.push_back(to_mlx(out.dtype));
  }
  return function(kernel)(
      inputs, shapes, dtypes, {threads[0], threads[1], threads[2]}, {threads[3], threads[4], threads[5]},
      arguments, std::nullopt, false, mx::Device(mx::Device::gpu));
}

}  // namespace

bool metal_available() { return mx::metal::is_available(); }

std::unique_ptr<Arrays> metal_launch(
    const MetalSource& kernel, const Arrays& inputs, rust::Slice<const OutputSpec> outputs,
    rust::Slice<const MetalTemplateArg> template_args, Ints threads) {
  return std::make_unique<Arrays>(Arrays{launch(kernel, inputs.list, outputs, template_args, threads)});
}

// Without Metal, MLX builds a node of such a kernel only where it exports a function.
rust::String metal_text(
    const MetalSource& kernel, const Arrays& inputs, rust::Slice<const OutputSpec> outputs,
    rust::Slice<const MetalTemplateArg> template_args, Ints threads) {
  std::string text;
  const std::function<std::vector<array>(const mx::Args&)> build = [&](const mx::Args& own) {
    auto outs = launch(kernel, own, outputs, template_args, threads);
    text = std::get<1>(static_cast<const mx::fast::CustomKernel&>(outs.at(0).primitive()).state());
    return outs;
  };
  mx::export_function(mx::ExportCallback([](const auto&) {}), build, inputs.list);
  return rust::String(text);
}

}  // namespace lanner
