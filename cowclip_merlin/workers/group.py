"""Join the workers of this training; each process can be in one group, once."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TypeVar

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Strategy, Tensor, Variable
from cowclip_merlin.workers.environment import Cluster, cluster_of


class Traffic:
    """Bytes that this worker has sent in training, counted from the shapes of what it sends.

    Counting is a part of the graphs, since the sizes are known only when a step runs.
    """

    def __init__(self) -> None:
        self._sent: Variable | None = None

    def add(self, sent: int | Tensor) -> None:
        """Count bytes, a number or an integer tensor."""
        tf = compat.tensorflow()
        if self._sent is None:
            with tf.init_scope(), tf.device("CPU:0"):  # outside of any graph
                self._sent = tf.Variable(0, dtype=tf.int64, trainable=False, name="bytes_sent")
        self._sent.assign_add(tf.cast(sent, tf.int64))

    @property
    def sent(self) -> int:
        """Bytes so far."""
        return 0 if self._sent is None else int(self._sent.numpy())


def shard_rows(rows: int, rank: int, size: int) -> int:
    """Return how many rows of a table a worker has.

    >>> [shard_rows(7, rank, 3) for rank in range(3)]
    [3, 2, 2]
    """
    return (rows - rank + size - 1) // size


Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True)
class Workers:
    """The workers of one training, as one of them sees them.

    Attributes:
        rank: number of this worker, from 0 on; worker 0 writes the files of the run.
        addresses: "host:port" of every worker, by rank.
        traffic: counts the bytes that this worker sends.
    """

    rank: int
    addresses: tuple[str, ...]
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.addresses)

    @property
    def is_first(self) -> bool:
        """Whether this worker writes the files of the run."""
        return self.rank == 0

    def part_of(self, count: Count) -> tuple[Count, Count]:
        """Return the first row of this worker's part of a batch, and the row after its last one.

        Args:
            count: rows of the batch; a number or an integer tensor.

        >>> [Workers(rank, ("a:1", "b:1", "c:1")).part_of(7) for rank in range(3)]
        [(0, 2), (2, 4), (4, 7)]
        """
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def __str__(self) -> str:
        """Name this worker in messages."""
        return f"worker {self.rank} of {self.size} ({self.addresses[self.rank]})"


# TensorFlow has one cluster for each process, and cannot leave it.
_joined: list[tuple[Workers, Strategy]] = []


def join() -> Workers | None:
    """Join the workers that `TF_CONFIG` or `srun` names, and wait for all of them.

    Call this before TensorFlow creates anything. From then on, a `CowClip` of this process takes
    the mean of the workers' dense gradients, and clips by the counts of all workers.

    Returns:
        The workers; None if this process trains alone.

    Raises:
        InputError: if `TF_CONFIG` is damaged, TensorFlow has started already, or Horovod runs.
    """
    if _joined:
        return _joined[0][0]
    cluster = cluster_of(os.environ)
    if cluster is None:
        return None
    _refuse_horovod()
    # TensorFlow stops a group whose strategy is gone, so hold it.
    _joined.append((Workers(cluster.rank, cluster.addresses), _start_group(cluster)))
    return _joined[0][0]


def current() -> Workers | None:
    """Return the workers that `join` has joined; None if this process trains alone."""
    return _joined[0][0] if _joined else None


def _start_group(cluster: Cluster) -> Strategy:
    tf = compat.tensorflow()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
        num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except RuntimeError as error:
        if "program startup" not in str(error) and "initialized" not in str(error):
            raise
        raise InputError(
            "join: TensorFlow has started already in this process; call "
            "cowclip_merlin.workers.join() before any tensor is made"
        ) from error


def _refuse_horovod() -> None:
    """Refuse Horovod, which would scale learning rates and average gradients without counts."""
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod is not None and horovod.is_initialized() and horovod.size() > 1:
        raise InputError(
            f"Horovod runs {horovod.size()} processes: start the workers by TF_CONFIG or srun, "
            "without horovodrun"
        )
