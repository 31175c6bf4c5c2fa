"""Online training: a model that is trained on a log in time order (Monolith)."""
