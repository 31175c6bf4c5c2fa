"""A model with CowClip whose steps are timed one by one, on random rows like Criteo's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import check_vocabulary_size, random_model
from cowclip_merlin.scaling import scale
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import Array, Variable

if TYPE_CHECKING:
    from cowclip_merlin.loading import DeviceData
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.online.training.steps.batch_form import BatchForm
    from cowclip_merlin.optimizer import CowClip


def batch_sizes(*default: int) -> Any:
    """Define the field of the batch sizes."""
    return option(default, "rows per step", flag="--batch-sizes", at_least=1, unique=True)


def updates(*default: str) -> Any:
    """Define the field of the updates."""
    return option(
        default, "some of {choices}", choices=choices.UPDATES, metavar="A,B,C", unique=True
    )


def layers() -> Any:
    """Define the field of the hidden layers."""
    return option((400, 400, 400), "widths of the hidden layers", at_least=1)


class VocabulariesChecked(Settings):
    """Base of settings with ids of all fields together."""

    def __post_init__(self) -> None:
        """Check each value, and that the fields can share the ids."""
        super().__post_init__()
        for name in ("vocabulary", "vocabularies"):
            given = getattr(self, name, ())
            check_vocabulary_size(f"--{name}", *(given if isinstance(given, tuple) else (given,)))


class Trained:
    """A model, its optimizer and rows on the device, one step per call."""

    def __init__(
        self,
        data: DeviceData | BatchForm,
        fields: Mapping[str, int],
        update: str,
        *,
        batch: int = 8192,
        backend: str = "auto",
        precision: str = "float32",
        **settings: Any,
    ) -> None:
        from cowclip_merlin.models.hidden.layers import computing_in
        from cowclip_merlin.optimizer import CowClip
        from cowclip_merlin.training.train_step import make_train_step

        with computing_in(precision):
            self.model: CTRModel = random_model("deepfm", dict(fields), **settings)
        self.optimizer: CowClip = CowClip.of(
            replace(scale("criteo", to=batch), warmup_epochs=0),
            update=update,
            backend=backend,
            embeddings=["embeddings"],
        )
        self.optimizer.create_state(self.model.trainable_variables)
        self.data = data
        self.loss: Variable = compat.tensorflow().Variable(0.0, dtype="float64")
        self.step = make_train_step(self.model, self.optimizer, data, self.loss)

    def wait(self) -> float:
        """Wait until the device is done; return the sum of all losses."""
        return float(self.loss.numpy())

    def flush(self) -> float:
        """Bring all rows up to date; return the seconds."""
        started = time.perf_counter()
        self.optimizer.flush()
        self.optimizer.iterations.numpy()  # waits for the device
        return time.perf_counter() - started


def distinct_rows(ids: Array, fields: Mapping[str, int], batches: Sequence[Array]) -> float:
    """Return the mean number of table rows that a batch reads.

    >>> ids = np.array([[0, 0], [0, 1], [0, 0]])
    >>> distinct_rows(ids, {"C1": 1, "C2": 2}, [[0, 1], [0, 2]])
    2.5
    """
    offsets = np.cumsum([0, *fields.values()])[:-1]
    return float(np.mean([len(np.unique(ids[batch] + offsets)) for batch in batches]))
