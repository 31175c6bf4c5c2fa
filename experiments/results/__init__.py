"""The files of a results folder that runs and sweeps write: `results.csv` and `tuned.json`."""
