// Where the kernels run: on a stream of the device, through the CUDA driver, or in tests on the host.
#pragma once
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "tables.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"

#if __has_include("xla/stream_executor/stream.h")
#include "xla/stream_executor/stream.h"
#else
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#include "tensorflow/compiler/xla/stream_executor/stream_executor_internal.h"
#endif

namespace {

using tensorflow::OpKernelContext;

// TensorFlow 2.13 renamed the method that returns the raw stream.
template <class Stream>
auto RawStream(Stream* stream, int) -> decltype(stream->platform_specific_handle().stream) {
  return stream->platform_specific_handle().stream;
}
template <class Stream>
void* RawStream(Stream* stream, long) {
  return stream->implementation()->GpuStreamHack();
}

// The functions of the CUDA driver, found at run time, so that nothing is linked. `missing` names
// the first function that was not found, or the library.
struct Driver {
  const char* missing;
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
void Load(void* library, const char* name, F& function, const char*& missing) {
  function = reinterpret_cast<F>(library ? dlsym(library, name) : nullptr);
  if (function == nullptr && missing == nullptr) missing = name;
}

const Driver& TheDriver() {
  static const Driver driver = [] {
    Driver found{};
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) found.missing = "libcuda.so.1";
    Load(library, "cuLaunchKernel", found.launch, found.missing);
    Load(library, "cuMemsetD32Async", found.fill, found.missing);
    Load(library, "cuMemcpyDtoHAsync_v2", found.to_host, found.missing);
    Load(library, "cuMemcpyHtoDAsync_v2", found.to_device, found.missing);
    Load(library, "cuMemcpyDtoDAsync_v2", found.copy, found.missing);
    Load(library, "cuStreamSynchronize", found.wait, found.missing);
    Load(library, "cuMemHostAlloc", found.host_memory, found.missing);
    return found;
  }();
  return driver;
}

// CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTALLOC_DEVICEMAP.
constexpr unsigned kReachable = 1 | 2;

// Where the kernels run: on a stream of the device, or in tests on the host.
class Queue {
 public:
  Queue(OpKernelContext* context, bool host) : host_(host) {
    if (!host) stream_ = RawStream(context->op_device_context()->stream(), 0);
  }
  // An error if the device has no stream, or the CUDA driver lacks a function.
  static tensorflow::Status Check(OpKernelContext* context, bool host) {
    const bool on_gpu = context->op_device_context() != nullptr;
    if (host && on_gpu)
      return tensorflow::errors::FailedPrecondition(
          "the row kernels run on the host, but a table is in the memory of a GPU");
    if (host) return tensorflow::OkStatus();
    if (TheDriver().missing != nullptr)
      return tensorflow::errors::FailedPrecondition(
          "the row kernels need the CUDA driver, but ", TheDriver().missing, " was not found");
    if (!on_gpu)
      return tensorflow::errors::FailedPrecondition(
          "the row kernels need a GPU, but a table is in the memory of another device");
    return tensorflow::OkStatus();
  }
  template <class... Args>
  void Launch(void* function, Long blocks, Args... args) {
    void* pointers[] = {static_cast<void*>(&args)...};
    const unsigned grid = static_cast<unsigned>(blocks);
    if (host_) {
      reinterpret_cast<void (*)(unsigned, unsigned, void**)>(function)(grid, BLOCK, pointers);
    } else {
      Note(TheDriver().launch(function, grid, 1, 1, BLOCK, 1, 1, 0, stream_, pointers, nullptr));
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
  // Pinned host memory at an address that all devices can use; it is never freed.
  Long* Pinned(std::size_t bytes) {
    void* memory = nullptr;
    if (host_) {
      memory = std::malloc(bytes);
    } else {
      Note(TheDriver().host_memory(&memory, bytes, kReachable));
    }
    return static_cast<Long*>(memory);
  }
  void* stream() const { return stream_; }
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

}  // namespace
