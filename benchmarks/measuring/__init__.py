"""Measure running parts of online training: probes, requests, and a watch of the syncs."""
