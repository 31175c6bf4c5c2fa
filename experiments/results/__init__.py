"""Read and write the results of runs and sweeps: `results.csv` and `tuned.json`."""
