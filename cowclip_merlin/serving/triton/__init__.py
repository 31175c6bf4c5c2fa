"""A model repository for NVIDIA Triton: a run and its workflow in one graph; see `cc.triton`."""
