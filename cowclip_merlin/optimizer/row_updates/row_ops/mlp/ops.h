// The operations of the hidden layers: forward, and backward.
#pragma once
#include "op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

class MlpForwardOp : public MlpOp {
 public:
  using MlpOp::MlpOp;

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue) override {
    const Tensor* x;
    tensorflow::OpInputList kernels, biases;
    TF_RETURN_IF_ERROR(context->input("x", &x));
    TF_RETURN_IF_ERROR(context->input_list("kernels", &kernels));
    TF_RETURN_IF_ERROR(context->input_list("biases", &biases));
    TF_RETURN_IF_ERROR(Check(*x, kernels, biases));
    const Long b = x->dim_size(0), columns = x->dim_size(1);
    std::vector<Long> padded{Padded(columns)};
    for (const Tensor& kernel : kernels) padded.push_back(Padded(kernel.dim_size(1)));
    const std::vector<Long> offsets = Offsets(padded);
    Tensor* weights;
    TF_RETURN_IF_ERROR(context->allocate_output(
        static_cast<int>(2 + 2 * layers_), TensorShape({offsets.back()}), &weights));
    std::vector<Tensor> h(layers_ + 1);
    const bool as_is = x->dtype() == type_ && columns == padded[0] && Operands::Alignment(x->data()) >= 16;
    if (as_is) h[0] = *x;
    for (std::size_t i = as_is; i <= layers_; ++i)
      TF_RETURN_IF_ERROR(context->allocate_temp(type_, TensorShape({b, padded[i]}), &h[i]));

    std::vector<CopyMatrix> copies;
    char* at = static_cast<char*>(weights->data());
    const int layers = static_cast<int>(layers_);
    for (int i = 0; i < layers; ++i) {
      const Long rows = kernels[i].dim_size(0), width = kernels[i].dim_size(1);
      copies.push_back(CopyOf(kernels[i].data(), false, rows, width, width, at + offsets[2 * i],
                              bfloat16(), padded[i], padded[i + 1]));
      copies.push_back(CopyOf(biases[i].data(), false, 1, width, width, at + offsets[2 * i + 1],
                              bfloat16(), 1, padded[i + 1]));
    }
    if (!as_is && b > 0)
      copies.push_back(CopyOf(x->data(), x->dtype() == tensorflow::DT_BFLOAT16, b, columns, columns,
                              h[0].data(), bfloat16(), b, padded[0]));
    engine_->Copy(queue, copies);
    if (b > 0) TF_RETURN_IF_ERROR(Multiply(context, queue, h, padded, at, offsets));
    else TF_RETURN_IF_ERROR(NoMasks(context));
    TF_RETURN_IF_ERROR(SetOutputs(context, queue, h, kernels[layers - 1].dim_size(1)));
    return SetProducts(context, queue, h.back(), kernels[layers - 1].dim_size(1));
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

  tensorflow::Status NoMasks(OpKernelContext* context) const {
    Tensor* none;
    for (std::size_t i = 0; i < layers_; ++i)
      TF_RETURN_IF_ERROR(context->allocate_output(static_cast<int>(2 + layers_ + i),
                                                  TensorShape({0, 0}), &none));
    return tensorflow::OkStatus();
  }

  // Allocates the mask of a layer if the products of both directions can use it.
  tensorflow::Status AllocateMask(OpKernelContext* context, std::size_t layer,
                                  const std::vector<Long>& padded, Call& call) const {
    Tensor* mask;
    const Long b = call.product.n, width = call.product.m;
    const auto output = static_cast<int>(2 + layers_ + layer);
    const bool last = layer + 1 == layers_;
    if (!last) {
      Call fused = call, back = call;
      fused.operands.mask = back.operands.mask = call.operands.d;  // aligned as a mask will be
      fused.product.epilogue = cublas::kEpilogueReluAuxBias;
      back.product = Backward(cublas::kEpilogueDreluBgrad, b, width, padded[layer + 2]);
      if (Has(fused) && Has(back)) {
        TF_RETURN_IF_ERROR(
            context->allocate_output(output, TensorShape({b, MaskBits(width) / 8}), &mask));
        call = fused;
        call.operands.mask = mask->data();
        return tensorflow::OkStatus();
      }
    }
    return context->allocate_output(output, TensorShape({0, 0}), &mask);
  }

  tensorflow::Status Multiply(OpKernelContext* context, Queue& queue, std::vector<Tensor>& h,
                              const std::vector<Long>& padded, char* weights,
                              const std::vector<Long>& offsets) {
    const Long b = h[0].dim_size(0);
    std::vector<Call> calls;
    for (std::size_t i = 0; i < layers_; ++i) {
      Call call{Forward(cublas::kEpilogueReluBias, b, padded[i], padded[i + 1]),
                {weights + offsets[2 * i], h[i].data(), h[i + 1].data(),
                 weights + offsets[2 * i + 1], nullptr}};
      TF_RETURN_IF_ERROR(AllocateMask(context, i, padded, call));
      if (!Has(call)) call.product.epilogue = cublas::kEpilogueDefault;
      calls.push_back(call);
    }
    return RunAll(context, queue, calls, [&](std::size_t i) {
      if (calls[i].product.epilogue == cublas::kEpilogueDefault)
        engine_->AddBiasRelu(queue, h[i + 1].data(), calls[i].operands.vector, b, padded[i + 1],
                             bfloat16());
    });
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
    TF_RETURN_IF_ERROR(context->allocate_output(static_cast<int>(3 + 2 * layers_),
                                                TensorShape({b, 1}), &products));
    if (b > 0)
      engine_->RowProducts(queue, h.data(), static_cast<const float*>(output[0].data()),
                           static_cast<float*>(products->data()), b, width, h.dim_size(1),
                           bfloat16());
    return tensorflow::OkStatus();
  }

  tensorflow::Status SetOutputs(OpKernelContext* context, Queue& queue,
                                const std::vector<Tensor>& h, Long width) const {
    const Tensor& last = h.back();
    const Long b = last.dim_size(0), stride = last.dim_size(1);
    if (stride == width) {
      context->set_output(0, last);
    } else {
      Tensor* result;
      TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({b, width}), &result));
      if (b > 0)
        engine_->Copy(queue, {CopyOf(last.data(), bfloat16(), b, width, stride, result->data(),
                                     bfloat16(), b, width)});
    }
    for (std::size_t i = 0; i <= layers_; ++i) context->set_output(static_cast<int>(1 + i), h[i]);
    return tensorflow::OkStatus();
  }
};

