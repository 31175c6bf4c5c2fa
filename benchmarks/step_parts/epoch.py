"""Train a whole epoch of a DeepFM: the time of its steps, and of the updates that it postpones.

    python benchmarks/step.py epoch [--vocabularies 1000000] [--batch-sizes 1024]
        [--updates exact,lazy] [--backend auto] [--rows 2000000] [--held-out 200000]
        [--embedding-dim 10] [--precision float32] [--jit-compile] [--seconds 600]
        [--device auto|cpu|gpu] [--json FILE] [--overwrite]

Rows have 26 power-law ids and 13 numbers. A planted logistic model draws their labels, so the AUC
of the trained model can be compared with the best possible one. On a GPU, CuPy makes the rows, and
they never leave it.

`exact` postpones the updates of absent rows, so its steps may get longer during an epoch, and the
epoch ends with a flush. The result has the milliseconds of a step in each tenth of the epoch, and
those of the mean step with the flush included. An epoch longer than --seconds ends early.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import check_vocabulary_size, criteo_fields, random_model
from cowclip_merlin.checks import check_at_least_one, check_choices, check_positive, check_unique
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.metrics.auc import auc_and_error
from cowclip_merlin.settings import option
from cowclip_merlin.types import Array, JsonObject, Variable
from harness.benchmark import Benchmark
from harness.tables import markdown
from step_parts.planted_rows import PlantedRows, planted_rows

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.optimizer import CowClip


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """What is trained.

    Attributes:
        vocabularies: ids of all fields together.
        batches: batch sizes.
        updates: "dense", "exact", "lazy".
        backend: code that updates rows.
        rows: rows of the epoch.
        held_out: rows for the AUC.
        embedding_dim: length of an embedding row.
        precision: of the hidden layers.
        jit_compile: whether XLA compiles the model.
        seconds: after which an epoch ends early.
        device: "cpu" or "gpu".

    Raises:
        InputError: if a value is unknown, out of range or given twice.
    """

    vocabularies: Sequence[int] = option((1_000_000,), "ids of all fields together")
    batches: Sequence[int] = option((1024,), "rows per step", flag="--batch-sizes")
    updates: Sequence[str] = option(("exact", "lazy"), "some of these")
    backend: str = option("auto", "code that updates rows", choices=choices.BACKENDS)
    rows: int = option(2_000_000, "rows of the epoch")
    held_out: int = option(200_000, "rows for the AUC")
    embedding_dim: int = option(10, "length of an embedding")
    precision: str = option(
        "float32", "number type of the hidden layers", choices=choices.PRECISIONS
    )
    jit_compile: bool = option(False, "compile the model with XLA")
    seconds: float = option(600.0, "after which an epoch ends early")
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        check_choices("--updates", self.updates, choices.UPDATES)
        check_unique({"--updates": self.updates, "--batch-sizes": self.batches})
        check_unique({"--vocabularies": self.vocabularies})
        check_vocabulary_size("--vocabularies", *self.vocabularies)
        check_at_least_one({"--batch-sizes": self.batches, "--rows": self.rows})
        check_at_least_one({"--held-out": self.held_out, "--embedding-dim": self.embedding_dim})
        check_positive({"--seconds": self.seconds})


class Epoch:
    """A model with its optimizer, and the rows that it trains on.

    Args:
        settings: what is trained.
        vocabulary: ids of all fields.
        batch: rows per step.
        update: "dense", "exact" or "lazy".
        rows: the rows.
    """

    def __init__(
        self, settings: EpochSettings, vocabulary: int, batch: int, update: str, rows: PlantedRows
    ) -> None:
        from cowclip_merlin.training.train_step import make_train_step

        self._settings, self._batch = settings, batch
        self._data = DeviceData(rows.columns)
        self.model = _model(settings, vocabulary)
        self.optimizer = _optimizer(batch, update, settings.backend)
        self.optimizer.create_state(self.model.trainable_variables)
        self._loss: Variable = compat.tensorflow().Variable(0.0, dtype="float64")
        self._step = make_train_step(self.model, self.optimizer, self._data, self._loss)

    def run(self) -> JsonObject:
        """Train, flush, and return the times."""
        steps = -(-self._data.rows // self._batch)
        tenths, made = self._train(steps)
        started = time.perf_counter()
        self.optimizer.flush()
        self.optimizer.iterations.numpy()  # waits for the device
        flush, trained = time.perf_counter() - started, sum(each["seconds"] for each in tenths)
        timed = sum(each["steps"] for each in tenths)  # without the first step, which compiles
        return {
            "backend": self.optimizer.backend,
            "steps": made,
            "of_steps": steps,
            "flush_seconds": flush,
            "ms_per_step": 1000 * trained / timed,
            "ms_per_step_with_flush": 1000 * (trained / timed + flush / made),
            "tenths": [1000 * each["seconds"] / each["steps"] for each in tenths],
            "train_loss": float(self._loss.numpy()) / min(made * self._batch, self._data.rows),
        }

    def _train(self, steps: int) -> tuple[list[JsonObject], int]:
        """Train; return steps and seconds of each tenth after the first step, and all steps."""
        ends = {max(2, steps * i // 10) for i in range(1, 11)} | {steps}
        tenths: list[JsonObject] = []
        last, before = time.perf_counter(), 1
        for number, batch in enumerate(self._data.batches(self._batch, seed=1, epoch=0), 1):
            self._step(batch)
            if number == 1 or number in ends:
                self._loss.numpy()  # waits for the device
                now = time.perf_counter()
                if number > 1:
                    tenths.append({"steps": number - before, "seconds": now - last})
                last, before = now, number
                if sum(each["seconds"] for each in tenths) > self._settings.seconds:
                    break
        return tenths, number


def _model(settings: EpochSettings, vocabulary: int) -> CTRModel:
    from cowclip_merlin.models.hidden.layers import computing_in

    with computing_in(settings.precision):
        fields = criteo_fields(vocabulary)
        model = random_model("deepfm", fields, embedding_dim=settings.embedding_dim)
    model.blocks[0].jit_compile = settings.jit_compile
    return model


def _optimizer(batch: int, update: str, backend: str) -> CowClip:
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.scaling import scale

    values = replace(scale("criteo", to=batch), warmup_epochs=0)
    return CowClip.of(values, update=update, backend=backend, embeddings=["embeddings"])


def _auc(model: CTRModel, held_out: PlantedRows) -> tuple[float, float]:
    """Return the AUC of the model and of the planted probabilities, on the same rows."""
    from cowclip_merlin.training.scoring.predicting import Predictor

    scores = Predictor(model, DeviceData(held_out.columns)).predict()[:, 0]
    labels, truth = _on_host(held_out.columns.label), _on_host(held_out.probabilities)
    return auc_and_error(labels, scores)[0], auc_and_error(labels, truth)[0]


def _on_host(array: Array) -> Array:
    return array.get() if hasattr(array, "get") else np.asarray(array)


def measure(settings: EpochSettings) -> JsonObject:
    """Train an epoch for each vocabulary, batch size and update."""
    compat.tensorflow().get_logger().setLevel("ERROR")  # it warns of every rebuilt model
    results = []
    for vocabulary in settings.vocabularies:
        fields = criteo_fields(vocabulary)
        rows = planted_rows(settings.rows, fields, seed=1, device=settings.device)
        held_out = planted_rows(settings.held_out, fields, seed=2, device=settings.device)
        for batch, update in product(settings.batches, settings.updates):
            epoch = Epoch(settings, vocabulary, batch, update, rows)
            found = epoch.run()
            auc, best = _auc(epoch.model, held_out)
            named = {"vocabulary": vocabulary, "batch": batch, "update": update}
            results.append(named | found | {"auc": auc, "auc_of_truth": best})
            print(_line(results[-1]), flush=True)
            del epoch
            compat.release_models()
    return {
        "what": "a whole epoch, milliseconds per step with everything in it",
        "rows": settings.rows,
        "precision": settings.precision,
        "jit_compile": settings.jit_compile,
        "results": results,
    }


def _line(row: JsonObject) -> str:
    return (
        f"{row['vocabulary']:,} ids, batch {row['batch']:,}, {row['update']}, {row['backend']}: "
        f"{row['ms_per_step_with_flush']:.2f} ms per step with the flush"
    )


def text(result: JsonObject) -> str:
    """Format the results as Markdown."""
    head = (
        "ids", "batch", "update", "steps", "ms per step, first and last tenth",
        "flush, s", "ms per step with it", "AUC in %", "best possible",
    )  # fmt: skip
    rows = [
        (
            f"{r['vocabulary']:,}", f"{r['batch']:,}", r["update"],
            f"{r['steps']:,}" + ("" if r["steps"] == r["of_steps"] else f" of {r['of_steps']:,}"),
            f"{r['tenths'][0]:.2f}, {r['tenths'][-1]:.2f}", f"{r['flush_seconds']:.2f}",
            f"{r['ms_per_step_with_flush']:.2f}",
            f"{100 * r['auc']:.2f}", f"{100 * r['auc_of_truth']:.2f}",
        )
        for r in result["results"]
    ]  # fmt: skip
    return markdown(head, "rrlrrrrrr", rows)


BENCHMARK = Benchmark(
    script="step.py epoch",
    about=__doc__,
    settings=EpochSettings,
    measure=measure,
    text=text,
)
