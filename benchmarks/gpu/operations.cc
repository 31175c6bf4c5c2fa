// Runs lists of the project's operations without TensorFlow, and without Python between them.
//
// operations.py compiles this file with row_ops.cc on the headers of tensorflow.h. A node is an
// operation of row_ops/, or "Launch": one kernel of another program. Its inputs are memory of the
// caller or outputs of nodes. A node keeps its outputs until it runs again.
#include "row_ops.cc"

namespace tensorflow {
std::map<std::string, OpDefinition>& Definitions() {
  static auto& all = *new std::map<std::string, OpDefinition>;
  return all;
}
std::map<std::string, Factory>& Factories() {
  static auto& all = *new std::map<std::string, Factory>;
  return all;
}
}  // namespace tensorflow

namespace {

namespace tf = tensorflow;

// What a node takes: a tensor of the caller, an output of a node, or a number by value.
struct Source {
  enum Kind { kGiven, kMade, kValue } kind;
  int index, output;
};

struct Node {
  std::string op;
  tf::Attributes attributes;
  std::vector<std::pair<std::string, Source>> inputs;
  std::unique_ptr<tf::OpKernel> kernel;  // null for "Launch"
  void* function = nullptr;
  unsigned blocks = 1;
  std::vector<tf::Tensor> outputs;
};

struct World {
  tf::DeviceContext device{};
  std::vector<tf::Tensor> given;
  std::vector<std::unique_ptr<tf::Var>> variables;
  std::vector<std::unique_ptr<tf::ResourceHandle>> handles;
  std::vector<std::unique_ptr<Node>> nodes;
  std::string error;
};
World& world = *new World;

tf::Attributes Parse(const char* words) {
  tf::Attributes found;
  std::istringstream parts(words);
  for (std::string part; parts >> part;) {
    const auto equals = part.find('=');
    std::istringstream numbers(part.substr(equals + 1));
    auto& list = found.of[part.substr(0, equals)];
    for (std::string number; std::getline(numbers, number, ',');) list.push_back(std::stod(number));
  }
  return found;
}

tf::Tensor Fetch(const Source& source) {
  if (source.kind == Source::kMade) return world.nodes[source.index]->outputs[source.output];
  return world.given[source.index];
}

tf::Status RunLaunch(Node& node) {
  const auto& of = node.attributes.of["outputs"];  // type, dimensions, sizes; and so on
  node.outputs.clear();
  for (std::size_t i = 0; i < of.size();) {
    const auto sizes = of.begin() + i + 2;
    const std::vector<long long> shape(sizes, sizes + static_cast<int>(of[i + 1]));
    node.outputs.emplace_back();
    TF_RETURN_IF_ERROR(tf::Tensor::Make(static_cast<tf::DataType>(of[i]), tf::TensorShape(shape),
                                        &node.outputs.back()));
    i += 2 + shape.size();
  }
  std::vector<tf::Tensor> tensors;
  for (const auto& [name, source] : node.inputs) tensors.push_back(Fetch(source));
  tensors.insert(tensors.end(), node.outputs.begin(), node.outputs.end());
  std::vector<void*> addresses, arguments(tensors.size());
  for (const auto& tensor : tensors) addresses.push_back(tensor.data());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool value = i < node.inputs.size() && node.inputs[i].second.kind == Source::kValue;
    arguments[i] = value ? addresses[i] : &addresses[i];
  }
  const int error = TheDriver().launch(node.function, node.blocks, 1, 1, BLOCK, 1, 1, 0,
                                       world.device.stream_.raw, arguments.data(), nullptr);
  return error ? tf::errors::Internal("CUDA error ", error) : tf::OkStatus();
}

tf::Status RunNode(Node& node) {
  if (!node.kernel) return RunLaunch(node);
  std::map<std::string, std::vector<tf::Tensor>> inputs;
  for (const auto& [name, source] : node.inputs) inputs[name].push_back(Fetch(source));
  node.outputs.clear();  // so that their memory can be used again, as TensorFlow would
  tf::OpKernelContext context(tf::Definitions()[node.op], node.attributes, std::move(inputs),
                              &world.device);
  node.kernel->Compute(&context);
  if (context.status().ok()) node.outputs = std::move(context.outputs);
  return context.status();
}

