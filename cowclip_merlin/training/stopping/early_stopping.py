"""Stop a run whose validation score no longer improves; find and keep its best weights.

A run scores after each epoch, and with `evaluate_every` also within it: each scoring is a row of
metrics.csv.

`checkpoints/best/K` is a copy of the checkpoint after scoring K. The one with the largest K is the
best. The folder may also hold the one that was best a scoring earlier: a resumption needs it if the
last checkpoint is damaged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cowclip_merlin.addresses import FilePath, is_address
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.snapshot import link_snapshot, numbers, remove_snapshots
from cowclip_merlin.training.checkpoint import CHECKPOINTS, Checkpoints
from cowclip_merlin.training.run_config import CONFIG, RunConfig, local_run
from cowclip_merlin.training.run_logs import (
    Metrics,
    parse_metrics_row,
    read_metrics,
    target_metrics,
)
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workers.agreement import numbers_of_all

if TYPE_CHECKING:
    from cowclip_merlin.workers import Workers


FELL = 0.001
"""A run reports a last AUC that is lower than its highest one by more than this.

Of a number, it reports a last RMSE that is higher than its lowest one by more than this share.
"""

Rows = Sequence[Metrics]


class Score(NamedTuple):
    """What the first target says about a scoring.

    Attributes:
        name: of the metric.
        value: the AUC or the log loss, or the root mean squared error of a number.
        higher: whether a higher value is better.
    """

    name: str
    value: float
    higher: bool

    @property
    def goodness(self) -> float:
        """A number that is higher for a better score."""
        return self.value if self.higher else -self.value

    @property
    def better(self) -> str:
        """The word for a better value."""
        return "higher" if self.higher else "lower"


def score_of(row: Metrics, split: str, monitor: str = "auc") -> Score:
    """Return the score of a row of metrics.

    Args:
        row: of metrics.csv.
        split: that the run scores.
        monitor: one of `choices.MONITORS`; for a label of 0 and 1 only.

    >>> score_of({"test_auc": 0.75}, "test")
    Score(name='AUC', value=0.75, higher=True)
    >>> score_of({"test_price_rmse": 2.0, "test_buy_auc": 0.5}, "test")
    Score(name='price RMSE', value=2.0, higher=False)
    """
    if (auc := row.get(f"{split}_auc")) is not None:
        return (
            Score("AUC", auc, True)
            if monitor == "auc"
            else Score("log loss", row[f"{split}_log_loss"], False)
        )
    name, found = next(iter(target_metrics(row, split).items()))
    return Score(f"{name} RMSE", found["rmse"], False)


def best_index(rows: Rows, split: str, monitor: str = "auc") -> int:
    """Return the index of the first row with the best score.

    >>> best_index([{"test_auc": 0.7}, {"test_auc": 0.8}, {"test_auc": 0.8}], "test")
    1
    """
    goodness = [score_of(row, split, monitor).goodness for row in rows]
    return goodness.index(max(goodness))


def best_row(rows: Rows, split: str, monitor: str = "auc") -> Metrics:
    """Return the first row of metrics with the best score.

    >>> best_row([{"epoch": 1, "test_auc": 0.7}, {"epoch": 2, "test_auc": 0.7}], "test")["epoch"]
    1
    >>> best_row([{"epoch": 1, "test_t_rmse": 3.0}, {"epoch": 2, "test_t_rmse": 2.0}], "test")
    {'epoch': 2, 'test_t_rmse': 2.0}
    """
    return rows[best_index(rows, split, monitor)]


def epoch_words(rows: Rows, monitor: str = "auc") -> str:
    """Name the best epoch of a run with early stopping.

    >>> epoch_words([{"epoch": n, "validation_auc": auc} for n, auc in ((1, 0.75), (1.5, 0.625))])
    'epoch 1 of 1.5 (best on validation rows)'
    """
    best = best_row(rows, "validation", monitor)
    return f"epoch {best['epoch']:.6g} of {rows[-1]['epoch']:.6g} (best on validation rows)"


def kept_row(rows: Rows, settings: RunSettings) -> Metrics:
    """Return the metrics of the weights that a run keeps: of its best epoch, or the last ones."""
    if settings.early_stopping is None:
        return rows[-1]
    return best_row(rows, settings.scored_split, settings.monitor)


def worse_than_constant(row: Metrics, split: str) -> str | None:
    """Say that an epoch scored a label worse than a constant does; None if it did not.

    >>> worse_than_constant({"epoch": 1, "test_normalized_entropy": 1.25}, "test").partition(":")[0]
    'epoch 1 scores the test rows worse than always answering the click rate'
    """
    several = {
        name: x.get("normalized_entropy", 0) for name, x in target_metrics(row, split).items()
    }
    found = several or {"": row.get(f"{split}_normalized_entropy", 0.0)}
    wrong = {name: float(x) for name, x in found.items() if x != "" and float(x) > 1}
    if not wrong:
        return None
    values = ", ".join(f"{name} {x:.3f}".strip() for name, x in wrong.items())
    return (
        f"epoch {row['epoch']:.6g} scores the {split} rows worse than always answering the click "
        f"rate: normalized entropy {values}"
    )


def warning_of_run(run: Path, settings: RunSettings) -> str | None:
    """Return `worse_than_constant` of the weights of a run; None if its metrics cannot be read."""
    rows: Rows = []
    with suppress(InputError):
        rows = [parse_metrics_row(x) for x in read_metrics(run / "metrics.csv", epochs=sys.maxsize)]
    found = worse_than_constant(kept_row(rows, settings), settings.scored_split) if rows else None
    return found and f"{run}: {found}; train with fewer epochs, or smaller rates"


def end_message(rows: Rows, settings: RunSettings) -> str | None:
    """Return what a run tells about its best epoch at its end, if anything.

    >>> rows = [{"epoch": 1, "test_auc": 0.75}, {"epoch": 2, "test_auc": 0.625}]
    >>> end_message(rows, RunSettings(model="dcn", batch_size=8)).partition(";")[0]
    'test AUC fell from 0.75000 after epoch 1 to 0.62500 after epoch 2'
    """
    split, patience, monitor = settings.scored_split, settings.early_stopping, settings.monitor
    best, last = best_row(rows, split, monitor), rows[-1]
    score, now = score_of(best, split, monitor), score_of(last, split, monitor).value
    if patience is not None:
        waited = len(rows) - 1 - best_index(rows, split, monitor)
        unit = "epochs" if settings.evaluate_every is None else "scorings"
        stopped = waited >= patience
        why = f"stopped: no {score.better} validation {score.name} for {patience} {unit}; "
        return (
            f"{why if stopped else ''}the run keeps the weights of {epoch_words(rows, monitor)}, "
            f"validation {score.name} {score.value:.5f}"
        )
    was = score.value
    if abs(was - now) <= (FELL if score.name == "AUC" else FELL * was):
        return None
    remedy = (
        f"train with --epochs {best['epoch']:.6g}, or with --early-stopping 1"
        if split == "validation"
        else "choose epochs on validation rows: cowclip train with --validation-fraction 0.1 "
        "--early-stopping 1, then again on all rows with that --epochs"
    )
    went = "fell" if score.higher else "rose"
    return (
        f"{split} {score.name} {went} from {was:.5f} after epoch {best['epoch']:.6g} to {now:.5f} "
        f"after epoch {last['epoch']:.6g}; {remedy}"
    )


def best_folder(run: Path) -> Path:
    """Return where a run with early stopping keeps its best weights, by the scoring."""
    return run / CHECKPOINTS / "best"


def kept_scorings(run: Path) -> list[int]:
    """List the scorings, from 1, whose weights a run with early stopping keeps, the best first."""
    return sorted(numbers(best_folder(run)), reverse=True)


def weights_folder(run: Path, settings: RunSettings) -> Path:
    """Return the folder with the weights of a run: of its best epoch, or the last ones.

    Raises:
        InputError: if a run with early stopping has no best epoch yet.
    """
    if settings.early_stopping is None:
        return run / CHECKPOINTS
    if not kept_scorings(run):
        raise InputError(
            f"{best_folder(run)}: no checkpoint of the best epoch; resume the run to finish an "
            "epoch, or copy the whole run folder"
        )
    return best_folder(run)


def served_epoch(run: str | FilePath) -> str | None:
    """Name the epoch whose weights a run with early stopping serves; None for any other folder.

    Raises:
        InputError: if the run is damaged.
    """
    if not is_address(run) and not (Path(run) / CONFIG).exists():
        return None
    run = local_run(run)
    settings = RunConfig.load(run).settings
    if settings.early_stopping is None:
        return None
    kept = kept_scorings(run)[:1]
    rows = [parse_metrics_row(x) for x in read_metrics(run / "metrics.csv", epochs=sys.maxsize)]
    if not kept or not rows:
        return f"scoring {kept[0]} (best on validation rows)" if kept else None
    best = best_index(rows, "validation", settings.monitor)
    if best + 1 == kept[0]:
        return epoch_words(rows, settings.monitor)
    served, better = (f"{rows[i]['epoch']:.6g}" for i in (kept[0] - 1, best))
    return f"epoch {served} (epoch {better} is better: continue the run with --resume)"


def plateau_falls(rows: Rows, settings: RunSettings) -> list[int]:
    """Return after which scorings a plateau lowers the rates, as indexes of `rows`.

    As in Keras's `ReduceLROnPlateau` with `min_delta=0`: after `lr_patience` scorings without a
    better one, until the rates are at their floor. Each fall starts the count again.

    >>> from cowclip_merlin.training import RunSettings
    >>> settings = RunSettings(
    ...     model="dcn", batch_size=8, validation_fraction=0.1, lr_schedule="plateau", lr_patience=2
    ... )
    >>> plateau_falls([{"validation_auc": x} for x in (0.7, 0.6, 0.7, 0.8, 0.8)], settings)
    [2]
    """
    best, waited, falls = -math.inf, 0, []
    for index, row in enumerate(rows):
        goodness = score_of(row, settings.scored_split, settings.monitor).goodness
        if goodness > best:
            best, waited = goodness, 0
            continue
        waited += 1
        at_floor = math.isclose(lowered(settings, len(falls)), settings.rate_floor)
        if waited >= settings.lr_patience and not at_floor:
            falls.append(index)
            waited = 0
    return falls


def lowered(settings: RunSettings, falls: int) -> float:
    """Return the factor of the rates after so many falls."""
    return max(settings.lr_factor**falls, settings.rate_floor)


def scorings_without_better(rows: Rows, settings: RunSettings) -> int:
    """Count the last scorings without a better one; a fall of a plateau starts the count again.

    So a run that stops early has trained with the smaller rate, too.
    """
    falls = plateau_falls(rows, settings) if settings.lr_schedule == "plateau" else []
    best = best_index(rows, settings.scored_split, settings.monitor)
    return len(rows) - 1 - max([best, *falls])


class EarlyStopping:
    """Keeps the best weights of a run and tells when it stops; without patience, does nothing.

    A scoring is better only if its validation AUC is higher (or its log loss lower), as in Keras's
    `EarlyStopping` with `restore_best_weights=True`. If the first target is a number, its root mean
    squared error must be lower. All workers follow worker 0.

    Args:
        run: the run folder.
        settings: of the run.
        checkpoints: the last checkpoints of the run.
        group: this process and the others.
    """

    def __init__(
        self, run: Path, settings: RunSettings, checkpoints: Checkpoints, group: Workers | None
    ) -> None:
        self._run, self._settings = run, settings
        self._patience = settings.early_stopping
        self._checkpoints, self._workers = checkpoints, group
        self._is_first = group is None or group.is_first

    def stops(self, rows: Rows) -> bool:
        """Return whether a run with these rows of metrics trains no further."""
        if self._patience is None or not rows:
            return False
        waited = scorings_without_better(rows, self._settings)
        return numbers_of_all(self._workers, waited)[0] >= self._patience

    def keeping(self, rows: Rows) -> Callable[[int], None] | None:
        """Return what keeps the next checkpoint if it is the best, when it is on the disk.

        It then removes older copies. None: nothing is to do.
        """
        if self._patience is None or not self._is_first:
            return None
        best, is_best = self._best_of(rows), self._best_of(rows) == len(rows)
        known = {best, *([self._best_of(rows[:-1])] if rows[:-1] else [])}

        def keep(number: int) -> None:
            if is_best:
                self._copy(number, best)
            remove_snapshots(best_folder(self._run), lambda scoring: scoring not in known)

        return keep

    def resume(self, rows: Rows, scored: int, *, at_scoring: bool) -> None:
        """Check that a run can continue from a checkpoint, and that it has its best weights.

        Args:
            rows: the rows of metrics up to the checkpoint.
            scored: scorings up to the checkpoint.
            at_scoring: whether the checkpoint is that of the last of them.

        Raises:
            InputError: if the metrics of a scoring or the best checkpoint is missing.
        """
        if self._patience is None and self._settings.lr_schedule != "plateau":
            return
        if len(rows) != scored:
            raise InputError(
                f"{self._run / 'metrics.csv'}: early stopping and a plateau need the metrics of "
                f"all {scored} scorings so far; restore a copy, or train again with another `out`"
            )
        if self._patience is None:
            return
        if self._is_first:
            remove_snapshots(best_folder(self._run), lambda scoring: scoring > scored)
        if not rows:
            return
        best = int(numbers_of_all(self._workers, self._best_of(rows))[0])
        if numbers_of_all(self._workers, best in kept_scorings(self._run))[0]:
            return
        if best != scored or not at_scoring:
            raise InputError(
                f"{best_folder(self._run)}: no checkpoint of epoch {rows[best - 1]['epoch']:.6g}, "
                "the best so far; restore a copy, or train again with another `out`"
            )
        if self._is_first:  # the run was killed before it had copied this checkpoint
            self._copy(self._checkpoints.number, best)

    def _best_of(self, rows: Rows) -> int:
        """Return the number of the best scoring, from 1."""
        return best_index(rows, "validation", self._settings.monitor) + 1

    def _copy(self, number: int, scoring: int) -> None:
        link_snapshot(self._checkpoints.folder, number, best_folder(self._run), scoring)
