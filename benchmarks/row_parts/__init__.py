"""Parts of `rows.py`: the kernels, and growing tables."""
