// One step of all tables: group ids, sum gradients, then L2, clip and Adam.
#pragma once
#include <algorithm>
#include <map>
#include <tuple>

#include "group.h"
#include "row_op.h"

namespace {

class StepOp : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         const std::vector<const Long*>& steps, Long* status,
                         Seen& seen) override {
    tensorflow::OpInputList indices, values;
    const Tensor *rate, *iterations;
    TF_RETURN_IF_ERROR(context->input("rate", &rate));
    TF_RETURN_IF_ERROR(context->input("iterations", &iterations));
    TF_RETURN_IF_ERROR(context->input_list("indices", &indices));
    TF_RETURN_IF_ERROR(context->input_list("values", &values));
    Tensor *share, *mean;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tensorflow::TensorShape({}), &share));
    TF_RETURN_IF_ERROR(context->allocate_output(1, tensorflow::TensorShape({}), &mean));
    const std::size_t count = tables_.size();
    std::vector<Groups> groups(count);
    std::vector<SumTable> sums(count);
    Workspace common;
    // Counters for the log, then for each table those of its frequent ids.
    const std::size_t at_counters = common.Reserve((3 + count) * sizeof(Long));
    TF_RETURN_IF_ERROR(common.Allocate(context));
    auto* counters = common.At<unsigned long long>(at_counters);
    queue.Zero(counters, 2 * (3 + count));
    std::vector<Workspace> spaces(2 * count);
    // Tables with equally many rows that are read at the same ids share their groups.
    std::map<std::tuple<const void*, Long, Long>, Groups> known;
    for (std::size_t i = 0; i < count; ++i) {
      const Tensor &ids = indices[i], &g = values[i];
      const auto key = std::make_tuple(static_cast<const void*>(ids.data()),
                                       static_cast<Long>(ids.NumElements()), tables_[i]->rows);
      const auto found = known.find(key);
      if (found != known.end()) {
        groups[i] = found->second;
      } else {
        TF_RETURN_IF_ERROR(Reserve(context, ids.NumElements(), spaces[2 * i], &groups[i]));
        TF_RETURN_IF_ERROR(Group(context, queue, *tables_[i], ids, status, groups[i]));
        known[key] = groups[i];
      }
      sums[i].queued = reinterpret_cast<Word*>(counters + 3 + i);
      TF_RETURN_IF_ERROR(
          PrepareSum(context, i, g, ids.NumElements(), groups[i], spaces[2 * i + 1], &sums[i]));
    }
    Sum(queue, indices, sums, status);
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
    for (std::size_t i = 0; i < count; ++i) {
      const CowClipTable& table = *tables_[i];
      const Locked* state = &variables[i * per_table()];
      all.push_back(Step(table, state, groups[i], sums[i].g));
      all[i].blocks = static_cast<int>(Blocks(table, indices[i].NumElements()));
      if (!table.exact) continue;
      Tensor* output;
      TF_RETURN_IF_ERROR(done.allocate(i, tensorflow::TensorShape({1}), &output));
      all[i].steps = steps[i];
      all[i].done = static_cast<Long*>(output->data());
      sweeps.push_back(Replay(table, state, steps[i]));
      sweeps.back().parts = table.sweep;
      sweeps.back().blocks = static_cast<int>(Blocks(table, table.rows / table.sweep + 1));
    }
    LaunchFor<ReplayTables>(queue, kSweepRows, sweeps);
    const CowClipTable& any = *tables_[0];
    LaunchFor<StepTables>(queue, kStepGroups, all, rate->data(), iterations->data(), any.beta_1,
                          any.beta_2, counters, status);
    queue.Launch(any.functions[kSummarize], 1, counters, share->data(), mean->data(), status,
                 words(), seen.pinned);
    return tensorflow::OkStatus();
  }

  // Allocates what the sums of a table need, but for the counters `queued`.
  tensorflow::Status PrepareSum(OpKernelContext* context, std::size_t number, const Tensor& values,
                                Long n, const Groups& groups, Workspace& space, SumTable* sum) {
    const CowClipTable& table = *tables_[number];
    const Long hots = Hots(n), pieces = 2 * hots, most = std::min(n, table.rows);
    const std::size_t at_g = space.Reserve(4 * (most + 1) * table.d);
    const std::size_t at_hot = space.Reserve(4 * hots), at_first = space.Reserve(4 * hots);
    const std::size_t at_begin = space.Reserve(4 * pieces), at_end = space.Reserve(4 * pieces);
    const std::size_t at_partial = space.Reserve(4 * pieces * table.d);
    TF_RETURN_IF_ERROR(space.Allocate(context));
    *sum = {values.data(), groups.order, groups.starts, groups.ids, groups.u, sum->queued,
            space.At<Word>(at_hot), space.At<Word>(at_first), space.At<Word>(at_begin),
            space.At<Word>(at_end), space.At<float>(at_partial), space.At<float>(at_g), table.d,
            table.tile, table.slot};
    return tensorflow::OkStatus();
  }

  // The step of a table, but for its blocks and step counts.
  static StepTable Step(const CowClipTable& table, const Locked* state, const Groups& groups,
                        const float* g) {
    StepTable step{state[0].data<float>(), state[1].data<float>(), state[2].data<float>()};
    if (table.exact) {
      step.last = state[3].data<float>();
      step.history = state[4].data<float>();
      step.capacity = Capacity(state);
    }
    step.g = g;
    step.ids = groups.ids, step.starts = groups.starts, step.u = groups.u;
    step.r = table.r, step.least = table.least, step.bound = table.bound;
    step.d = table.d, step.tile = table.tile, step.slot = table.slot;
    step.kind = table.kind, step.counted = table.counted;
    step.keep_m = table.keep_m, step.keep_v = table.keep_v;
    step.epsilon = table.epsilon, step.l2 = table.l2;
    return step;
  }

  // At most this many ids of n occur more than kSegment times.
  static Long Hots(Long n) { return n / kSegment + 1; }

  // Sums the gradients of all tables: rare ids, pieces of frequent ids, then over the pieces.
  void Sum(Queue& queue, const tensorflow::OpInputList& indices, const std::vector<SumTable>& sums,
           Long* status) {
    std::vector<SumTable> groups, pieces, hots;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const Long n = indices[i].NumElements();
      if (n == 0) continue;
      for (auto* each : {&groups, &pieces, &hots}) each->push_back(sums[i]);
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
