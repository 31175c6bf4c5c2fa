"""From a log to a trained run in one call, and as an estimator of scikit-learn."""
