"""Checkpoints: weights, optimizer state and the place in the epoch, written whole."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError

_OTHER_MODEL = "{}: checkpoint of another model ({}); use the settings and data it was trained with"


class Checkpoints:
    """The last checkpoints of a run.

    Args:
        folder: where they are.
        model: the Merlin model, its variables created.
        optimizer: the CowClip optimizer, its variables created; None to read weights only.
        keep: how many are kept.
    """

    def __init__(self, folder: Path, model: Any, optimizer: Any = None, *, keep: int = 2) -> None:
        tf = compat.tensorflow()
        self._tf = tf
        self._folder = folder
        self._variables = list(model.variables)
        self.epoch = tf.Variable(0, dtype=tf.int64, trainable=False)  # epochs finished
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)  # steps done in this epoch
        self.loss_sum = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        parts = {"weights": _in_order(model.variables), "epoch": self.epoch, "step": self.step}
        if optimizer is not None:
            parts |= {"optimizer": optimizer, "loss_sum": self.loss_sum}
        self._checkpoint = tf.train.Checkpoint(**parts)
        self._partial = optimizer is None
        self._manager = tf.train.CheckpointManager(self._checkpoint, str(folder), keep)

    def save(self) -> str:
        """Write a checkpoint; an interrupted write leaves the one before in place.

        Raises:
            OSError: the disk is full.
        """
        with full_disk_told(self._folder):
            return self._manager.save()

    def restore(self) -> str:
        """Read the last checkpoint.

        Raises:
            InputError: there is none, it is damaged, or it belongs to another model.
        """
        latest = self._latest()
        if latest is None:
            raise InputError(f"{self._folder}: no checkpoint; train without --resume first")
        try:
            self._check_shapes(latest)
            status = self._checkpoint.restore(latest)
            status.assert_existing_objects_matched()
            if self._partial:
                status.expect_partial()
            else:
                status.assert_consumed()
        except InputError:
            raise
        except (AssertionError, ValueError) as error:
            raise InputError(_OTHER_MODEL.format(latest, _first_line(error))) from error
        # TensorFlow reports a file that is cut short in several ways.
        except (self._tf.errors.OpError, RuntimeError, IndexError) as error:
            raise InputError(
                f"{latest}: damaged checkpoint ({_first_line(error)}); remove its files "
                "and resume from the one before, or train again"
            ) from error
        return latest

    def _latest(self) -> str | None:
        """The last checkpoint whose files are there: damaged ones may have been removed."""
        known = reversed(self._manager.checkpoints)
        return next((path for path in known if Path(f"{path}.index").exists()), None)

    def _check_shapes(self, path: str) -> None:
        """Refuse weights of other shapes, which TensorFlow's own words do not make clear."""
        shapes = self._tf.train.load_checkpoint(path).get_variable_to_shape_map()
        for place, variable in enumerate(self._variables):
            found = shapes.get(f"weights/variables_in_order/{place}/.ATTRIBUTES/VARIABLE_VALUE")
            if found != variable.shape.as_list():
                reason = f"{variable.name} is {variable.shape.as_list()} here, {found} there"
                raise InputError(_OTHER_MODEL.format(path, reason))


@contextmanager
def full_disk_told(place: Path) -> Iterator[None]:
    """Says of a full disk what Python itself would say.

    Raises:
        OSError: TensorFlow could not write to `place`, since the disk is full.
    """
    try:
        yield
    except compat.tensorflow().errors.OpError as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, "no space left", str(place)) from error
        raise


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _in_order(variables: Any) -> Any:
    """Variables saved under their index: independent of how Merlin nests its layers."""
    holder = compat.tensorflow().Module()
    holder.variables_in_order = list(variables)
    return holder
