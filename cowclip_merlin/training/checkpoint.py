"""Save and restore checkpoints: weights, optimizer state and the position in the epoch.

Several workers may each have a part of the tables. Worker 0 writes `checkpoints/ckpt-K`, with its
part of the tables and everything that all workers have alike. Before, every other worker has
written `checkpoints/workers/R-of-N/ckpt-K`. If as many workers read them, each reads its own file.
Otherwise each makes a file of its rows from all parts.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cowclip_merlin import compat, workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array, KerasModel, Variable
from cowclip_merlin.workers.agreement import texts_of_all, wait_for_all
from cowclip_merlin.workers.group import shard_rows

if TYPE_CHECKING:
    import tensorflow as tf

    from cowclip_merlin.optimizer import CowClip


COUNT_KEY = "workers/.ATTRIBUTES/VARIABLE_VALUE"
# What a checkpoint does not hold as a slot of a table: steps of rows, and row-wise accumulators.
_OF_ROWS = re.compile(r"optimizer/(table\.+\d+\.+last|embedding_optimizer/accumulator\.+\d+)/")


class _Reader(Protocol):
    """What `tf.train.load_checkpoint` returns."""

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Map the name of each tensor to its shape."""

    def get_tensor(self, name: str) -> Array:
        """Read a tensor."""


class ShardFiles:
    """The files of one worker.

    Args:
        folder: the folder `checkpoints` of the run.
        rank: number of this worker.
        size: number of workers.
        tables: positions of the sharded tables among the model's variables.
    """

    def __init__(self, folder: Path, rank: int, size: int, tables: Sequence[int]) -> None:
        self._folder, self._rank, self._size = folder, rank, size
        self._prefixes = tuple(f"weights/variables_in_order/{index}/" for index in tables)

    @property
    def own_folder(self) -> Path:
        """Where this worker writes its checkpoints."""
        return self._folder_of(self._rank, self._size)

    def _folder_of(self, rank: int, size: int) -> Path:
        return self._folder / "workers" / f"{rank}-of-{size}" if rank else self._folder

    @contextmanager
    def own_path(self, path: str) -> Iterator[str]:
        """Return the checkpoint that this worker can read, within the block.

        Args:
            path: of worker 0's checkpoint.

        Raises:
            InputError: a part is missing.
        """
        name = Path(path).name
        size = int(_load(path).get_tensor(COUNT_KEY))
        parts = [self._folder_of(rank, size) / name for rank in range(size)]
        for part in parts:
            if not part.with_name(f"{name}.index").exists():
                raise InputError(
                    f"{part}: no such checkpoint, but {size} workers wrote parts of it; copy the "
                    "whole run folder"
                )
        if size == self._size:
            yield str(parts[self._rank])
            return
        with TemporaryDirectory() as folder:
            yield self._merge([_load(part) for part in parts], f"{folder}/{name}")

    def _merge(self, parts: Sequence[_Reader], target: str) -> str:
        """Write a checkpoint with this worker's rows of all parts."""
        tf = compat.tensorflow()
        names = sorted(parts[0].get_variable_to_shape_map())
        values = [self._value(parts, name) for name in names]
        tensors = [tf.constant(value) for value in values]
        tf.raw_ops.SaveV2(
            prefix=target, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
        )
        return target

    def _value(self, parts: Sequence[_Reader], name: str) -> Array:
        if name.startswith(self._prefixes) or _OF_ROWS.match(name):
            return merged_rows((part.get_tensor(name) for part in parts), len(parts), self._place)
        return parts[0].get_tensor(name)

    @property
    def _place(self) -> tuple[int, int]:
        return self._rank, self._size


def _load(path: str | Path) -> _Reader:
    return compat.tensorflow().train.load_checkpoint(str(compat.literal_path(path)))


