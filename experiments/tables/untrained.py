"""Make Tables 7, 8 and 9: parameter counts and hyper-parameters, without training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cowclip_merlin import choices
from cowclip_merlin.experiments.definitions import Experiment, ExperimentLine
from cowclip_merlin.experiments.tables.table import Cell, Table, experiment_table
from cowclip_merlin.scaling import ADAM_RULES, Hyperparameters, K, scale

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel

_NAMES = ("embedding_lr", "dense_lr", "l2")
_MORE = {"cowclip": ("r", "zeta")} | dict.fromkeys(ADAM_RULES, ("beta_1", "beta_2"))


def hyperparameter_table(experiment: Experiment, *, command: str) -> Table:
    """Apply the scaling rules at the paper's sizes: one row per line, one column per batch.

    A cell is "embedding rate / dense rate / L2", under CowClip with "/ r / zeta", and under `sde`
    with "/ beta_1 / beta_2".
    """
    multipliers = sorted({m for line in experiment.lines for m in line.multipliers})
    return experiment_table(
        experiment,
        unit="embedding rate / dense rate / L2 (/ r / zeta)",
        columns=tuple(f"{m}K" for m in multipliers),
        rows=tuple(
            (line.label, tuple(_cell(experiment.preset, line, m) for m in multipliers))
            for line in experiment.lines
        ),
        data="The paper's sizes",
        notes=_misprints(experiment),
        command=command,
    )


def _cell(preset: str, line: ExperimentLine, multiplier: int) -> Cell:
    if multiplier not in line.multipliers:
        return Cell(text="")
    return Cell(text=_text(scale(preset, to=multiplier * K, rule=line.rule), line.rule))


def _text(values: Hyperparameters, rule: str) -> str:
    names = _NAMES + _MORE.get(rule, ())
    return " / ".join(short_number(getattr(values, name)) for name in names)


def short_number(number: float) -> str:
    """Format a rate with three significant digits.

    >>> short_number(2.262742e-3), short_number(1.0)
    ('2.26e-3', '1')
    """
    if number == 0 or 0.1 <= number < 1000:
        return f"{number:.3g}"
    power = math.floor(math.log10(number))
    return f"{number / 10**power:.3g}e{power}"


def _misprints(experiment: Experiment) -> list[str]:
    """Return notes on printed numbers of the paper that differ from its rule."""
    return [
        f"{line.label} at {multiplier}K: {text}"
        for line in experiment.lines
        for multiplier, text in line.notes.items()
    ]


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
    built: CTRModel = random_model(model, dict(fields), continuous=continuous)
    return sum(
        math.prod(variable.shape)
        for variable in built.trainable_variables
        if "embeddings" not in variable.name
    )
