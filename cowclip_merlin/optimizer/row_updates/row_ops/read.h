// The read of a batch, with everything that its layers need, and the step of the rows it has read.
#pragma once
#include <algorithm>

#include "group.h"
#include "row_step.h"

namespace {

constexpr int kFlat = 0, kFirst = 1, kSecond = 2, kSums = 3, kGroups = 4, kRows = 5;

// Groups as one tensor, [5, n + 1] in whole lines of memory.
Long Pitch(Long n) { return (n + 1 + 63) / 64 * 64; }
Groups GroupsIn(const Tensor& tensor, Long n) {
  Word* at = static_cast<Word*>(tensor.data());
  const Long pitch = Pitch(n);
  return {at, at + pitch, at + 2 * pitch, at + 3 * pitch, at + 4 * pitch};
}

class ReadOp : public RowOp {
 public:
  explicit ReadOp(OpKernelConstruction* context) : RowOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
    OP_REQUIRES_OK(context, context->GetAttr("pairs", &pairs_));
  }

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         const std::vector<const Long*>& steps, Long* status, Seen&) override {
    const Tensor *ids, *offsets, *numbers;
    TF_RETURN_IF_ERROR(context->input("ids", &ids));
    TF_RETURN_IF_ERROR(context->input("offsets", &offsets));
    TF_RETURN_IF_ERROR(context->input("numbers", &numbers));
    const CowClipTable& table = *tables_[0];
    const Long batch = ids->dim_size(0), n = ids->NumElements();
    Reading reading{variables[0].data<float>()};
    reading.batch = batch, reading.fields = ids->dim_size(1), reading.d = table.d;
    reading.tile = table.tile, reading.numbers = numbers->dim_size(1), reading.width = width_;
    reading.x = static_cast<const float*>(numbers->data());
    if (offsets->NumElements() != reading.fields || numbers->dim_size(0) != batch)
      return tensorflow::errors::InvalidArgument(
          "a batch of ", batch, " rows and ", reading.fields, " columns of ids, but offsets of ",
          offsets->NumElements(), " columns and ", numbers->dim_size(0), " rows of numbers");
    for (const CowClipTable* each : tables_)
      if (each->rows != table.rows)
        return tensorflow::errors::InvalidArgument(
            "tables that are read at once have ", table.rows, " and ", each->rows, " rows");
    if (reading.fields * reading.d + reading.numbers > width_)
      return tensorflow::errors::InvalidArgument("width is ", width_, ", but a row has ",
                                                 reading.fields * reading.d + reading.numbers);
    if (tables_.size() > 1) reading.wide = variables[per_table()].data<float>();
    TF_RETURN_IF_ERROR(AllocateOutputs(context, batch, &reading));
    Tensor* grouped;
    TF_RETURN_IF_ERROR(
        context->allocate_output(kGroups, tensorflow::TensorShape({5 * Pitch(n)}), &grouped));
    const Groups groups = GroupsIn(*grouped, n);
    TF_RETURN_IF_ERROR(Group(context, queue, table, *ids, status, groups, offsets));
    reading.slots = groups.slots, reading.ids = groups.ids;
    if (table.exact) TF_RETURN_IF_ERROR(Fetch(context, queue, variables, steps, groups, n, &reading));
    if (n == 0) return tensorflow::OkStatus();
    const Long blocks = std::min<Long>(table.blocks, (32 * batch + BLOCK - 1) / BLOCK);
    queue.Launch(longest_->functions[kReadBatch], blocks, reading);
    return tensorflow::OkStatus();
  }

  tensorflow::Status AllocateOutputs(OpKernelContext* context, Long batch, Reading* reading) {
    const Long firsts = reading->wide ? 1 : 0, pairs = pairs_ ? 1 : 0;
    Tensor *flat, *first, *second, *sums;
    TF_RETURN_IF_ERROR(
        context->allocate_output(kFlat, tensorflow::TensorShape({batch, width_}), &flat));
    TF_RETURN_IF_ERROR(
        context->allocate_output(kFirst, tensorflow::TensorShape({batch, firsts}), &first));
    TF_RETURN_IF_ERROR(
        context->allocate_output(kSecond, tensorflow::TensorShape({batch, pairs}), &second));
    TF_RETURN_IF_ERROR(context->allocate_output(
        kSums, tensorflow::TensorShape({batch, pairs * reading->d}), &sums));
    reading->flat = flat->data();
    if (reading->wide) reading->first = static_cast<float*>(first->data());
    if (!pairs_) return tensorflow::OkStatus();
    reading->second = static_cast<float*>(second->data());
    reading->sums = static_cast<float*>(sums->data());
    return tensorflow::OkStatus();
  }

  // Copies the distinct rows of all tables, up to date, into outputs [3, most, d].
  tensorflow::Status Fetch(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                           const std::vector<const Long*>& steps, const Groups& groups, Long n,
                           Reading* reading) {
    tensorflow::OpOutputList rows;
    TF_RETURN_IF_ERROR(context->output_list("rows", &rows));
    std::vector<FetchTable> fetches;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      const CowClipTable& table = *tables_[i];
      const ReplayTable all = Replay(table, &variables[i * per_table()], steps[i]);
      const Long most = std::min(n, table.rows);
      Tensor* output;
      TF_RETURN_IF_ERROR(rows.allocate(i, tensorflow::TensorShape({3, most, table.d}), &output));
      float* to = static_cast<float*>(output->data());
      fetches.push_back({all.w, all.m, all.v, all.last, all.history, all.steps, groups.ids,
                         groups.u, to, to + most * table.d, to + 2 * most * table.d, all.capacity,
                         table.d});
      FetchTable& fetch = fetches.back();
      fetch.blocks = static_cast<int>(FullBlocks(table, n));
      fetch.keep_m = table.keep_m, fetch.keep_v = table.keep_v;
      fetch.epsilon = table.epsilon, fetch.l2 = table.l2;
    }
    if (n == 0) return tensorflow::OkStatus();
    LaunchFor<FetchTables>(queue, kFetchRows, fetches);
    reading->ids = nullptr;  // rows lie side by side
    reading->w = fetches[0].row_w;
    if (reading->wide) reading->wide = fetches[1].row_w;
    return tensorflow::OkStatus();
  }

  tensorflow::int64 width_ = 0;
  bool pairs_ = false;
};

