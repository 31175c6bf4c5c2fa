"""Parts of `online.py`: pipelines that are measured, and killed."""
