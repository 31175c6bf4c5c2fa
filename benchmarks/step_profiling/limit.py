"""Compute the counted limit of a training step from its arithmetic and memory traffic.

It counts the matrix products of MLP and cross layers. It also counts the bytes of the batch and of
the tables' rows, with the fewest possible reads and writes. It omits small parts (FM and
first-order part, loss, Adam's arithmetic) and values that may stay in a cache (dense weights,
activations). So the limit is a lower bound that no step reaches.
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

LEAST_SECONDS = 0.05  # minimum time of a series of matrix products
_CROSSED = ("dcn", "dcnv2")


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a model with its default layers, and of its table.

    Attributes:
        model: name of one of the four models.
        vocabulary: ids of all fields together.
        num_fields: number of categorical columns.
        continuous: number of continuous columns, which only the MLP reads.
        embedding_dim: length of an embedding row.
        mlp: widths of the hidden layers.
        cross_layers: number of cross layers of DCN and DCNv2.
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
        """Width of the cross layers; 0 for models without them."""
        return self.num_fields * self.embedding_dim if self.model in _CROSSED else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of the weights of an id: its embedding, and its weight in the wide part if any."""
        return 4 * (self.embedding_dim + (self.model not in _CROSSED))


def flop_per_row(sizes: ModelSizes) -> dict[str, int]:
    """Count the floating-point operations for one row of the batch, by part.

    A product of [1, a] and [a, b] has 2 a b operations. The backward pass computes two such
    products: one for the weights and one for the input. A cross layer on n numbers has 4 n
    operations in DCN (half of them for the product with its vector), and 2 n^2 in DCNv2.

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
    """Count the bytes that a step reads and writes, by part; all numbers have 4 bytes.

    Args:
        sizes: sizes of the model.
        update: "dense", "exact" or "lazy".
        batch: rows per step.
        distinct: distinct ids in a batch, in all fields together.

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
    # Each of w, m and v of a row is read and written.
    touched = sizes.vocabulary if update == "dense" else distinct
    parts["w, m, v of rows updated"] = 6 * sizes.row_bytes * touched
    if update == "exact":
        parts["w, m, v of rows caught up"] = 6 * sizes.row_bytes * distinct
    return parts


def mean_distinct(ids: Any, fields: Mapping[str, int], batches: Iterable[Any]) -> float:
    """Compute the mean number of distinct ids in a batch, in all fields together.

    Args:
        ids: ids of all rows, counted from 0 in each field, [N, F].
        fields: field -> number of rows.
        batches: row numbers of each batch, [b].

    >>> ids = np.array([[0, 0], [0, 1], [0, 0]])
    >>> mean_distinct(ids, {"C1": 1, "C2": 2}, [[0, 1], [0, 2]])
    2.5
    """
    offsets = np.cumsum([0, *fields.values()])[:-1]
    return float(np.mean([len(np.unique(ids[batch] + offsets)) for batch in batches]))


@dataclass(frozen=True, kw_only=True)
class MachinePeaks:
    """The best measured speeds of a machine.

    Attributes:
        flop_per_second: speed of the fastest matrix product.
        bytes_per_second: speed of the fastest copy; bytes read and bytes written both count.
    """

    flop_per_second: float
    bytes_per_second: float

    @classmethod
    def measured(
        cls, *, device: str, precision: str, squares: Iterable[int], copy_mb: int, rounds: int
    ) -> MachinePeaks:
        """Measure both speeds, each the best of several rounds.

        Args:
            device: "cpu" or "gpu".
            precision: precision of the matrices: "bfloat16", or "float32", for which TensorFlow
                may use TF32 on a GPU.
            squares: sizes of the square matrices.
            copy_mb: megabytes of the array that is copied.
            rounds: number of rounds.

        Raises:
            InputError: if the device is a GPU and CuPy is not installed.
        """
        speeds = [flop_per_second(n, precision, rounds) for n in squares]
        copies = bytes_per_second(device, copy_mb, rounds)
        return cls(flop_per_second=max(speeds), bytes_per_second=copies)


def flop_per_second(n: int, precision: str, rounds: int) -> float:
    """Measure the product of two [n, n] matrices in TensorFlow; return the best of all rounds."""
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
    while spent < LEAST_SECONDS:  # else the time of the call would dominate
        times *= 2
        spent = seconds(times)
    return 2 * n**3 * times / min(seconds(times) for _ in range(rounds))


def bytes_per_second(device: str, megabytes: int, rounds: int) -> float:
    """Measure a copy in the device's memory with all threads; return the best of all rounds."""
    try:
        backend = choose_backend("cupy" if device == "gpu" else "numba")
    except InputError:
        raise InputError(
            "CuPy measures the copy on a GPU, but it is not installed or finds no GPU: "
            "see docs/installation.md, or use --device cpu"
        ) from None
    case = copy_case(backend, megabytes)
    times = [time_case(backend, case) for _ in range(rounds + 1)]  # the first compiles
    return case.bytes / min(times)


def limit(
    sizes: ModelSizes, machine: MachinePeaks, *, update: str, batch: int, distinct: float
) -> dict[str, Any]:
    """Compute the limit of a step in milliseconds from counted operations and bytes.

    It adds the times of arithmetic and traffic, because on a CPU the same cores do both.

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