class MlpGradientOp : public MlpOp {
 public:
  explicit MlpGradientOp(OpKernelConstruction* context) : MlpOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(context, context->GetAttr("widths", &widths_));
    OP_REQUIRES(context, widths_.size() == layers_ + 1,
                tensorflow::errors::InvalidArgument("`widths` needs N + 1 numbers"));
  }

 private:
  tensorflow::Status Run(OpKernelContext* context, Queue& queue) override {
    const Tensor* weights;
    tensorflow::OpInputList h, masks, given, output, of_output;
    TF_RETURN_IF_ERROR(context->input_list("gradient", &given));
    TF_RETURN_IF_ERROR(context->input_list("output", &output));
    TF_RETURN_IF_ERROR(context->input_list("of_output", &of_output));
    TF_RETURN_IF_ERROR(context->input("weights", &weights));
    TF_RETURN_IF_ERROR(context->input_list("activations", &h));
    TF_RETURN_IF_ERROR(context->input_list("masks", &masks));
    const Long b = h[0].dim_size(0), width = output.size() > 0 ? 1 : widths_.back();
    const auto layers = static_cast<int>(layers_);
    const Tensor& gradient = output.size() > 0 ? of_output[0] : given[0];
    if (gradient.shape() != TensorShape({b, width}))
      return tensorflow::errors::InvalidArgument("the gradient of the hidden layers is ",
                                                 gradient.shape().DebugString(), ", not [", b,
                                                 ", ", width, "]");
    if (output.size() > 0) TF_RETURN_IF_ERROR(CheckOutput(output[0], widths_.back()));
    std::vector<Long> padded;
    for (const Tensor& each : h) padded.push_back(each.dim_size(1));
    const std::vector<Long> offsets = Offsets(padded);
    const char* at = static_cast<const char*>(weights->data());

    std::vector<Tensor> dz(layers + 1), kernels(layers), sums(layers), biases(layers);
    const bool as_is = x_type_ == type_ && columns_ == padded[0];
    for (int i = 0; i <= layers; ++i)
      TF_RETURN_IF_ERROR(context->allocate_temp(type_, TensorShape({b, padded[i]}), &dz[i]));
    for (int i = 0; i < layers; ++i) {
      const TensorShape width({padded[i + 1]}), shape({padded[i], padded[i + 1]});
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, shape, &kernels[i]));
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, width, &biases[i]));
      TF_RETURN_IF_ERROR(context->allocate_temp(type_, width, &sums[i]));
    }
    Tensor of_w;
    if (output.size() > 0) {
      TF_RETURN_IF_ERROR(
          context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({padded[layers], 1}), &of_w));
      if (b == 0) queue.Zero(of_w.data(), padded[layers]);
      context->set_output(static_cast<int>(1 + 2 * layers_), of_w.Slice(0, widths_.back()));
    }
    if (b == 0) return SetOutputs(context, queue, dz[0], kernels, sums, biases, padded, {}, as_is);

    Long numbers = 1;
    for (Long width : padded) numbers = std::max(numbers, 2 * engine_->Parts(b, width) * width);
    Tensor partial;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({numbers}), &partial));
    const auto relu = [&](int layer, const void* g, Long g_columns,
                          const MlpOutput& by = {}) {  // dz of this layer
      engine_->ReluGradient(queue, g, g_columns, h[layer].data(), dz[layer].data(),
                            static_cast<float*>(partial.data()),
                            static_cast<float*>(biases[layer - 1].data()), b, padded[layer],
                            bfloat16(), by);
    };
    std::vector<Call> calls;
    std::vector<bool> fused(layers, false);  // whether a product sums the gradient of the bias
    for (int i = layers - 1; i >= 0; --i) {
      void* here = dz[i + 1].data();
      calls.push_back({Weights(b, padded[i], padded[i + 1]),
                       {here, h[i].data(), kernels[i].data(), nullptr, nullptr}});
      Call back{Backward(cublas::kEpilogueDreluBgrad, b, padded[i], padded[i + 1]),
                {at + offsets[2 * i], here, dz[i].data(), nullptr, nullptr}};
      if (i > 0 && masks[i - 1].NumElements() > 0) {
        back.operands.vector = sums[i - 1].data();
        back.operands.mask = const_cast<void*>(static_cast<const void*>(masks[i - 1].data()));
        fused[i - 1] = Has(back);
      }
      if (i == 0 || !fused[i - 1]) back.product.epilogue = cublas::kEpilogueDefault;
      calls.push_back(back);
    }
    MlpOutput by;
    if (output.size() > 0)
      by = {static_cast<const float*>(gradient.data()),
            static_cast<const float*>(output[0].data()), static_cast<float*>(of_w.data())};
    relu(layers, gradient.data(), widths_.back(), by);
    TF_RETURN_IF_ERROR(RunAll(context, queue, calls, [&](std::size_t done) {
      const int layer = layers - 1 - static_cast<int>(done) / 2;  // the products come in pairs
      if (done % 2 == 1 && layer > 0 && !fused[layer - 1])
        relu(layer, dz[layer].data(), padded[layer]);
    }));
    return SetOutputs(context, queue, dz[0], kernels, sums, biases, padded, fused, as_is);
  }

  // Sets the outputs without the columns and rows of zeros. A part at the front needs no copy.
  tensorflow::Status SetOutputs(OpKernelContext* context, Queue& queue, const Tensor& dx,
                                const std::vector<Tensor>& kernels, const std::vector<Tensor>& sums,
                                const std::vector<Tensor>& biases, const std::vector<Long>& padded,
                                const std::vector<bool>& fused, bool as_is) const {
    std::vector<CopyMatrix> copies;
    const Long b = dx.dim_size(0), used = b > 0;  // a source of no rows gives zeros
    Tensor* output;
    if (as_is) {
      context->set_output(0, dx);
    } else {
      TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({b, columns_}), &output));
      if (b > 0)
        copies.push_back(CopyOf(dx.data(), bfloat16(), b, padded[0], padded[0], output->data(),
                                x_type_ == tensorflow::DT_BFLOAT16, b, columns_));
    }
    for (int i = 0; i < static_cast<int>(layers_); ++i) {
      const Long rows = widths_[i], width = widths_[i + 1];
      const int of_bias = 1 + static_cast<int>(layers_) + i;
      if (b > 0 && width == padded[i + 1]) {
        context->set_output(1 + i, kernels[i].Slice(0, rows));
      } else {
        TF_RETURN_IF_ERROR(context->allocate_output(1 + i, TensorShape({rows, width}), &output));
        copies.push_back(CopyOf(kernels[i].data(), false, used * rows, width, padded[i + 1],
                                output->data(), false, rows, width));
      }
      if (b > 0 && !fused[i]) {
        context->set_output(of_bias, biases[i].Slice(0, width));
      } else {
        TF_RETURN_IF_ERROR(context->allocate_output(of_bias, TensorShape({width}), &output));
        copies.push_back(CopyOf(sums[i].data(), bfloat16(), used, width, width, output->data(),
                                false, 1, width));
      }
    }
    engine_->Copy(queue, copies);
    return tensorflow::OkStatus();
  }

  tensorflow::int64 columns_ = 0;
  std::vector<int> widths_;
};

}  // namespace

