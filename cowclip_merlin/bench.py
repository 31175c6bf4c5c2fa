"""Throughput of the training step, every configuration in turn in one process.

Rows are random with power-law ids and lie in the device's memory; nothing is read or evaluated
while the clock runs. Medians and ratios come from interleaved rounds, since machines are noisy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from cowclip_merlin.checks import among, at_least_one, once
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import Columns, DeviceData
from cowclip_merlin.machine import hardware
from cowclip_merlin.scaling import scale
from cowclip_merlin.training.settings import BACKENDS, MODELS, PRECISIONS, UPDATES

FIELDS, CONTINUOUS = 26, 13
LEAST_VOCABULARY = 4 * FIELDS


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What is measured.

    Attributes:
        models: names of models.
        batches: batch sizes.
        updates: "dense", "exact", "lazy".
        backends: what moves rows: "auto", "tensorflow", "numba", "cupy".
        clips: "cowclip", "none" (the baseline).
        precisions: of the hidden layers: "float32", "bfloat16".
        vocabulary: ids in all fields together.
        rounds: times each configuration has its turn.
        rows_per_turn: rows trained in a turn, at least one step.

    Raises:
        InputError: a value is unknown or out of range.
    """

    models: Sequence[str] = ("deepfm",)
    batches: Sequence[int] = (1024, 8192, 65536)
    updates: Sequence[str] = ("dense", "exact", "lazy")
    backends: Sequence[str] = ("auto",)
    clips: Sequence[str] = ("none", "cowclip")
    precisions: Sequence[str] = ("float32",)
    vocabulary: int = 1_000_000
    rounds: int = 5
    rows_per_turn: int = 65536

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        known = {
            "model": (self.models, MODELS),
            "update": (self.updates, UPDATES),
            "backend": (self.backends, BACKENDS),
            "clip": (self.clips, ("cowclip", "none")),
            "precision": (self.precisions, PRECISIONS),
        }
        for name, (values, choices) in known.items():
            among(name, values, choices)
            once({name: values})
        once({"batch sizes": self.batches})
        at_least_one({"batch sizes": self.batches, "rounds": self.rounds})
        at_least_one({"rows per turn": self.rows_per_turn})
        field_sizes(self.vocabulary)


def field_sizes(vocabulary: int) -> dict[str, int]:
    """Criteo-like sizes, 4 or more: a few fields hold nearly all ids.

    Raises:
        InputError: there are too few ids for the fields, or too many for 32 bits.

    >>> sum(field_sizes(1000).values())
    1000
    >>> {*field_sizes(LEAST_VOCABULARY).values()}
    {4}
    """
    enough_ids("vocabulary", vocabulary)
    weights = 0.6 ** np.arange(FIELDS)
    sizes = np.maximum(4, (vocabulary * weights / weights.sum()).astype(int))
    sizes[0] += vocabulary - sizes.sum()
    for i in range(FIELDS - 1):  # what a field of a small vocabulary lacks, the next ones give
        lacking = max(0, 4 - sizes[i])
        sizes[i : i + 2] += lacking, -lacking
    return {f"C{i + 1}": int(size) for i, size in enumerate(sizes)}


def enough_ids(option: str, *vocabularies: int) -> None:
    """Refuse vocabularies that the fields of `field_sizes` cannot share.

    Raises:
        InputError: one is too small, or too large for ids of 32 bits.

    >>> enough_ids("--ids", 1000, 3)
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: --ids is 3; give 104 or more, below 2**31
    """
    for vocabulary in vocabularies:
        if not LEAST_VOCABULARY <= vocabulary < 2**31:
            raise InputError(
                f"{option} is {vocabulary}; give {LEAST_VOCABULARY} or more, below 2**31"
            )


def random_rows(rows: int, sizes: dict[str, int], *, seed: int = 0) -> Columns:
    """Rows with power-law ids."""
    rng = np.random.default_rng(seed)
    # (size + 1) ** u is a power law of exponent 1 over the ranks 1 to size.
    ids = [((size + 1.0) ** rng.random(rows)).astype(np.int32) - 1 for size in sizes.values()]
    return Columns(
        ids=np.stack(ids, axis=1),
        continuous=rng.random((rows, CONTINUOUS), np.float32),
        label=(rng.random(rows) < 0.25).astype(np.float32),
    )


class Case(NamedTuple):
    """One line of the table; the bare MLP has no update, backend and clip, and is in float32."""

    model: str
    batch: int
    update: str = "-"
    backend: str = "-"
    clip: str = "-"
    precision: str = "float32"


