// Groups the ids of a batch by radix sort: distinct ids, and where each occurs.
#pragma once
#include <algorithm>

#include "memory.h"

namespace {

// Distinct ids of n occurrences, in device memory of the caller: ids [n], of which the first u[0]
// are filled, ascending; starts [n + 1]: where each id begins in `order`; order [n]: occurrences by
// id, equal ids in their order; slots [n]: for each occurrence the index of its id.
struct Groups {
  Word *ids, *starts, *order, *slots, *u;
};

// Takes memory for the groups of n occurrences from an empty workspace.
tensorflow::Status Reserve(OpKernelContext* context, Long n, Workspace& space, Groups* groups) {
  std::size_t at[5];
  for (auto& each : at) each = space.Reserve(4 * (n + 1));
  TF_RETURN_IF_ERROR(space.Allocate(context));
  *groups = {space.At<Word>(at[0]), space.At<Word>(at[1]), space.At<Word>(at[2]),
             space.At<Word>(at[3]), space.At<Word>(at[4])};
  return tensorflow::OkStatus();
}

// How the ids of a table are sorted: as few passes as possible, over digits of equal width.
struct Digits {
  explicit Digits(Long rows) {
    int bits = 1;
    while (bits < 63 && (rows - 1) >> bits != 0) ++bits;
    passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS;
    width = (bits + passes - 1) / passes;
  }
  int passes, width;
};

// Memory that is 0 before the kernels run: counts of digits, for each launch a counter of tiles,
// and the states of the tiles.
struct Counters {
  Counters(Long tiles, int passes) : tiles(tiles) {
    at_bins = 0;
    at_taken = at_bins + passes * DIGITS;
    at_states = (at_taken + passes + 1 + 1) / 2 * 2;  // states have two words
    words = at_states + 2 * tiles * (passes * BLOCK + 1);
  }
  Word* Bins(int pass) const { return memory + at_bins + pass * DIGITS; }
  Word* Taken(int launch) const { return memory + at_taken + launch; }
  State* States(int launch) const {
    return reinterpret_cast<State*>(memory + at_states) + launch * tiles * BLOCK;
  }
  Word* memory = nullptr;
  Long tiles, at_bins, at_taken, at_states, words;
};

// Groups ids, int32 or int64, of a table. With `offsets` [F], these are added to ids [b, F]. An id
// outside the table is reported in `status` and counts as
// 0. Launches: a fill, the histogram, one per pass, and the heads.
tensorflow::Status Group(OpKernelContext* context, Queue& queue, const CowClipTable& table,
                         const Tensor& ids, Long* status, const Groups& groups,
                         const Tensor* offsets = nullptr) {
  const Long n = ids.NumElements(), tiles = (n + CHUNK - 1) / CHUNK;
  if (n > kMostIds)
    return tensorflow::errors::InvalidArgument(
        "a batch has ", n, " ids of one table, but a GPU can group at most ", kMostIds,
        ": use smaller batches");
  if (n == 0) {
    queue.Zero(groups.u, 1);
    queue.Zero(groups.starts, 1);
    return tensorflow::OkStatus();
  }
  const Digits digits(table.rows);
  Counters counters(tiles, digits.passes);
  Workspace space;
  const std::size_t at_zero = space.Reserve(4 * counters.words), at_keys = space.Reserve(4 * n);
  TF_RETURN_IF_ERROR(space.Allocate(context));
  counters.memory = space.At<Word>(at_zero);
  queue.Zero(counters.memory, counters.words);
  const int wide = ids.dtype() == tensorflow::DT_INT64;
  const int fields = offsets ? static_cast<int>(offsets->NumElements()) : 0;
  const void* from = offsets ? offsets->data() : nullptr;
  // Every block adds its counts to the same few words, so there are not too many.
  const Long counting = std::max<Long>(1, std::min<Long>(table.blocks / 4, tiles));
  queue.Launch(table.functions[kHistogram], counting, ids.data(), wide, from, fields, n, table.rows,
               digits.passes, digits.width, counters.Bins(0), status, table.slot);
  // Passes write by turns into memory of their own and into results that are written last.
  Word *keys_of[2] = {space.At<Word>(at_keys), groups.ids};
  Word *order_of[2] = {groups.order, groups.slots};
  const Word *keys = nullptr, *order = nullptr;
  for (int pass = 0; pass < digits.passes; ++pass) {
    const int to = (digits.passes - 1 - pass) % 2;
    queue.Launch(table.functions[kOnesweep], tiles, ids.data(), wide, from, fields, table.rows, keys, order, n,
                 pass * digits.width, digits.width, counters.Bins(pass), counters.Taken(pass),
                 counters.States(pass), keys_of[to], order_of[to]);
    keys = keys_of[to], order = order_of[to];
  }
  queue.Launch(table.functions[kHeads], tiles, keys, order, n, counters.Taken(digits.passes),
               counters.States(digits.passes), groups.ids, groups.starts, groups.slots, groups.u);
  return tensorflow::OkStatus();
}

}  // namespace
