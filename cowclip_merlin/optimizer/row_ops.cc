// TensorFlow operations that launch the row kernels on TensorFlow's own stream.
//
// The host never waits for the device in a step: sizes that depend on the data stay in device
// memory, and a step that must not happen (a gradient that is not finite, an id outside its table)
// is refused by the kernels themselves. The host learns of it from a copy of `status` that it
// looks at before the next operation, and raises the error then.
//
// Python compiles the kernels and registers each table once (`cowclip_add_table`); an operation
// names its tables by the numbers that this returned. A table of kind "host" has functions of the
// emulated kernels instead, so that tests run the same code without a device.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

#if __has_include("xla/stream_executor/stream.h")
#include "xla/stream_executor/stream.h"
#else
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#include "tensorflow/compiler/xla/stream_executor/stream_executor_internal.h"
#endif

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
using Word = std::uint32_t;
using Long = long long;

// The order of FUNCTIONS in gpu_ops.py.
enum Function {
  kLoadKeys, kCountDigits, kScanCounts, kScatterDigits, kCountHeads, kWriteHeads, kSumGroups,
  kSumQueued, kJoinQueued, kStepGroups, kSummarize, kCatchUpRows, kFlushRows, kBiasCorrectedRate,
  kFunctions,
};

constexpr int kBlock = 256, kChunk = 16 * kBlock, kDigits = 256, kDigitBits = 8;
constexpr Long kSegment = 128;
constexpr Long kNone = std::numeric_limits<Long>::max();

}  // namespace

extern "C" {

// A table as Python registers it; the fields of `TableRecord` in gpu_ops.py. `slot` is its place
// in the status of its optimizer, which has the number `owner`.
struct CowClipTable {
  Long rows;
  std::int32_t d, tile, kind, exact, counted, blocks, passes, host, owner, slot;
  float l2, beta_1, beta_2, keep_m, keep_v, epsilon;
  double r, least, bound;
  void* functions[kFunctions];
};

// Writes one line for `row` (or id) of a table into `out`; `what` is 0 for a gradient that is not
// finite, 1 for an id outside the table. With 2, rows were stale: it warns and writes nothing.
using CowClipDescribe = void (*)(int table, Long row, int what, char* out, int size);

}  // extern "C"

namespace {

std::mutex registry_mutex;
std::vector<std::unique_ptr<CowClipTable>> registry;
CowClipDescribe describe = nullptr;

// The number of the table with this slot of an optimizer; -1 if there is none.
int NumberOf(int owner, int slot) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  for (std::size_t i = 0; i < registry.size(); ++i)
    if (registry[i]->owner == owner && registry[i]->slot == slot) return static_cast<int>(i);
  return -1;
}

const CowClipTable* Find(int number) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  const bool known = number >= 0 && number < static_cast<int>(registry.size());
  return known ? registry[number].get() : nullptr;
}

// TensorFlow 2.13 renamed the way to the raw stream.
template <class Stream>
auto RawStream(Stream* stream, int) -> decltype(stream->platform_specific_handle().stream) {
  return stream->platform_specific_handle().stream;
}
template <class Stream>
void* RawStream(Stream* stream, long) {
  return stream->implementation()->GpuStreamHack();
}

// The functions of the CUDA driver that are used, found at run time: nothing is linked.
struct Driver {
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                void**, void**);
  int (*fill)(std::uint64_t, unsigned, std::size_t, void*);
  int (*to_host)(void*, std::uint64_t, std::size_t, void*);
  int (*to_device)(std::uint64_t, const void*, std::size_t, void*);
  int (*copy)(std::uint64_t, std::uint64_t, std::size_t, void*);
  int (*wait)(void*);
  int (*host_memory)(void**, std::size_t, unsigned);
};

template <class F>
void Load(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(library ? dlsym(library, name) : nullptr);
}

const Driver& TheDriver() {
  static const Driver driver = [] {
    Driver found{};
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    Load(library, "cuLaunchKernel", found.launch);
    Load(library, "cuMemsetD32Async", found.fill);
    Load(library, "cuMemcpyDtoHAsync_v2", found.to_host);
    Load(library, "cuMemcpyHtoDAsync_v2", found.to_device);
    Load(library, "cuMemcpyDtoDAsync_v2", found.copy);
    Load(library, "cuStreamSynchronize", found.wait);
    Load(library, "cuMemHostAlloc", found.host_memory);
    return found;
  }();
  return driver;
}

