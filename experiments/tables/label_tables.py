"""Tables of the further labels of an experiment, beside that of the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions.experiment import RMSE, Experiment
from cowclip_merlin.experiments.results.result import Result, scores_of_targets

if TYPE_CHECKING:
    from cowclip_merlin.experiments.planning.planned_run import RunResults

_SCORES = ("auc", "auc_error", "log_loss", "rmse")


def further_tables(
    experiment: Experiment, results: RunResults
) -> Sequence[tuple[Experiment, RunResults]]:
    """Return an experiment and its results for each label but the first, to make tables of.

    The paper has no numbers of these labels.

    Args:
        experiment: of kind "runs" or "sweep".
        results: those of its runs.

    Raises:
        InputError: if the runs have scores of other labels.
    """
    if experiment.measure == "minutes":
        return []
    every = {tuple(scores_of_targets(each)) for each in results.values() if each.targets}
    if len(every) > 1:
        raise InputError(
            f"{experiment.cli_name}: its runs have scores of different labels; use another `out`"
        )
    labels = next(iter(every), ())
    return [_of_label(experiment, results, *each) for each in enumerate(labels[1:], 2)]


def _of_label(
    experiment: Experiment, results: RunResults, number: int, label: str
) -> tuple[Experiment, RunResults]:
    found = {run: _with_scores(result, label) for run, result in results.items()}
    numbers = any(result.rmse is not None for result in found.values())
    changed = {
        "name": f"{experiment.name}_label{number}",
        "title": f"{experiment.title}: label {label}",
        "claim": "",
        "measure": RMSE if numbers else experiment.measure,
        "lines": tuple(replace(line, published={}, notes={}) for line in experiment.lines),
    }
    return replace(experiment, **changed), found


@dataclass(frozen=True, kw_only=True)
class LabelResult(Result):
    """The result of a run for a label that is not the first one.

    Attributes:
        rmse: root mean squared error of a label that is a number; None of one of 0 and 1.
    """

    rmse: float | None = None


def _with_scores(result: Result, label: str) -> LabelResult:
    """Return a result with the scores of another label; a diverged run has none."""
    scores = scores_of_targets(result).get(label, {})
    kept = {name: scores[name] for name in _SCORES if name in scores}
    return LabelResult(**asdict(result) | kept)
