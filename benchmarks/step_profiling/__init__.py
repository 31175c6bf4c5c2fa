"""What `step_profile.py` needs: the profiler's events, the counted limit, the text."""