// Where the kernels run: a stream of the device, or the host itself in tests.
class Queue {
 public:
  Queue(OpKernelContext* context, bool host) : host_(host) {
    if (!host) stream_ = RawStream(context->op_device_context()->stream(), 0);
  }
  template <class... Args>
  void Launch(void* function, Long blocks, Args... args) {
    void* pointers[] = {static_cast<void*>(&args)...};
    const unsigned grid = static_cast<unsigned>(blocks);
    if (host_) {
      reinterpret_cast<void (*)(unsigned, unsigned, void**)>(function)(grid, kBlock, pointers);
    } else {
      Note(TheDriver().launch(function, grid, 1, 1, kBlock, 1, 1, 0, stream_, pointers, nullptr));
    }
  }
  void Zero(void* at, std::size_t words) {
    if (words == 0) return;
    if (host_) {
      std::memset(at, 0, 4 * words);
    } else {
      Note(TheDriver().fill(Address(at), 0, words, stream_));
    }
  }
  void Copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    if (host_) {
      std::memcpy(to, from, bytes);
    } else {
      Note(TheDriver().copy(Address(to), Address(from), bytes, stream_));
    }
  }
  void ToHost(void* to, const void* from, std::size_t bytes) {
    if (host_) {
      std::memcpy(to, from, bytes);
    } else {
      Note(TheDriver().to_host(to, Address(from), bytes, stream_));
    }
  }
  void ToDevice(void* to, const void* from, std::size_t bytes) {
    if (host_) {
      std::memcpy(to, from, bytes);
    } else {
      Note(TheDriver().to_device(Address(to), from, bytes, stream_));
    }
  }
  void Wait() {
    if (!host_) Note(TheDriver().wait(stream_));
  }
  // Memory of the host that a copy can go to while the host goes on; it is kept for ever.
  Long* Pinned(std::size_t bytes) {
    void* memory = nullptr;
    if (host_) {
      memory = std::malloc(bytes);
    } else {
      Note(TheDriver().host_memory(&memory, bytes, 0));
    }
    return static_cast<Long*>(memory);
  }
  int error() const { return error_; }

 private:
  static std::uint64_t Address(const void* at) { return reinterpret_cast<std::uint64_t>(at); }
  void Note(int result) {
    if (error_ == 0) error_ = result;
  }
  bool host_;
  void* stream_ = nullptr;
  int error_ = 0;
};

// What the host last saw of an optimizer's `status`, by the address of that variable's memory.
struct Seen {
  Long* pinned = nullptr;
  std::vector<bool> warned;
};

Seen& SeenOf(const void* status, std::size_t size, Queue& queue) {
  static std::mutex mutex;
  static std::unordered_map<const void*, Seen> all;
  std::lock_guard<std::mutex> lock(mutex);
  Seen& seen = all[status];
  if (seen.pinned == nullptr || seen.warned.size() < size) {
    seen.pinned = queue.Pinned(8 * size);
    seen.warned.assign(size, false);
    for (std::size_t i = 0; i < size; ++i) seen.pinned[i] = i % 3 == 0 ? 0 : kNone;
  }
  return seen;
}

// Memory of a variable that is locked: nobody else shares it, or it gets a copy of its own.
class Locked {
 public:
  tensorflow::Status Open(OpKernelContext* context, const tensorflow::ResourceHandle& handle,
                          Queue& queue) {
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handle, &variable_));
    lock_ = std::make_unique<tensorflow::mutex_lock>(*variable_->mu());
    Tensor* tensor = variable_->tensor();
    if (!tensor->RefCountIsOne()) {
      Tensor own;
      TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &own));
      queue.Copy(own.data(), tensor->data(), tensor->TotalBytes());
      *tensor = own;
    }
    variable_->copy_on_read_mode.store(true);  // whoever reads all of it gets a copy
    return tensorflow::OkStatus();
  }
  template <class T>
  T* data() const {
    return static_cast<T*>(variable_->tensor()->data());
  }
  Long size() const { return variable_->tensor()->NumElements(); }

 private:
  tensorflow::core::RefCountPtr<Var> variable_;
  std::unique_ptr<tensorflow::mutex_lock> lock_;
};

