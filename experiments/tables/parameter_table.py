"""Make Table 7: parameter counts of the models, without training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.experiments.definitions import Experiment, ExperimentLine
from cowclip_merlin.experiments.tables.table import Cell, Table, experiment_table


def parameter_table(experiment: Experiment, *, command: str) -> Table:
    """Count the dense parameters of the four models on Criteo's 26 + 13 columns."""
    return experiment_table(
        experiment,
        unit="million parameters",
        columns=tuple(f'continuous="{way}"' for way in choices.CONTINUOUS),
        rows=tuple((line.label, _cells(line)) for line in experiment.lines),
        data="Criteo's columns; tables not counted",
        command=command,
        decimals=3,
    )


def _cells(line: ExperimentLine) -> tuple[Cell, ...]:
    counts = [dense_parameters(line.model, continuous) / 1e6 for continuous in choices.CONTINUOUS]
    return tuple(Cell(mean=n, runs=1, published=line.published.get(1)) for n in counts)


def dense_parameters(model: str, continuous: str) -> int:
    """Count the weights of a model outside its embedding tables.

    Args:
        model: name of the architecture.
        continuous: "deep" or "all"; see the models.
    """
    from cowclip_merlin.bench.random_data import NUM_FIELDS, random_model

    fields: Mapping[str, int] = {f"C{i + 1}": 4 for i in range(NUM_FIELDS)}
    built: Any = random_model(model, dict(fields), continuous=continuous)
    return sum(
        math.prod(variable.shape)
        for variable in built.trainable_variables
        if "embeddings" not in variable.name
    )
