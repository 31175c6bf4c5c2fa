// The operations of the hidden layers.
#pragma once
#include "backward.h"
#include "forward.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

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
