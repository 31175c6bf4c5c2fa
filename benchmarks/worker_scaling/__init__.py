"""Parts of `workers.py`: settings, runs, the formulas."""
