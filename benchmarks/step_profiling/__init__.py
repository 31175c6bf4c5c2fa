"""Parts of `step_profile.py`: the profiler's events, the counted limit, the text."""