// One piece of device memory, cut into arrays.
class Workspace {
 public:
  std::size_t Reserve(std::size_t bytes) {
    const std::size_t at = size_;
    size_ += (bytes + 255) / 256 * 256;
    return at;
  }
  tensorflow::Status Allocate(OpKernelContext* context) {
    const auto size = static_cast<tensorflow::int64>(size_ + 256);
    return context->allocate_temp(tensorflow::DT_UINT8, tensorflow::TensorShape({size}), &memory_);
  }
  template <class T>
  T* At(std::size_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_.data()) + offset);
  }

 private:
  std::size_t size_ = 0;
  Tensor memory_;
};

// Distinct ids of a batch, in device memory.
struct Groups {
  Word *ids, *starts, *order, *u;
};

class RowOp : public OpKernel {
 public:
  explicit RowOp(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<int> numbers;
    OP_REQUIRES_OK(context, context->GetAttr("tables", &numbers));
    OP_REQUIRES_OK(context, context->GetAttr("wait", &wait_));
    for (int number : numbers) {
      const CowClipTable* table = Find(number);
      OP_REQUIRES(context, table != nullptr,
                  tensorflow::errors::FailedPrecondition(
                      "table number ", number, " is not registered in this process: CowClip's "
                      "training graph cannot be saved and run elsewhere"));
      tables_.push_back(table);
    }
  }

  void Compute(OpKernelContext* context) override {
    Queue queue(context, tables_[0]->host != 0);
    tensorflow::OpInputList handles, counts;
    OP_REQUIRES_OK(context, context->input_list("variables", &handles));
    OP_REQUIRES_OK(context, context->input_list("counts", &counts));
    std::vector<Locked> variables(handles.size());
    for (int i = 0; i < handles.size(); ++i) {
      const auto& handle = handles[i].scalar<tensorflow::ResourceHandle>()();
      OP_REQUIRES_OK(context, variables[i].Open(context, handle, queue));
    }
    const Locked& last = variables.back();
    status_size_ = last.size();
    Long* status = last.data<Long>();
    Seen& seen = SeenOf(status, status_size_, queue);
    if (wait_) Look(seen, status, queue);
    OP_REQUIRES_OK(context, Refused(seen, status, queue));
    std::vector<Long> steps(tables_.size(), 0);  // without "exact" nobody counts them
    for (int i = 0; i < counts.size(); ++i) steps[i] = counts[i].flat<tensorflow::int64>()(0);
    OP_REQUIRES_OK(context, Run(context, queue, variables, steps, status));
    if (wait_) {
      Look(seen, status, queue);
      OP_REQUIRES_OK(context, Refused(seen, status, queue));
    }
    OP_REQUIRES(context, queue.error() == 0,
                tensorflow::errors::Internal("CUDA error ", queue.error(), " in the row kernels"));
  }

 protected:
  virtual tensorflow::Status Run(OpKernelContext* context, Queue& queue,
                                 std::vector<Locked>& variables, std::vector<Long>& steps,
                                 Long* status) = 0;

  // Weights, moments, and if absent rows count their steps: last and history.
  int per_table() const { return tables_[0]->exact ? 5 : 3; }

  void Flush(Queue& queue, const CowClipTable& table, Locked* state, Long to, Long* status) {
    queue.Launch(table.functions[kFlushRows], table.blocks, state[0].data<float>(),
                 state[1].data<float>(), state[2].data<float>(), state[3].data<float>(),
                 state[4].data<float>(), to, table.rows, table.d, table.keep_m, table.keep_v,
                 table.epsilon, table.l2, status);
  }

