"""What all benchmarks share: options, one JSON record, one way to print, turns in rounds."""
