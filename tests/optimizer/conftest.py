import sys
from pathlib import Path

import numpy as np
import pytest

from cowclip_merlin import compat

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels")]


@pytest.fixture(scope="session")
def tf():
    return compat.tensorflow()


@pytest.fixture(scope="session")
def kernels(tf):
    """The backend that has kernels for where the tables are."""
    return "cupy" if tf.config.list_logical_devices("GPU") else "numba"


class NumpyCowClip:
    """Algorithm 1 in NumPy float64, one table: slow, obvious, row by row."""

    def __init__(
        self, w, *, lr, l2, r, zeta, update, clipped=True, betas=(0.9, 0.999), epsilon=1e-7
    ):
        self.w = np.array(w, np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.t, self.lr, self.l2, self.r, self.zeta = 0, lr, l2, r, zeta
        self.update, self.clipped = update, clipped
        self.betas, self.epsilon = betas, epsilon

    def step(self, ids, values):
        """One step; returns the clip factors of the rows in the batch."""
        self.t += 1
        lr = self.lr(self.t - 1) if callable(self.lr) else self.lr
        alpha = lr * np.sqrt(1 - self.betas[1] ** self.t) / (1 - self.betas[0] ** self.t)
        factors = []
        for k in range(len(self.w)):
            occurrences = [i for i, id_ in enumerate(ids) if id_ == k]
            if not occurrences and self.update == "lazy":
                continue
            g = np.zeros(self.w.shape[1])
            for i in occurrences:
                g = g + np.float64(values[i])
            g = g + 2 * self.l2 * self.w[k]
            factor = self.factor(k, g, len(occurrences)) if self.clipped else 1.0
            if occurrences:
                factors.append(factor)
            self.adam(k, g * factor, alpha)
        return factors

    def factor(self, k, g, cnt):
        bound = np.sqrt(self.w.shape[1]) * self.zeta
        threshold = max(cnt, 1) * max(self.r * np.linalg.norm(self.w[k]), bound)
        norm = np.linalg.norm(g)
        return 1.0 if norm == 0 else min(1.0, threshold / norm)

    def adam(self, k, g, alpha):
        beta_1, beta_2 = self.betas
        self.m[k] = beta_1 * self.m[k] + (1 - beta_1) * g
        self.v[k] = beta_2 * self.v[k] + (1 - beta_2) * g**2
        self.w[k] -= alpha * self.m[k] / (np.sqrt(self.v[k]) + self.epsilon)


@pytest.fixture(scope="session")
def reference():
    return NumpyCowClip


@pytest.fixture(scope="session")
def row_ops_folder(make_once):
    from cowclip_merlin.optimizer.row_updates import gpu_ops

    make_once("gpu_ops", lambda folder: gpu_ops.build())  # workers wait for the one that builds
    return make_once("emulated", lambda folder: None)  # filled by what needs a kernel


@pytest.fixture
def emulated(tf, monkeypatch, row_ops_folder):
    """`backend="cupy"` with the operations' own code and the emulated kernels."""
    from emulated_cupy import operation_kernels

    from cowclip_merlin.optimizer.row_updates import gpu_ops
    from cowclip_merlin.tables import variable_memory

    monkeypatch.setattr(gpu_ops, "load_kernels", operation_kernels(row_ops_folder))
    monkeypatch.setattr(gpu_ops, "require_cupy", lambda: None)
    monkeypatch.setattr(variable_memory, "refuse_elsewhere", lambda *_: None)
    with tf.device("CPU"):
        yield


@pytest.fixture
def fake_cublas(emulated, monkeypatch, row_ops_folder):
    """The same, and hidden layers as on a GPU with a fake of cuBLASLt."""
    from emulated_cublas import installed

    with installed(monkeypatch, row_ops_folder) as made:
        yield made


EMULATED = pytest.param("emulated", marks=pytest.mark.system)
GPU = pytest.param("gpu", marks=pytest.mark.gpu)


@pytest.fixture(params=[EMULATED, GPU])
def where(request):
    """Where `backend="cupy"` runs in this test: "emulated" or "gpu"."""
    if request.param == "emulated":
        from emulated_cupy import COMPILER

        if COMPILER is None:
            pytest.skip("no g++ on PATH")
        request.getfixturevalue("emulated")
        yield request.param
        return
    tf = request.getfixturevalue("tf")
    if not tf.config.list_logical_devices("GPU"):
        pytest.skip("TensorFlow finds no GPU")
    with tf.device("GPU:0"):
        yield request.param
