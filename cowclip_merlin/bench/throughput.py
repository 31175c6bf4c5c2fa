"""Measure the throughput of the training step for every configuration, in one process.

Rows are random with power-law ids and stay in the device's memory. The measured time does not
include reading or evaluation. As in `cowclip train`, a graph call makes several steps if batches
are small. Medians and ratios come from interleaved rounds, since machines are noisy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cowclip_merlin.bench.random_data import (
    CONTINUOUS,
    NUM_FIELDS,
    criteo_fields,
    random_model,
    random_rows,
)
from cowclip_merlin.bench.settings import BenchSettings
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.loading.device_data import to_device
from cowclip_merlin.scaling import scale
from cowclip_merlin.system.console import progress
from cowclip_merlin.system.machine import hardware, versions
from cowclip_merlin.training.train_step import (
    execution_lengths,
    make_train_function,
    steps_per_execution,
)
from cowclip_merlin.types import Array, JsonObject, Tensor, Variable

if TYPE_CHECKING:
    from cowclip_merlin.models import CTRModel
    from cowclip_merlin.optimizer import CowClip


TrainFunction = Callable[[Tensor, int], Variable]
"""Trains on rows, int [n], in batches of a size; returns the variable of its loss sum."""


def bare_mlp_train_function(batch: int, jit_compile: bool = False) -> TrainFunction:
    """Return a train function, like that of a model, for the models' MLP on Criteo-like columns."""
    run, loss_sum = make_mlp_train_function(
        batch, inputs=NUM_FIELDS * 10 + CONTINUOUS, jit_compile=jit_compile
    )

    def train(rows: Array, batch: int) -> Variable:
        run(len(rows) // batch)
        return loss_sum

    return train


def make_mlp_train_function(
    batch: int,
    *,
    inputs: int,
    widths: Sequence[int] = (400, 400, 400),
    lr: float = 0.001,
    jit_compile: bool = False,
) -> tuple[Callable[[int], None], Variable]:
    """Return a function that trains an MLP for a number of steps, and the variable of its loss sum.

    The MLP trains on constant input.
    """
    from cowclip_merlin import compat

    tf = compat.tensorflow()
    hidden = [tf.keras.layers.Dense(width, activation="relu") for width in widths]
    mlp = tf.keras.Sequential([*hidden, tf.keras.layers.Dense(1)])
    adam = tf.keras.optimizers.legacy.Adam(lr)
    x = tf.random.stateless_normal([batch, inputs], seed=(0, 0))
    y, loss_sum = tf.zeros([batch, 1]), tf.Variable(0.0)
    mlp.build(x.shape)
    adam._create_all_weights(mlp.trainable_variables)  # a loop in a graph cannot create variables

    @tf.function(jit_compile=jit_compile, autograph=False)
    def loss_and_gradients() -> tuple[Tensor, list[Tensor]]:
        with tf.GradientTape() as tape:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(y, mlp(x, training=True))
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, mlp.trainable_variables)

    def step() -> None:
        loss, gradients = loss_and_gradients()
        adam.apply_gradients(zip(gradients, mlp.trainable_variables))
        loss_sum.assign_add(loss)

    def counted_step(done: Tensor) -> Tensor:
        step()
        return done + 1

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
    def run(steps: Tensor) -> None:
        tf.while_loop(lambda done: done < steps, counted_step, [0])

    return run, loss_sum


class BenchCase(NamedTuple):
    """One line of the table; the bare MLP has no update, backend or clip, and runs in float32."""

    model: str
    batch: int
    update: str = "-"
    backend: str = "-"
    clip: str = "-"
    precision: str = "float32"


BARE_MLP = "bare MLP"


def measure(settings: BenchSettings) -> JsonObject:
    """Measure the rows per second of every configuration; return values for JSON.

    Each round also measures the MLP alone (forward, backward and Adam) on constant input, with as
    many steps per call. The numbers leave out the row updates that `update="exact"` postpones to
    the end.
    """
    fields = criteo_fields(settings.vocabulary)
    rows_per_turn = settings.rows_per_turn or default_rows_per_turn()
    rows = max(*settings.batches, rows_per_turn)
    made = random_rows(rows, fields, multi_values=settings.multi_values)
    data = DeviceData(made)
    what = (settings.updates, settings.backends, settings.clips, settings.precisions)
    kinds = list(product(settings.models, *what))
    jit = settings.jit_compile
    built = {
        kind: build_model_and_optimizer(*kind, fields, jit, settings.multi_values) for kind in kinds
    }
    used = {kind: optimizer.backend for kind, (_, optimizer) in built.items()}
    steps = {kind: model_train_function(*each, data) for kind, each in built.items()}
    cases = [BenchCase(m, b, *rest) for b in settings.batches for m, *rest in kinds]
    cases += [BenchCase(BARE_MLP, b) for b in settings.batches]
    steps |= {(BARE_MLP, b): bare_mlp_train_function(b, jit) for b in settings.batches}
    speeds: dict[BenchCase, list[float]] = {case: [] for case in cases}
    for turn in progress(iterable=range(settings.rounds + 1), desc="rounds"):
        for case in cases:
            bare = case.model == BARE_MLP
            step = steps[case[:2] if bare else (case.model, *case[2:])]
            speed = _rows_per_second(step, case.batch, rows_per_turn, rows)
            if turn:  # the first round compiles
                speeds[case].append(speed)
    return {
        "what": "training step, rows per second",
        "vocabulary": settings.vocabulary,
        "multi_values": settings.multi_values,
        "ids_per_row": round(made.ids.size / rows, 3),
        "rounds": settings.rounds,
        "jit_compile": settings.jit_compile,
        "results": [
            _result(case, speeds) | {"used_backend": used.get((case.model, *case[2:]), "-")}
            for case in cases
        ],
        "hardware": hardware(),
        "versions": versions(),
    }


