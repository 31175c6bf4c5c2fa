// Memory of variables, memory for one step, and what the host has seen of the status.
#pragma once
#include <map>
#include <utility>

#include "queue.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace {

using tensorflow::Tensor;
using tensorflow::Var;

// What the host has seen of the `status` of an optimizer on a device. A step writes its words into
// this memory of the host, which the device can reach. A later optimizer may get the same address,
// so this alone does not identify an optimizer.
struct Seen {
  Long* pinned = nullptr;
  std::vector<bool> warned;
};

// Finds or creates the copy; returns an error if the host has no memory for it.
tensorflow::Status FindSeen(int owner, const void* status, std::size_t size, Queue& queue,
                            Seen** found) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, Seen> all;
  std::lock_guard<std::mutex> lock(mutex);
  Seen& seen = all[{owner, status}];
  if (seen.pinned == nullptr || seen.warned.size() < size) {
    Long* memory = queue.Pinned(8 * size);
    if (memory == nullptr)
      return tensorflow::errors::ResourceExhausted(
          "cannot allocate ", 8 * size, " bytes of pinned host memory for the row kernels (CUDA "
          "error ", queue.error(), ")");
    for (std::size_t i = 0; i < size; ++i) memory[i] = i % 3 == 0 ? 0 : kNone;
    seen.pinned = memory;
    seen.warned.assign(size, false);
  }
  *found = &seen;
  return tensorflow::OkStatus();
}

// Memory of a locked variable. If another variable shares it, this one gets its own copy first.
class Locked {
 public:
  // With `in_place`, a read of the whole variable copies it from now on, and so a later Open does
  // not: right for tables, which are large and read by row.
  tensorflow::Status Open(OpKernelContext* context, const tensorflow::ResourceHandle& handle,
                          Queue& queue, bool in_place) {
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handle, &variable_));
    lock_ = std::make_unique<tensorflow::mutex_lock>(*variable_->mu());
    Tensor* tensor = variable_->tensor();
    if (!tensor->RefCountIsOne()) {
      Tensor own;
      TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &own));
      queue.Copy(own.data(), tensor->data(), tensor->TotalBytes());
      *tensor = own;
    }
    if (in_place) variable_->copy_on_read_mode.store(true);
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

}  // namespace
