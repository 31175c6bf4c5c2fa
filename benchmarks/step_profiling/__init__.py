"""Parts of `step_profile.py`: the profiler's events, the text."""