REGISTER_OP("CowClipMlp")
    .Attr("X: {float, bfloat16}")
    .Attr("T: {float, bfloat16}")
    .Attr("N: int >= 1")
    .Attr("M: int >= 2")
    .Attr("engine: int")
    .Attr("tf32: bool")
    .Attr("P: int >= 0")
    .Input("x: X")
    .Input("kernels: N * float")
    .Input("biases: N * float")
    .Input("output: P * float")
    .Output("result: T")
    .Output("activations: M * T")
    .Output("masks: N * uint8")
    .Output("weights: uint8")
    .Output("products: P * float")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_OP("CowClipMlpGradient")
    .Attr("X: {float, bfloat16}")
    .Attr("T: {float, bfloat16}")
    .Attr("N: int >= 1")
    .Attr("M: int >= 2")
    .Attr("engine: int")
    .Attr("tf32: bool")
    .Attr("columns: int")
    .Attr("widths: list(int)")
    .Attr("G: int >= 0")
    .Attr("P: int >= 0")
    .Input("activations: M * T")
    .Input("masks: N * uint8")
    .Input("weights: uint8")
    .Input("gradient: G * T")
    .Input("output: P * float")
    .Input("of_output: P * float")
    .Output("dx: X")
    .Output("dkernels: N * float")
    .Output("dbiases: N * float")
    .Output("doutput: P * float")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_KERNEL_BUILDER(Name("CowClipMlp").Device(tensorflow::DEVICE_GPU), MlpForwardOp);
REGISTER_KERNEL_BUILDER(Name("CowClipMlp").Device(tensorflow::DEVICE_CPU), MlpForwardOp);
REGISTER_KERNEL_BUILDER(Name("CowClipMlpGradient").Device(tensorflow::DEVICE_GPU), MlpGradientOp);
REGISTER_KERNEL_BUILDER(Name("CowClipMlpGradient").Device(tensorflow::DEVICE_CPU), MlpGradientOp);
