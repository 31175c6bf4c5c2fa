"""Compiled loops of `kernels.numba`."""
