"""What is kept of a run: its settings, scores, versions and hardware."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the results table: a run that ended.

    Attributes:
        run_id: name of its folder below `runs/`.
        config_hash: of settings, data variant and data fingerprint; equal runs have equal ones.
        status: "done" or "diverged".
        data: name of the data set, as a reader should see it.
        data_fingerprint: of the prepared data that was given.
        variant: what was changed in it, as text; empty for nothing.
        train_rows: rows trained on, an epoch.
        split: what the scores are of, "test" or "validation".
        model: name of the architecture.
        mlp: widths of its hidden layers, such as "400-400-400".
        optimizer: "adam" or "adagrad".
        rule: scaling rule.
        clip: the clip in force.
        update: "dense", "exact" or "lazy".
        batch_size: rows a step.
        base_batch_size: where the rates hold before scaling.
        embedding_lr: of the tables, as used.
        dense_lr: of the other weights, as used.
        l2: as used.
        r: as used.
        zeta: as used.
        init_std: as used.
        warmup_epochs: as used.
        epochs: passes.
        seed: of initialisation and row order.
        auc: after the last epoch, 0 to 1; NaN if it diverged.
        log_loss: after the last epoch, in nats; NaN if it diverged.
        best_auc: of the best epoch.
        best_epoch: counted from 1.
        seconds: of training, all epochs, scoring left out.
        rows_per_second: mean over all epochs.
        steps_per_epoch: steps.
        started: UTC, ISO 8601.
        revision: git revision of this package, or its version.
        tensorflow: version.
        hardware: processor or GPU, in words.
        load: running processes in the minute before the run began.
        versions: of Python and of the packages that it stands on, as text; empty in tables of
            before they were kept.
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


_TYPES = {"int": int, "float": float, "str": str}
COLUMN_TYPES = {field.name: _TYPES[str(field.type)] for field in fields(Result)}
"""Column of `results.csv` -> type of its values."""


def example_result(**changed: Any) -> Result:
    """A result with made-up values, for examples and tests."""
    blank = {name: type_() for name, type_ in COLUMN_TYPES.items()}
    return Result(**blank | {"status": "done", "split": "test", "auc": 0.78} | changed)
