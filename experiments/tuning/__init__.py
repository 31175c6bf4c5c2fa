"""Search hyper-parameters with Optuna, on validation rows."""

from cowclip_merlin.experiments.tuning.tune import Tuned, tune

__all__ = ["Tuned", "tune"]
