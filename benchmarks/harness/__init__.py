"""Shared parts of all benchmarks: options, the JSON record, printing, and turns in rounds."""
