"""Parts of `step.py`: its measurements, and what they are made of."""
