// The operation backward.
#pragma once
#include "op.h"

namespace {

class MlpGradientOp : public MlpOp {
 public:
  explicit MlpGradientOp(OpKernelConstruction* context) : MlpOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(context, context->GetAttr("widths", &widths_));
    OP_REQUIRES(context, widths_.size() == layers_ + 1,
                tensorflow::errors::InvalidArgument("`widths` needs N + 1 numbers"));
  }

 private:
  // What one call works on. `dz` are the gradients before each ReLU, dz[0] that of x. Gradients of
  // biases are in `biases`, or if a product makes them (`fused`) and rounds them to its type
  // (`rounded`), in `sums`. If an output of one number per row follows, its kernel is in `output`, and `of_w` is
  // the gradient of that.
  struct Work {
    const Tensor *gradient, *weights;
    tensorflow::OpInputList h, masks, output;
    std::vector<Long> padded;
    std::vector<Tensor> dz, kernels, sums, biases;
    std::vector<bool> fused, rounded;
    Tensor partial, of_w;

    Long rows() const { return h[0].dim_size(0); }
    bool with_output() const { return output.size() > 0; }
  };

  tensorflow::Status Run(OpKernelContext* context, Queue& queue) override {
    Work work;
    TF_RETURN_IF_ERROR(context->input("weights", &work.weights));
    TF_RETURN_IF_ERROR(context->input_list("activations", &work.h));
    TF_RETURN_IF_ERROR(context->input_list("masks", &work.masks));
    TF_RETURN_IF_ERROR(context->input_list("output", &work.output));
    tensorflow::OpInputList given;
    TF_RETURN_IF_ERROR(
        context->input_list(work.with_output() ? "of_output" : "gradient", &given));
    work.gradient = &given[0];
    TF_RETURN_IF_ERROR(Check(work));
    TF_RETURN_IF_ERROR(Allocate(context, work));
    if (work.rows() > 0) TF_RETURN_IF_ERROR(Multiply(context, queue, work));
    return SetOutputs(context, queue, work);
  }

  tensorflow::Status Check(const Work& work) const {
    const Tensor& gradient = *work.gradient;
    const Long width = work.with_output() ? 1 : widths_.back();
    if (gradient.shape() != TensorShape({work.rows(), width}))
      return tensorflow::errors::InvalidArgument(
          "the gradient of the hidden layers is ", gradient.shape().DebugString(), ", not [",
          work.rows(), ", ", width, "]");
    return work.with_output() ? CheckOutput(work.output[0], widths_.back())
                              : tensorflow::OkStatus();
  }

