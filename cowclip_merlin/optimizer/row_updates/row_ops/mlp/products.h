// Plans of cuBLASLt for products of matrices, made once for each shape and used in every step.
//
// cuBLASLt stores matrices by columns, TensorFlow by rows. A tensor [r, c] is the matrix (c x r) by
// columns, with leading dimension c: its transpose, without a copy. So all products are written for
// transposes. For a layer y = relu(x W + bias) with x [b, k], W [k, n], y [b, n], and dz the
// gradient before the ReLU:
//
//   forward   y^T  (n x b) = W^T (n x k, as stored)        x^T  (k x b, as stored)
//   backward  dx^T (k x b) = W   (k x n, transposed again) dz^T (n x b, as stored)
//   weights   dW^T (n x k) = dz^T (n x b, as stored)       x    (b x k, transposed again)
//
// An epilogue adds a vector as long as the rows of D, or sums over its columns. D has the layer's
// width as rows and the batch as columns, so that is the bias, or its gradient. The vector has D's
// type, unless cuBLASLt has an algorithm with another one. The bit mask of a ReLU has a leading dimension in bits, a multiple of 128.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "cublas.h"
#include "../queue.h"

namespace {

constexpr std::size_t kMostWorkspace = 32 << 20;
constexpr int kBest = 8;
constexpr std::size_t kMostPlans = 4096;

inline Long RoundUp(Long n, Long unit) { return (n + unit - 1) / unit * unit; }
inline Long MaskBits(Long width) { return RoundUp(width, 128); }

// D (m x n) = op(A) op(B), sum over k; `lda`, `ldb`, `ldd` are leading dimensions, and `vector` is
// the type of the epilogue's vector.
struct Product {
  int input, output, vector, compute, epilogue, transpose_a, transpose_b;
  Long m, n, k, lda, ldb, ldd;

  auto Key() const {
    return std::make_tuple(input, output, vector, compute, epilogue, transpose_a, transpose_b, m, n,
                           k, lda, ldb, ldd);
  }
};

struct Operands {
  const void *a, *b;
  void *d, *vector, *mask;

