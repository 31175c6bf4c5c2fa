"""From an experiment to its runs: batches and rates for the data's size, settings, sweeps."""
