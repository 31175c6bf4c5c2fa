"""The settings of `workers.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.checks import check_at_least_one, check_choices, check_unique
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option

RUN_TABLES = {"mirrored": "fused", "sharded": "sharded"}
"""Name of the tables on the pages -> value of `cowclip train --tables`."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Settings of the measurement.

    Attributes:
        rows: rows of the generated log.
        batches: global batch sizes.
        tables: "mirrored", "sharded".
        workers: numbers of workers, with 1.
        epochs: epochs of a run; the first one is not counted.
        rounds: runs of every case.
        work: folder of the prepared log and of the runs.

    Raises:
        InputError: if a value is unknown, out of range or given twice.
    """

    rows: int = option(300_000, "of the generated log")
    batches: Sequence[int] = option((1024, 8192), "rows per step", flag="--batch-sizes")
    tables: Sequence[str] = option(tuple(RUN_TABLES), "some of these")
    workers: Sequence[int] = option((1, 2, 3), "processes of a run; 1 must be one of them")
    epochs: int = option(4, "of a run; the first one is not counted")
    rounds: int = option(1, "runs of every case")
    work: Path = option(Path("work/workers"), "folder of the prepared log and the runs")

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        check_choices("--tables", self.tables, RUN_TABLES)
        counts = {"--batch-sizes": self.batches, "--workers": self.workers}
        check_unique(counts | {"--tables": self.tables})
        check_at_least_one(counts | {"--rows": self.rows, "--rounds": self.rounds})
        if self.epochs < 2:
            raise InputError(f"--epochs is {self.epochs}; give 2 or more, the first is not counted")
        if 1 not in self.workers:
            given = ",".join(map(str, self.workers))
            raise InputError(f"--workers {given}: add 1, which the others are compared with")
