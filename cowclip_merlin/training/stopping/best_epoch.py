"""The best epoch of a run: which it is, where its weights are, and what to tell about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cowclip_merlin.addresses import FilePath, is_address
from cowclip_merlin.errors import InputError
from cowclip_merlin.training.checkpoint import list_checkpoints
from cowclip_merlin.training.run_config import CONFIG, RunConfig, local_run
from cowclip_merlin.training.run_logs import Metrics, parse_metrics_row, read_metrics
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.several_targets.names import target_metrics

FELL = 0.001
"""A run reports a last AUC that is lower than its highest one by more than this.

Of a number, it reports a last RMSE that is higher than its lowest one by more than this share.
"""

Rows = Sequence[Metrics]


class Score(NamedTuple):
    """What the first target says about an epoch.

    Attributes:
        name: of the metric.
        value: the AUC, or the root mean squared error of a number.
        is_auc: whether a higher value is better.
    """

    name: str
    value: float
    is_auc: bool


def score_of(row: Metrics, split: str) -> Score:
    """Return the score of an epoch.

    >>> score_of({"test_auc": 0.75}, "test")
    Score(name='AUC', value=0.75, is_auc=True)
    >>> score_of({"test_price_rmse": 2.0, "test_buy_auc": 0.5}, "test")
    Score(name='price RMSE', value=2.0, is_auc=False)
    """
    if (auc := row.get(f"{split}_auc")) is not None:
        return Score("AUC", auc, True)
    name, found = next(iter(target_metrics(row, split).items()))
    return Score(f"{name} RMSE", found["rmse"], False)


def best_row(rows: Rows, split: str) -> Metrics:
    """Return the first row of metrics with the highest AUC, or lowest RMSE, of the first target.

    >>> best_row([{"epoch": 1, "test_auc": 0.7}, {"epoch": 2, "test_auc": 0.7}], "test")["epoch"]
    1
    >>> best_row([{"epoch": 1, "test_t_rmse": 3.0}, {"epoch": 2, "test_t_rmse": 2.0}], "test")
    {'epoch': 2, 'test_t_rmse': 2.0}
    """

    def goodness(row: Metrics) -> float:
        score = score_of(row, split)
        return score.value if score.is_auc else -score.value

    return max(rows, key=goodness)


def epoch_words(rows: Rows) -> str:
    """Name the best epoch of a run with early stopping.

    >>> epoch_words([{"epoch": n, "validation_auc": auc} for n, auc in ((1, 0.75), (2, 0.625))])
    'epoch 1 of 2 (best on validation rows)'
    """
    best = best_row(rows, "validation")
    return f"epoch {best['epoch']} of {rows[-1]['epoch']} (best on validation rows)"


def kept_row(rows: Rows, settings: RunSettings) -> Metrics:
    """Return the metrics of the weights that a run keeps: of its best epoch, or the last ones."""
    return best_row(rows, settings.scored_split) if settings.early_stopping else rows[-1]


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
        f"epoch {row['epoch']} scores the {split} rows worse than always answering the click rate: "
        f"normalized entropy {values}"
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
    split, patience = settings.scored_split, settings.early_stopping
    best, last = best_row(rows, split), rows[-1]
    (name, was, is_auc), now = score_of(best, split), score_of(last, split).value
    if patience is not None:
        stopped = last["epoch"] - best["epoch"] >= patience
        how = "higher" if is_auc else "lower"
        why = f"stopped: no {how} validation {name} for {patience} epochs; " if stopped else ""
        return f"{why}the run keeps the weights of {epoch_words(rows)}, validation {name} {was:.5f}"
    if (was - now if is_auc else now - was) <= (FELL if is_auc else FELL * was):
        return None
    remedy = (
        f"train with --epochs {best['epoch']}, or with --early-stopping 1"
        if split == "validation"
        else "choose epochs on validation rows: --validation-fraction 0.1 --early-stopping 1, "
        "then train again on all rows with that --epochs"
    )
    went = "fell" if is_auc else "rose"
    return (
        f"{split} {name} {went} from {was:.5f} after epoch {best['epoch']} to {now:.5f} after "
        f"epoch {last['epoch']}; {remedy}"
    )


def best_folder(run: Path) -> Path:
    """Return where a run with early stopping keeps its best epoch, as `ckpt-EPOCH`."""
    return run / "checkpoints" / "best"


def kept_epochs(run: Path) -> list[int]:
    """List the epochs whose weights a run with early stopping keeps, the best first."""
    return [int(path.rpartition("-")[2]) for path in list_checkpoints(best_folder(run))]


def weights_folder(run: Path, settings: RunSettings) -> Path:
    """Return the folder with the weights of a run: of its best epoch, or the last ones.

    Raises:
        InputError: if a run with early stopping has no best epoch yet.
    """
    if settings.early_stopping is None:
        return run / "checkpoints"
    if not kept_epochs(run):
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
    if RunConfig.load(run).settings.early_stopping is None:
        return None
    kept = kept_epochs(run)[:1]
    rows = [parse_metrics_row(x) for x in read_metrics(run / "metrics.csv", epochs=sys.maxsize)]
    if not kept or not rows:
        return f"epoch {kept[0]} (best on validation rows)" if kept else None
    best = best_row(rows, "validation")["epoch"]
    if best == kept[0]:
        return epoch_words(rows)
    return f"epoch {kept[0]} (epoch {best} is better: continue the run with --resume)"
