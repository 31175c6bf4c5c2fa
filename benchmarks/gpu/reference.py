"""The same DeepFM in NumPy float64, with a step of all rows at every batch: slow and obvious."""

from __future__ import annotations

import numpy as np

from cowclip_merlin.contrib.fused_mlp import reference
from cowclip_merlin.types import Array, Floats
from gpu.deepfm import DeepFM


class Reference:
    """A copy of a model's weights.

    Attributes:
        tables, dense: "w" and "m" and "v", or "sums" of Adagrad, of each, float64.
    """

    def __init__(self, model: DeepFM) -> None:
        self.tables, self.dense = [
            [{k: model.gpu.host(t[k]).astype(np.float64) for k in ("w", *slots)} for t in each]
            for each, slots in ((model.tables, model.slots), (model.dense, ("m", "v")))
        ]
        self._offsets = np.cumsum([0, *model.rows.fields[:-1]])
        self._values, self._settings, self._t = model.values, model.settings, 0

    def step(self, ids: Array, x: Floats, y: Floats) -> float:
        """Train one batch, and return its mean loss."""
        rows, b, n = ids + self._offsets, len(y), (len(self.dense) - 2) // 2
        w, wide = (t["w"] for t in self.tables)
        kernels, biases = ([t["w"] for t in self.dense[i * n : (i + 1) * n]] for i in (0, 1))
        output, bias = self.dense[-2]["w"], self.dense[-1]["w"]
        v = w[rows]
        sums = v.sum(1)
        flat = np.concatenate([v.reshape(b, -1), x], 1)
        h = flat
        for kernel, each in zip(kernels, biases):
            h = np.maximum(h @ kernel + each, 0)
        second = 0.5 * (sums**2 - (v**2).sum(1)).sum(1)
        z = (h @ output)[:, 0] + bias[0] + wide[rows][:, :, 0].sum(1) + second
        dz = (1 / (1 + np.exp(-z)) - y) / b
        _, of_flat, *of_weights = reference(flat, kernels, biases, dz[:, None], output)
        of_v = of_flat[:, : v[0].size].reshape(v.shape) + dz[:, None, None] * (sums[:, None] - v)
        gradients = np.zeros_like(w), np.zeros_like(wide)
        np.add.at(gradients[0], rows, of_v)
        np.add.at(gradients[1], rows, np.broadcast_to(dz[:, None, None], (*rows.shape, 1)))
        self._t += 1
        count = np.bincount(rows.ravel(), minlength=len(w))
        for table, g, settings in zip(self.tables, gradients, self._settings):
            g += 2 * settings.l2 * table["w"]
            if settings.clip == "cowclip":
                norm, of_w = np.linalg.norm(g, axis=1), np.linalg.norm(table["w"], axis=1)
                least = settings.floor(g.shape[1])
                most = np.maximum(count, 1) * np.maximum(settings.r * of_w, least)
                g *= np.minimum(1, most / np.maximum(norm, 1e-300))[:, None]
            step = self._adagrad if "sums" in table else self._adam
            step(table, g, self._values.embedding_lr)
        for each, g in zip(self.dense, [*of_weights, np.array([dz.sum()])]):
            self._adam(each, g, self._values.dense_lr)
        return np.mean(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))))

    def _adagrad(self, t: dict[str, Floats], g: Floats, rate: float) -> None:
        rowwise = self._values.optimizer == "rowwise_adagrad"
        t["sums"] += (g * g).mean(1, keepdims=True) if rowwise else g * g
        t["w"] -= rate * g / (np.sqrt(t["sums"]) + self._values.epsilon)

    def _adam(self, t: dict[str, Floats], g: Floats, rate: float) -> None:
        values, k = self._values, self._t
        t["m"] += (1 - values.beta_1) * (g - t["m"])
        t["v"] += (1 - values.beta_2) * (g * g - t["v"])
        rate *= np.sqrt(1 - values.beta_2**k) / (1 - values.beta_1**k)
        t["w"] -= rate * t["m"] / (np.sqrt(t["v"]) + values.epsilon)
