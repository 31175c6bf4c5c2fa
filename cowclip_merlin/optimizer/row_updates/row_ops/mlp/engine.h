// What the hidden layers need on a device: cuBLASLt with its plans, and the kernels beside it.
#pragma once
#include <cstdio>
#include <vector>

#include "products.h"

extern "C" {

// An engine as Python registers it, with the fields of `EngineRecord` in contrib/fused_mlp.py.
// With `host`, the kernels and the library run on the CPU, as in tests.
struct CowClipMlp {
  std::int32_t host, blocks;
  const char* library;
  void* functions[5];
};

}  // extern "C"

namespace {

// The order of FUNCTIONS in contrib/fused_mlp.py.
enum MlpFunction { kCopyMatrices, kAddBiasRelu, kRowProducts, kReluGradient, kJoinBias };

// The gradient of an output of one number per row: w [columns], its gradient, and that of w.
struct MlpOutput {
  const float *gradient = nullptr, *w = nullptr;
  float* of_w = nullptr;
};

class MlpEngine {
 public:
  MlpEngine(const CowClipMlp& record, cublas::Library library)
      : record_(record), library_(std::move(library)), products_(library_) {}

  bool host() const { return record_.host != 0; }
  Products& products() { return products_; }

  // Copies all matrices, in as few launches as their parameters have room for.
  void Copy(Queue& queue, const std::vector<CopyMatrix>& all) const {
    CopyMatrices some{};
    int blocks = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      CopyMatrix& one = some.of[some.count++] = all[i];
      one.first_block = blocks;
      blocks += one.blocks = Blocks(one.to_rows * one.to_columns);
      if (some.count < MOST_MATRICES && i + 1 < all.size()) continue;
      queue.Launch(record_.functions[kCopyMatrices], blocks, some);
      some.count = blocks = 0;
    }
  }
  void AddBiasRelu(Queue& queue, void* z, const void* bias, Long rows, Long columns,
                   bool bfloat16) const {
    queue.Launch(record_.functions[kAddBiasRelu], Blocks(rows * columns), z, bias, rows,
                 static_cast<int>(columns), static_cast<int>(bfloat16));
  }
  // Threads of a block that take the same 16 bytes of columns of different rows in `ReluGradient`.
  static Long Lanes(Long columns, bool bfloat16) {
    return std::max<Long>(1, BLOCK / (columns / (bfloat16 ? 8 : 4)));
  }
  // Blocks of `ReluGradient`: each makes a row of partial sums.
  Long Parts(Long rows, Long columns, bool bfloat16) const {
    const Long some = 8 * Lanes(columns, bfloat16);
    return std::max<Long>(1, std::min<Long>(record_.blocks, (rows + some - 1) / some));
  }
  // `partial` has room for `Parts` rows of `columns`, with an output for twice as many.
  void ReluGradient(Queue& queue, const void* g, Long g_columns, const void* activation, void* dz,
                    float* partial, float* bias, Long rows, Long columns, bool bfloat16,
                    const MlpOutput& output = {}) const {
    const Long lanes = Lanes(columns, bfloat16), parts = Parts(rows, columns, bfloat16);
    float* partial_of_w = partial + parts * columns;
    const bool whole =
        !output.gradient && g_columns == columns && Operands::Alignment(g) >= 16;
    queue.Launch(record_.functions[kReluGradient], parts, g, activation, dz, partial,
                 output.gradient, output.w, partial_of_w, rows, static_cast<int>(g_columns),
                 static_cast<int>(columns), static_cast<int>(lanes), static_cast<int>(bfloat16),
                 static_cast<int>(whole));
    Join(queue, partial, bias, parts, columns);
    if (output.gradient) Join(queue, partial_of_w, output.of_w, parts, columns);
  }
  void RowProducts(Queue& queue, const void* h, const float* w, float* z, Long rows, Long columns,
                   Long stride, bool bfloat16) const {
    queue.Launch(record_.functions[kRowProducts], Blocks(32 * ((rows + 3) / 4)), h, w, z, rows,
                 static_cast<int>(columns), static_cast<int>(stride), static_cast<int>(bfloat16));
  }

 private:
  void Join(Queue& queue, const float* partial, float* sums, Long parts, Long columns) const {
    queue.Launch(record_.functions[kJoinBias], (columns + 7) / 8, partial, sums,
                 static_cast<int>(parts), static_cast<int>(columns));
  }
  int Blocks(Long size) const {
    const Long needed = (size + BLOCK - 1) / BLOCK;
    return static_cast<int>(std::max<Long>(1, std::min<Long>(record_.blocks, needed)));
  }

  CowClipMlp record_;
  cublas::Library library_;
  Products products_;
};

// Never freed: at the end of the process, CUDA may be gone before them.
std::vector<std::unique_ptr<MlpEngine>>& mlp_engines =
    *new std::vector<std::unique_ptr<MlpEngine>>;

MlpEngine* FindMlp(int number) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  const bool known = number >= 0 && number < static_cast<int>(mlp_engines.size());
  return known ? mlp_engines[number].get() : nullptr;
}

}  // namespace

extern "C" {

// Returns the number of the engine. If cuBLASLt or one of its functions is missing, writes its name
// into `missing` and returns -1.
int cowclip_add_mlp(const CowClipMlp* record, char* missing, int size) {
  const char* file = record->library ? record->library : "";
  cublas::Library library = cublas::Load(file, record->host != 0);
  if (!library.missing.empty()) {
    std::snprintf(missing, size, "%s", library.missing.c_str());
    return -1;
  }
  std::lock_guard<std::mutex> lock(registry_mutex);
  mlp_engines.push_back(std::make_unique<MlpEngine>(*record, std::move(library)));
  return static_cast<int>(mlp_engines.size()) - 1;
}

}  // extern "C"
