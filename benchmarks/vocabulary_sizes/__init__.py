"""Parts of `vocabulary.py`: settings, equal batches for tables of any size, the figure."""
