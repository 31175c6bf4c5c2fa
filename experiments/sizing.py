"""Choose batches and rates so that a data set of any size can show the paper's effects.

The paper trains 41.3 million rows for 10 epochs. Its batches go from 1,024 (40 thousand steps per
epoch) to 131,072 (315 steps), with the embedding learning rate fixed at 1e-4. Three things decide
whether the large batch can work. They stay the same here if the number of rows allows it:

1. *Steps.* Adam changes a coordinate by about one learning rate per step, in mostly random
   directions. So a table moves about as far as a random walk: `embedding_lr * sqrt(steps)`, at
   the paper's largest batch `1e-4 * sqrt(315 * 10)`. With fewer steps, the rate rises until that
   distance is the same, but never above `MAX_LR`, Adam's usual rate. (Malladi et al., arXiv
   2205.10287: runs of Adam with equal `lr ** 2 * steps` follow the same stochastic differential
   equation.)
2. *L2.* Between two occurrences of an id, only L2 updates its row, by up to one learning rate per
   step once Adam's second moment has decayed. That drift per epoch grows with
   `l2 * embedding_lr * rows`, which stays the same.
3. *Dense weights.* The paper's own rule for another batch, the square root, gives the rate at the
   base batch from that at 1,024.

The number of steps at the base batch cannot stay the same. With 0.5 million rows, 40 thousand
steps per epoch would need a batch of 11: hours that measure the processor, not the method.
So the multiplier goes to 32 instead of 128, and the largest batch takes 50 steps or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import NAMED_MULTIPLIERS
from cowclip_merlin.scaling import PRESETS

PAPER_ROWS = 41_256_555
PAPER_BATCH = 1024
PAPER_STEPS = 315
PAPER_EPOCHS = 10
MAX_LR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """Batches, epochs and base rates for some number of training rows.

    `baseline` are base rates of training without the clip, `cowclip` those of the `cowclip` rule.
    """

    rows: int
    base_batch: int
    max_multiplier: int
    epochs: int
    baseline: Mapping[str, float]
    cowclip: Mapping[str, float]

    @property
    def steps_at_largest(self) -> int:
        """Steps per epoch at the largest batch."""
        return math.ceil(self.rows / (self.base_batch * self.max_multiplier))

    def factor(self, multiplier: int | str) -> int:
        """Convert a multiplier, also "largest" or "beyond", to a number."""
        return NAMED_MULTIPLIERS.get(multiplier, 0) * self.max_multiplier or int(multiplier)

    def batch(self, multiplier: int | str) -> int:
        """Return the rows per step at a multiple of the base batch."""
        return self.factor(multiplier) * self.base_batch

    def describe(self) -> str:
        """Describe the sizing in one line."""
        rates = ", ".join(f"{name} {value:.3g}" for name, value in self.cowclip.items())
        rates = rates or ("embedding_lr the preset's" if self.base_batch == PAPER_BATCH else "")
        largest = self.base_batch * self.max_multiplier
        return (
            f"{self.rows:,} training rows: base batch {self.base_batch:,}, largest {largest:,} "
            f"({self.steps_at_largest} steps per epoch), {self.epochs} epochs"
            + (f"; CowClip's base rates: {rates}" if rates else "")
        )


def sizing_for(
    rows: int,
    *,
    preset: str = "criteo",
    epochs: int = PAPER_EPOCHS,
    max_multiplier: int | None = None,
    steps: int | None = None,
    base_batch: int | None = None,
) -> Sizing:
    """Return the sizing for a number of training rows; from half the paper's rows, the paper's.

    Args:
        rows: training rows.
        preset: preset of the rates, "criteo" or "avazu".
        epochs: number of epochs.
        max_multiplier: multiplier of the largest batch; None: 32, or 128 from half the paper's
            rows on.
        steps: minimum number of steps per epoch at the largest batch; None: 50.
        base_batch: of an experiment that has its own; its lines have the rates.

    Raises:
        InputError: if the rows give fewer steps even at base batch 1, or `steps` is given but
            the base batch is the paper's, or the experiment's.

    >>> small = sizing_for(450_000, epochs=4)
    >>> small.base_batch, small.max_multiplier, small.steps_at_largest
    (256, 32, 55)
    >>> round(small.cowclip["l2"], 6), round(small.cowclip["embedding_lr"], 6)
    (0.000242, 0.000378)
    >>> sizing_for(41_256_555).base_batch, sizing_for(41_256_555).max_multiplier
    (1024, 128)
    """
    if base_batch is None and rows < PAPER_ROWS / 2:
        return _reduced(rows, preset, epochs, max_multiplier or 32, steps or 50)
    whose = "the paper's" if base_batch is None else "the experiment's"
    if steps is not None:
        raise InputError(
            f"`steps` {steps}: with {rows} training rows the base batch is {whose} "
            f"{base_batch or PAPER_BATCH:,}; give `max_multiplier` instead"
        )
    return Sizing(
        rows=rows,
        base_batch=base_batch or PAPER_BATCH,
        max_multiplier=max_multiplier or (128 if base_batch is None else 32),
        epochs=epochs,
        baseline={},
        cowclip={},
    )


def _reduced(rows: int, preset: str, epochs: int, max_multiplier: int, steps: int) -> Sizing:
    """Return the sizing for far fewer rows than the paper's."""
    if rows < steps * max_multiplier:
        raise InputError(
            f"{rows} training rows are too few for {steps} steps at {max_multiplier} times the "
            "batch; use more rows, fewer `steps` or a smaller `max_multiplier`"
        )
    known = PRESETS[preset].cowclip
    base = 1 << int(math.log2(rows / (steps * max_multiplier)))
    total_steps = math.ceil(rows / (base * max_multiplier)) * epochs
    embedding_lr = _raised(known.embedding_lr, total_steps)
    l2 = known.l2 * (known.embedding_lr * PAPER_ROWS) / (embedding_lr * rows)
    root = math.sqrt(base / known.batch_size)
    rates = {"embedding_lr": embedding_lr, "l2": l2}
    return Sizing(
        rows=rows,
        base_batch=base,
        max_multiplier=max_multiplier,
        epochs=epochs,
        baseline=rates | {"dense_lr": embedding_lr},
        cowclip=rates | {"dense_lr": known.dense_lr * root},
    )


def _raised(rate: float, steps: int) -> float:
    """Return the rate whose random walk goes as far as that of the paper's largest batch."""
    return min(MAX_LR, rate * max(1.0, math.sqrt(PAPER_STEPS * PAPER_EPOCHS / steps)))