  // In bytes, at most that of TensorFlow's own memory on any device, so that plans are found again.
  static unsigned Alignment(const void* at) {
    const auto address = reinterpret_cast<std::uintptr_t>(at) | 64;
    return static_cast<unsigned>(address & (~address + 1));
  }
  auto Alignments() const {
    return std::make_tuple(Alignment(a), Alignment(b), Alignment(d), Alignment(vector),
                           Alignment(mask));
  }
};

// A product with the best algorithm for it. `found` says whether there is one.
class Plan {
 public:
  Plan(const cublas::Library& library, cublas::Handle handle, const Product& product,
       const Operands& operands)
      : library_(library) {
    const bool a_as_is = product.transpose_a == cublas::kOpN;
    const bool b_as_is = product.transpose_b == cublas::kOpN;
    Note(library.desc_create(&desc_, product.compute, cublas::kFloat));
    SetDesc(cublas::kDescTransA, std::int32_t{product.transpose_a});
    SetDesc(cublas::kDescTransB, std::int32_t{product.transpose_b});
    SetDesc(cublas::kDescEpilogue, static_cast<std::uint32_t>(product.epilogue));
    if (product.epilogue != cublas::kEpilogueDefault && product.vector != product.output)
      SetDesc(cublas::kDescBiasType, std::int32_t{product.vector});
    if (Masked(product.epilogue)) SetDesc(cublas::kDescAuxLd, std::int64_t{MaskBits(product.m)});
    SetPointers(product, operands);  // the heuristic reads how they are aligned
    MakeLayout(&a_, product.input, a_as_is ? product.m : product.k, a_as_is ? product.k : product.m,
               product.lda);
    MakeLayout(&b_, product.input, b_as_is ? product.k : product.n, b_as_is ? product.n : product.k,
               product.ldb);
    MakeLayout(&d_, product.output, product.m, product.n, product.ldd);
    if (error_ == 0) Choose(handle, operands);
  }
  ~Plan() {
    if (desc_) library_.desc_destroy(desc_);
    for (cublas::Layout each : {a_, b_, d_})
      if (each) library_.layout_destroy(each);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  static bool Masked(int epilogue) { return (epilogue & 128) != 0; }
  bool found() const { return found_ && error_ == 0; }
  std::size_t workspace() const { return best_.workspace; }

  int Run(cublas::Handle handle, const Product& product, const Operands& operands, void* workspace,
          void* stream) {
    SetPointers(product, operands);
    const float one = 1, zero = 0;
    if (error_ != 0) return error_;
    void* d = operands.d;
    return library_.matmul(handle, desc_, &one, operands.a, a_, operands.b, b_, &zero, d, d_, d, d_,
                           &best_.algorithm, workspace, best_.workspace, stream);
  }

 private:
  void Choose(cublas::Handle handle, const Operands& operands) {
    cublas::Preference preference = nullptr;
    Note(library_.preference_create(&preference));
    const auto set = [&](int attribute, auto value) {
      Note(library_.preference_set(preference, attribute, &value, sizeof value));
    };
    set(cublas::kPrefMaxWorkspaceBytes, std::uint64_t{kMostWorkspace});
    set(cublas::kPrefMinAlignmentA, Operands::Alignment(operands.a));
    set(cublas::kPrefMinAlignmentB, Operands::Alignment(operands.b));
    set(cublas::kPrefMinAlignmentC, Operands::Alignment(operands.d));
    set(cublas::kPrefMinAlignmentD, Operands::Alignment(operands.d));
    cublas::HeuristicResult results[kBest];
    int count = 0;
    if (error_ == 0 && library_.heuristic(handle, desc_, a_, b_, d_, d_, preference, kBest, results,
                                          &count) == cublas::kSuccess) {
      for (int i = 0; i < count && !found_; ++i) {
        found_ = results[i].state == cublas::kSuccess;
        if (found_) best_ = results[i];
      }
    }
    if (preference) library_.preference_destroy(preference);
  }
  void SetPointers(const Product& product, const Operands& operands) {
    if (product.epilogue == cublas::kEpilogueDefault) return;
    SetDesc(cublas::kDescBiasPointer, operands.vector);
    if (Masked(product.epilogue)) SetDesc(cublas::kDescAuxPointer, operands.mask);
  }
  template <class T>
  void SetDesc(int attribute, T value) {
    Note(library_.desc_set(desc_, attribute, &value, sizeof value));
  }
  void MakeLayout(cublas::Layout* layout, int type, Long rows, Long columns, Long leading) {
    Note(library_.layout_create(layout, type, rows, columns, leading));
  }
  void Note(int status) {
    if (error_ == 0) error_ = status;
  }

  const cublas::Library& library_;
  cublas::Desc desc_ = nullptr;
  cublas::Layout a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublas::HeuristicResult best_{};
  bool found_ = false;
  int error_ = 0;
};

// The plans of one device. They live as long as the process.
class Products {
 public:
  explicit Products(const cublas::Library& library) : library_(library) {}

  // Whether cuBLASLt has an algorithm for this product.
  bool Has(const Product& product, const Operands& operands) {
    std::lock_guard<std::mutex> lock(mutex_);
    return Find(product, operands)->found();
  }
  // Bytes of workspace for this product.
  std::size_t Workspace(const Product& product, const Operands& operands) {
    std::lock_guard<std::mutex> lock(mutex_);
    return Find(product, operands)->workspace();
  }
  // Starts the product; returns cuBLASLt's status.
  int Run(const Product& product, const Operands& operands, void* workspace, void* stream) {
    std::lock_guard<std::mutex> lock(mutex_);  // a plan holds the pointers of one call
    Plan* plan = Find(product, operands);
    if (!plan->found()) return cublas::kNotSupported;
    return plan->Run(handle_, product, operands, workspace, stream);
  }
  // Makes the handle in the context of the device, which is current in an operation.
  int Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    return handle_ ? cublas::kSuccess : library_.create(&handle_);
  }

 private:
  using Key = decltype(std::tuple_cat(Product{}.Key(), Operands{}.Alignments()));

  Plan* Find(const Product& product, const Operands& operands) {
    if (plans_.size() >= kMostPlans) plans_.clear();  // batches of very many sizes
    auto& plan = plans_[std::tuple_cat(product.Key(), operands.Alignments())];
    if (!plan) plan = std::make_unique<Plan>(library_, handle_, product, operands);
    return plan.get();
  }

  const cublas::Library& library_;
  cublas::Handle handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::mutex mutex_;
};

}  // namespace
