"""Algorithm 1 in float64, by the functions of `kernels.reference`: slow, obvious, row by row."""

from dataclasses import replace

import numpy as np

from cowclip_merlin.kernels import RowSettings, load


class RowsOneByOne:
    """One table that trains as `CowClip` should train it.

    Args:
        w: initial weights, [N, d].
        lr: the rate, or a function of the step's number from 0 on.
        update: "dense" and "exact" update all rows, "lazy" those of the batch.
        clip: "cowclip", "column" or "none".
        betas: decays of Adam.
        as_torch: add epsilon where PyTorch does, after the correction of the second moment.
        settings: others of `RowSettings`.
    """

    def __init__(
        self, w, *, lr, update, clip="cowclip", betas=(0.9, 0.999), as_torch=False, **settings
    ):
        self.w = np.array(w, np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.t, self.lr, self.update, self.as_torch = 0, lr, update, as_torch
        clip = "none" if self.w.shape[1] == 1 else clip
        self.settings = RowSettings(clip=clip, beta_1=betas[0], beta_2=betas[1], **settings)

    def step(self, ids, values):
        """One step; returns the clip factors of the rows in the batch."""
        self.t += 1
        own, reference = self.settings, load("reference")
        cnt, g = np.bincount(np.asarray(ids, int), minlength=len(self.w)), np.zeros_like(self.w)
        np.add.at(g, np.asarray(ids, int), values)
        g, factors = reference.clip_rows(g, self.w, cnt, own)
        root = np.sqrt(1 - own.beta_2**self.t)
        rate = self.lr(self.t - 1) if callable(self.lr) else self.lr
        if self.as_torch:
            own = replace(own, epsilon=own.epsilon * root)
        for k in range(len(self.w)) if self.update != "lazy" else np.flatnonzero(cnt):
            alpha = rate * root / (1 - own.beta_1**self.t)
            reference.adam(self.w[k], self.m[k], self.v[k], g[k], alpha, own)
        return factors[cnt > 0]
