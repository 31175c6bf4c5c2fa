"""Tables that need no training: hyper-parameters (8 and 9) and parameter counts (7)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.table import Cell, Table, table_of
from cowclip_merlin.scaling import Hyperparameters, K, scale

OF_A_CELL = ("embedding_lr", "dense_lr", "l2")


def hyperparameter_table(experiment: Experiment, *, command: str) -> Table:
    """What the scaling rules give at the paper's sizes: a row per line, a column per batch.

    A cell is "embedding rate / dense rate / L2", under CowClip with "/ r / zeta".
    """
    columns = sorted({m for line in experiment.lines for m in line.multipliers})
    rows = []
    for line in experiment.lines:
        cells = [
            Cell(text=_values(scale(experiment.preset, to=m * K, rule=line.rule), line.rule))
            if m in line.multipliers
            else Cell(text="")
            for m in columns
        ]
        rows.append((line.label, tuple(cells)))
    return table_of(
        experiment,
        unit="embedding rate / dense rate / L2 (/ r / zeta)",
        columns=tuple(f"{m}K" for m in columns),
        rows=tuple(rows),
        data="The paper's sizes",
        notes=_misprints(experiment),
        command=command,
    )


def _values(values: Hyperparameters, rule: str) -> str:
    names = (*OF_A_CELL, "r", "zeta") if rule == "cowclip" else OF_A_CELL
    return " / ".join(short(getattr(values, name)) for name in names)


def short(number: float) -> str:
    """A rate in few characters.

    >>> short(2.262742e-3), short(1.0)
    ('2.26e-3', '1')
    """
    if number == 0 or 0.1 <= number < 1000:
        return f"{number:.3g}"
    power = math.floor(math.log10(number))
    return f"{number / 10**power:.3g}e{power}"


def _misprints(experiment: Experiment) -> list[str]:
    """What the paper prints where it differs from its rule."""
    return [
        f"{line.label} at {multiplier}K: {text}"
        for line in experiment.lines
        for multiplier, text in line.notes.items()
    ]


def parameter_table(experiment: Experiment, *, command: str) -> Table:
    """Dense parameters of the four models on Criteo's 26 + 13 columns, beside the paper's."""
    columns = ("deep", "all")
    rows = []
    for line in experiment.lines:
        counted = [dense_parameters(line.model, way) / 1e6 for way in columns]
        published = line.published.get(1)
        cells = [Cell(mean=n, runs=1, published=published) for n in counted]
        rows.append((line.label, tuple(cells)))
    return table_of(
        experiment,
        unit="million parameters",
        columns=('continuous="deep"', 'continuous="all"'),
        rows=tuple(rows),
        data="Criteo's columns; tables not counted",
        command=command,
        decimals=3,
    )


def dense_parameters(model: str, continuous: str) -> int:
    """Weights of a model that are not in its tables.

    Args:
        model: name of the architecture.
        continuous: "deep" or "all"; see the models.
    """
    from cowclip_merlin.bench.random_data import FIELDS, random_model

    sizes: Mapping[str, int] = {f"C{i + 1}": 4 for i in range(FIELDS)}
    built: Any = random_model(model, dict(sizes), continuous=continuous)
    return sum(
        math.prod(variable.shape)
        for variable in built.trainable_variables
        if "embeddings" not in variable.name
    )
