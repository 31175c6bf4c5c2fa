// As much of TensorFlow's C++ as row_ops/ uses, so that the operations run without TensorFlow: the
// same host code launches the same kernels on a stream of ours.
//
// operations.py makes headers with TensorFlow's names that include this one. Memory comes from a
// list of freed blocks of the same size, which is right because all work is on one stream. The same
// sequence of operations gets the same addresses, so a CUDA graph can hold it.
#pragma once
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tensorflow {

using int64 = long long;
using mutex = std::mutex;

class mutex_lock {
 public:
  explicit mutex_lock(mutex& m) : lock_(m) {}

 private:
  std::unique_lock<mutex> lock_;
};

class Status {
 public:
  Status() = default;
  explicit Status(std::string words) : words_(std::move(words)), ok_(false) {}
  bool ok() const { return ok_; }
  const std::string& words() const { return words_; }

 private:
  std::string words_;
  bool ok_ = true;
};
inline Status OkStatus() { return {}; }

namespace errors {
template <class... Args>
Status Any(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return Status(out.str());
}
template <class... Args> Status InvalidArgument(const Args&... a) { return Any(a...); }
template <class... Args> Status FailedPrecondition(const Args&... a) { return Any(a...); }
template <class... Args> Status Internal(const Args&... a) { return Any(a...); }
template <class... Args> Status ResourceExhausted(const Args&... a) { return Any(a...); }
}  // namespace errors

#define TF_RETURN_IF_ERROR(...)                                  \
  do {                                                           \
    ::tensorflow::Status status_of_call = (__VA_ARGS__);         \
    if (!status_of_call.ok()) return status_of_call;             \
  } while (0)
#define OP_REQUIRES(context, condition, status) \
  do {                                          \
    if (!(condition)) {                         \
      (context)->Fail(status);                  \
      return;                                   \
    }                                           \
  } while (0)
#define OP_REQUIRES_OK(context, ...)                     \
  do {                                                   \
    ::tensorflow::Status status_of_call = (__VA_ARGS__); \
    if (!status_of_call.ok()) {                          \
      (context)->Fail(status_of_call);                   \
      return;                                            \
    }                                                    \
  } while (0)

enum DataType {  // TensorFlow's numbers
  DT_FLOAT = 1, DT_DOUBLE = 2, DT_INT32 = 3, DT_UINT8 = 4, DT_INT64 = 9, DT_BFLOAT16 = 14,
  DT_RESOURCE = 20, DT_UINT32 = 22,
};
inline std::size_t SizeOf(DataType type) {
  switch (type) {
    case DT_UINT8: return 1;
    case DT_BFLOAT16: return 2;
    case DT_FLOAT: case DT_INT32: case DT_UINT32: return 4;
    default: return 8;
  }
}
constexpr const char* DEVICE_GPU = "GPU";
constexpr const char* DEVICE_CPU = "CPU";

// Memory of the device, never given back to it.
class Memory {
 public:
  static Memory& The() {
    static Memory& one = *new Memory;
    return one;
  }
  std::size_t total = 0;

  void* Take(std::size_t bytes) {
    auto& freed = freed_[bytes];
    if (!freed.empty()) {
      void* at = freed.back();
      freed.pop_back();
      return at;
    }
    void* at = nullptr;
    if (Allocate(&at, bytes) != 0) return nullptr;
    total += bytes;
    return at;
  }
  void Give(void* at, std::size_t bytes) { freed_[bytes].push_back(at); }

 private:
  static int Allocate(void** at, std::size_t bytes) {
    static const auto allocate = reinterpret_cast<int (*)(void**, std::size_t)>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2"));
    return allocate ? allocate(at, bytes) : -1;
  }
  std::map<std::size_t, std::vector<void*>> freed_;
};

class TensorShape {
 public:
  TensorShape() = default;
  TensorShape(std::initializer_list<long long> sizes) : sizes_(sizes) {}
  explicit TensorShape(std::vector<long long> sizes) : sizes_(std::move(sizes)) {}
  long long numbers() const {
    long long n = 1;
    for (long long each : sizes_) n *= each;
    return n;
  }
  const std::vector<long long>& sizes() const { return sizes_; }
  bool operator==(const TensorShape& other) const { return sizes_ == other.sizes_; }
  bool operator!=(const TensorShape& other) const { return sizes_ != other.sizes_; }
  std::string DebugString() const {
    std::string words = "[";
    for (long long each : sizes_) words += std::to_string(each) + ",";
    words.back() = ']';
    return sizes_.empty() ? "[]" : words;
  }

 private:
  std::vector<long long> sizes_;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* memory, DataType type, TensorShape shape)  // of somebody else
      : memory_(memory, [](void*) {}), type_(type), shape_(std::move(shape)) {}
  static Status Make(DataType type, const TensorShape& shape, Tensor* made) {
    const std::size_t bytes = (shape.numbers() * SizeOf(type) + 256) / 256 * 256;
    void* at = Memory::The().Take(bytes);
    if (at == nullptr) return errors::ResourceExhausted("no memory for ", shape.DebugString());
    made->memory_ = std::shared_ptr<void>(at, [bytes](void* p) { Memory::The().Give(p, bytes); });
    made->type_ = type;
    made->shape_ = shape;
    made->offset_ = 0;
    return OkStatus();
  }
  void* data() const { return static_cast<char*>(memory_.get()) + offset_; }
  DataType dtype() const { return type_; }
  const TensorShape& shape() const { return shape_; }
  int dims() const { return static_cast<int>(shape_.sizes().size()); }
  long long dim_size(int i) const { return shape_.sizes()[i]; }
  long long NumElements() const { return shape_.numbers(); }
  std::size_t TotalBytes() const { return NumElements() * SizeOf(type_); }
  bool RefCountIsOne() const { return memory_.use_count() == 1; }
  Tensor Slice(long long begin, long long end) const {
    Tensor part = *this;
    std::vector<long long> sizes = shape_.sizes();
    const long long row = sizes[0] ? NumElements() / sizes[0] : 0;
    sizes[0] = end - begin;
    part.shape_ = TensorShape(sizes);
    part.offset_ += begin * row * SizeOf(type_);
    return part;
  }
  template <class T>
  struct Scalar {
    T* at;
    T& operator()() const { return *at; }
  };
  template <class T>
  Scalar<T> scalar() const {
    return {static_cast<T*>(data())};
  }

 private:
  std::shared_ptr<void> memory_;
  DataType type_ = DT_FLOAT;
  TensorShape shape_;
  std::size_t offset_ = 0;
};

