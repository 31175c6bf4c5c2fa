// The tables that Python has registered, and the definitions that both languages share.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

namespace {

using Word = std::uint32_t;
using Long = long long;
using State = std::uint64_t;

// The order of FUNCTIONS in gpu_ops.py.
enum Function {
  kHistogram, kOnesweep, kHeads, kSumGroups, kSumQueued, kJoinQueued, kStepGroups, kSummarize,
  kCatchUpRows, kSweepRows, kStepWeights, kFetchRows, kReadBatch, kAdagradGroups, kFunctions,
};

constexpr int kBlock = 256, kChunk = 16 * kBlock, kDigits = 512, kDigitBits = 9;
constexpr Long kMostIds = (1LL << 31) - 1;  // counts of a state have 31 bits
constexpr Long kSegment = 128;
constexpr int kReplayTables = 16, kSumTables = 16, kStepTables = 16, kDenseWeights = 64;
constexpr int kFetchTables = 16;
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

// What a replay needs to know about a table, and the tables of one launch; equal to `Table` and
// `Tables` in kernels/cuda/replay.py.
struct ReplayTable {
  float *w, *m, *v, *last;
  const float* history;
  const Long* steps;
  Long capacity, rows;
  int d, tile, slot, first_block, blocks;
  int parts;
  float keep_m, keep_v, epsilon, l2;
};
struct ReplayTables {
  int count;
  ReplayTable of[kReplayTables];
};

// What the rows of a table need that a batch reads, and what `read_batch` reads and writes; equal to
// the structs of these names in kernels/cuda/read.py.
struct FetchTable {
  const float *w, *m, *v, *last, *history;
  const Long* steps;
  const Word *ids, *u;
  float *row_w, *row_m, *row_v;
  Long capacity;
  int d, first_block, blocks;
  float keep_m, keep_v, epsilon, l2;
};
struct FetchTables {
  int count;
  FetchTable of[kFetchTables];
};
struct Reading {
  const float *w, *wide;
  const Word *slots;
  const Word *ids;
  const float* x;
  void* flat;
  float *first;
  float *second, *sums;
  Long batch;
  int fields, d, tile, numbers, width;
};

// What the sums of a table need; equal to `SumTable` and `SumTables` in kernels/cuda/step.py.
struct SumTable {
  const void* values;
  const float *row_g, *sums, *w;
  const Word *order, *starts, *ids, *u;
  Word *queued, *hot, *hot_first, *piece_begin, *piece_end, *piece_row;
  float *partial, *g;
  int d, tile, slot, first_block, blocks, fields, pitch, compact, shift;
  Word reciprocal;
};
struct SumTables {
  int count;
  SumTable of[kSumTables];
};

// What a step needs to know about a table; equal to `StepTable` and `StepTables` in
// kernels/cuda/step.py.
struct StepTable {
  float *w, *m, *v, *last, *history;
  const float *g, *row_w, *row_m, *row_v;
  const Word *ids, *starts, *u;
  const Long* steps;
  Long* done;
  Long capacity, rows;
  double r, least, bound;
  int d, tile, slot, first_block, blocks, kind, counted, width;
  float keep_m, keep_v, epsilon, l2;
};
struct StepTables {
  int count;
  StepTable of[kStepTables];
};

// Dense weights of one launch; equal to `Weight` and `Weights` in kernels/cuda/dense.py.
struct DenseWeight {
  float *w, *m, *v;
  const float* g;
  Long size;
  int first_block, blocks;
};
struct DenseWeights {
  int count;
  DenseWeight of[kDenseWeights];
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
