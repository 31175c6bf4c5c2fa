"""The CUDA C++ of the kernels, and its runtime compiler."""