struct Var {
  tensorflow::mutex mutex_;
  Tensor tensor_;
  std::atomic<bool> copy_on_read_mode{false};
  tensorflow::mutex* mu() { return &mutex_; }
  Tensor* tensor() { return &tensor_; }
};
struct ResourceHandle {
  Var* var;
};
namespace core {
template <class T>
class RefCountPtr {
 public:
  T* operator->() const { return at_; }
  void reset(T* at) { at_ = at; }

 private:
  T* at_ = nullptr;
};
}  // namespace core

struct Attributes {
  std::map<std::string, std::vector<double>> of;
};

class OpKernelConstruction {
 public:
  explicit OpKernelConstruction(const Attributes& attributes) : attributes_(attributes) {}
  template <class T>
  Status GetAttr(const char* name, T* value) const {
    const auto found = attributes_.of.find(name);
    if (found == attributes_.of.end()) return errors::InvalidArgument("no attribute ", name);
    Assign(found->second, value);
    return OkStatus();
  }
  void Fail(const Status& status) { status_ = status; }
  const Status& status() const { return status_; }

 private:
  template <class T>
  static void Assign(const std::vector<double>& from, T* to) { *to = static_cast<T>(from[0]); }
  static void Assign(const std::vector<double>& from, bool* to) { *to = from[0] != 0; }
  static void Assign(const std::vector<double>& from, std::vector<int>* to) {
    to->assign(from.begin(), from.end());
  }
  const Attributes& attributes_;
  Status status_;
};

class OpInputList {
 public:
  int size() const { return static_cast<int>(all_.size()); }
  const Tensor& operator[](int i) const { return all_[i]; }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  std::vector<Tensor> all_;
};

class OpOutputList {
 public:
  int size() const { return count_; }
  Status allocate(int i, const TensorShape& shape, Tensor** made);
  class OpKernelContext* context_ = nullptr;
  int first_ = 0, count_ = 0;
};

// Streams, as far as `RawStream` in queue.h looks.
struct PlatformHandle {
  void* stream;
};
struct Stream {
  void* raw;
  PlatformHandle platform_specific_handle() const { return {raw}; }
};
struct DeviceContext {
  Stream stream_;
  Stream* stream() { return &stream_; }
};

// What an operation declares; `count` is an attribute's name, or empty for one tensor.
struct Port {
  std::string name, count, type;
};
struct OpDefinition {
  std::string name;
  std::vector<Port> inputs, outputs;
};
std::map<std::string, OpDefinition>& Definitions();

class OpKernelContext {
 public:
  OpKernelContext(const OpDefinition& definition, const Attributes& attributes,
                  std::map<std::string, std::vector<Tensor>> inputs, DeviceContext* device)
      : definition_(definition), attributes_(attributes), inputs_(std::move(inputs)),
        device_(device), outputs(First(definition.outputs.size())) {}

