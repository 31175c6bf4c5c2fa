"""Of `serving_load.py`: a model that is synced, a server process, and wrk."""