int Fail(const std::string& words) {
  world.error = words;
  return -1;
}

}  // namespace

extern "C" {

void world_use_stream(void* stream) { world.device.stream_.raw = stream; }
const char* world_error() { return world.error.c_str(); }
long long world_bytes() { return static_cast<long long>(tf::Memory::The().total); }

// Memory of the caller as a tensor; returns its number.
int world_tensor(void* data, int type, int dims, const long long* sizes) {
  world.given.emplace_back(data, static_cast<tf::DataType>(type),
                           tf::TensorShape(std::vector<long long>(sizes, sizes + dims)));
  return static_cast<int>(world.given.size()) - 1;
}
// A variable whose memory is that of a tensor; returns the number of its handle.
int world_variable(int tensor) {
  auto variable = std::make_unique<tf::Var>();
  std::swap(*variable->tensor(), world.given[tensor]);  // the variable alone holds it
  world.handles.push_back(std::make_unique<tf::ResourceHandle>(tf::ResourceHandle{variable.get()}));
  world.variables.push_back(std::move(variable));
  world.given[tensor] = tf::Tensor(world.handles.back().get(), tf::DT_RESOURCE, tf::TensorShape({}));
  return tensor;
}
// An operation with attributes such as "tables=0,1 wait=0", or a kernel; returns its number, or -1.
int world_node(const char* op, const char* attributes, void* function, int blocks) {
  auto node = std::make_unique<Node>();
  node->op = op, node->attributes = Parse(attributes);
  node->function = function, node->blocks = blocks;
  if (function == nullptr) {
    const auto factory = tf::Factories().find(op);
    if (factory == tf::Factories().end()) return Fail("no such operation");
    tf::OpKernelConstruction construction(node->attributes);
    node->kernel.reset(factory->second(&construction));
    if (!construction.status().ok()) return Fail(construction.status().words());
  }
  world.nodes.push_back(std::move(node));
  return static_cast<int>(world.nodes.size()) - 1;
}
void world_input(int node, const char* name, int kind, int index, int output) {
  world.nodes[node]->inputs.push_back({name, {static_cast<Source::Kind>(kind), index, output}});
}
// Runs these nodes in order, all of them `times` times. Returns 0, or -1 with `world_error`.
int world_run(const int* nodes, int count, int times) {
  for (int k = 0; k < times; ++k)
    for (int i = 0; i < count; ++i) {
      Node& node = *world.nodes[nodes[i]];
      const tf::Status status = RunNode(node);
      if (!status.ok()) return Fail(node.op + ": " + status.words());
    }
  return 0;
}
// The type, the dimensions and the sizes of an output.
void world_shape(int node, int output, int* type, int* dims, long long* sizes) {
  const tf::Tensor& tensor = world.nodes[node]->outputs[output];
  *type = tensor.dtype(), *dims = tensor.dims();
  for (int i = 0; i < tensor.dims(); ++i) sizes[i] = tensor.dim_size(i);
}
// Copies an output to the host when all work is done; returns CUDA's error.
int world_read(int node, int output, void* to) {
  const tf::Tensor& tensor = world.nodes[node]->outputs[output];
  const auto from = reinterpret_cast<std::uint64_t>(tensor.data());
  void* stream = world.device.stream_.raw;
  if (tensor.TotalBytes() == 0) return 0;
  const int error = TheDriver().to_host(to, from, tensor.TotalBytes(), stream);
  return error ? error : TheDriver().wait(stream);
}
// Memory of the host that a kernel can reach, as the status of an optimizer is; null without one.
void* world_pinned(long long bytes) {
  void* at = nullptr;
  return TheDriver().host_memory(&at, bytes, kReachable) == 0 ? at : nullptr;
}

}  // extern "C"