  tensorflow::Status Allocate(OpKernelContext* context, Work& work) const {
    for (const Tensor& each : work.h) work.padded.push_back(each.dim_size(1));
    for (auto* list : {&work.kernels, &work.sums, &work.biases}) list->resize(layers_);
    work.dz.resize(layers_ + 1);
    work.fused.assign(layers_, false);
    work.rounded.assign(layers_, false);
    Long numbers = 1;
    for (std::size_t i = 0; i <= layers_; ++i) {
      const Long width = work.padded[i];
      TF_RETURN_IF_ERROR(
          context->allocate_temp(type_, TensorShape({work.rows(), width}), &work.dz[i]));
      numbers = std::max(numbers, 2 * engine_->Parts(work.rows(), width, bfloat16()) * width);
    }
    for (std::size_t i = 0; i < layers_; ++i) {
      const TensorShape width({work.padded[i + 1]}), shape({work.padded[i], work.padded[i + 1]});
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, shape, &work.kernels[i]));
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, width, &work.biases[i]));
      if (bfloat16()) TF_RETURN_IF_ERROR(context->allocate_temp(type_, width, &work.sums[i]));
    }
    if (work.with_output())
      TF_RETURN_IF_ERROR(context->allocate_temp(
          tensorflow::DT_FLOAT, TensorShape({work.padded[layers_], 1}), &work.of_w));
    return context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({numbers}), &work.partial);
  }

  // Two products for each layer, the last layer first: gradients of its kernel and of its input.
  tensorflow::Status Multiply(OpKernelContext* context, Queue& queue, Work& work) {
    const auto layers = static_cast<int>(layers_);
    std::vector<Call> calls;
    for (int i = layers - 1; i >= 0; --i) {
      calls.push_back({Weights(work.rows(), work.padded[i], work.padded[i + 1]),
                       {work.dz[i + 1].data(), work.h[i].data(), work.kernels[i].data(), nullptr,
                        nullptr}});
      calls.push_back(OfInput(work, i));
    }
    MlpOutput output;
    if (work.with_output())
      output = {static_cast<const float*>(work.gradient->data()),
                static_cast<const float*>(work.output[0].data()),
                static_cast<float*>(work.of_w.data())};
    Relu(queue, work, layers, *work.gradient, widths_.back(), output);
    return RunAll(context, queue, calls, [&](std::size_t done) {
      const int layer = layers - 1 - static_cast<int>(done) / 2;
      if (done % 2 == 1 && layer > 0 && !work.fused[layer - 1])
        Relu(queue, work, layer, work.dz[layer], work.padded[layer]);
    });
  }

  // The gradient of the input of layer i, with that of the ReLU below if there is a mask for it.
  Call OfInput(Work& work, int i) const {
    const std::vector<Long> offsets = Offsets(work.padded);
    const char* weights = static_cast<const char*>(work.weights->data());
    const Long below = work.padded[i], width = work.padded[i + 1];
    Call call{Backward(cublas::kEpilogueDreluBgrad, work.rows(), below, width),
              {weights + offsets[2 * i], work.dz[i + 1].data(), work.dz[i].data(), nullptr,
               nullptr}};
    if (i > 0 && work.masks[i - 1].NumElements() > 0) {
      call.operands.vector = work.biases[i - 1].data();
      call.operands.mask = const_cast<void*>(static_cast<const void*>(work.masks[i - 1].data()));
      work.fused[i - 1] = ChooseSums(call.product, call.operands);
      work.rounded[i - 1] = work.fused[i - 1] && call.product.vector != cublas::kFloat;
      if (work.rounded[i - 1]) call.operands.vector = work.sums[i - 1].data();
    }
    if (i == 0 || !work.fused[i - 1]) call.product.epilogue = cublas::kEpilogueDefault;
    return call;
  }

  // The gradient before the ReLU of a layer, counted from 1, from the one after it.
  void Relu(Queue& queue, Work& work, int layer, const Tensor& g, Long g_columns,
            const MlpOutput& output = {}) const {
    engine_->ReluGradient(queue, g.data(), g_columns, work.h[layer].data(), work.dz[layer].data(),
                          static_cast<float*>(work.partial.data()),
                          static_cast<float*>(work.biases[layer - 1].data()), work.rows(),
                          work.padded[layer], bfloat16(), output);
  }

  // Sets the outputs without the columns and rows of zeros. A part at the front needs no copy.
  tensorflow::Status SetOutputs(OpKernelContext* context, Queue& queue, const Work& work) const {
    std::vector<CopyMatrix> copies;
    const Long b = work.rows(), width = work.padded[0];
    if (x_type_ == type_ && columns_ == width) {
      context->set_output(0, work.dz[0]);
    } else {
      Tensor* dx;
      TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({b, columns_}), &dx));
      if (b > 0)
        copies.push_back(CopyOf(work.dz[0].data(), bfloat16(), b, width, width, dx->data(),
                                x_type_ == tensorflow::DT_BFLOAT16, b, columns_));
    }
    for (std::size_t i = 0; i < layers_; ++i) {
      TF_RETURN_IF_ERROR(SetKernel(context, work, static_cast<int>(i), copies));
      TF_RETURN_IF_ERROR(SetBias(context, work, static_cast<int>(i), copies));
    }
    if (work.with_output()) {
      if (b == 0) queue.Zero(work.of_w.data(), work.of_w.NumElements());
      const Long rows = widths_.back();
      context->set_output(1 + 2 * static_cast<int>(layers_), work.of_w.Slice(0, rows));
    }
    engine_->Copy(queue, copies);
    return tensorflow::OkStatus();
  }

  tensorflow::Status SetKernel(OpKernelContext* context, const Work& work, int i,
                               std::vector<CopyMatrix>& copies) const {
    const Long rows = widths_[i], width = widths_[i + 1], stride = work.padded[i + 1];
    if (work.rows() > 0 && width == stride) {
      context->set_output(1 + i, work.kernels[i].Slice(0, rows));
      return tensorflow::OkStatus();
    }
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(1 + i, TensorShape({rows, width}), &output));
    const Long from_rows = work.rows() > 0 ? rows : 0;  // a source of no rows gives zeros
    copies.push_back(CopyOf(work.kernels[i].data(), false, from_rows, width, stride, output->data(),
                            false, rows, width));
    return tensorflow::OkStatus();
  }

  tensorflow::Status SetBias(OpKernelContext* context, const Work& work, int i,
                             std::vector<CopyMatrix>& copies) const {
    const Long width = widths_[i + 1];
    const int number = 1 + static_cast<int>(layers_) + i;
    if (work.rows() > 0 && !work.rounded[i]) {
      context->set_output(number, work.biases[i].Slice(0, width));
      return tensorflow::OkStatus();
    }
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(number, TensorShape({width}), &output));
    const Tensor& sums = work.rounded[i] ? work.sums[i] : work.biases[i];
    copies.push_back(CopyOf(sums.data(), work.rounded[i], work.rows() > 0, width, width,
                            output->data(), false, 1, width));
    return tensorflow::OkStatus();
  }

  tensorflow::int64 columns_ = 0;
  std::vector<int> widths_;
};

}  // namespace
