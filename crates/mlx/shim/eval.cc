// Evaluation in parts, so that the memory of a graph does not depend on the delay of MLX's stream.
#include <optional>
#include <stack>
#include <string_view>
#include <unordered_map>

#include "mlx/primitives.h"
#include "lanner-mlx/src/bridge.rs.h"

namespace lanner {

namespace {

thread_local size_t run_ahead = SIZE_MAX;

// An operation of a graph, by one of its outputs.
struct Op {
  std::optional<array> output;
  // The last operation that reads any of its outputs; SIZE_MAX for requested arrays.
  size_t last_use;
};

// Outputs that share the memory of an input.
bool is_view(const array& a) {
  std::string_view name = a.primitive().name();
  return name == "Broadcast" || name == "Transpose" || name == "Slice" || name == "Squeeze" || name == "ExpandDims";
}

// Most bytes that an operation allocates: its outputs, and row-major copies of inputs not yet
// evaluated.
size_t most_allocated(const array& a) {
  if (auto bytes = kernel_allocates(a)) return *bytes;
  if (is_view(a)) return 0;
  size_t bytes = 0;
  for (const auto& out : a.outputs()) bytes += out.nbytes();
  for (const auto& in : a.inputs()) bytes += in.is_available() ? 0 : in.nbytes();
  return bytes;
}

// The operations still to be computed, in topological order.
struct Order {
  std::vector<Op> ops;
  // Operations by the ids of their outputs.
  std::unordered_map<std::uintptr_t, size_t> index;

  explicit Order(const std::vector<array>& asked) {
    for (const auto& a : asked) visit(a);
    for (const auto& a : asked) {
      if (auto op = index.find(a.id()); op != index.end()) ops[op->second].last_use = SIZE_MAX;
    }
  }

  void visit(const array& asked) {
    // Arrays, each with its next input to visit.
    std::stack<std::pair<array, size_t>> open;
    if (is_new(asked)) open.emplace(asked, 0);
    while (!open.empty()) {
      auto& [a, next] = open.top();
      if (next < a.inputs().size()) {
        const array& in = a.inputs()[next++];
        if (is_new(in)) open.emplace(in, 0);
        continue;
      }
      if (!index.contains(a.id())) add(a);
      open.pop();
    }
  }

  bool is_new(const array& a) const {
    return a.status() == array::Status::unscheduled && a.has_primitive() && !index.contains(a.id());
  }

  void add(const array& a) {
    size_t here = ops.size();
    for (const auto& out : a.outputs()) index.emplace(out.id(), here);
    for (const auto& in : a.inputs()) {
      if (auto op = index.find(in.id()); op != index.end()) ops[op->second].last_use = here;
    }
    ops.push_back(Op{a, here});
  }

  // Computes operations `from..to`. Only outputs read later are requested: MLX may reuse the memory of
  // the others.
  void compute(size_t from, size_t to) {
    std::vector<array> needed;
    for (size_t i = from; i < to; ++i) {
      if (ops[i].last_use >= to) needed.push_back(*ops[i].output);
      ops[i].output.reset();
    }
    mx::eval(std::move(needed));
  }
};

}  // namespace

void set_run_ahead(size_t bytes) { run_ahead = bytes; }

void eval(const Arrays& list) {
  if (run_ahead == SIZE_MAX || on_gpu()) {
    mx::eval(list.list);
    return;
  }
  Order order(list.list);
  size_t from = 0, bytes = 0;
  for (size_t i = 0; i < order.ops.size(); ++i) {
    size_t more = most_allocated(*order.ops[i].output);
    if (i > from && bytes + more > run_ahead) {
      order.compute(from, i);
      from = i;
      bytes = 0;
      // Its inputs are evaluated now.
      more = most_allocated(*order.ops[i].output);
    }
    bytes += more;
  }
  if (from == 0) {
    order.ops.clear();
    mx::eval(list.list);
  } else {
    order.compute(from, order.ops.size());
  }
}

// On the CPU nothing is left running: kernels that write in place run at once, on the calling thread.
void async_eval(const Arrays& list) { on_gpu() ? mx::async_eval(list.list) : eval(list); }

}  // namespace lanner
