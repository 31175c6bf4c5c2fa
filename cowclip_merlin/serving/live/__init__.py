"""Serve a model while it is trained: follow the sync log, and answer requests by HTTP."""
