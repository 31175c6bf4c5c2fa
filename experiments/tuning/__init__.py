"""Search hyper-parameters with Optuna, on validation rows."""

from cowclip_merlin.experiments.tuning.search import Tuned, tune

__all__ = ["Tuned", "tune"]
