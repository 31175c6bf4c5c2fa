"""Train a whole epoch of a DeepFM: the time of its steps, and of the updates that it postpones.

Rows have 26 power-law ids and 13 numbers. A planted logistic model draws their labels, so the AUC
of the trained model can be compared with the best possible one. On a GPU, CuPy makes the rows, and
they never leave it.

`exact` postpones the updates of absent rows, so its steps may get longer during an epoch, and the
epoch ends with a flush. The result has the milliseconds of a step in each tenth of the epoch, and
those of the mean step with the flush included. An epoch longer than --seconds ends early.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import CONTINUOUS, criteo_fields
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, DeviceData
from cowclip_merlin.metrics.auc import auc_and_error
from cowclip_merlin.settings import device_option, option
from cowclip_merlin.types import Array, JsonObject
from harness import Benchmark, table
from step_parts.trained import Trained, VocabulariesChecked, batch_sizes, updates


@dataclass(frozen=True, kw_only=True)
class EpochSettings(VocabulariesChecked):
    """What is trained."""

    vocabularies: tuple[int, ...] = option((1_000_000,), "ids of all fields together", unique=True)
    batches: tuple[int, ...] = batch_sizes(1024)
    updates: tuple[str, ...] = updates("exact", "lazy")
    backend: str = option("auto", "code that updates rows", choices=choices.BACKENDS)
    rows: int = option(2_000_000, "rows of the epoch", at_least=1)
    held_out: int = option(200_000, "rows for the AUC", at_least=1)
    precision: str = option("float32", "of the hidden layers", choices=choices.PRECISIONS)
    seconds: float = option(600.0, "after which an epoch ends early", above=0)
    device: str = device_option()

    def __post_init__(self) -> None:
        """Check each value, and that a step is left after the first, which compiles."""
        super().__post_init__()
        if max(self.batches) >= self.rows:
            raise InputError(
                f"--batch-sizes {max(self.batches)}: no step is left to measure after the first; "
                "give more --rows"
            )


def planted_rows(
    rows: int, fields: Mapping[str, int], *, seed: int, device: str = "cpu"
) -> tuple[ColumnArrays, Array]:
    """Draw rows with power-law ids; every id adds a fixed number of -0.4 to 0.4 to the logit.

    >>> made, probabilities = planted_rows(1000, {"a": 50, "b": 9}, seed=0)
    >>> made.ids.shape, bool(made.ids.max() < 50)
    ((1000, 2), True)
    >>> bool(abs(made.label.mean() - probabilities.mean()) < 0.05)
    True
    """
    xp = importlib.import_module("numpy" if device == "cpu" else "cupy")
    rng = xp.random.default_rng(seed)
    ids = xp.empty((rows, len(fields)), np.int32)
    logit = xp.full(rows, -1.2, np.float32)
    for j, size in enumerate(fields.values()):
        u = rng.random(rows, dtype=np.float32)
        drawn = xp.exp(u * np.float32(np.log(size + 1.0))).astype(np.int64) - 1
        ids[:, j] = xp.minimum(drawn, size - 1)
        hashed = ((ids[:, j].astype(np.int64) + 1) * (2654435761 + 40506 * j) >> 9) % 1021
        logit += np.float32(0.8) * hashed.astype(np.float32) / np.float32(1021) - np.float32(0.4)
    numbers = rng.random((rows, CONTINUOUS), dtype=np.float32)
    logit += numbers[:, 0] - numbers[:, 1]
    probabilities = 1 / (1 + xp.exp(-logit))
    label = (rng.random(rows, dtype=np.float32) < probabilities).astype(np.float32)
    return ColumnArrays(ids, numbers, label), probabilities


def epoch(run: Trained, batch: int, most_seconds: float) -> JsonObject:
    """Train, flush, and return the times."""
    rows = run.data.rows
    steps = -(-rows // batch)
    ends = {max(2, steps * i // 10) for i in range(1, 11)} | {steps}
    tenths: list[tuple[int, float]] = []  # steps and seconds, without the first step: it compiles
    last, before, trained = time.perf_counter(), 1, 0.0
    for made, numbers in enumerate(run.data.batches(batch, seed=1, epoch=0), 1):
        run.step(numbers)
        if made == 1 or made in ends:
            run.wait()
            now = time.perf_counter()
            if made > 1:
                tenths.append((made - before, now - last))
                trained += now - last
            last, before = now, made
            if trained > most_seconds:
                break
    flush = run.flush()
    mean = trained / (made - 1)
    return {
        "backend": run.optimizer.backend,
        "steps": made,
        "of_steps": steps,
        "flush_seconds": flush,
        "ms_per_step": 1000 * mean,
        "ms_per_step_with_flush": 1000 * (mean + flush / made),
        "tenths": [1000 * seconds / count for count, seconds in tenths],
        "train_loss": run.wait() / min(made * batch, rows),
    }


def measure(settings: EpochSettings) -> JsonObject:
    """Train an epoch for each vocabulary, batch size and update."""
    compat.tensorflow().get_logger().setLevel("ERROR")  # it warns of every rebuilt model
    results = []
    for vocabulary in settings.vocabularies:
        fields = criteo_fields(vocabulary)
        rows, _ = planted_rows(settings.rows, fields, seed=1, device=settings.device)
        held_out = planted_rows(settings.held_out, fields, seed=2, device=settings.device)
        for batch, update in product(settings.batches, settings.updates):
            given = {"backend": settings.backend, "precision": settings.precision}
            run = Trained(DeviceData(rows), fields, update, batch=batch, **given)
            found = {"vocabulary": vocabulary, "batch": batch, "update": update}
            found |= epoch(run, batch, settings.seconds) | _aucs(run, *held_out)
            results.append(found)
            print(
                f"{vocabulary:,} ids, batch {batch:,}, {update}, {found['backend']}: "
                f"{found['ms_per_step_with_flush']:.2f} ms per step with the flush",
                flush=True,
            )
            del run
            compat.release_models()
    return {
        "what": "a whole epoch, milliseconds per step with everything in it",
        "rows": settings.rows,
        "precision": settings.precision,
        "results": results,
    }


def _aucs(run: Trained, held_out: ColumnArrays, probabilities: Array) -> JsonObject:
    """Return the AUC of the model and of the planted probabilities, on the same rows."""
    from cowclip_merlin.training.scoring.predicting import Predictor

    scores = Predictor(run.model, DeviceData(held_out)).predict()[:, 0]
    on_host = (x.get() if hasattr(x, "get") else x for x in (held_out.label, probabilities))
    labels, truth = on_host
    return {
        "auc": auc_and_error(labels, scores)[0],
        "auc_of_truth": auc_and_error(labels, truth)[0],
    }


COLUMNS = {
    "ids": "{vocabulary:,}",
    "batch": "{batch:,}",
    "update": "{update}",
    "steps": "{steps:,} of {of_steps:,}",
    "ms per step, first and last tenth": "{tenths[0]:.2f}, {last_tenth:.2f}",
    "flush, s": "{flush_seconds:.2f}",
    "ms per step with it": "{ms_per_step_with_flush:.2f}",
    "AUC": "{auc:.2%}",
    "best possible": "{auc_of_truth:.2%}",
}


def text(result: JsonObject) -> str:
    """Format the results as Markdown."""
    return table(COLUMNS, [r | {"last_tenth": r["tenths"][-1]} for r in result["results"]])


BENCHMARK = Benchmark(about=__doc__, settings=EpochSettings, measure=measure, text=text)
