"""Parts of `rows.py`: its measurements, and what they are made of."""
