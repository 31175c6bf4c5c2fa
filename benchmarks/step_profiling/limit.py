"""Compute the counted limit of a training step from its arithmetic and memory traffic.

It counts the matrix products of MLP and crosses, and the bytes of the batch and of the tables'
rows, each read and written as rarely as possible. It omits small parts (FM and first-order part,
loss, Adam's arithmetic) and values that may stay in a cache (dense weights, activations). So the
limit is a lower bound that no step reaches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import CONTINUOUS, NUM_FIELDS
from cowclip_merlin.errors import InputError
from harness.backends import choose_backend
from harness.kernel_timing import copy_case, time_case

LEAST_SECONDS = 0.05  # of a timed row of matrix products
_CROSSED = ("dcn", "dcnv2")


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a model in its default shape, and of its table.

    Attributes:
        model: name of one of the four.
        vocabulary: ids of all fields together.
        num_fields: categorical columns.
        continuous: numbers of a row, which enter the MLP only.
        embedding_dim: length of an embedding row.
        mlp: widths of the hidden layers.
        cross_layers: of DCN and DCNv2.
    """

    model: str
    vocabulary: int
    num_fields: int = NUM_FIELDS
    continuous: int = CONTINUOUS
    embedding_dim: int = 10
    mlp: tuple[int, ...] = (400, 400, 400)
    cross_layers: int = 3

    @property
    def crossed(self) -> int:
        """Width of the cross layers; 0 without."""
        return self.num_fields * self.embedding_dim if self.model in _CROSSED else 0

    @property
    def row_bytes(self) -> int:
        """Of an id's weights: the embedding, and one of the wide part in models that have it."""
        return 4 * (self.embedding_dim + (self.model not in _CROSSED))


def flop_per_row(sizes: ModelSizes) -> dict[str, int]:
    """Floating-point operations for one row of the batch, by part.

    A product of [1, a] and [a, b] is 2 a b; backward it is made twice, once for the weights and
    once for its input. A cross layer on n numbers is 2 n for the product with its vector and 2 n
    around it (DCN), or 2 n^2 (DCNv2).

    >>> parts = flop_per_row(ModelSizes(model="deepfm", vocabulary=1000))
    >>> [round(flop / 1e6, 2) for flop in parts.values()]
    [0.86, 0.86, 0.64, 0.22]
    """
    n, inputs = sizes.crossed, sizes.num_fields * sizes.embedding_dim + sizes.continuous
    hidden = [2 * a * b for a, b in pairwise((inputs, *sizes.mlp))]
    logit = 2 * (sizes.mlp[-1] + n)
    forward = sum(hidden) + logit
    parts = {
        "MLP forward": forward,
        "MLP backward, weights": forward,
        "MLP backward, hidden layers' inputs": forward - hidden[0],
        "MLP backward, the embeddings' gradient": hidden[0],
    }
    if n:
        cross = sizes.cross_layers * (4 * n if sizes.model == "dcn" else 2 * n * n)
        parts |= {"crosses forward": cross, "crosses backward": 2 * cross}
    return parts


def bytes_of_step(
    sizes: ModelSizes, *, update: str, batch: int, distinct: float
) -> dict[str, float]:
    """Bytes that a step reads and writes, by part; all numbers have 4 bytes.

    Args:
        sizes: of the model.
        update: "dense", "exact" or "lazy".
        batch: rows.
        distinct: different ids in a batch, all fields together.

    >>> s = ModelSizes(model="deepfm", vocabulary=1_000_000)
    >>> parts = bytes_of_step(s, update="exact", batch=1, distinct=1)
    >>> list(parts.values())
    [160, 1144, 1144, 264, 264]
    >>> sum(bytes_of_step(s, update="dense", batch=0, distinct=0).values())
    264000000
    """
    occurrences = batch * sizes.num_fields * sizes.row_bytes
    parts: dict[str, float] = {
        "ids, numbers, labels read": 4 * batch * (sizes.num_fields + sizes.continuous + 1),
        "rows gathered": occurrences,
        "gradients of rows written": occurrences,
    }
    # w, m and v of a row, read and written.
    touched = sizes.vocabulary if update == "dense" else distinct
    parts["w, m, v of rows updated"] = 6 * sizes.row_bytes * touched
    if update == "exact":
        parts["w, m, v of rows caught up"] = 6 * sizes.row_bytes * distinct
    return parts


