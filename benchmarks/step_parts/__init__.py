"""Parts of `step.py`: its measurements, and the model that they train."""
