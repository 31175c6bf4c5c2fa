"""CUDA C++ of the kernels, as strings that NVRTC compiles on the machine that runs them."""
