// The tables that Python has registered, and the definitions that it shares.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "shared.h"  // of the kernels, in kernels/cuda

namespace {

using Word = word_t;
using Long = index_t;
using State = state_t;

// The order of FUNCTIONS in gpu_ops.py.
enum Function {
  kHistogram, kOnesweep, kHeads, kSumGroups, kSumQueued, kJoinQueued, kStepGroups, kSummarize,
  kCatchUpRows, kSweepRows, kStepWeights, kFetchRows, kReadBatch, kAdagradGroups, kFunctions,
};

constexpr Long kMostIds = (1LL << 31) - 1;  // counts of a state have 31 bits
constexpr Long kSegment = SEGMENT;
constexpr Long kNone = std::numeric_limits<Long>::max();

}  // namespace

extern "C" {

// A table as Python registers it, with the fields of `TableRecord` in gpu_ops.py. `slot` is its
// index in the status of its optimizer, which has the number `owner`. `width` is the length of a row
// of Adagrad's accumulators, or 0 with Adam; with `whole`, its absent rows step, too.
struct CowClipTable {
  Long rows;
  std::int32_t d, tile, kind, exact, counted, blocks, sweep, host, owner, slot, width, whole;
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

// Returns the number of the table with this slot of an optimizer, or -1.
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

}  // namespace
