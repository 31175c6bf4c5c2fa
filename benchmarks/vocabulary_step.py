"""What `vocabulary.py` times: its settings, equal batches on tables of any size, one model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import enough_ids, field_sizes, random_model, random_rows
from cowclip_merlin.checks import above_zero, among, at_least_one, once
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, DeviceData
from cowclip_merlin.training.run_settings import MODELS, UPDATES

POOL = 32  # batches of the largest size that are drawn before ids come again in the same rows


@dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """What is measured.

    Attributes:
        vocabularies: ids of all fields together, rising; the batches' ids are drawn from as many
            as the first has.
        batches: batch sizes.
        updates: "dense", "exact", "lazy".
        model: name of a model.
        mlp: widths of the hidden layers.
        embedding_dim: length of an embedding row.
        rounds: times each configuration has its turn.
        steps: timed steps of a turn.
        seconds: a turn ends early after this many, once it has three steps.
        warm_up: untimed steps of a turn with "exact", so that rows have missed some; others
            get two.
        missed: steps that rows have missed at least when the flush is timed.

    Raises:
        InputError: a value is unknown, out of range or there twice.
    """

    vocabularies: Sequence[int] = (100_000, 1_000_000, 10_000_000, 40_000_000)
    batches: Sequence[int] = (1024, 8192)
    updates: Sequence[str] = UPDATES
    model: str = "deepfm"
    mlp: tuple[int, ...] = (400, 400, 400)
    embedding_dim: int = 10
    rounds: int = 5
    steps: int = 10
    seconds: float = 5.0
    warm_up: int = 20
    missed: int = 100

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        among("--updates", self.updates, UPDATES)
        among("--model", (self.model,), MODELS)
        once({"--updates": self.updates, "--batch-sizes": self.batches})
        if list(self.vocabularies) != sorted(set(self.vocabularies)):
            given = ",".join(map(str, self.vocabularies))
            raise InputError(f"--vocabularies {given}: give them rising, every one once")
        enough_ids("--vocabularies", *self.vocabularies)
        at_least_one({"--batch-sizes": self.batches, "--mlp": self.mlp, "--rounds": self.rounds})
        at_least_one({"--embedding-dim": self.embedding_dim, "--steps": self.steps})
        at_least_one({"--warm-up": self.warm_up, "--missed": self.missed})
        above_zero({"--seconds": self.seconds})

    def table_bytes(self, vocabulary: int) -> int:
        """Bytes of the weights of the embeddings and of the wide part."""
        return 4 * vocabulary * (self.embedding_dim + 1)


def draw(settings: VocabularySettings) -> ColumnArrays:
    """Rows with power-law ids for the smallest vocabulary."""
    return random_rows(POOL * max(settings.batches), field_sizes(settings.vocabularies[0]))


def spread(rows: ColumnArrays, sizes: dict[str, int]) -> ColumnArrays:
    """The same rows with their ids moved to places all over larger fields, one to one.

    >>> ids = np.arange(4, dtype=np.int32)[:, None]
    >>> spread(ColumnArrays(ids, ids, ids), {"C1": 10}).ids[:, 0].tolist()
    [0, 7, 4, 1]
    """
    moved = np.empty_like(rows.ids)
    for column, size in enumerate(sizes.values()):
        places = rows.ids[:, column].astype(np.int64) * multiplier(size) % size
        moved[:, column] = places
    return replace(rows, ids=moved)


def multiplier(size: int) -> int:
    """A number without a divisor in common with the size, so that i * it % size is one to one."""
    # Near the golden section neighbours come to lie far apart, evenly.
    number = max(1, round(0.618034 * size))
    while gcd(number, size) > 1:
        number += 1
    return number


def distinct_rows(rows: ColumnArrays, sizes: dict[str, int], batch: int) -> float:
    """Mean number of table rows that a batch reads."""
    offsets = np.cumsum([0, *sizes.values()])[:-1]
    batches = [rows.ids[i * batch : (i + 1) * batch] + offsets for i in range(min(8, POOL))]
    return float(np.mean([len(np.unique(ids)) for ids in batches]))


class Step:
    """A model with its optimizer, which trains on batches of the rows.

    Args:
        settings: of the measurement.
        update: "dense", "exact" or "lazy".
        vocabulary: ids of all fields.
        rows: as `draw` made them.
    """

    def __init__(
        self, settings: VocabularySettings, update: str, vocabulary: int, rows: ColumnArrays
    ) -> None:
        from cowclip_merlin.training.train_step import make_step

        sizes, tf = field_sizes(vocabulary), compat.tensorflow()
        self._update, self.made = update, 0
        self._rows = len(rows)
        self._loss = tf.Variable(0.0, dtype=tf.float64)
        model = random_model(
            settings.model, sizes, embedding_dim=settings.embedding_dim, mlp=settings.mlp
        )
        self._optimizer = _optimizer(update)
        self._optimizer._create_all_weights(model.trainable_variables)
        self.backend = self._optimizer.backend
        data = DeviceData(spread(rows, sizes))
        self._run = make_step(model, self._optimizer, data, self._loss)

    def train(self, batch: int, steps: int, seconds: float = float("inf")) -> tuple[int, float]:
        """Steps made and the seconds they took; fewer steps if the seconds are up after three."""
        started = time.perf_counter()
        for step in range(1, steps + 1):
            first = self.made * batch
            self._run(np.arange(first, first + batch) % self._rows)
            self.made += 1
            self._loss.numpy()  # waits for the device
            spent = time.perf_counter() - started
            if spent > seconds and step >= 3:
                break
        return step, spent

    def flush(self) -> float:
        """Bring all rows up to date; seconds."""
        started = time.perf_counter()
        self._optimizer.flush()
        self._optimizer.iterations.numpy()
        return time.perf_counter() - started


def _optimizer(update: str) -> Any:
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.scaling import scale

    adam, values = compat.tensorflow().keras.optimizers.legacy.Adam, scale("criteo", to=8192)
    return CowClip(
        adam(values.embedding_lr),
        adam(values.dense_lr),
        l2=values.l2,
        update=update,
        embeddings=["embeddings"],
    )


def free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that can still be had; None where the system does not tell."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None
