"""Algorithm 1 in NumPy float64: slow, obvious, row by row."""

import numpy as np


class RowsOneByOne:
    """One table that trains as `CowClip` should train it.

    Args:
        w: initial weights, [N, d].
        lr: the rate, or a function of the step's number from 0 on.
        l2: factor of `||w||^2`.
        r: threshold of the clip "cowclip", relative to a row's norm.
        zeta: lower bound of that norm, per coordinate.
        update: "dense" and "exact" update all rows, "lazy" those of the batch.
        clip: "cowclip", "column" or "none".
        bound: threshold of "column".
        betas: decays of Adam.
        epsilon: of Adam.
        as_torch: add epsilon where PyTorch does, after the correction of the second moment.
    """

    def __init__(
        self, w, *, lr, l2, r, zeta, update, clip="cowclip", bound=1.0, betas=(0.9, 0.999),
        epsilon=1e-7, as_torch=False
    ):  # fmt: skip
        self.w = np.array(w, np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.t, self.lr, self.l2, self.r, self.zeta = 0, lr, l2, r, zeta
        self.update, self.clip, self.bound = update, clip, bound
        self.betas, self.epsilon, self.as_torch = betas, epsilon, as_torch

    def step(self, ids, values):
        """One step; returns the clip factors of the rows in the batch."""
        self.t += 1
        rate = self.lr(self.t - 1) if callable(self.lr) else self.lr
        factors = []
        for k in range(len(self.w)):
            occurrences = [i for i, id_ in enumerate(ids) if id_ == k]
            if not occurrences and self.update == "lazy":
                continue
            g = np.zeros(self.w.shape[1])
            for i in occurrences:
                g = g + np.float64(values[i])
            g = g + 2 * self.l2 * self.w[k]
            factor = self.factor(k, g, len(occurrences))
            if occurrences:
                factors.append(factor)
            self.adam(k, g * factor, rate)
        return factors

    def factor(self, k, g, cnt):
        d = self.w.shape[1]
        if self.clip == "none" or d == 1:
            return 1.0
        if self.clip == "cowclip":
            bound = np.sqrt(d) * self.zeta
            threshold = max(cnt, 1) * max(self.r * np.linalg.norm(self.w[k]), bound)
        else:
            threshold = self.bound
        norm = np.linalg.norm(g)
        return 1.0 if norm == 0 else min(1.0, threshold / norm)

    def adam(self, k, g, rate):
        beta_1, beta_2 = self.betas
        self.m[k] = beta_1 * self.m[k] + (1 - beta_1) * g
        self.v[k] = beta_2 * self.v[k] + (1 - beta_2) * g**2
        first, second = 1 - beta_1**self.t, 1 - beta_2**self.t
        if self.as_torch:
            root = (np.sqrt(self.v[k] / second) + self.epsilon) * np.sqrt(second)
        else:
            root = np.sqrt(self.v[k]) + self.epsilon
        self.w[k] -= rate * np.sqrt(second) / first * self.m[k] / root
