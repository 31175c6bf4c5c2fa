// One step of tables whose gradients have an entry for each occurrence of an id.
#pragma once
#include <map>
#include <tuple>

#include "group.h"
#include "row_step.h"

namespace {

class StepOp : public RowStepOp {
 public:
  using RowStepOp::RowStepOp;

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         const std::vector<const Long*>& steps, Long* status,
                         Seen& seen) override {
    tensorflow::OpInputList indices, values;
    TF_RETURN_IF_ERROR(context->input_list("indices", &indices));
    TF_RETURN_IF_ERROR(context->input_list("values", &values));
    std::vector<Part> parts(tables_.size());
    Workspace common;
    unsigned long long* counters;
    TF_RETURN_IF_ERROR(ReserveCounters(context, queue, common, parts, &counters));
    std::vector<Workspace> spaces(2 * parts.size());
    // Tables with equally many rows that are read at the same ids share their groups.
    std::map<std::tuple<const void*, Long, Long>, Groups> known;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Tensor& ids = indices[i];
      const auto key = std::make_tuple(static_cast<const void*>(ids.data()),
                                       static_cast<Long>(ids.NumElements()), tables_[i]->rows);
      const auto found = known.find(key);
      parts[i].n = ids.NumElements();
      if (found != known.end()) {
        parts[i].groups = found->second;
      } else {
        TF_RETURN_IF_ERROR(Reserve(context, parts[i].n, spaces[2 * i], &parts[i].groups));
        TF_RETURN_IF_ERROR(Group(context, queue, *tables_[i], ids, status, parts[i].groups));
        known[key] = parts[i].groups;
      }
      parts[i].sum.values = values[i].data();
      TF_RETURN_IF_ERROR(PrepareSum(context, i, parts[i], spaces[2 * i + 1]));
    }
    return Finish(context, queue, variables, steps, status, seen, parts, counters);
  }
};

}  // namespace
