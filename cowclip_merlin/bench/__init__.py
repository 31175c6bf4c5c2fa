"""Measure the throughput of the training step on random rows, for `cowclip bench`."""