def default_rows_per_turn() -> int:
    """Return the number of rows that train in about a second."""
    from cowclip_merlin import compat

    return 1 << 21 if compat.tensorflow().config.list_logical_devices("GPU") else 1 << 16


def build_model_and_optimizer(
    model: str,
    update: str,
    backend: str,
    clip: str,
    precision: str,
    fields: dict[str, int],
    jit_compile: bool = False,
    multi_values: int = 0,
) -> tuple[CTRModel, CowClip]:
    """Build one of the five models with random weights, and CowClip with Adam and its state.

    Args:
        model: name of the model.
        update: "dense", "exact" or "lazy".
        backend: code that updates rows.
        clip: "cowclip" or "none".
        precision: precision of the hidden layers.
        fields: field -> number of rows.
        jit_compile: whether XLA compiles everything between lookups and optimizer.
        multi_values: as in `random_rows`.
    """
    from cowclip_merlin.models.hidden.layers import computing_in
    from cowclip_merlin.optimizer import CowClip

    values = replace(scale("criteo", to=8192), warmup_epochs=0)
    with computing_in(precision):
        built = random_model(model, fields, multi_values=multi_values)
    built.blocks[0].jit_compile = jit_compile
    optimizer = CowClip.of(
        values, update=update, backend=backend, clip=clip, embeddings=["embeddings"]
    )
    optimizer.create_state(built.trainable_variables)
    return built, optimizer


def model_train_function(model: CTRModel, optimizer: CowClip, data: DeviceData) -> TrainFunction:
    """Return a function of row numbers, int [n], and a batch size that trains batch by batch.

    The function returns the variable that sums all losses; reading it waits for the device.
    """
    from cowclip_merlin import compat

    loss_sum = compat.tensorflow().Variable(0.0, dtype="float64")
    run = make_train_function(model, optimizer, data, loss_sum)

    def train(rows: Tensor, batch: int) -> Variable:
        run(rows, batch)
        return loss_sum

    return train


def _rows_per_second(train: TrainFunction, batch: int, rows_per_turn: int, rows: int) -> float:
    order, done = to_device(np.random.default_rng(batch).permutation(rows)), 0
    started = time.perf_counter()
    for steps in execution_lengths(
        0, max(1, rows_per_turn // batch), steps_per_execution(batch), []
    ):
        loss_sum = train(order[done : done + steps * batch], batch)
        done += steps * batch
    loss_sum.numpy()  # wait for the device only once: training does not wait within an epoch
    return done / (time.perf_counter() - started)


def _result(case: BenchCase, speeds: dict[BenchCase, list[float]]) -> JsonObject:
    first = min(c.batch for c in speeds)
    base = next((s for c, s in speeds.items() if _is_baseline(c, case, first)), None)
    mine, bare = speeds[case], speeds[BenchCase(BARE_MLP, case.batch)]
    return case._asdict() | {
        "rows_per_second": round(statistics.median(mine), 1),
        "slowest": round(min(mine), 1),
        "fastest": round(max(mine), 1),
        "ratio_to_baseline": None if base is None else _ratio(mine, base),
        "ratio_to_mlp": _ratio(mine, bare),
    }


def _is_baseline(case: BenchCase, mine: BenchCase, first: int) -> bool:
    """Whether `case` is the baseline of `mine`: smallest batch, dense updates, no clip."""
    return case == mine._replace(batch=first, update="dense", clip="none")


def _ratio(mine: list[float], other: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(mine, other, strict=True)), 3)


def format_backends(result: JsonObject) -> str:
    """Format which code updated rows for each backend and update.

    >>> format_backends({"results": [{"backend": "auto", "update": "lazy", "used_backend": "numba"},
    ...                              {"backend": "-", "update": "-", "used_backend": "-"}]})
    'backend auto: numba for lazy'
    """
    found: dict[str, dict[str, set[str]]] = {}
    for row in result["results"]:
        if row["backend"] != "-":
            of_backend = found.setdefault(row["backend"], {})
            of_backend.setdefault(row["used_backend"], set()).add(row["update"])
    return "\n".join(
        f"backend {backend}: "
        + "; ".join(f"{used} for {', '.join(sorted(each))}" for used, each in by_used.items())
        for backend, by_used in found.items()
    )


def format_table(result: JsonObject) -> str:
    """Format the result as text.

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