// For i < 2^31, i / fields is the upper word of 2 * i * reciprocal, shifted right by `shift`.
void SetDivision(SumTable* sum) {
  const Long fields = sum->fields;
  while ((1LL << sum->shift) < fields) ++sum->shift;
  sum->reciprocal = static_cast<Word>(((1LL << (31 + sum->shift)) + fields - 1) / fields);
}

class ReadStepOp : public RowStepOp {
 public:
  explicit ReadStepOp(OpKernelConstruction* context) : RowStepOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("fields", &fields_));
  }

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         const std::vector<const Long*>& steps, Long* status,
                         Seen& seen) override {
    const Tensor *flat, *first, *second, *sums, *grouped;
    TF_RETURN_IF_ERROR(context->input("flat", &flat));
    TF_RETURN_IF_ERROR(context->input("first", &first));
    TF_RETURN_IF_ERROR(context->input("second", &second));
    TF_RETURN_IF_ERROR(context->input("sums", &sums));
    TF_RETURN_IF_ERROR(context->input("groups", &grouped));
    tensorflow::OpInputList rows;
    TF_RETURN_IF_ERROR(context->input_list("rows", &rows));
    const Long batch = flat->dim_size(0), n = batch * fields_;
    const Long size = 5 * Pitch(n), found = grouped->NumElements();
    if (found != size)
      return tensorflow::errors::InvalidArgument("a read of ", batch, " rows has ", size,
                                                 " numbers of groups, not ", found);
    const Long firsts = tables_.size() > 1 ? batch : 0, pairs = sums->NumElements() / tables_[0]->d;
    if (first->NumElements() != firsts || second->NumElements() != pairs)
      return tensorflow::errors::InvalidArgument(
          "the gradients of a read of ", batch, " rows have ", first->NumElements(), " and ",
          second->NumElements(), " numbers, not ", firsts, " and ", pairs);
    std::vector<Part> parts(tables_.size());
    Workspace common;
    unsigned long long* counters;
    TF_RETURN_IF_ERROR(ReserveCounters(context, queue, common, parts, &counters));
    std::vector<Workspace> spaces(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      part.n = n;
      part.groups = GroupsIn(*grouped, n);
      for (int k = 0; k < 3 && i < static_cast<std::size_t>(rows.size()); ++k)
        part.rows[k] = static_cast<const float*>(rows[i].data()) + k * rows[i].NumElements() / 3;
      SumTable& sum = part.sum;
      sum.fields = fields_, sum.pitch = flat->dim_size(1), sum.compact = rows.size() > 0;
      SetDivision(&sum);
      sum.w = sum.compact ? part.rows[0] : variables[i * per_table()].data<float>();
      if (i == 0) sum.values = flat->data();
      const Tensor& terms = i == 0 ? *second : *first;
      if (terms.NumElements() > 0) sum.row_g = static_cast<const float*>(terms.data());
      if (i == 0 && sum.row_g) sum.sums = static_cast<const float*>(sums->data());
      TF_RETURN_IF_ERROR(PrepareSum(context, i, part, spaces[i]));
    }
    return Finish(context, queue, variables, steps, status, seen, parts, counters);
  }

  int fields_ = 1;
};

}  // namespace
