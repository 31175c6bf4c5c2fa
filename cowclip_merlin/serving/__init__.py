"""Serve a model: live, while it is trained, or by NVIDIA Triton."""
