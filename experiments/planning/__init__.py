"""Plan the runs of an experiment: batches and rates for the data's size, settings, sweeps."""
