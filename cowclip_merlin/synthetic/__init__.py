"""Generate logs whose true click probabilities are known."""
