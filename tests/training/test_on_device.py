"""Runs whose metrics are computed where the data are, as on a GPU, on the device of a CPU."""

import numpy as np
import pytest
from host_copies import copies, optimized_graph

from cowclip_merlin import compat
from cowclip_merlin.errors import Diverged, InputError
from cowclip_merlin.loading import row_order
from cowclip_merlin.metrics import on_device
from cowclip_merlin.training import RunSettings, evaluate_run, train, trainer
from cowclip_merlin.training.evaluation import from_device
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.scoring.predicting import Predictor

SMALL = {"model": "deepfm", "mlp": (8,), "batch_size": 256, "base_batch_size": 64, "epochs": 1}

ONLY_ON_CPU = "_UnaryOpsComposition"
"""Operations without arithmetic of their own: TensorFlow joins others to these, on a CPU only."""


@pytest.fixture(scope="module")
def data(small):
    return small


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(Predictor, "on_device", True)


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_are_not_computed_on_the_host(weighted):
    """Only the sums leave the device, and sizes of shapes are made on the host."""
    tf = compat.tensorflow()
    compute = tf.function(lambda *given: on_device._sums(*given, bins=20), autograph=False)
    rows = tf.constant([0.0, 1.0, 1.0])
    graph = optimized_graph(compute, rows, rows, rows if weighted else None)
    assert "SparseReorder" in {node.op for node in graph.node}
    assert {pair for pair in copies(graph) if ONLY_ON_CPU not in pair} == set()


@pytest.mark.parametrize("memory", [None, pytest.param(0.3, marks=pytest.mark.thorough)])
def test_a_run_has_the_metrics_of_numpy(data, tmp_path, monkeypatch, memory):
    settings, found = RunSettings(**SMALL), {}
    for name in ("host", "device"):
        with monkeypatch.context() as patch:
            patch.setattr(Predictor, "on_device", name == "device")
            if name == "device":
                patch.setattr(Predictor, "predict", None)
            given = {"data_memory": memory, "device": "cpu"}
            (row,) = train(data, settings, out=tmp_path / name, **given)
            found[name] = {k: x for k, x in row.items() if "second" not in k}
            again = evaluate_run(tmp_path / name, data, device="cpu")
            found[name] |= {k: x for k, x in vars(again).items() if isinstance(x, float)}
    assert found["device"] == pytest.approx(found["host"], rel=1e-12)
    bins = [(tmp_path / name / "reliability.csv").read_text() for name in found]
    tables = [np.genfromtxt(text.splitlines(), delimiter=",", skip_header=1) for text in bins]
    np.testing.assert_allclose(*tables, rtol=1e-9)


def test_logits_that_are_nan_end_a_run(data, tmp_path, as_on_a_gpu, monkeypatch):
    real = Predictor.metrics
    monkeypatch.setattr(Predictor, "metrics", lambda self: real(self)._replace(nan_rows=3))
    with pytest.raises(Diverged, match="NaN after epoch 1"):
        train(data, RunSettings(**SMALL), out=tmp_path / "run", device="cpu")


def test_nan_scores_are_refused():
    found = on_device.DeviceMetrics(*[0.5] * 5, bins=[], nan_rows=3)
    with pytest.raises(InputError, match="3 of 9 scores are NaN"):
        from_device(found, 9)


def test_an_order_is_made_on_the_device():
    tf = compat.tensorflow()
    make = tf.function(lambda: row_order.philox_permutation(100, seed=1, epoch=2), autograph=False)
    graph = optimized_graph(make)
    assert "SparseReorder" in {node.op for node in graph.node}
    assert copies(graph) == []


OTHER = {row_order.PHILOX: row_order.NUMPY, row_order.NUMPY: row_order.PHILOX}


@pytest.mark.parametrize(
    "kind", [row_order.PHILOX, pytest.param(row_order.NUMPY, marks=pytest.mark.thorough)]
)
def test_a_resumed_run_keeps_the_order_of_its_start(data, tmp_path, monkeypatch, kind):
    """As if it began on a GPU and went on without one, and the other way round."""
    seen = []
    for name, epochs in (("whole", [2]), ("parts", [1, 2])):
        for number, last in enumerate(epochs):
            usual = OTHER[kind] if number else kind
            monkeypatch.setattr(trainer, "usual_generator", lambda _, usual=usual: usual)
            settings = RunSettings(**SMALL | {"epochs": last})
            given = {"out": tmp_path / name, "resume": bool(number), "device": "cpu"}
            rows = train(data, settings, **given)
            seen.append((rows[-1]["train_loss"], rows[-1]["test_auc"]))
        assert RunConfig.load(tmp_path / name).row_order == kind
    assert seen[0] == seen[2]
