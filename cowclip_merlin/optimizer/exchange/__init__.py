"""Exchange gradients between the replicas of a strategy, and between workers."""
