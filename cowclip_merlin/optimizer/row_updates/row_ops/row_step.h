// What all steps of tables share: sum gradients of grouped ids, then L2, clip, Adam or Adagrad.
#pragma once
#include <algorithm>

#include "group.h"
#include "row_op.h"

namespace {

class RowStepOp : public RowOp {
 public:
  using RowOp::RowOp;

 protected:
  // A table's part of a step: n occurrences of ids, their groups, and where their gradients are.
  // `rows` are weights and moments of the distinct ids if they have been fetched.
  struct Part {
    Long n = 0;
    Groups groups{};
    SumTable sum{};
    const float* rows[3] = {};
  };

  // Counters for the log, then for each table those of its frequent ids.
  tensorflow::Status ReserveCounters(OpKernelContext* context, Queue& queue, Workspace& space,
                                     std::vector<Part>& parts, unsigned long long** counters) {
    const std::size_t words = 3 + parts.size(), at = space.Reserve(words * sizeof(Long));
    TF_RETURN_IF_ERROR(space.Allocate(context));
    *counters = space.At<unsigned long long>(at);
    queue.Zero(*counters, 2 * words);
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i].sum.queued = reinterpret_cast<Word*>(*counters + 3 + i);
    return tensorflow::OkStatus();
  }

  // Allocates what the sums of a table need, but for the counters `queued`.
  tensorflow::Status PrepareSum(OpKernelContext* context, std::size_t number, Part& part,
                                Workspace& space) {
    const CowClipTable& table = *tables_[number];
    const Long hots = Hots(part.n), pieces = 2 * hots, most = std::min(part.n, table.rows);
    const std::size_t at_g = space.Reserve(4 * (most + 1) * table.d);
    const std::size_t at_hot = space.Reserve(4 * hots), at_first = space.Reserve(4 * hots);
    const std::size_t at_begin = space.Reserve(4 * pieces), at_end = space.Reserve(4 * pieces);
    const std::size_t at_row = space.Reserve(4 * pieces);
    const std::size_t at_partial = space.Reserve(4 * pieces * table.d);
    TF_RETURN_IF_ERROR(space.Allocate(context));
    const Groups& groups = part.groups;
    SumTable& sum = part.sum;
    sum.order = groups.order, sum.starts = groups.starts, sum.ids = groups.ids, sum.u = groups.u;
    sum.hot = space.At<Word>(at_hot), sum.hot_first = space.At<Word>(at_first);
    sum.piece_begin = space.At<Word>(at_begin), sum.piece_end = space.At<Word>(at_end);
    sum.piece_row = space.At<Word>(at_row);
    sum.partial = space.At<float>(at_partial), sum.g = space.At<float>(at_g);
    sum.d = table.d, sum.tile = table.tile, sum.slot = table.slot;
    return tensorflow::OkStatus();
  }

  // Makes the step, once the groups are known and the sums prepared.
  tensorflow::Status Finish(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                            const std::vector<const Long*>& steps, Long* status, Seen& seen,
                            const std::vector<Part>& parts, unsigned long long* counters) {
    const Tensor *rate, *iterations;
    TF_RETURN_IF_ERROR(context->input("rate", &rate));
    TF_RETURN_IF_ERROR(context->input("iterations", &iterations));
    Tensor *share, *mean;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tensorflow::TensorShape({}), &share));
    TF_RETURN_IF_ERROR(context->allocate_output(1, tensorflow::TensorShape({}), &mean));
    Sum(queue, parts, status);
    // Check the gradients of all tables before writing any. A host that waits stops here;
    // otherwise the kernels refuse the step.
    if (wait_) {
      Look(seen, status, queue);
      TF_RETURN_IF_ERROR(Refused(seen, status, queue));
    }
    tensorflow::OpOutputList done;
    TF_RETURN_IF_ERROR(context->output_list("done", &done));
    std::vector<StepTable> all;
    std::vector<ReplayTable> sweeps;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const CowClipTable& table = *tables_[i];
      const Locked* state = &variables[i * per_table()];
      all.push_back(Step(table, state, parts[i]));
      if (!table.exact) continue;
      Tensor* output;
      TF_RETURN_IF_ERROR(done.allocate(i, tensorflow::TensorShape({1}), &output));
      all[i].steps = steps[i];
      all[i].done = static_cast<Long*>(output->data());
      sweeps.push_back(Replay(table, state, steps[i]));
      sweeps.back().parts = table.sweep;
      sweeps.back().blocks = static_cast<int>(FullBlocks(table, table.rows / table.sweep + 1));
    }
    LaunchFor<ReplayTables>(queue, kSweepRows, sweeps);
    const CowClipTable& any = *tables_[0];
    if (any.width) {
      LaunchFor<StepTables>(queue, kAdagradGroups, all, rate->data(), counters, status);
    } else {
      LaunchFor<StepTables>(queue, kStepGroups, all, rate->data(), iterations->data(), any.beta_1,
                            any.beta_2, counters, status);
    }
    queue.Launch(any.functions[kSummarize], 1, counters, share->data(), mean->data(), status,
                 words(), seen.pinned);
    return tensorflow::OkStatus();
  }

 private:
  // The step of a table, but for its step counts.
  static StepTable Step(const CowClipTable& table, const Locked* state, const Part& part) {
    StepTable step{state[0].data<float>(), state[1].data<float>()};
    if (table.width == 0) step.v = state[2].data<float>();
    if (table.exact) {
      step.last = state[3].data<float>();
      step.history = state[4].data<float>();
      step.capacity = Capacity(state);
    }
    step.g = part.sum.g;
    step.row_w = part.rows[0], step.row_m = part.rows[1], step.row_v = part.rows[2];
    step.ids = part.groups.ids, step.starts = part.groups.starts, step.u = part.groups.u;
    step.r = table.r, step.least = table.least, step.bound = table.bound;
    step.d = table.d, step.tile = table.tile, step.slot = table.slot;
    step.width = table.width, step.rows = table.whole ? table.rows : 0;
    step.blocks = static_cast<int>(Blocks(table, table.whole ? table.rows : part.n));
    step.kind = table.kind, step.counted = table.counted;
    step.keep_m = table.keep_m, step.keep_v = table.keep_v;
    step.epsilon = table.epsilon, step.l2 = table.l2;
    return step;
  }

  // At most this many ids of n occur more than kSegment times.
  static Long Hots(Long n) { return n / kSegment + 1; }

  // Sums the gradients of all tables: rare ids, pieces of frequent ids, then over the pieces.
  void Sum(Queue& queue, const std::vector<Part>& parts, Long* status) {
    std::vector<SumTable> groups, pieces, hots;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Long n = parts[i].n;
      if (n == 0) continue;
      for (auto* each : {&groups, &pieces, &hots}) each->push_back(parts[i].sum);
      groups.back().blocks = static_cast<int>(Blocks(*tables_[i], n));
      pieces.back().blocks = static_cast<int>(Blocks(*tables_[i], 2 * Hots(n)));
      hots.back().blocks = static_cast<int>(Blocks(*tables_[i], Hots(n)));
    }
    LaunchFor<SumTables>(queue, kSumGroups, groups, kSegment, status);
    LaunchFor<SumTables>(queue, kSumQueued, pieces);
    LaunchFor<SumTables>(queue, kJoinQueued, hots, kSegment, status);
  }
};

}  // namespace