  // The error of a step that was refused, once; rows that were stale only warn.
  tensorflow::Status Refused(Seen& seen, Long* status, Queue& queue) {
    const int slots = static_cast<int>(status_size_ - 1) / 3;
    for (const CowClipTable* table : tables_) {
      const int flag = 3 + 3 * table->slot;
      if (seen.pinned[flag] == 1 && !seen.warned[flag]) {
        seen.warned[flag] = true;
        Words(table->slot, 0, 2);
      }
    }
    if (seen.pinned[0] == 0) return tensorflow::OkStatus();
    queue.Wait();  // copies of steps that came after it may still be under way
    std::string words = "a step was refused";
    for (int slot = slots - 1; slot >= 0; --slot)
      for (int what = 0; what < 2; ++what) {
        const Long value = seen.pinned[1 + 3 * slot + what];
        if (value != kNone) words = Words(slot, value, what);
      }
    for (std::size_t i = 0; i < status_size_; ++i) seen.pinned[i] = i % 3 == 0 ? 0 : kNone;
    queue.ToDevice(status, seen.pinned, 8 * status_size_);
    queue.Wait();
    return tensorflow::errors::InvalidArgument(words);
  }

  std::string Words(int slot, Long row, int what) const {
    char words[1024] = "";
    const int number = NumberOf(tables_[0]->owner, slot);
    if (describe && number >= 0) describe(number, row, what, words, sizeof words);
    return words;
  }

  // What the device says of the steps so far; the host waits for it.
  void Look(Seen& seen, const Long* status, Queue& queue) {
    queue.ToHost(seen.pinned, status, 8 * status_size_);
    queue.Wait();
  }

  std::vector<const CowClipTable*> tables_;
  bool wait_ = false;
  std::size_t status_size_ = 0;
};

class CatchUpOp : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         std::vector<Long>& steps, Long* status) override {
    const Tensor* ids;
    TF_RETURN_IF_ERROR(context->input("ids", &ids));
    const Long n = ids->NumElements();
    for (std::size_t i = 0; n > 0 && i < tables_.size(); ++i) {
      const CowClipTable& table = *tables_[i];
      const Locked* state = &variables[i * per_table()];
      queue.Launch(table.functions[kCatchUpRows],
                   std::min<Long>(table.blocks, (n + kBlock - 1) / kBlock), state[0].data<float>(),
                   state[1].data<float>(), state[2].data<float>(), state[3].data<float>(),
                   state[4].data<float>(), steps[i], ids->data(),
                   static_cast<int>(ids->dtype() == tensorflow::DT_INT64), n, table.rows, table.d,
                   table.keep_m, table.keep_v, table.epsilon, table.l2, status,
                   table.slot);
    }
    return tensorflow::OkStatus();
  }
};

