"""Checkpoints of a run: snapshots of its weights, its optimizer and its place in the epoch.

`checkpoints/K` is the K-th one, in the format of `tables.snapshot`. A thread writes it while the
training goes on, which waits only until its memory is copied. `weights.3` is the model's variable
of this place, and `weights.3.m` what the optimizer keeps of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import compat, workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.snapshot import (
    KEEP,
    Snapshot,
    go_on_from,
    load_newest,
    load_part,
    numbers,
)
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter
from cowclip_merlin.types import Array, ArrayOrTensor, KerasModel, Variable
from cowclip_merlin.workers.agreement import (
    arrays_of_all,
    raising_together,
    refusing_together,
    wait_for_all,
)

if TYPE_CHECKING:
    from cowclip_merlin.optimizer import CowClip

CHECKPOINTS = "checkpoints"

_SLOTS = ("m", "v", "accumulator")
_OF_STEPS = ("last", "history", "count")  # which steps the rows of a table have missed
_BY_ROW = (*_SLOTS, "last")
_WEIGHT = re.compile(r"weights\.\d+")
_OTHER_MODEL = "{}: checkpoint of another model ({}); use the settings and data it was trained with"


def has_checkpoint(run: Path) -> bool:
    """Whether a run folder has a checkpoint, so that the run can go on."""
    return bool(numbers(run / CHECKPOINTS))


class ShardedRows:
    """The arrays of tables of which worker r of n has the rows `r, r + n, ...`.

    Args:
        names: of the arrays.

    >>> parts = ({"t": np.arange(7)[q::2]} for q in range(2))
    >>> ShardedRows(["t"]).joined(parts, 2, rank=1, size=3)["t"].tolist()
    [1, 4]
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def __bool__(self) -> bool:
        """Whether workers have parts at all."""
        return bool(self._names)

    def has(self, name: str) -> bool:
        """Whether an array is one of them."""
        return name in self._names

    def joined(
        self, parts: Iterator[dict[str, Array]], count: int, rank: int, size: int
    ) -> dict[str, Array]:
        """Return the rows of one of `size` workers, from the parts of `count` workers."""
        found: dict[str, list[tuple[Array, Array]]] = {}
        for other, part in enumerate(parts):
            for name, x in part.items():
                rows = other + count * np.arange(len(x))
                own = rows % size == rank
                found.setdefault(name, []).append((rows[own] // size, x[own]))
        return {name: _in_order(pieces) for name, pieces in found.items()}


def _in_order(pieces: list[tuple[Array, Array]]) -> Array:
    """Return the rows of all pieces, each of which tells where its rows belong."""
    first = pieces[0][1]
    result = np.empty((sum(len(at) for at, _ in pieces), *first.shape[1:]), first.dtype)
    for at, values in pieces:
        result[at] = values
    return result


class Checkpoints:
    """The last checkpoints of a run.

    Args:
        folder: the folder of the checkpoints.
        model: the Merlin model, with its variables created.
        optimizer: the CowClip optimizer, with its variables created; None to read only weights.
        keep: number of checkpoints to keep.

    Attributes:
        folder: the folder of the checkpoints.
        number: of the checkpoint that was restored or begun last; 0 before the first one.
        epoch: epochs finished.
        step: steps done in the epoch after them.
        loss_sum: sum of the losses of these steps, float64 [].
        skipped: `restore` adds a message for each damaged checkpoint.

    Of several workers, worker 0 writes checkpoints. If each has a part of the tables, all do.
    """

    def __init__(
        self,
        folder: Path,
        model: KerasModel,
        optimizer: CowClip | None = None,
        *,
        keep: int = KEEP,
    ) -> None:
        self.folder, self._keep = folder, keep
        self.number = self.epoch = self.step = 0
        self.skipped: list[str] = []
        tf = compat.tensorflow()
        self.loss_sum = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._model, self._optimizer = model, optimizer
        self._sharded = self._names_of_shards()
        group = self._workers = workers.current()
        self._rank, self._size = (group.rank, group.size) if group else (0, 1)
        self._writer: SnapshotWriter | None = None
        self._begun = False

    def _variables(self) -> dict[str, Variable]:
        """Return all variables of a checkpoint; the optimizer may have made more since."""
        weights = {f"weights.{i}": x for i, x in enumerate(self._model.variables)}
        if self._optimizer is None:
            return weights
        state = {
            f"{name}.{each}": x
            for name, variable in weights.items()
            for each, x in _state_of(self._optimizer, variable).items()
        }
        return weights | state | _counts_of(self._optimizer) | {"loss": self.loss_sum}

    def _names_of_shards(self) -> ShardedRows:
        sync = getattr(self._model, "row_sync", None)  # only our models have one
        tables = {table.ref() for table in sync.shards()} if sync else ()
        whole = [f"weights.{i}" for i, x in enumerate(self._model.variables) if x.ref() in tables]
        return ShardedRows([x for name in whole for x in (name, *(f"{name}.{k}" for k in _BY_ROW))])

    def save(self, then: Callable[[int], None] | None = None) -> None:
        """Begin to write a checkpoint; whatever interrupts that, the one before stays.

        Args:
            then: is called in the thread with the number of the checkpoint on the disk; only
                that of worker 0.

        Raises:
            OSError: the one before could not be written, as the disk is full or not writable.
        """
        self.finish()
        self.number, self._begun = self.number + 1, True
        if self._rank and not self._sharded:
            return
        if self._writer is None:
            place = {"rank": self._rank, "workers": self._size if self._sharded else 1}
            self._writer = SnapshotWriter(self.folder, keep=self._keep, **place)
        arrays = {
            name: _memory_of(variable)
            for name, variable in self._variables().items()
            if not self._rank or self._sharded.has(name)
        }
        position = {"epoch": self.epoch, "step": self.step}
        self._writer.begin(self.number, arrays, position, None if self._rank else then)

    @property
    def failed(self) -> bool:
        """Whether this worker could not write the checkpoint that was begun last."""
        return self._writer is not None and self._writer.failed

    def finish(self) -> None:
        """Wait until the checkpoint that was begun last is on the disk; all workers do so.

        Raises:
            OSError: it could not be written.
            InputError: another worker could not write its part.
        """
        if not self._begun:
            return
        self._begun = False
        for turn in (self._rank > 0, self._rank == 0):  # worker 0 waits for the parts of others
            with raising_together(self._workers):
                if turn and self._writer is not None:
                    self._writer.finished(wait=True)

    def close(self) -> None:
        """End the thread when it has written what it began, or waits for other workers."""
        if self._writer is not None:
            self._writer.close()

    def restore(self, *, older: bool = True) -> None:
        """Restore the last checkpoint.

        Args:
            older: whether an older one may take the place of one that is damaged.

        Raises:
            InputError: if no checkpoint exists, all are damaged, or it belongs to another model.
        """
        own = np.array(numbers(self.folder), np.int64)
        known = arrays_of_all(self._workers, own)[0].tolist()  # another may see a list of before
        if not known:
            raise InputError(
                f"{self.folder}: no checkpoint; the run ended before its first one; delete "
                f"{self.folder.parent} and train again without `resume`"
            )

        def damaged(other: int, error: InputError) -> None:
            self.skipped.append(f"{_reason(error)}; using checkpoint {other}, which is older")

        try:
            found = load_newest(known if older else [max(known)], self._load, damaged)
        except InputError as error:
            # A run that goes on may have removed those that were being read.
            if self._workers is None and max(numbers(self.folder), default=0) > max(known):
                self.skipped.clear()
                return self.restore(older=older)
            reason = _reason(self.skipped[0] if self.skipped else error)
            remedy = "no other checkpoint is whole; " if older else "restore a copy, or "
            raise InputError(f"{reason}; {remedy}train again") from error
        self._take(found)

    def resume(self) -> Path:
        """Restore the last undamaged checkpoint, from which the run goes on; return its path.

        Damaged ones are set aside, so that their numbers are free.

        Raises:
            InputError: if no checkpoint exists, all are damaged, or it belongs to another model.
        """
        self.restore()
        if self._rank == 0:  # all workers have read the checkpoint
            go_on_from(self.folder, self.number)
        wait_for_all(self._workers)
        return self.folder / str(self.number)

    def _load(self, number: int) -> Snapshot:
        wanted = None if self._optimizer else lambda name: bool(_WEIGHT.fullmatch(name))
        how = {"rank": self._rank, "size": self._size, "wanted": wanted}
        with refusing_together(self._workers):
            return load_part(self.folder, number, self._sharded, **how)

    def _take(self, found: Snapshot) -> None:
        """Assign what was read; one array at a time is freed."""
        path, arrays, variables = self.folder / str(found.number), found.arrays, self._variables()
        if arrays.keys() != variables.keys():
            reason = f"it has {len(arrays)} arrays, not {len(variables)}"
            raise InputError(_OTHER_MODEL.format(path, reason))
        for name, variable in variables.items():
            x, shape = arrays[name], variable.shape.as_list()
            if list(x.shape) != shape or x.dtype != variable.dtype.as_numpy_dtype:
                reason = f"{variable.name} is {shape}, saved as {list(x.shape)}"
                raise InputError(_OTHER_MODEL.format(path, reason))
        for name, variable in variables.items():
            variable.assign(arrays.pop(name))
        self.number = found.number
        self.epoch, self.step = found.extra["epoch"], found.extra["step"]


def _state_of(optimizer: CowClip, variable: Variable) -> dict[str, Variable]:
    """Return what the optimizer keeps of a weight, by name."""
    found = {}
    for name in _SLOTS:
        with suppress(KeyError):
            found[name] = optimizer.get_slot(variable, name)
    for table in optimizer.tables.with_state:
        if table.ref() == compat.stored(variable).ref():
            state = optimizer.tables.of(table).state._asdict()
            found |= {k: state[k] for k in _OF_STEPS if state.get(k) is not None}
    return found


def _counts_of(optimizer: CowClip) -> dict[str, Variable]:
    """Return what the optimizer keeps besides the state of weights."""
    return {
        "optimizer.steps": optimizer.iterations,
        "optimizer.embedding_steps": optimizer.embedding_optimizer.iterations,
        "optimizer.dense_steps": optimizer.dense_optimizer.iterations,
        "optimizer.clipped_share": optimizer.clipped_share,
        "optimizer.mean_clip_factor": optimizer.mean_clip_factor,
    }


def _memory_of(variable: Variable) -> ArrayOrTensor:
    """Return the values of a variable: on the CPU its memory itself, to be copied once."""
    variable, tf = compat.stored(variable), compat.tensorflow()
    if tf.DeviceSpec.from_string(variable.device).device_type not in (None, "CPU"):
        return variable.numpy()
    from cowclip_merlin.tables.variable_memory import memory_tensor

    return memory_tensor(variable)


def _reason(error: InputError | str) -> str:
    """Return a message without its remedy."""
    return str(error).rpartition("; ")[0] or str(error)
