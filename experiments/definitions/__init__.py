"""Read and check experiments from YAML files in the folders next to this module."""

from cowclip_merlin.experiments.definitions.experiment import (
    MEASURES,
    NAMED_MULTIPLIERS,
    RUN_KINDS,
    Experiment,
    ExperimentLine,
)
from cowclip_merlin.experiments.definitions.parser import parse_experiment
from cowclip_merlin.experiments.definitions.reader import (
    experiment_names,
    load_experiment,
    load_experiments,
)

__all__ = [
    "MEASURES",
    "NAMED_MULTIPLIERS",
    "RUN_KINDS",
    "Experiment",
    "ExperimentLine",
    "experiment_names",
    "load_experiment",
    "load_experiments",
    "parse_experiment",
]
