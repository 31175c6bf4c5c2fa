"""Train planned runs: derive data variants, train run after run, and estimate the time."""
