// Base of all operations: their tables, their variables, and the errors of steps.
#pragma once
#include <algorithm>
#include <string>

#include "memory.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;

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
      if (longest_ == nullptr || table->d > longest_->d) longest_ = table;
    }
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Queue::Check(context, tables_[0]->host != 0));
    Queue queue(context, tables_[0]->host != 0);
    tensorflow::OpInputList handles, counts;
    OP_REQUIRES_OK(context, context->input_list("variables", &handles));
    OP_REQUIRES_OK(context, context->input_list("counts", &counts));
    std::vector<Locked> variables(handles.size());
    // The status, which is last, is locked first. Two operations of an optimizer may name its
    // tables in different orders; with the status locked, neither waits for the other's tables.
    const int size = handles.size();
    for (int k = 0; k < size; ++k) {
      const int i = (k + size - 1) % size;
      const auto& handle = handles[i].scalar<tensorflow::ResourceHandle>()();
      OP_REQUIRES_OK(context,
                     variables[i].Open(context, handle, queue, i == size - 1 || in_place()));
    }
    const Locked& last = variables.back();
    status_size_ = last.size();
    Long* status = last.data<Long>();
    Seen* found;
    OP_REQUIRES_OK(context, FindSeen(tables_[0]->owner, status, status_size_, queue, &found));
    Seen& seen = *found;
    if (wait_) Look(seen, status, queue);
    OP_REQUIRES_OK(context, Refused(seen, status, queue));
    std::vector<const Long*> steps(tables_.size(), nullptr);  // only "exact" counts them
    for (int i = 0; i < counts.size(); ++i) steps[i] = static_cast<const Long*>(counts[i].data());
    OP_REQUIRES_OK(context, Run(context, queue, variables, steps, status, seen));
    if (wait_) {
      Look(seen, status, queue);
      OP_REQUIRES_OK(context, Refused(seen, status, queue));
    }
    OP_REQUIRES(context, queue.error() == 0,
                tensorflow::errors::Internal("CUDA error ", queue.error(), " in the row kernels"));
  }

 protected:
  // Whether the variables besides the status are seldom read as a whole; see `Locked::Open`.
  virtual bool in_place() const { return true; }

  virtual tensorflow::Status Run(OpKernelContext* context, Queue& queue,
                                 std::vector<Locked>& variables,
                                 const std::vector<const Long*>& steps, Long* status,
                                 Seen& seen) = 0;

  // Weights, then Adagrad's accumulators; or moments, and if absent rows count their steps: last
  // and history.
  int per_table() const { return tables_[0]->width ? 2 : tables_[0]->exact ? 5 : 3; }

  // Steps that the history has room for; see `note_step` of the kernels.
  static Long Capacity(const Locked* state) { return (state[4].size() - 2) / 3; }

  // A replay of all rows up to the number of steps.
  static ReplayTable Replay(const CowClipTable& table, const Locked* state, const Long* steps) {
    ReplayTable replay{state[0].data<float>(), state[1].data<float>(), state[2].data<float>(),
                       state[3].data<float>(), state[4].data<float>(), steps, Capacity(state),
                       table.rows, table.d, table.tile, table.slot};
    replay.blocks = static_cast<int>(Blocks(table, table.rows));
    replay.keep_m = table.keep_m;
    replay.keep_v = table.keep_v;
    replay.epsilon = table.epsilon;
    replay.l2 = table.l2;
    return replay;
  }

  // One launch for all tables or weights, as far as the parameters of a kernel have room for them.
  template <class List, class One, class... Args>
  void LaunchFor(Queue& queue, Function function, const std::vector<One>& all, Args... args) {
    List some{};
    constexpr std::size_t most = sizeof some.of / sizeof some.of[0];
    int blocks = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      One& each = some.of[some.count++] = all[i];
      each.first_block = blocks;
      blocks += each.blocks;
      if (some.count < static_cast<int>(most) && i + 1 < all.size()) continue;
      queue.Launch(longest_->functions[function], blocks, some, args...);
      some.count = blocks = 0;
    }
  }

  // Words of the status up to those of the last of these tables.
  int words() const {
    int slots = 0;
    for (const CowClipTable* table : tables_) slots = std::max(slots, table->slot + 1);
    return 1 + 3 * slots;
  }

  // Number of blocks for a kernel with one tile per row, of at most n rows.
  static Long Blocks(const CowClipTable& table, Long n) {
    const Long needed = (n * table.tile + BLOCK - 1) / BLOCK;
    return std::max<Long>(1, std::min<Long>(table.blocks, needed));
  }

  // The same for one whose warps take as many rows as fit; see `Share` in kernels/cuda/replay.cuh.
  static Long FullBlocks(const CowClipTable& table, Long n) {
    const Long warps = n / std::max(1, 32 / table.d) + 1;
    return std::max<Long>(1, std::min<Long>(table.blocks, (32 * warps + BLOCK - 1) / BLOCK));
  }

  // Returns the error of a refused step, once; stale rows cause only a warning.
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
    Look(seen, status, queue);  // a step tells only whether it was refused, and of its own tables
    // What `step_weights` reports has no row.
    std::string words = "the gradient of a dense weight is not finite";
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

  // Waits for the device, and reads its status after the steps so far.
  void Look(Seen& seen, const Long* status, Queue& queue) {
    queue.ToHost(seen.pinned, status, 8 * status_size_);
    queue.Wait();
  }

  std::vector<const CowClipTable*> tables_;
  // The table with the longest rows: its kernels have registers for the rows of every table.
  const CowClipTable* longest_ = nullptr;
  bool wait_ = false;
  std::size_t status_size_ = 0;
};

}  // namespace
