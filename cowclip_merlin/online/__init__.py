"""Online training: a model that is trained on a log in order of time (Monolith)."""
