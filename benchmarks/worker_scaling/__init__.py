"""Parts of `workers.py` and `worker_soak.py`: settings, runs, the formulas, text."""
