"""Parts of `online.py`, `online_failures.py` and `online_soak.py`: pipelines that are measured."""
