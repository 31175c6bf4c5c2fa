"""When a run stops early, and which epoch it serves."""
