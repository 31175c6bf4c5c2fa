// NVIDIA's library of matrix products, cuBLASLt, found at run time, so that neither its header nor
// a link is needed. The numbers and types are those of its header in CUDA 12; a test compares them
// with the header that TensorFlow has. With another version, a check of the results decides.
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace cublas {

enum Status { kSuccess = 0, kInvalidValue = 7, kNotSupported = 15 };
enum Type { kFloat = 0, kBfloat16 = 14 };  // CUDA_R_32F, CUDA_R_16BF
enum Compute { kCompute32F = 68, kCompute32FFastTF32 = 77 };  // cublasComputeType_t
enum Transpose { kOpN = 0, kOpT = 1 };  // cublasOperation_t
enum Epilogue {  // cublasLtEpilogue_t
  kEpilogueDefault = 1,
  kEpilogueReluBias = 2 | 4,
  kEpilogueReluAuxBias = 2 | 128 | 4,
  kEpilogueDreluBgrad = 8 | 128 | 16,
};
enum DescAttribute {  // cublasLtMatmulDescAttributes_t
  kDescTransA = 3,
  kDescTransB = 4,
  kDescEpilogue = 7,
  kDescBiasPointer = 8,
  kDescAuxPointer = 11,
  kDescAuxLd = 12,
  kDescBiasType = 26,
};
enum PreferenceAttribute {  // cublasLtMatmulPreferenceAttributes_t
  kPrefMaxWorkspaceBytes = 1,
  kPrefMinAlignmentA = 5,
  kPrefMinAlignmentB = 6,
  kPrefMinAlignmentC = 7,
  kPrefMinAlignmentD = 8,
};

struct Algorithm {
  std::uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
using Handle = void*;
using Desc = void*;
using Layout = void*;
using Preference = void*;

// The functions; `missing` names the first that was not found, or the library.
struct Library {
  std::string missing;
  int (*create)(Handle*);
  int (*desc_create)(Desc*, int compute, int scale);
  int (*desc_set)(Desc, int attribute, const void*, std::size_t);
  int (*desc_destroy)(Desc);
  int (*layout_create)(Layout*, int type, std::uint64_t rows, std::uint64_t columns,
                       std::int64_t leading);
  int (*layout_destroy)(Layout);
  int (*preference_create)(Preference*);
  int (*preference_set)(Preference, int attribute, const void*, std::size_t);
  int (*preference_destroy)(Preference);
  int (*heuristic)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, Preference, int wanted,
                   HeuristicResult*, int* found);
  int (*matmul)(Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout,
                const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                void* workspace, std::size_t workspace_size, void* stream);
};

constexpr const char* kNames[] = {"libcublasLt.so.12", "libcublasLt.so.13", "libcublasLt.so.11"};

// TensorFlow has loaded the library that fits it, if it uses a GPU: that one is best. Else the
// system's; else the file of a Python package, if one is given.
inline void* OpenAny(const char* file) {
  for (const char* name : kNames)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  for (const char* name : kNames)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return *file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : nullptr;
}

// Loads the functions. With `only_file`, no other library than this file is tried.
inline Library Load(const char* file, bool only_file) {
  Library found{};
  void* library = only_file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : OpenAny(file);
  if (library == nullptr) {
    found.missing = "libcublasLt.so.12";
    return found;
  }
  const auto load = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && found.missing.empty()) found.missing = name;
  };
  load("cublasLtCreate", found.create);
  load("cublasLtMatmulDescCreate", found.desc_create);
  load("cublasLtMatmulDescSetAttribute", found.desc_set);
  load("cublasLtMatmulDescDestroy", found.desc_destroy);
  load("cublasLtMatrixLayoutCreate", found.layout_create);
  load("cublasLtMatrixLayoutDestroy", found.layout_destroy);
  load("cublasLtMatmulPreferenceCreate", found.preference_create);
  load("cublasLtMatmulPreferenceSetAttribute", found.preference_set);
  load("cublasLtMatmulPreferenceDestroy", found.preference_destroy);
  load("cublasLtMatmulAlgoGetHeuristic", found.heuristic);
  load("cublasLtMatmul", found.matmul);
  return found;
}

}  // namespace cublas
