"""Define the result of a run: its settings, scores, versions and hardware."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cowclip_merlin.experiments.results.csv_table import column_types

if TYPE_CHECKING:
    from cowclip_merlin.experiments.results.replay_result import ReplayResult

STATUSES = ("done", "diverged")
SPLITS = ("test", "validation")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the results table: a finished run.

    Attributes:
        run_id: name of its folder in `runs/`.
        config_hash: hash of settings, data variant and data fingerprint; equal for equal runs.
        status: "done" or "diverged".
        data: name of the data set for readers.
        data_fingerprint: fingerprint of the given prepared data.
        variant: changes to the data, as text; empty for all of the data.
        train_rows: training rows per epoch.
        split: split of the scores, "test" or "validation".
        model: name of the architecture.
        mlp: widths of the hidden layers, such as "400-400-400".
        optimizer: "adam" or "adagrad".
        rule: scaling rule.
        clip: name of the clip that was used.
        update: "dense", "exact" or "lazy".
        batch_size: rows per step.
        base_batch_size: batch size of the unscaled rates.
        embedding_lr: learning rate of the tables, as used.
        dense_lr: learning rate of the other weights, as used.
        l2: as used.
        r: as used.
        zeta: as used.
        init_std: as used.
        warmup_epochs: as used.
        epochs: number of epochs.
        seed: seed of initialization and row order.
        auc: AUC after the last epoch, 0 to 1; NaN if it diverged.
        log_loss: log loss after the last epoch, in nats; NaN if it diverged.
        best_auc: AUC of the best epoch.
        best_epoch: number of the best epoch, counted from 1.
        seconds: training time of all epochs, without evaluation.
        rows_per_second: mean over all epochs.
        steps_per_epoch: number of steps per epoch.
        started: start of the run, UTC, ISO 8601.
        revision: git revision of this package, or its version.
        tensorflow: version of TensorFlow.
        hardware: name of the processor or GPU.
        load: running processes in the minute before the run began.
        versions: versions of Python and of the dependencies, as text; empty in older tables.
        auc_error: standard error of `auc` from the sampling of the scored rows (DeLong); NaN if a
            class has only one row; None if it diverged, and in older tables.
        beta_1: Adam's, as used; None in older tables, which have 0.9.
        beta_2: Adam's, as used; None in older tables, which have 0.999.
        epsilon: Adam's, as used; None in older tables, which have 1e-7.
        targets: with several labels, the scores of each as JSON; the columns before have those of
            the first one, which decides.
    """

    run_id: str
    config_hash: str
    status: str
    data: str
    data_fingerprint: str
    variant: str
    train_rows: int
    split: str
    model: str
    mlp: str
    optimizer: str
    rule: str
    clip: str
    update: str
    batch_size: int
    base_batch_size: int
    embedding_lr: float
    dense_lr: float
    l2: float
    r: float
    zeta: float
    init_std: float
    warmup_epochs: float
    epochs: int
    seed: int
    auc: float
    log_loss: float
    best_auc: float
    best_epoch: int
    seconds: float
    rows_per_second: float
    steps_per_epoch: int
    started: str
    revision: str
    tensorflow: str
    hardware: str
    load: float
    versions: str = ""
    auc_error: float | None = None
    beta_1: float | None = None
    beta_2: float | None = None
    epsilon: float | None = None
    targets: str = ""

    def __post_init__(self) -> None:
        """Reject values that a run cannot have.

        Raises:
            ValueError: if there is one.
        """
        check_scores(self)
        scores_of_targets(self)
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}, not {' or '.join(SPLITS)}")
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"seconds is {self.seconds}, not a number from 0 on")


def scores_of_targets(result: Result) -> dict[str, dict[str, float]]:
    """Return label -> name of a metric -> its value; {} with one label.

    Raises:
        ValueError: if the column is damaged.

    >>> scores_of_targets(example_result(targets='{"buy": {"auc": 0.7}}'))
    {'buy': {'auc': 0.7}}
    """
    found = json.loads(result.targets or "{}")  # its error is a ValueError
    for scores in found.values() if isinstance(found, dict) else [found]:
        if not isinstance(scores, dict) or not all(isinstance(x, float) for x in scores.values()):
            raise ValueError(f"targets is {result.targets!r:.40}, not the scores of labels")
    return found


def check_scores(result: Result | ReplayResult) -> None:
    """Reject an unknown status, and scores that a finished run cannot have.

    Raises:
        ValueError: if there is one.
    """
    if result.status not in STATUSES:
        raise ValueError(f"status is {result.status!r}, not {' or '.join(STATUSES)}")
    if result.status == "diverged":
        return
    if not 0 <= result.auc <= 1:
        raise ValueError(f"auc is {result.auc}, not from 0 to 1")
    if not (math.isfinite(result.log_loss) and result.log_loss >= 0):
        raise ValueError(f"log_loss is {result.log_loss}, not a number from 0 on")


def example_result(**changed: Any) -> Result:
    """Return a result with made-up values, for examples and tests."""
    blank = {name: convert() for name, convert in column_types(Result).items()}
    return Result(**blank | {"status": "done", "split": "test", "auc": 0.78} | changed)
