"""A training step on a GPU copies nothing between the host and the device, so neither waits."""

import numpy as np
import pytest
from emulated_cupy import COMPILER
from host_copies import copies, optimized_graph
from tensorflow.python.framework import kernels

from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.bench.throughput import build_model_and_optimizer
from cowclip_merlin.loading import DeviceData
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.training.train_step import make_train_step

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]


def test_a_copy_is_found(tf):
    """The size of a tensor is made on the host, and float numbers are cast on the device."""

    @tf.function
    def mean(x):
        return tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32)

    graph = optimized_graph(mean.get_concrete_function(tf.TensorSpec([None])), tf.ones([3]))
    assert copies(graph) == [("Size", "Cast")]


@pytest.mark.parametrize("at", ["once", "once, xla", "lookups"])
def test_a_step_copies_nothing(tf, emulated, monkeypatch, at):
    fields = criteo_fields(2000)
    data = DeviceData(random_rows(64, fields))
    model, optimizer = build_model_and_optimizer(
        "deepfm", "exact", "cupy", "cowclip", "float32", fields, jit_compile=at == "once, xla"
    )
    if at == "lookups":
        model.blocks[0].read_at_once = lambda batch: None
    # As on a GPU, where models cast ids to int64.
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: [kind])
    step = make_train_step(model, optimizer, data, tf.Variable(0.0, dtype=tf.float64))
    graph = optimized_graph(step, tf.range(32, dtype=tf.int64))
    made = {node.op for node in graph.node}
    by = ("CatchUp", "Step") if at == "lookups" else ("Read", "ReadStep")
    assert {f"CowClip{name}" for name in (*by, "Dense")} <= made
    assert "ResourceApplyAdam" not in made
    assert copies(graph) == []


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_with_hidden_layers_as_one_operation_copies_nothing(
    tf, fake_cublas, monkeypatch, precision
):
    fields = criteo_fields(2000)
    data = DeviceData(random_rows(64, fields))
    model, optimizer = build_model_and_optimizer(
        "deepfm", "exact", "cupy", "cowclip", precision, fields
    )
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: [kind])
    step = make_train_step(model, optimizer, data, tf.Variable(0.0, dtype=tf.float64))
    graph = optimized_graph(step, tf.range(32, dtype=tf.int64))
    assert {"CowClipMlp", "CowClipMlpGradient"} <= {node.op for node in graph.node}
    assert "Relu" not in {node.op for node in graph.node}
    assert copies(graph) == []


@pytest.mark.parametrize("name", ["CatchUp", "Step", "Flush", "Dense", "Read", "ReadStep"])
def test_the_host_knows_only_where_variables_are(tf, emulated, name):
    """Replicas have all their variables on GPUs; a copy of one to the host would wait."""
    gpu_ops.operations()
    found = kernels.get_registered_kernels_for_op(f"CowClip{name}").kernel
    assert [x.host_memory_arg for x in found if x.device_type == "GPU"] == [["variables"]]


@pytest.mark.parametrize("update", ["exact", "lazy"])
def test_steps_on_lists_end_as_with_numba(tf, emulated, monkeypatch, update):
    """With the operations of a GPU for the parts of a batch; they were never run on one."""
    fields, ends = criteo_fields(2000), []
    data = DeviceData(random_rows(64, fields, multi_values=3))
    for backend in ("numba", "cupy"):
        model, optimizer = build_model_and_optimizer(
            "deepfm", update, backend, "cowclip", "float32", fields, multi_values=3
        )
        if backend == "cupy":
            monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: [kind])
        step = make_train_step(model, optimizer, data, tf.Variable(0.0, dtype=tf.float64))
        for first in (0, 32):
            step(tf.range(first, first + 32, dtype=tf.int64))
        optimizer.flush()
        ends.append([variable.numpy() for variable in model.trainable_variables])
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-7)
