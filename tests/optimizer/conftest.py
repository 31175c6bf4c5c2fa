import numpy as np
import pytest

from cowclip_merlin import compat


@pytest.fixture(scope="session")
def tf():
    return compat.tensorflow()


@pytest.fixture(scope="session")
def kernels(tf):
    """The backend that has kernels for where the tables are."""
    return "cupy" if tf.config.list_logical_devices("GPU") else "numba"


class NumpyCowClip:
    """Algorithm 1 in NumPy float64, one table: slow, obvious, row by row."""

    def __init__(self, w, *, lr, l2, r, zeta, update, clipped=True):
        self.w = np.array(w, np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.t, self.lr, self.l2, self.r, self.zeta = 0, lr, l2, r, zeta
        self.update, self.clipped = update, clipped

    def step(self, ids, values):
        """One step; returns the clip factors of the rows in the batch."""
        self.t += 1
        lr = self.lr(self.t - 1) if callable(self.lr) else self.lr
        alpha = lr * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
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
        self.m[k] = 0.9 * self.m[k] + 0.1 * g
        self.v[k] = 0.999 * self.v[k] + 0.001 * g**2
        self.w[k] -= alpha * self.m[k] / (np.sqrt(self.v[k]) + 1e-7)


@pytest.fixture(scope="session")
def reference():
    return NumpyCowClip
