"""Compiled loops of `kernels.numba` and of the texts of a vocabulary."""