  Status input(const char* name, const Tensor** found) {
    auto& all = inputs_[name];
    if (all.size() != 1) return errors::InvalidArgument("input ", name, " is not one tensor");
    *found = &all[0];
    return OkStatus();
  }
  Status input_list(const char* name, OpInputList* found) {
    found->all_ = inputs_[name];
    return OkStatus();
  }
  Status output_list(const char* name, OpOutputList* found) {
    for (std::size_t i = 0; i < definition_.outputs.size(); ++i)
      if (definition_.outputs[i].name == name) {
        *found = {};
        found->context_ = this, found->first_ = First(i), found->count_ = Count(i);
        return OkStatus();
      }
    return errors::InvalidArgument("no output ", name);
  }
  Status allocate_output(int i, const TensorShape& shape, Tensor** made) {
    TF_RETURN_IF_ERROR(Tensor::Make(TypeOf(i), shape, &outputs[i]));
    *made = &outputs[i];
    return OkStatus();
  }
  Status allocate_temp(DataType type, const TensorShape& shape, Tensor* made) {
    return Tensor::Make(type, shape, made);
  }
  void set_output(int i, const Tensor& tensor) { outputs[i] = tensor; }
  DeviceContext* op_device_context() { return device_; }
  void Fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  const Status& status() const { return status_; }

 private:
  int Count(std::size_t port) const {
    const std::string& count = definition_.outputs[port].count;
    return count.empty() ? 1 : static_cast<int>(attributes_.of.at(count)[0]);
  }
  int First(std::size_t port) const {
    int first = 0;
    for (std::size_t i = 0; i < port; ++i) first += Count(i);
    return first;
  }
  DataType TypeOf(int output) const {
    static const std::map<std::string, DataType> known = {
        {"float", DT_FLOAT}, {"int64", DT_INT64}, {"uint32", DT_UINT32}, {"uint8", DT_UINT8}};
    for (std::size_t i = 0; i < definition_.outputs.size(); ++i)
      if (output < First(i) + Count(i)) {
        const std::string& type = definition_.outputs[i].type;
        const auto found = known.find(type);
        if (found != known.end()) return found->second;
        return static_cast<DataType>(attributes_.of.at(type)[0]);
      }
    std::abort();
  }

  const OpDefinition& definition_;
  const Attributes& attributes_;
  std::map<std::string, std::vector<Tensor>> inputs_;
  DeviceContext* device_;
  Status status_;

 public:
  std::vector<Tensor> outputs;
};

inline Status OpOutputList::allocate(int i, const TensorShape& shape, Tensor** made) {
  return context_->allocate_output(first_ + i, shape, made);
}

inline Status LookupResource(OpKernelContext*, const ResourceHandle& handle,
                             core::RefCountPtr<Var>* found) {
  if (handle.var == nullptr) return errors::InvalidArgument("no such variable");
  found->reset(handle.var);
  return OkStatus();
}

class OpKernel {
 public:
  explicit OpKernel(OpKernelConstruction*) {}
  virtual ~OpKernel() = default;
  virtual void Compute(OpKernelContext* context) = 0;
};

// Registrations of operations and of their code.
namespace shape_inference {
struct Any {};
constexpr Any UnknownShape, NoOutputs;
}  // namespace shape_inference

struct OpBuilder {
  OpDefinition made;
  explicit OpBuilder(const char* name) { made.name = name; }
  static Port Parse(const std::string& words) {  // "name: type" or "name: N * type"
    const auto colon = words.find(": "), star = words.find(" * ");
    const std::string type = words.substr(star == std::string::npos ? colon + 2 : star + 3);
    return {words.substr(0, colon),
            star == std::string::npos ? "" : words.substr(colon + 2, star - colon - 2), type};
  }
  OpBuilder& Attr(const char*) { return *this; }
  OpBuilder& Input(const char* words) {
    made.inputs.push_back(Parse(words));
    return *this;
  }
  OpBuilder& Output(const char* words) {
    made.outputs.push_back(Parse(words));
    return *this;
  }
  OpBuilder& SetIsStateful() { return *this; }
  OpBuilder& SetShapeFn(shape_inference::Any) { return *this; }
};
struct OpRegistrar {
  OpRegistrar(const OpBuilder& builder) { Definitions()[builder.made.name] = builder.made; }
};

using Factory = std::function<OpKernel*(OpKernelConstruction*)>;
std::map<std::string, Factory>& Factories();
struct Name {
  std::string name;
  explicit Name(const char* words) : name(words) {}
  Name& Device(const char*) { return *this; }
  Name& HostMemory(const char*) { return *this; }
};
struct KernelRegistrar {
  KernelRegistrar(const Name& name, Factory factory) { Factories()[name.name] = std::move(factory); }
};

}  // namespace tensorflow

#define STAND_IN_JOIN_(a, b) a##b
#define STAND_IN_JOIN(a, b) STAND_IN_JOIN_(a, b)
#define REGISTER_OP(name) \
  static const ::tensorflow::OpRegistrar STAND_IN_JOIN(op_, __COUNTER__) = ::tensorflow::OpBuilder(name)
#define REGISTER_KERNEL_BUILDER(builder, Class)                              \
  static const ::tensorflow::KernelRegistrar STAND_IN_JOIN(kernel_, __COUNTER__)( \
      ::tensorflow::builder,                                                 \
      [](::tensorflow::OpKernelConstruction* c) -> ::tensorflow::OpKernel* { return new Class(c); })