def merged_rows(parts: Iterator[Array], count: int, place: tuple[int, int]) -> Array:
    """Return the rows of one worker from the parts of another number of workers.

    Args:
        parts: rows `q, q + count, ...` of a table for q = 0, 1, ...
        count: number of parts.
        place: rank r and number n of the workers that read: rows `r, r + n, ...`.

    >>> table = np.arange(7)
    >>> merged_rows((table[q::2] for q in range(2)), 2, (1, 3)).tolist()
    [1, 4]
    """
    rank, size = place
    found: list[tuple[Array, Array]] = []
    total = 0
    for number, part in enumerate(parts):
        rows = number + count * np.arange(len(part))
        own = rows % size == rank
        found.append((rows[own] // size, part[own]))
        total += len(part)
    result = np.empty((shard_rows(total, rank, size), *found[0][1].shape[1:]), found[0][1].dtype)
    for at, values in found:
        result[at] = values
    return result


_NAME = re.compile(r"ckpt-(\d+)\.index")
_OTHER_MODEL = "{}: checkpoint of another model ({}); use the settings and data it was trained with"


class Checkpoints:
    """The last checkpoints of a run.

    Args:
        folder: the folder of the checkpoints.
        model: the Merlin model, with its variables created.
        optimizer: the CowClip optimizer, with its variables created; None to read only weights.
        keep: number of checkpoints to keep.

    Attributes:
        saved: path of what `save` wrote last here; None if it wrote nothing.

    Of several workers, worker 0 writes checkpoints. If each has a part of the tables, all do.
    """

    def __init__(
        self,
        folder: Path,
        model: KerasModel,
        optimizer: CowClip | None = None,
        *,
        keep: int = 2,
    ) -> None:
        tf = compat.tensorflow()
        self._tf = tf
        self._folder = folder
        _check_readable(folder)
        self._variables = list(model.variables)
        self.epoch = tf.Variable(0, dtype=tf.int64, trainable=False)  # epochs finished
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)  # steps done in this epoch
        self.loss_sum = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._workers = workers.current()
        rank, size = (self._workers.rank, self._workers.size) if self._workers else (0, 1)
        parts = {"weights": _by_index(model.variables), "epoch": self.epoch, "step": self.step}
        if optimizer is not None:
            parts |= {"optimizer": optimizer, "loss_sum": self.loss_sum}
        self._shards = _shard_files(folder, model, rank, size)
        if self._shards:
            self._count = tf.Variable(size, dtype=tf.int64, trainable=False)
            parts["workers"] = self._count
        self._checkpoint = tf.train.Checkpoint(**parts)
        self._partial = optimizer is None
        self.skipped: list[str] = []  # `restore` adds a message for each damaged checkpoint
        self.saved: str | None = None
        self._manager = None
        self._own = own = self._shards.own_folder if self._shards else folder
        if optimizer is not None and (rank == 0 or self._shards):
            _repair_checkpoint_list(own)
            own.mkdir(parents=True, exist_ok=True)
            directory = str(compat.literal_path(own))
            self._manager = tf.train.CheckpointManager(self._checkpoint, directory, keep)

    def save(self) -> None:
        """Write a checkpoint; an interrupted write keeps the previous one.

        Several workers wait for it. Worker 0 writes last, so its checkpoint makes the parts of
        the others valid.

        Raises:
            OSError: if the disk is full, or the folder is not writable.
        """
        first = self._workers is None or self._workers.is_first
        with translate_write_errors(self._folder):
            if not first and self._manager:
                self.saved = self._save()
            wait_for_all(self._workers)
            if first:
                self.saved = self._save()
        wait_for_all(self._workers)

    def _save(self) -> str:
        return str(self._own / Path(self._manager.save()).name)

    def restore(self) -> str:
        """Restore the last undamaged checkpoint; return its path.

        Raises:
            InputError: if no checkpoint exists, all are damaged, or it belongs to another model.
        """
        paths = list_checkpoints(self._folder)
        if not paths:
            raise InputError(
                f"{self._folder}: no checkpoint; the run ended before its first one; delete "
                f"{self._folder.parent} and train again without `resume`"
            )
        for path in paths:
            damages = texts_of_all(self._workers, self._read(path) or "")
            damage = next(filter(None, damages), None)
            if damage is None:
                return path
            self.skipped.append(f"{path}: damaged checkpoint ({damage})")
        raise InputError(f"{self.skipped[0]}; all other checkpoints are damaged too; train again")

    def _read(self, path: str) -> str | None:
        """Restore one checkpoint; return the error if it is damaged."""
        try:
            with self._shards.own_path(path) if self._shards else nullcontext(path) as own:
                self._restore(own)
        except InputError:
            raise
        except (AssertionError, ValueError) as error:
            raise InputError(_OTHER_MODEL.format(path, _first_line(error))) from error
        # TensorFlow verifies checksums, and reports damage by several types of errors.
        except (self._tf.errors.OpError, RuntimeError, IndexError) as error:
            return _first_line(error)
        return None

    def _restore(self, path: str) -> None:
        path = str(compat.literal_path(path))
        self._check_shapes(path)
        status = self._checkpoint.restore(path)
        status.assert_existing_objects_matched()
        if self._partial:
            status.expect_partial()
        else:
            status.assert_consumed()
        if self._shards:
            self._count.assign(self._workers.size if self._workers else 1)

    def _check_shapes(self, path: str) -> None:
        """Refuse weights of other shapes, with a clearer error than TensorFlow's."""
        shapes = self._tf.train.load_checkpoint(path).get_variable_to_shape_map()
        for index, variable in enumerate(self._variables):
            found = shapes.get(f"weights/variables_in_order/{index}/.ATTRIBUTES/VARIABLE_VALUE")
            if found != variable.shape.as_list():
                reason = f"{variable.name} is {variable.shape.as_list()}, saved as {found}"
                raise InputError(_OTHER_MODEL.format(path, reason))


def list_checkpoints(folder: Path) -> list[str]:
    """List the paths of the checkpoints in a folder, the latest first.

    TensorFlow's own list, the file `checkpoint`, may be damaged, so this lists the files.
    """
    numbers = [_NAME.fullmatch(file.name) for file in folder.glob("ckpt-*.index")]
    known = sorted((int(name[1]) for name in numbers if name), reverse=True)
    return [str(folder / f"ckpt-{number}") for number in known]


def _repair_checkpoint_list(folder: Path) -> None:
    """Rewrite TensorFlow's list of checkpoints if it differs from the files."""
    tf, found = compat.tensorflow(), list_checkpoints(folder)
    if not found:
        return
    try:
        state = tf.train.get_checkpoint_state(str(compat.literal_path(folder)))
        known = [] if state is None else state.all_model_checkpoint_paths
    except (ValueError, tf.errors.OpError):
        known = []
    if {Path(path).name for path in known} != {Path(path).name for path in found}:
        names = [str(compat.literal_path(path)) for path in found]
        tf.compat.v1.train.update_checkpoint_state(
            str(compat.literal_path(folder)),
            names[0],
            all_model_checkpoint_paths=names[::-1],
            # Without times, TensorFlow would never delete these checkpoints.
            all_model_checkpoint_timestamps=[_write_time(path) for path in found[::-1]],
            last_preserved_timestamp=0.0,
        )


def _write_time(path: str) -> float:
    return Path(f"{path}.index").stat().st_mtime


def _check_readable(folder: Path) -> None:
    """Check that all files are readable: TensorFlow reports unreadable files as missing or damaged.

    Raises:
        OSError: if a file cannot be opened.
    """
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.is_file():
            file.open("rb").close()


def remove_unfinished_checkpoints(folder: Path) -> None:
    """Remove the partial files that TensorFlow leaves when its process is killed.

    Call this only from the process that writes checkpoints to the folder.
    """
    for left in folder.glob("**/ckpt-*_temp"):
        if re.fullmatch(r"ckpt-\d+_temp", left.name):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def translate_write_errors(target: Path) -> Iterator[None]:
    """Raise TensorFlow's write errors as the `OSError` that Python itself would raise.

    Raises:
        OSError: if TensorFlow cannot write to `target`.
    """
    errors = compat.tensorflow().errors
    try:
        yield
    except errors.PermissionDeniedError as error:
        raise PermissionError(errno.EACCES, "Permission denied", str(target)) from error
    except errors.OpError as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, "no space left", str(target)) from error
        raise


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _shard_files(folder: Path, model: KerasModel, rank: int, size: int) -> ShardFiles | None:
    """Return the files of a model of which each worker has a part; None for whole tables."""
    sync = getattr(model, "row_sync", None)  # only our models have one
    known = {table.ref() for table in sync.shards()} if sync else set()
    tables = [i for i, variable in enumerate(model.variables) if variable.ref() in known]
    return ShardFiles(folder, rank, size, tables) if tables else None


def _by_index(variables: Iterable[Variable]) -> tf.Module:
    """Save variables under their index, which does not depend on how Merlin nests its layers."""
    holder = compat.tensorflow().Module()
    holder.variables_in_order = list(variables)
    return holder
