"""One training run of a contestant: what it is, its rows, its clock, and its report in one line.

It needs only NumPy and runs on Python 3.8, because each package has its own environment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WARM_UP_STEPS = 2
"""Steps before the clock starts: the first compiles, the second may still allocate."""
SCORING_BATCH = 16384


# Not keyword-only, which needs Python 3.10.
@dataclass(frozen=True)
class Job:
    """One training run of one contestant; what follows `init_std` is only for CowClip."""

    rows_file: Path  # of `write_rows`; for HugeCTR a prepared folder
    predictions: Path  # .npy file for the click probabilities of the held-out rows
    batch: int
    epochs: int
    lr: float  # of Adam; with CowClip, of all weights except the embeddings
    embedding_dim: int
    widths: tuple[int, ...]  # of the hidden layers
    seed: int  # of initialization and row order
    init_std: float = 0.0  # of the embeddings; HugeCTR has another distribution
    embedding_lr: float = 0.0
    l2: float = 0.0
    r: float = 0.0
    zeta: float = 0.0
    warmup_epochs: float = 0.0  # in which `lr` rises from 0

    def text(self) -> str:
        """Return the job as JSON, the last word of a contestant's command line."""
        return json.dumps(asdict(self), default=str)


def read_job(text: str) -> Job:
    """Read a job of `Job.text`."""
    found = json.loads(text)
    paths = {name: Path(found[name]) for name in ("rows_file", "predictions")}
    return Job(**{**found, **paths, "widths": tuple(found["widths"])})


class Rows(NamedTuple):
    """Rows of a log, without labels for the test."""

    ids: np.ndarray  # [n, F], the columns in `field_rows`' order
    numbers: np.ndarray  # [n, C]
    label: np.ndarray  # [n], 0 or 1; empty for the test rows
    field_rows: np.ndarray  # [F], one above the largest id of each column

    def columns(self) -> dict[str, np.ndarray]:
        """Return both kinds of columns by name."""
        ids, numbers = self.names()
        columns = dict(zip(ids, np.ascontiguousarray(self.ids.T)))
        return {**columns, **dict(zip(numbers, np.ascontiguousarray(self.numbers.T)))}

    def names(self) -> tuple[list[str], list[str]]:
        """Return names of the columns with ids, C1, C2 and so on, and of those with numbers."""
        counts = {"C": self.ids.shape[1], "I": self.numbers.shape[1]}
        ids, numbers = ([f"{x}{i + 1}" for i in range(count)] for x, count in counts.items())
        return ids, numbers


def read_rows(file: Path) -> tuple[Rows, Rows]:
    """Read the training rows and the test rows."""
    with np.load(file) as found:
        known = {name: found[name] for name in found.files}
    none = np.zeros(0, np.float32)
    train = (known["ids"], known["continuous"], known["label"])
    test = (known["test_ids"], known["test_continuous"], none)
    return Rows(*train, known["field_rows"]), Rows(*test, known["field_rows"])


class Clock:
    """Measures rows per second after the warm-up steps; `wait` waits for the device."""

    def __init__(self, wait: Callable[[], Any] = lambda: None) -> None:
        self._wait, self._step, self._rows, self._started = wait, 0, 0, 0.0

    def tick(self, rows: int, steps: int = 1) -> None:
        """Count a step, or several in one call, with this many rows."""
        before, self._step = self._step, self._step + steps
        if before >= WARM_UP_STEPS:
            self._rows += rows
        elif self._step >= WARM_UP_STEPS:
            self._wait()
            self._started = time.perf_counter()

    def rate(self) -> float:
        """Return the rows per second so far."""
        self._wait()
        return self._rows / (time.perf_counter() - self._started)


def report(job: Job, probabilities: np.ndarray, rate: float, **versions: str) -> None:
    """Save the predictions and print the one line that the benchmark reads."""
    np.save(job.predictions, np.asarray(probabilities, np.float64).ravel())
    print(json.dumps({"rows_per_second": rate, "versions": versions}), flush=True)
