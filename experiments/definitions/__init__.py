"""Read and check experiments from YAML files: three of this package, and those of users."""

from cowclip_merlin.experiments.definitions.experiment import (
    LOG_KINDS,
    MEASURES,
    NAMED_MULTIPLIERS,
    RMSE,
    RUN_KINDS,
    CollisionLine,
    Experiment,
    ExperimentLine,
    LogExperiment,
    ReplayLine,
)
from cowclip_merlin.experiments.definitions.parser import parse_experiment, parse_log_experiment
from cowclip_merlin.experiments.definitions.reader import (
    experiment_names,
    load_experiment,
    load_experiments,
)

__all__ = [
    "LOG_KINDS",
    "MEASURES",
    "NAMED_MULTIPLIERS",
    "RMSE",
    "RUN_KINDS",
    "CollisionLine",
    "Experiment",
    "ExperimentLine",
    "LogExperiment",
    "ReplayLine",
    "experiment_names",
    "load_experiment",
    "load_experiments",
    "parse_experiment",
    "parse_log_experiment",
]