class StepOp : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         std::vector<Long>& steps, Long* status) override {
    tensorflow::OpInputList indices, values;
    const Tensor *rate, *iterations;
    TF_RETURN_IF_ERROR(context->input("rate", &rate));
    TF_RETURN_IF_ERROR(context->input("iterations", &iterations));
    TF_RETURN_IF_ERROR(context->input_list("indices", &indices));
    TF_RETURN_IF_ERROR(context->input_list("values", &values));
    Tensor *share, *mean;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tensorflow::TensorShape({}), &share));
    TF_RETURN_IF_ERROR(context->allocate_output(1, tensorflow::TensorShape({}), &mean));
    const std::size_t count = tables_.size();
    std::vector<Groups> groups(count);
    std::vector<float*> sums(count);
    Workspace common;
    const std::size_t at_counters = common.Reserve(3 * sizeof(Long));
    const std::size_t at_alpha = common.Reserve(sizeof(float));
    TF_RETURN_IF_ERROR(common.Allocate(context));
    auto* counters = common.At<unsigned long long>(at_counters);
    queue.Zero(counters, 6);
    auto* alpha = common.At<float>(at_alpha);
    const CowClipTable& any = *tables_[0];
    queue.Launch(any.functions[kBiasCorrectedRate], 1, rate->data(), iterations->data(), any.beta_1,
                 any.beta_2, alpha);
    std::vector<Workspace> spaces(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const Tensor &ids = indices[i], &g = values[i];
      const bool same = i > 0 && ids.data() == indices[i - 1].data() &&
                        ids.NumElements() == indices[i - 1].NumElements() &&
                        tables_[i]->rows == tables_[i - 1]->rows;
      if (same) {
        groups[i] = groups[i - 1];
      } else {
        TF_RETURN_IF_ERROR(Group(context, queue, i, ids, spaces[2 * i], status, &groups[i]));
      }
      TF_RETURN_IF_ERROR(
          Sum(context, queue, i, g, ids.NumElements(), groups[i], spaces[2 * i + 1], status,
              &sums[i]));
    }
    // No table is written before the gradients of all have been checked.
    for (std::size_t i = 0; i < count; ++i) {
      const CowClipTable& table = *tables_[i];
      Locked* state = &variables[i * per_table()];
      float *last = nullptr, *history = nullptr;
      if (table.exact) {
        if (steps[i] >= state[4].size()) {
          Flush(queue, table, state, steps[i], status);
          steps[i] = 0;
        }
        last = state[3].data<float>();
        history = state[4].data<float>();
      }
      queue.Launch(table.functions[kStepGroups], Blocks(table, indices[i].NumElements()),
                   state[0].data<float>(), state[1].data<float>(), state[2].data<float>(), sums[i],
                   groups[i].ids, groups[i].starts, groups[i].u, table.d, alpha,
                   table.keep_m, table.keep_v, table.epsilon, table.l2, table.kind, table.r,
                   table.least, table.bound, table.exact, last, history, steps[i], table.counted,
                   counters, status, table.slot);
    }
    queue.Launch(tables_[0]->functions[kSummarize], 1, counters, share->data(), mean->data());
    Seen& seen = SeenOf(status, status_size_, queue);
    queue.ToHost(seen.pinned, status, 8 * status_size_);
    tensorflow::OpOutputList done;
    TF_RETURN_IF_ERROR(context->output_list("done", &done));
    for (int i = 0; i < done.size(); ++i) {
      Tensor* output;
      TF_RETURN_IF_ERROR(done.allocate(i, tensorflow::TensorShape({1}), &output));
      output->flat<tensorflow::int64>()(0) = steps[i] + 1;
    }
    return tensorflow::OkStatus();
  }

  // Blocks for a kernel whose tiles take a row each: no more than there can be rows.
  static Long Blocks(const CowClipTable& table, Long n) {
    const Long needed = (n * table.tile + kBlock - 1) / kBlock;
    return std::max<Long>(1, std::min<Long>(table.blocks, needed));
  }

  tensorflow::Status Group(OpKernelContext* context, Queue& queue, std::size_t number,
                           const Tensor& ids, Workspace& space, Long* status, Groups* groups) {
    const CowClipTable& table = *tables_[number];
    const Long n = ids.NumElements(), chunks = (n + kChunk - 1) / kChunk;
    std::size_t arrays[6], at_counts, at_totals, at_u;
    for (auto& each : arrays) each = space.Reserve(4 * (n + 1));
    at_counts = space.Reserve(4 * kDigits * chunks);
    at_totals = space.Reserve(4 * kDigits);
    at_u = space.Reserve(4);
    TF_RETURN_IF_ERROR(space.Allocate(context));
    Word *keys = space.At<Word>(arrays[0]), *keys_to = space.At<Word>(arrays[1]);
    Word *order = space.At<Word>(arrays[2]), *order_to = space.At<Word>(arrays[3]);
    Word *counts = space.At<Word>(at_counts), *totals = space.At<Word>(at_totals);
    *groups = {space.At<Word>(arrays[4]), space.At<Word>(arrays[5]), nullptr,
               space.At<Word>(at_u)};
    if (n == 0) {
      queue.Zero(groups->u, 1);
      queue.Zero(groups->starts, 1);
      return tensorflow::OkStatus();
    }
    void* const* run = table.functions;
    queue.Launch(run[kLoadKeys], std::min<Long>(table.blocks, (n + kBlock - 1) / kBlock),
                 ids.data(), static_cast<int>(ids.dtype() == tensorflow::DT_INT64), n, table.rows,
                 keys, order, status, table.slot);
    for (int pass = 0; pass < table.passes; ++pass) {
      const int shift = pass * kDigitBits;
      queue.Launch(run[kCountDigits], chunks, keys, n, shift, counts);
      queue.Launch(run[kScanCounts], kDigits, counts, chunks, totals);
      queue.Launch(run[kScatterDigits], chunks, keys, order, n, shift, counts, totals, keys_to,
                   order_to);
      std::swap(keys, keys_to);
      std::swap(order, order_to);
    }
    queue.Launch(run[kCountHeads], chunks, keys, n, counts);
    queue.Launch(run[kScanCounts], 1, counts, chunks, groups->u);
    queue.Launch(run[kWriteHeads], chunks, keys, n, counts, groups->u, groups->ids,
                 groups->starts);
    groups->order = order;
    return tensorflow::OkStatus();
  }

  tensorflow::Status Sum(OpKernelContext* context, Queue& queue, std::size_t number,
                         const Tensor& values, Long n, const Groups& groups, Workspace& space,
                         Long* status, float** sums) {
    const CowClipTable& table = *tables_[number];
    const Long hots = n / kSegment + 1, pieces = 2 * hots, most = std::min(n, table.rows);
    const std::size_t at_g = space.Reserve(4 * (most + 1) * table.d);
    const std::size_t at_queued = space.Reserve(8);
    const std::size_t at_hot = space.Reserve(4 * hots), at_first = space.Reserve(4 * hots);
    const std::size_t at_begin = space.Reserve(4 * pieces), at_end = space.Reserve(4 * pieces);
    const std::size_t at_partial = space.Reserve(4 * pieces * table.d);
    TF_RETURN_IF_ERROR(space.Allocate(context));
    float *g = space.At<float>(at_g), *partial = space.At<float>(at_partial);
    Word *queued = space.At<Word>(at_queued), *hot = space.At<Word>(at_hot);
    Word *first = space.At<Word>(at_first), *begin = space.At<Word>(at_begin);
    Word* end = space.At<Word>(at_end);
    *sums = g;
    if (n == 0) return tensorflow::OkStatus();
    queue.Zero(queued, 2);
    void* const* run = table.functions;
    queue.Launch(run[kSumGroups], Blocks(table, n), values.data(), groups.order, groups.starts,
                 groups.ids, groups.u, table.d, kSegment, queued, hot, first, begin, end, g, status,
                 table.slot);
    queue.Launch(run[kSumQueued], Blocks(table, pieces), values.data(), groups.order, queued, begin,
                 end, table.d, partial);
    queue.Launch(run[kJoinQueued], Blocks(table, hots), partial, queued, hot, first, groups.starts,
                 groups.ids, table.d, kSegment, g, status, table.slot);
    return tensorflow::OkStatus();
  }
};

