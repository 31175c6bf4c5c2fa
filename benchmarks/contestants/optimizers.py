"""Steps of one optimizer, for `optimizers.py`; a process trains with one of them.

python -m contestants.optimizers CONTESTANT IDS BATCH WARM_UP STEPS

It runs in the environment of its package. All contestants train the same small model on the same
rows: one table, the rows of 26 columns side by side, and a linear layer. Frequent ids come first.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

COLUMNS, DIM, RATE, L2, SKEW = 26, 10, 1e-3, 1e-5, 4
Step = Callable[[np.ndarray, np.ndarray], object]
Made = tuple[Step, "Callable[[], object] | None"]
"""A function of ids [b, 26] and labels [b, 1] that trains; and one that makes all missed steps."""


def batches(ids: int, batch: int, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield ids [b, 26] of skewed frequency, and labels [b, 1]."""
    rng, rows = np.random.default_rng(1), ids // COLUMNS
    for _ in range(steps):
        found = (rows * rng.random((batch, COLUMNS)) ** SKEW).astype(np.int64)
        labels = rng.random((batch, 1)) < 0.25
        yield found + rows * np.arange(COLUMNS), labels.astype(np.float32)


def torch_model(ids: int, make: Callable[[Any, Any], Any], *, sparse: bool) -> Made:
    """A model of PyTorch; `make(model, torch)` returns the optimizers."""
    import torch

    nn = torch.nn
    table = nn.Embedding(ids, DIM, sparse=sparse)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(COLUMNS * DIM, 1))
    optimizers = make(model, torch)
    loss_of = nn.functional.binary_cross_entropy_with_logits

    def step(ids: np.ndarray, labels: np.ndarray) -> None:
        for each in optimizers:
            each.zero_grad()
        loss_of(model(torch.from_numpy(ids)), torch.from_numpy(labels)).backward()
        for each in optimizers:
            each.step()

    return step, getattr(optimizers[0], "flush", None)


def cowclip(update: str) -> Callable[[Any, Any], Any]:
    """Our optimizer for PyTorch."""

    def make(model: Any, _: Any) -> list[Any]:
        from cowclip_merlin.torch import CowClip

        return [CowClip(model, RATE, l2=L2, update=update)]

    return make


def sparse_adam(model: Any, torch: Any) -> list[Any]:
    """SparseAdam, which has no L2, for the table, and Adam for the linear layer."""
    tables, dense = model[0].parameters(), model[2].parameters()
    return [torch.optim.SparseAdam(tables, RATE), torch.optim.Adam(dense, RATE)]


def adam(*, fused: bool) -> Callable[[Any, Any], Any]:
    """Adam on all rows."""

    def make(model: Any, torch: Any) -> list[Any]:
        tables = {"params": model[0].parameters(), "weight_decay": 2 * L2}
        groups = [tables, {"params": model[2].parameters()}]
        return [torch.optim.Adam(groups, RATE, fused=fused)]

    return make


def fbgemm(ids: int) -> Made:
    """FBGEMM's table on the CPU: row-wise Adagrad, as it has no Adam there, and rows of 12."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rows, dim = ids // COLUMNS, -(-DIM // 4) * 4  # others are refused
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * COLUMNS,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=RATE,
    )
    dense = torch.nn.Linear(COLUMNS * dim, 1)
    optimizer = torch.optim.Adam(dense.parameters(), RATE)
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits

    def step(ids: np.ndarray, labels: np.ndarray) -> None:
        optimizer.zero_grad()
        of_column = torch.from_numpy(ids - rows * np.arange(COLUMNS)).T.reshape(-1)
        found = table(of_column, torch.arange(len(of_column) + 1))
        loss_of(dense(found), torch.from_numpy(labels)).backward()
        optimizer.step()

    return step, None


def keras_2(ids: int, *, ours: bool) -> Made:
    """Keras 2: our optimizer, or Keras's Adam, which updates all rows but has no L2."""
    import cowclip_merlin as cc
    from cowclip_merlin import compat

    tf = compat.tensorflow()
    adam = tf.keras.optimizers.legacy.Adam
    optimizer: Any = tf.keras.optimizers.Adam(RATE)
    if ours:
        optimizer = cc.CowClip(adam(RATE), adam(RATE), l2=L2, update="exact")
    table = tf.Variable(tf.random.normal([ids, DIM], stddev=0.01))

    def before(ids: Any) -> None:
        if ours:
            optimizer.catch_up(table, ids)

    step = on_tensorflow(
        tf, tf.keras, lambda x: tf.gather(table, x), table, before, optimizer.apply_gradients
    )
    return step, optimizer.flush if ours else None


