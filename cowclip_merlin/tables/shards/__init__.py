"""Growing tables of which each of several workers has a part, and their snapshots."""
