"""Parts of `serving.py`: its measurements, and what they are made of."""
