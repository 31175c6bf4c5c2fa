"""Training runs: settings, loop, checkpoints, records."""