class FlushOp : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         std::vector<Long>& steps, Long* status) override {
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (steps[i] > 0) Flush(queue, *tables_[i], &variables[i * per_table()], steps[i], status);
    return tensorflow::OkStatus();
  }
};

}  // namespace

extern "C" {

int cowclip_add_table(const CowClipTable* table) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  registry.push_back(std::make_unique<CowClipTable>(*table));
  return static_cast<int>(registry.size()) - 1;
}

void cowclip_set_describe(CowClipDescribe function) { describe = function; }

}  // extern "C"

REGISTER_OP("CowClipCatchUp")
    .Attr("Index: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("V: int >= 1")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Input("ids: Index")
    .Input("counts: N * int64")
    .Input("variables: V * resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("CowClipStep")
    .Attr("T: {float, bfloat16}")
    .Attr("Index: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Input("rate: float")
    .Input("iterations: int64")
    .Input("counts: K * int64")
    .Input("indices: N * Index")
    .Input("values: N * T")
    .Input("variables: V * resource")
    .Output("share: float")
    .Output("mean: float")
    .Output("done: K * int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_OP("CowClipFlush")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Input("counts: K * int64")
    .Input("variables: V * resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(
    Name("CowClipCatchUp").Device(tensorflow::DEVICE_GPU).HostMemory("counts").HostMemory(
        "variables"),
    CatchUpOp);
REGISTER_KERNEL_BUILDER(Name("CowClipStep")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("counts")
                            .HostMemory("variables")
                            .HostMemory("done"),
                        StepOp);
REGISTER_KERNEL_BUILDER(
    Name("CowClipFlush").Device(tensorflow::DEVICE_GPU).HostMemory("counts").HostMemory(
        "variables"),
    FlushOp);
REGISTER_KERNEL_BUILDER(Name("CowClipCatchUp").Device(tensorflow::DEVICE_CPU), CatchUpOp);
REGISTER_KERNEL_BUILDER(Name("CowClipStep").Device(tensorflow::DEVICE_CPU), StepOp);
REGISTER_KERNEL_BUILDER(Name("CowClipFlush").Device(tensorflow::DEVICE_CPU), FlushOp);
