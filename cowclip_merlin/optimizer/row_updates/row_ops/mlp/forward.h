// The operation forward.
#pragma once
#include "op.h"

namespace {

class MlpForwardOp : public MlpOp {
 public:
  using MlpOp::MlpOp;

 private:
  // What one call works on: the activations [b, padded], x first, and the weights as the products
  // want them, at these offsets.
  struct Work {
    std::vector<Long> padded, offsets;
    std::vector<Tensor> h;
    char* weights;
    bool x_as_is;

    Long rows() const { return h[0].dim_size(0); }
  };

  tensorflow::Status Run(OpKernelContext* context, Queue& queue) override {
    const Tensor* x;
    tensorflow::OpInputList kernels, biases;
    TF_RETURN_IF_ERROR(context->input("x", &x));
    TF_RETURN_IF_ERROR(context->input_list("kernels", &kernels));
    TF_RETURN_IF_ERROR(context->input_list("biases", &biases));
    TF_RETURN_IF_ERROR(Check(*x, kernels, biases));
    Work work;
    TF_RETURN_IF_ERROR(Allocate(context, *x, kernels, work));
    Convert(queue, *x, kernels, biases, work);
    TF_RETURN_IF_ERROR(Multiply(context, queue, work));
    const Long width = biases[biases.size() - 1].dim_size(0);
    TF_RETURN_IF_ERROR(SetOutputs(context, queue, work.h, width));
    return SetProducts(context, queue, work.h.back(), width);
  }

  tensorflow::Status Check(const Tensor& x, const tensorflow::OpInputList& kernels,
                           const tensorflow::OpInputList& biases) const {
    Long rows = x.dims() == 2 ? x.dim_size(1) : -1;
    for (int i = 0; i < kernels.size(); ++i) {
      const bool right = kernels[i].dims() == 2 && biases[i].dims() == 1 &&
                         kernels[i].dim_size(1) == biases[i].dim_size(0) &&
                         (i == 0 ? kernels[i].dim_size(0) <= rows : kernels[i].dim_size(0) == rows);
      if (!right || kernels[i].NumElements() == 0)
        return tensorflow::errors::InvalidArgument(
            "hidden layer ", i, " has a kernel ", kernels[i].shape().DebugString(), " and a bias ",
            biases[i].shape().DebugString(), " for an input of ", rows, " columns");
      rows = kernels[i].dim_size(1);
    }
    return tensorflow::OkStatus();
  }

  tensorflow::Status Allocate(OpKernelContext* context, const Tensor& x,
                              const tensorflow::OpInputList& kernels, Work& work) const {
    const Long b = x.dim_size(0), columns = x.dim_size(1);
    work.padded = {Padded(columns)};
    for (const Tensor& kernel : kernels) work.padded.push_back(Padded(kernel.dim_size(1)));
    work.offsets = Offsets(work.padded);
    Tensor* weights;
    TF_RETURN_IF_ERROR(
        context->allocate_output(Output(kWeights), TensorShape({work.offsets.back()}), &weights));
    work.weights = static_cast<char*>(weights->data());
    work.h.resize(layers_ + 1);
    work.x_as_is = x.dtype() == type_ && columns == work.padded[0] &&
                   Operands::Alignment(x.data()) >= 16;
    if (work.x_as_is) work.h[0] = x;
    for (std::size_t i = work.x_as_is; i <= layers_; ++i)
      TF_RETURN_IF_ERROR(
          context->allocate_temp(type_, TensorShape({b, work.padded[i]}), &work.h[i]));
    return tensorflow::OkStatus();
  }

  // Writes the weights, and x if it needs that, in the type and shape of the products.
  void Convert(Queue& queue, const Tensor& x, const tensorflow::OpInputList& kernels,
               const tensorflow::OpInputList& biases, const Work& work) const {
    std::vector<CopyMatrix> copies;
    for (int i = 0; i < kernels.size(); ++i) {
      const Long rows = kernels[i].dim_size(0), width = kernels[i].dim_size(1);
      char* kernel = work.weights + work.offsets[2 * i];
      char* bias = work.weights + work.offsets[2 * i + 1];
      copies.push_back(CopyOf(kernels[i].data(), false, rows, width, width, kernel, bfloat16(),
                              work.padded[i], work.padded[i + 1]));
      copies.push_back(CopyOf(biases[i].data(), false, 1, width, width, bias, bfloat16(), 1,
                              work.padded[i + 1]));
    }
    const Long b = x.dim_size(0), columns = x.dim_size(1);
    if (!work.x_as_is && b > 0)
      copies.push_back(CopyOf(x.data(), x.dtype() == tensorflow::DT_BFLOAT16, b, columns, columns,
                              work.h[0].data(), bfloat16(), b, work.padded[0]));
    engine_->Copy(queue, copies);
  }