def mean_distinct(ids: Any, fields: Mapping[str, int], batches: Iterable[Any]) -> float:
    """Mean number of different ids, all fields together, in a batch.

    Args:
        ids: of all rows, within their fields, [N, F].
        fields: field -> number of rows.
        batches: numbers of rows, [b] each.

    >>> ids = np.array([[0, 0], [0, 1], [0, 0]])
    >>> mean_distinct(ids, {"C1": 1, "C2": 2}, [[0, 1], [0, 2]])
    2.5
    """
    offsets = np.cumsum([0, *fields.values()])[:-1]
    return float(np.mean([len(np.unique(ids[batch] + offsets)) for batch in batches]))


@dataclass(frozen=True, kw_only=True)
class MachinePeaks:
    """The best speeds that the machine showed.

    Attributes:
        flop_per_second: of the best matrix product.
        bytes_per_second: of the best copy, reading and writing counted.
    """

    flop_per_second: float
    bytes_per_second: float

    @classmethod
    def measured(
        cls, *, device: str, precision: str, squares: Iterable[int], copy_mb: int, rounds: int
    ) -> MachinePeaks:
        """Take both peaks, each the best of several turns.

        Args:
            device: "cpu" or "gpu".
            precision: of the matrices: "float32" (on a GPU TensorFlow may use TF32) or "bfloat16".
            squares: sides of the matrices.
            copy_mb: megabytes of the array that is copied.
            rounds: turns.

        Raises:
            InputError: if the device is a GPU and CuPy is not installed.
        """
        speeds = [flop_per_second(n, precision, rounds) for n in squares]
        copies = bytes_per_second(device, copy_mb, rounds)
        return cls(flop_per_second=max(speeds), bytes_per_second=copies)


def flop_per_second(n: int, precision: str, rounds: int) -> float:
    """Of a product of two [n, n] matrices by TensorFlow, the best of several turns."""
    tf = compat.tensorflow()
    a, b = (tf.cast(tf.random.stateless_normal([n, n], seed=(0, i)), precision) for i in range(2))
    product = tf.function(lambda x: tf.linalg.matmul(x, b))

    def seconds(times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            c = product(a)
        float(c[0, 0])  # waits for the device
        return time.perf_counter() - started

    times, spent = 1, min(seconds(1) for _ in range(3))
    while spent < LEAST_SECONDS:  # or the call would be most of the time
        times *= 2
        spent = seconds(times)
    return 2 * n**3 * times / min(seconds(times) for _ in range(rounds))


def bytes_per_second(device: str, megabytes: int, rounds: int) -> float:
    """Of a copy in the device's memory, by all threads, the best of several turns."""
    try:
        backend = choose_backend("cupy" if device == "gpu" else "numba")
    except InputError:
        raise InputError(
            "CuPy measures the copy on a GPU, and is not installed or finds none: "
            "see docs/installation.md, or use --device cpu"
        ) from None
    case = copy_case(backend, megabytes)
    times = [time_case(backend, case) for _ in range(rounds + 1)]  # the first compiles
    return case.bytes / min(times)


def limit(
    sizes: ModelSizes, machine: MachinePeaks, *, update: str, batch: int, distinct: float
) -> dict[str, Any]:
    """The counted limit of a step in milliseconds, with what it was counted from.

    Arithmetic and traffic are added: on a CPU the same cores do both.

    >>> machine = MachinePeaks(flop_per_second=2.577e9, bytes_per_second=2.976e6)
    >>> s = ModelSizes(model="deepfm", vocabulary=1000)
    >>> found = limit(s, machine, update="exact", batch=1, distinct=1)
    >>> round(found["arithmetic_ms"], 2), round(found["traffic_ms"], 2), round(found["ms"], 2)
    (1.0, 1.0, 2.0)
    """
    flop = {part: batch * count for part, count in flop_per_row(sizes).items()}
    moved = bytes_of_step(sizes, update=update, batch=batch, distinct=distinct)
    arithmetic = 1000 * sum(flop.values()) / machine.flop_per_second
    traffic = 1000 * sum(moved.values()) / machine.bytes_per_second
    return {
        "ms": arithmetic + traffic,
        "arithmetic_ms": arithmetic,
        "traffic_ms": traffic,
        "flop": flop,
        "bytes": moved,
    }
