"""Parts of `workers.py`: settings, real runs, the formulas, the computed scaling, text, figure."""
