"""Define the result of a replay for one sync interval: its settings, scores and machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.experiments.results.csv_table import read_rows
from cowclip_merlin.experiments.results.result import check_scores
from cowclip_merlin.system.folders import REPLAYS_CSV


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """One row of `replays.csv`: a finished replay, scored at one sync interval.

    Attributes:
        run_id: name of its folder in `runs/`.
        config_hash: hash of settings, columns with their rules, and the log; not of `sync`.
        sync: event time between two syncs of the serving copy, or "never".
        status: "done" or "diverged".
        data: name of the log for readers.
        data_fingerprint: fingerprint of the log.
        admit: occurrences after which an id gets a row; by column where they differ.
        ttl: seconds after which an unseen id loses its row, 0 for never; by column likewise.
        model: name of the architecture.
        mlp: widths of the hidden layers, such as "100-100".
        embedding_dim: length of an embedding row.
        rule: scaling rule.
        clip: name of the clip that was used.
        batch_size: events per step.
        base_batch_size: batch size of the unscaled rates.
        embedding_lr: learning rate of the tables, as used.
        dense_lr: learning rate of the other weights, as used.
        l2: as used.
        r: as used.
        zeta: as used.
        init_std: as used.
        batch_days: days that were only trained.
        seed: seed of all initial values.
        auc: AUC over all scored events, 0 to 1; NaN if it diverged.
        log_loss: over the same events, in nats; NaN if it diverged.
        scored: scored events.
        events: trained events.
        damaged: rows of the log that could not be read.
        ids_kept: ids that have a row at the end, over all columns.
        refused: occurrences of ids that were not admitted.
        expired: ids dropped by their time to live.
        evicted: ids dropped by the bound on rows.
        seconds: time of the whole replay, with all of its serving copies.
        rows_per_second: mean over the replay.
        started: start of the run, UTC, ISO 8601.
        revision: git revision of this package, or its version.
        tensorflow: version of TensorFlow.
        hardware: name of the processor.
        load: running processes in the minute before the run began.
        versions: versions of Python and of the dependencies.
    """

    run_id: str
    config_hash: str
    sync: str
    status: str
    data: str
    data_fingerprint: str
    admit: str
    ttl: str
    model: str
    mlp: str
    embedding_dim: int
    rule: str
    clip: str
    batch_size: int
    base_batch_size: int
    embedding_lr: float
    dense_lr: float
    l2: float
    r: float
    zeta: float
    init_std: float
    batch_days: float
    seed: int
    auc: float
    log_loss: float
    scored: int
    events: int
    damaged: int
    ids_kept: int
    refused: int
    expired: int
    evicted: int
    seconds: float
    rows_per_second: float
    started: str
    revision: str
    tensorflow: str
    hardware: str
    load: float
    versions: str

    def __post_init__(self) -> None:
        """Reject values that a run cannot have.

        Raises:
            ValueError: if there is one.
        """
        check_scores(self)


def read_replays(folder: Path) -> list[ReplayResult]:
    """Read all replays of a results folder in the order in which they ended.

    Raises:
        InputError: if the table is damaged, or another version wrote it.
    """
    return read_rows(folder / REPLAYS_CSV, ReplayResult)
