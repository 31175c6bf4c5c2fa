// One step of Adam of all dense weights, which honors a refused step of the tables.
#pragma once
#include <algorithm>

#include "row_op.h"

namespace {

class DenseOp : public RowOp {
 public:
  explicit DenseOp(OpKernelConstruction* context) : RowOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
  }

 private:
  bool in_place() const override { return false; }

  tensorflow::Status Run(OpKernelContext* context, Queue& queue, std::vector<Locked>& variables,
                         const std::vector<const Long*>&, Long* status, Seen&) override {
    tensorflow::OpInputList gradients;
    const Tensor *rate, *iterations, *beta_1, *beta_2;
    TF_RETURN_IF_ERROR(context->input("rate", &rate));
    TF_RETURN_IF_ERROR(context->input("iterations", &iterations));
    TF_RETURN_IF_ERROR(context->input("beta_1", &beta_1));
    TF_RETURN_IF_ERROR(context->input("beta_2", &beta_2));
    TF_RETURN_IF_ERROR(context->input_list("gradients", &gradients));
    const int count = gradients.size();
    for (int i = 0; i < count; ++i)
      for (int k = 0; k < 3; ++k)
        if (variables[3 * i + k].size() != gradients[i].NumElements())
          return tensorflow::errors::InvalidArgument(
              "the gradient of dense weight ", i, " has ", gradients[i].NumElements(),
              " numbers, but the weight or a moment has ", variables[3 * i + k].size());
    std::vector<DenseWeight> weights;
    for (int i = 0; i < count; ++i) {
      const Locked* state = &variables[3 * i];
      const Long size = state[0].size(), needed = (size + BLOCK - 1) / BLOCK;
      weights.push_back({state[0].data<float>(), state[1].data<float>(), state[2].data<float>(),
                         static_cast<const float*>(gradients[i].data()), size});
      weights[i].blocks = std::max<Long>(1, std::min<Long>(tables_[0]->blocks, needed));
    }
    LaunchFor<DenseWeights>(queue, kStepWeights, weights, rate->data(), iterations->data(),
                            beta_1->data(), beta_2->data(), epsilon_, status);
    return tensorflow::OkStatus();
  }

  float epsilon_ = 0;
};

}  // namespace
