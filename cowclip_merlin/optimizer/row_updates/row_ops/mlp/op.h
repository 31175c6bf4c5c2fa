// The hidden layers of a model, relu(x W + bias) one after the other, and their gradients.
//
// One product for each layer forward and two backward. Biases, ReLU, its gradient and the sums of
// the bias gradients are in the products' epilogues, except the gradient of the last ReLU, which no
// product precedes. If cuBLASLt has no algorithm with an epilogue, a plain product and a kernel of
// ours do the same. The kernels read the signs of activations, not the bit masks, because NVIDIA
// does not document the order of their bits. So forward writes a mask only for a product to read.
// An output of one number per row may follow, by kernels of ours: it has no product for cuBLASLt.
//
// All widths are rounded up to 16 bytes by columns of zeros, which products on tensor cores want.
#pragma once
#include "engine.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Base of both operations: sizes, types, and products.
class MlpOp : public OpKernel {
 public:
  explicit MlpOp(OpKernelConstruction* context) : OpKernel(context) {
    int engine, layers;
    OP_REQUIRES_OK(context, context->GetAttr("engine", &engine));
    OP_REQUIRES_OK(context, context->GetAttr("tf32", &tf32_));
    OP_REQUIRES_OK(context, context->GetAttr("T", &type_));
    OP_REQUIRES_OK(context, context->GetAttr("X", &x_type_));
    OP_REQUIRES_OK(context, context->GetAttr("N", &layers));
    layers_ = layers;
    engine_ = FindMlp(engine);
    OP_REQUIRES(context, engine_ != nullptr,
                tensorflow::errors::FailedPrecondition(
                    "engine ", engine, " of the hidden layers is not registered in this process: "
                    "a training graph cannot be saved and run elsewhere"));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Queue::Check(context, engine_->host()));
    Queue queue(context, engine_->host());
    const int opened = engine_->products().Open();
    OP_REQUIRES(context, opened == 0,
                tensorflow::errors::Internal("cuBLASLt does not start (status ", opened, ")"));
    OP_REQUIRES_OK(context, Run(context, queue));
    OP_REQUIRES(context, queue.error() == 0,
                tensorflow::errors::Internal("CUDA error ", queue.error(), " in hidden layers"));
  }

 protected:
  virtual tensorflow::Status Run(OpKernelContext* context, Queue& queue) = 0;

  struct Call {
    Product product;
    Operands operands;
  };

  bool bfloat16() const { return type_ == tensorflow::DT_BFLOAT16; }
  Long size_of() const { return bfloat16() ? 2 : 4; }
  Long Padded(Long width) const { return RoundUp(width, 16 / size_of()); }
  int cuda_type() const { return bfloat16() ? cublas::kBfloat16 : cublas::kFloat; }

  Product Make(int epilogue, bool transpose_a, bool transpose_b, Long m, Long n, Long k) const {
    const bool fast = !bfloat16() && tf32_;
    const int compute = fast ? cublas::kCompute32FFastTF32 : cublas::kCompute32F;
    return {cuda_type(), cuda_type(), cuda_type(), compute, epilogue, transpose_a, transpose_b,
            m, n, k, transpose_a ? k : m, transpose_b ? n : k, m};
  }
  // y^T = W^T x^T, for W [k, n] and x [b, k].
  Product Forward(int epilogue, Long b, Long k, Long n) const {
    return Make(epilogue, false, false, n, b, k);
  }
  // dx^T = W dz^T.
  Product Backward(int epilogue, Long b, Long k, Long n) const {
    return Make(epilogue, true, false, k, b, n);
  }
  // dW^T = dz^T x, in float32.
  Product Weights(Long b, Long k, Long n) const {
    Product product = Make(cublas::kEpilogueDefault, false, true, n, k, b);
    product.output = cublas::kFloat;
    return product;
  }
  bool Has(const Call& call) const { return engine_->products().Has(call.product, call.operands); }
  // Makes the sums of a bias gradient float32 if cuBLASLt has an algorithm for that, else of the
  // type of the products. Returns whether it has any.
  bool ChooseSums(Product& product, const Operands& operands) const {
    for (int type : {static_cast<int>(cublas::kFloat), cuda_type()}) {
      product.vector = type;
      if (Has({product, operands})) return true;
    }
    return false;
  }

  // Starts the products in order. Calls `after(i)` after each.
  template <class After>
  tensorflow::Status RunAll(OpKernelContext* context, Queue& queue, const std::vector<Call>& calls,
                            After after) {
    Products& products = engine_->products();
    std::size_t most = 0;
    for (const Call& call : calls)
      most = std::max(most, products.Workspace(call.product, call.operands));
    Tensor workspace;  // each product waits for the one before, so all can use it
    const TensorShape size({static_cast<tensorflow::int64>(most)});
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_UINT8, size, &workspace));
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto& [product, operands] = calls[i];
      const int status = products.Run(product, operands, workspace.data(), queue.stream());
      if (status != 0)
        return tensorflow::errors::Internal(
            "cuBLASLt cannot compute a product of ", product.m, " x ", product.n, " x ", product.k,
            " with epilogue ", product.epilogue, " (status ", status, "): use --jit-compile");
      after(i);
    }
    return tensorflow::OkStatus();
  }

  // An output is a kernel [width, 1].
  static tensorflow::Status CheckOutput(const Tensor& output, Long width) {
    if (output.shape() == TensorShape({width, 1})) return tensorflow::OkStatus();
    return tensorflow::errors::InvalidArgument("the output of the hidden layers has a kernel ",
                                               output.shape().DebugString(), ", not [", width,
                                               ", 1]");
  }

  CopyMatrix CopyOf(const void* from, bool from_bfloat16, Long from_rows, Long from_columns,
                    Long stride, void* to, bool to_bfloat16, Long rows, Long columns) const {
    return {from, to, from_rows, from_columns, stride, rows, columns, from_bfloat16, to_bfloat16,
            0, 0};
  }

  // Where the weights in the type of the products begin: kernel i at 2i, bias i at 2i + 1, end.
  std::vector<Long> Offsets(const std::vector<Long>& padded) const {
    std::vector<Long> offsets{0};
    for (std::size_t i = 1; i < padded.size(); ++i)
      for (Long numbers : {padded[i - 1] * padded[i], padded[i]})
        offsets.push_back(offsets.back() + RoundUp(numbers * size_of(), 256));
    return offsets;
  }

  MlpEngine* engine_ = nullptr;
  bool tf32_ = false;
  std::size_t layers_ = 0;
  tensorflow::DataType type_, x_type_;
};

}  // namespace
