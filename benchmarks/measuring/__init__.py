"""Measure running parts of online training: latency, AUC, and what a kill costs."""