def keras_3(ids: int, *, ours: bool) -> Made:
    """Keras 3: our optimizer, or Keras's Adam, which updates all rows but has no L2."""
    if ours:
        from cowclip_merlin.keras3 import CowClip, Embedding
    import keras
    import tensorflow as tf

    kind = Embedding if ours else keras.layers.Embedding
    optimizer = CowClip(RATE, l2=L2) if ours else keras.optimizers.Adam(RATE)
    layer = kind(ids, DIM)
    layer.build(())
    table = layer.trainable_variables[0]
    step = on_tensorflow(tf, keras, layer, table, lambda ids: None, optimizer.apply_gradients)
    return step, layer.get_weights if ours else None  # which reads all rows


def on_tensorflow(
    tf: Any,
    keras: Any,
    look_up: Callable[[Any], Any],
    table: Any,
    before: Callable[[Any], None],
    apply: Callable[[Any], object],
) -> Step:
    """A step of TensorFlow as one graph, with a linear layer of this Keras."""
    dense = keras.layers.Dense(1)
    dense.build([None, COLUMNS * DIM])
    weights = [table, *dense.trainable_variables]
    watched = [x if isinstance(x, tf.Variable) else x.value for x in weights]
    given = [tf.TensorSpec([None, COLUMNS], tf.int64), tf.TensorSpec([None, 1], tf.float32)]

    @tf.function(input_signature=given, autograph=False)
    def step(ids: Any, labels: Any) -> None:
        before(ids)
        with tf.GradientTape() as tape:
            z = dense(tf.reshape(look_up(ids), [-1, COLUMNS * DIM]))
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, z))
        apply(zip(tape.gradient(loss, watched), weights))

    return step


CONTESTANTS: Mapping[str, Callable[[int], Made]] = {
    "torch-exact": lambda n: torch_model(n, cowclip("exact"), sparse=True),
    "torch-lazy": lambda n: torch_model(n, cowclip("lazy"), sparse=True),
    "torch-dense": lambda n: torch_model(n, cowclip("dense"), sparse=True),
    "torch-sparse-adam": lambda n: torch_model(n, sparse_adam, sparse=True),
    "torch-adam": lambda n: torch_model(n, adam(fused=False), sparse=False),
    "torch-adam-fused": lambda n: torch_model(n, adam(fused=True), sparse=False),
    "fbgemm-rowwise-adagrad": fbgemm,
    "keras3-exact": lambda n: keras_3(n, ours=True),
    "keras3-adam": lambda n: keras_3(n, ours=False),
    "keras2-exact": lambda n: keras_2(n, ours=True),
    "keras2-adam": lambda n: keras_2(n, ours=False),
}
"""Name -> function of the number of ids. The name up to a hyphen is the environment."""

PACKAGES = {"torch": "torch", "fbgemm": "fbgemm-gpu-cpu", "keras3": "keras", "keras2": "tf-keras"}


def main() -> None:
    """Train some steps, and print their times."""
    name = sys.argv[1]
    ids, batch, warm_up, steps = map(int, sys.argv[2:])
    step, flush = CONTESTANTS[name](ids)
    rows = list(batches(ids, batch, warm_up + steps))
    for each in rows[:warm_up]:
        step(*each)
    if flush:
        flush()
    began, cpu = time.perf_counter(), time.process_time()
    for each in rows[warm_up:]:
        step(*each)
    ended, cpu_ended = time.perf_counter(), time.process_time()
    if flush:
        flush()
    flushed = time.process_time()
    package = PACKAGES[name.partition("-")[0]]
    found = {
        "ms": 1000 * (ended - began) / steps,
        "cpu_ms": 1000 * (cpu_ended - cpu) / steps,
        "flush_cpu_ms": 1000 * (flushed - cpu_ended) / steps,
        "versions": {package: version(package), "numpy": np.__version__},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
