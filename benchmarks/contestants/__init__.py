"""The contestants of `peers.py`: this project, and other packages as processes of their own."""
