// TensorFlow operations that launch the row kernels on TensorFlow's own stream.
//
// The host never waits for the device in a step: step counts, and sizes that depend on the data,
// stay in device memory. If a gradient is not finite or an id is outside its table, the kernels
// refuse the step. Each step writes that into memory of the host, which reads it before the next
// operation and raises the error.
//
// Python compiles the kernels and registers each table once (`cowclip_add_table`). Operations refer
// to tables by the numbers that this function returns. In tests, tables of kind "host" have the
// functions of emulated kernels, so that the same code runs without a device.
#include "dense.h"
#include "mlp/ops.h"
#include "read.h"
#include "row_op.h"
#include "step.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

class CatchUpOp : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         const std::vector<const Long*>& steps, Long* status, Seen&) override {
    const Tensor* ids;
    TF_RETURN_IF_ERROR(context->input("ids", &ids));
    const Long n = ids->NumElements();
    if (n == 0) return tensorflow::OkStatus();
    std::vector<ReplayTable> replays;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      const Locked* state = &variables[i * per_table()];
      replays.push_back(Replay(*tables_[i], state, steps[i]));
      replays[i].blocks = std::min<Long>(tables_[i]->blocks, (n + BLOCK - 1) / BLOCK);
    }
    LaunchFor<ReplayTables>(queue, kCatchUpRows, replays, ids->data(),
                            static_cast<int>(ids->dtype() == tensorflow::DT_INT64), n, status);
    return tensorflow::OkStatus();
  }
};

class FlushOp : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         const std::vector<const Long*>& steps, Long*, Seen&) override {
    std::vector<ReplayTable> replays;
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (steps[i] != nullptr)
        replays.push_back(Replay(*tables_[i], &variables[i * per_table()], steps[i]));
    LaunchFor<ReplayTables>(queue, kSweepRows, replays);
    return tensorflow::OkStatus();
  }
};

}  // namespace

extern "C" {

int cowclip_add_table(const CowClipTable* table) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  registry.push_back(std::make_unique<CowClipTable>(*table));
  return static_cast<int>(registry.size()) - 1;
}

void cowclip_set_describe(CowClipDescribe function) { describe = function; }

}  // extern "C"

REGISTER_OP("CowClipCatchUp")
    .Attr("Index: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("V: int >= 1")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Input("ids: Index")
    .Input("counts: N * int64")
    .Input("variables: V * resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("CowClipStep")
    .Attr("T: {float, bfloat16}")
    .Attr("Index: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Input("rate: float")
    .Input("iterations: int64")
    .Input("counts: K * int64")
    .Input("indices: N * Index")
    .Input("values: N * T")
    .Input("variables: V * resource")
    .Output("share: float")
    .Output("mean: float")
    .Output("done: K * int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_OP("CowClipFlush")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Input("counts: K * int64")
    .Input("variables: V * resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("CowClipRead")
    .Attr("K: int >= 0")
    .Attr("R: int >= 0")
    .Attr("V: int >= 1")
    .Attr("T: {float, bfloat16}")
    .Attr("Index: {int32, int64}")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Attr("width: int")
    .Attr("pairs: bool")
    .Input("ids: Index")
    .Input("offsets: int64")
    .Input("numbers: float")
    .Input("counts: K * int64")
    .Input("variables: V * resource")
    .Output("flat: T")
    .Output("first: float")
    .Output("second: float")
    .Output("sums: float")
    .Output("groups: uint32")
    .Output("rows: R * float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_OP("CowClipReadStep")
    .Attr("K: int >= 0")
    .Attr("R: int >= 0")
    .Attr("V: int >= 1")
    .Attr("T: {float, bfloat16}")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Attr("fields: int")
    .Input("rate: float")
    .Input("iterations: int64")
    .Input("counts: K * int64")
    .Input("groups: uint32")
    .Input("rows: R * float")
    .Input("flat: T")
    .Input("first: float")
    .Input("second: float")
    .Input("sums: float")
    .Input("variables: V * resource")
    .Output("share: float")
    .Output("mean: float")
    .Output("done: K * int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_OP("CowClipDense")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("tables: list(int)")
    .Attr("wait: bool")
    .Attr("epsilon: float")
    .Input("rate: float")
    .Input("iterations: int64")
    .Input("beta_1: float")
    .Input("beta_2: float")
    .Input("counts: K * int64")
    .Input("gradients: N * float")
    .Input("variables: V * resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(
    Name("CowClipCatchUp").Device(tensorflow::DEVICE_GPU).HostMemory("variables"), CatchUpOp);
REGISTER_KERNEL_BUILDER(
    Name("CowClipStep").Device(tensorflow::DEVICE_GPU).HostMemory("variables"), StepOp);
REGISTER_KERNEL_BUILDER(
    Name("CowClipFlush").Device(tensorflow::DEVICE_GPU).HostMemory("variables"), FlushOp);
REGISTER_KERNEL_BUILDER(
    Name("CowClipDense").Device(tensorflow::DEVICE_GPU).HostMemory("variables"), DenseOp);
REGISTER_KERNEL_BUILDER(
    Name("CowClipRead").Device(tensorflow::DEVICE_GPU).HostMemory("variables"), ReadOp);
REGISTER_KERNEL_BUILDER(
    Name("CowClipReadStep").Device(tensorflow::DEVICE_GPU).HostMemory("variables"), ReadStepOp);
REGISTER_KERNEL_BUILDER(Name("CowClipCatchUp").Device(tensorflow::DEVICE_CPU), CatchUpOp);
REGISTER_KERNEL_BUILDER(Name("CowClipStep").Device(tensorflow::DEVICE_CPU), StepOp);
REGISTER_KERNEL_BUILDER(Name("CowClipFlush").Device(tensorflow::DEVICE_CPU), FlushOp);
REGISTER_KERNEL_BUILDER(Name("CowClipDense").Device(tensorflow::DEVICE_CPU), DenseOp);
REGISTER_KERNEL_BUILDER(Name("CowClipRead").Device(tensorflow::DEVICE_CPU), ReadOp);
REGISTER_KERNEL_BUILDER(Name("CowClipReadStep").Device(tensorflow::DEVICE_CPU), ReadStepOp);