YARDSTICK = "bare MLP"


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Rows per second of every configuration, with hardware and versions, ready for JSON.

    The yardstick in each round is the MLP alone, forward, backward and Adam, on constant input.
    The bringing up to date of all rows that `update="exact"` puts off is not in these numbers.
    """
    from tqdm import tqdm

    from cowclip_merlin.training.records import versions

    sizes = field_sizes(settings.vocabulary)
    rows = max(*settings.batches, settings.rows_per_turn)
    data = DeviceData(random_rows(rows, sizes))
    what = (settings.updates, settings.backends, settings.clips, settings.precisions)
    kinds = list(product(settings.models, *what))
    steps = {kind: training_step(*kind, sizes, data) for kind in kinds}
    cases = [Case(m, b, *rest) for b in settings.batches for m, *rest in kinds]
    cases += [Case(YARDSTICK, b) for b in settings.batches]
    steps |= {(YARDSTICK, b): bare_mlp(b) for b in settings.batches}
    speeds: dict[Case, list[float]] = {case: [] for case in cases}
    for turn in tqdm(range(settings.rounds + 1), desc="rounds", disable=None, leave=False):
        for case in cases:
            bare = case.model == YARDSTICK
            step = steps[case[:2] if bare else (case.model, *case[2:])]
            speed = _turn(step, case.batch, settings.rows_per_turn, rows)
            if turn:  # the first round compiles
                speeds[case].append(speed)
    return {
        "what": "training step, rows per second",
        "vocabulary": settings.vocabulary,
        "rounds": settings.rounds,
        "results": [_result(case, speeds) for case in cases],
        "hardware": hardware(),
        "versions": versions(),
    }


def training_step(
    model: str,
    update: str,
    backend: str,
    clip: str,
    precision: str,
    sizes: dict[str, int],
    data: DeviceData,
) -> Any:
    """What trains one of the four models on the rows of these numbers and returns the loss's sum.

    Args:
        model: its name.
        update: "dense", "exact" or "lazy".
        backend: what moves rows.
        clip: "cowclip" or "none".
        precision: of the hidden layers.
        sizes: ids of each field.
        data: the rows; it takes their numbers, int [b].
    """
    from cowclip_merlin import compat
    from cowclip_merlin.models.precision import computing_in
    from cowclip_merlin.optimizer import CowClip
    from cowclip_merlin.training.step import make_step

    tf, values = compat.tensorflow(), scale("criteo", to=8192)
    with computing_in(precision):
        built = random_model(model, sizes)
    optimizer = CowClip(
        tf.keras.optimizers.legacy.Adam(values.embedding_lr),
        tf.keras.optimizers.legacy.Adam(values.dense_lr),
        l2=values.l2,
        update=update,
        backend=backend,
        clip=clip,
        embeddings=["embeddings"],
    )
    optimizer._create_all_weights(built.trainable_variables)
    loss_sum = tf.Variable(0.0, dtype=tf.float64)
    run = make_step(built, optimizer, data, loss_sum)

    def train(rows: Any) -> float:
        run(rows)
        return float(loss_sum.numpy())  # waits for the device

    return train


def random_model(model: str, sizes: dict[str, int], **settings: Any) -> Any:
    """One of the four models for these fields and 13 numbers; settings of `Architecture`."""
    from cowclip_merlin import models
    from cowclip_merlin.workflows.folder import merlin_schema
    from cowclip_merlin.workflows.graph import Statistics
    from cowclip_merlin.workflows.layout import Layout

    numbers = tuple(f"I{i + 1}" for i in range(CONTINUOUS))
    layout = Layout(kind="table", label="label", categorical=tuple(sizes), continuous=numbers)
    known = Statistics(cardinalities=sizes, minimum={}, maximum={})
    return models.MODELS[model](merlin_schema(layout, known), **({"seed": 1} | settings))


def bare_mlp(batch: int) -> Any:
    """The yardstick, to be called with anything: the MLP alone, forward, backward and Adam."""
    from cowclip_merlin import compat

    tf = compat.tensorflow()
    hidden = [tf.keras.layers.Dense(400, activation="relu") for _ in range(3)]
    mlp = tf.keras.Sequential([*hidden, tf.keras.layers.Dense(1)])
    adam = tf.keras.optimizers.legacy.Adam()
    x = tf.random.stateless_normal([batch, FIELDS * 10 + CONTINUOUS], seed=(0, 0))
    y = tf.zeros([batch, 1])

    @tf.function
    def run() -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(y, mlp(x, training=True))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, mlp.trainable_variables)
        adam.apply_gradients(zip(gradients, mlp.trainable_variables))
        return loss

    return lambda _: float(run())


def _turn(step: Any, batch: int, rows_per_turn: int, rows: int) -> float:
    order = np.random.default_rng(batch).permutation(rows)
    steps = max(1, rows_per_turn // batch)
    started = time.perf_counter()
    for i in range(steps):
        step(order[i * batch % rows : i * batch % rows + batch])
    return steps * batch / (time.perf_counter() - started)


def _result(case: Case, speeds: dict[Case, list[float]]) -> dict[str, Any]:
    first = min(c.batch for c in speeds)
    base = next((s for c, s in speeds.items() if _is_baseline(c, case, first)), None)
    mine, bare = speeds[case], speeds[Case(YARDSTICK, case.batch)]
    return case._asdict() | {
        "rows_per_second": round(statistics.median(mine), 1),
        "slowest": round(min(mine), 1),
        "fastest": round(max(mine), 1),
        "ratio_to_baseline": None if base is None else _ratio(mine, base),
        "ratio_to_mlp": _ratio(mine, bare),
    }


def _is_baseline(case: Case, mine: Case, first: int) -> bool:
    return (case.model, case.batch, case.update, case.clip) == (mine.model, first, "dense", "none")


def _ratio(mine: list[float], other: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(mine, other, strict=True)), 3)


def table(result: dict[str, Any]) -> str:
    """The result as text.

    The ratios are to the smallest batch, dense, without the clip, and to the bare MLP.
    """
    head = f"{'model':<14}{'batch':>8}  {'update':<7}{'backend':<11}{'clip':<8}{'precision':<9}"
    lines = [f"{head}{'rows/s':>11}{'ratio':>8}{'of MLP':>8}"]
    for row in result["results"]:
        ratio = row["ratio_to_baseline"]
        lines.append(
            f"{row['model']:<14}{row['batch']:>8}  {row['update']:<7}{row['backend']:<11}"
            f"{row['clip']:<8}{row['precision']:<9}{row['rows_per_second']:>11,.0f}"
            + (f"{ratio:>8.2f}" if ratio else f"{'-':>8}")
            + f"{row['ratio_to_mlp']:>8.2f}"
        )
    return "\n".join(lines)
