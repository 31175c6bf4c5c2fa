"""What `vocabulary.py` needs: settings, equal batches for tables of any size, the figure."""
