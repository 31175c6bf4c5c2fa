"""Throughput of the training step on random rows: what `cowclip bench` measures."""
