"""Train a model on growing tables: one step, and the stream with its syncs and snapshots."""