  tensorflow::Status Multiply(OpKernelContext* context, Queue& queue, const Work& work) {
    std::vector<Call> calls;
    for (std::size_t i = 0; i < layers_; ++i) {
      Call call{Forward(cublas::kEpilogueReluBias, work.rows(), work.padded[i], work.padded[i + 1]),
                {work.weights + work.offsets[2 * i], work.h[i].data(), work.h[i + 1].data(),
                 work.weights + work.offsets[2 * i + 1], nullptr}};
      TF_RETURN_IF_ERROR(AllocateMask(context, i, work.padded, call));
      if (work.rows() == 0) continue;
      if (!Has(call)) call.product.epilogue = cublas::kEpilogueDefault;
      calls.push_back(call);
    }
    return RunAll(context, queue, calls, [&](std::size_t i) {
      if (calls[i].product.epilogue == cublas::kEpilogueDefault)
        engine_->AddBiasRelu(queue, work.h[i + 1].data(), calls[i].operands.vector, work.rows(),
                             work.padded[i + 1], bfloat16());
    });
  }

  // Allocates the mask of a layer, empty unless products of both directions can use it.
  tensorflow::Status AllocateMask(OpKernelContext* context, std::size_t layer,
                                  const std::vector<Long>& padded, Call& call) const {
    const Long b = call.product.n, width = call.product.m;
    Call fused = call;
    fused.operands.mask = call.operands.d;  // aligned as a mask will be
    fused.product.epilogue = cublas::kEpilogueReluAuxBias;
    bool useful = layer + 1 < layers_ && b > 0 && Has(fused);
    Product backward =
        useful ? Backward(cublas::kEpilogueDreluBgrad, b, width, padded[layer + 2]) : Product{};
    useful = useful && ChooseSums(backward, fused.operands);
    Tensor* mask;
    const TensorShape shape = useful ? TensorShape({b, MaskBits(width) / 8}) : TensorShape({0, 0});
    TF_RETURN_IF_ERROR(
        context->allocate_output(Output(kMasks) + static_cast<int>(layer), shape, &mask));
    if (useful) call = {fused.product, fused.operands};
    if (useful) call.operands.mask = mask->data();
    return tensorflow::OkStatus();
  }

  tensorflow::Status SetOutputs(OpKernelContext* context, Queue& queue,
                                const std::vector<Tensor>& h, Long width) const {
    const Tensor& last = h.back();
    const Long b = last.dim_size(0), stride = last.dim_size(1);
    if (stride == width) {
      context->set_output(Output(kResult), last);
    } else {
      Tensor* result;
      TF_RETURN_IF_ERROR(
          context->allocate_output(Output(kResult), TensorShape({b, width}), &result));
      if (b > 0)
        engine_->Copy(queue, {CopyOf(last.data(), bfloat16(), b, width, stride, result->data(),
                                     bfloat16(), b, width)});
    }
    for (std::size_t i = 0; i <= layers_; ++i)
      context->set_output(Output(kActivations) + static_cast<int>(i), h[i]);
    return tensorflow::OkStatus();
  }

  // The products of the last activations with an output, if there is one.
  tensorflow::Status SetProducts(OpKernelContext* context, Queue& queue, const Tensor& h,
                                 Long width) const {
    tensorflow::OpInputList output;
    TF_RETURN_IF_ERROR(context->input_list("output", &output));
    if (output.size() == 0) return tensorflow::OkStatus();
    TF_RETURN_IF_ERROR(CheckOutput(output[0], width));
    const Long b = h.dim_size(0);
    Tensor* products;
    TF_RETURN_IF_ERROR(
        context->allocate_output(Output(kProducts), TensorShape({b, 1}), &products));
    if (b > 0)
      engine_->RowProducts(queue, h.data(), static_cast<const float*>(output[0].data()),
                           static_cast<float*>(products->data()), b, width, h.dim_size(1),
                           bfloat16());
    return tensorflow::OkStatus();
  }

  // The outputs, whose lists have one tensor for each layer; activations also have x.
  enum Part { kResult, kActivations, kMasks, kWeights, kProducts };
  int Output(Part part) const {
    const auto layers = static_cast<int>(layers_);
    const int first[] = {0, 1, 2 + layers, 2 + 2 * layers, 3 + 2 * layers};
    return first[part];
  }
};

}  // namespace
