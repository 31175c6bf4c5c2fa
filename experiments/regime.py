"""Batches and rates at which a data set of any size shows what the paper shows at its own.

The paper trains 41.3 million rows for 10 epochs from batch 1,024 (40 thousand steps an epoch) to
131,072 (315 steps), with the embedding learning rate fixed at 1e-4. Three things decide whether
the large batch can work, and are kept here where the number of rows allows:

1. *Steps.* Adam moves a coordinate by about one learning rate a step, in directions that are
   mostly noise, so a table gets about as far as a random walk: `embedding_lr * sqrt(steps)`, at
   the largest batch `1e-4 * sqrt(315 * 10)`. With fewer steps the rate is raised until that is
   the same, but to no more than `MOST_LR`, Adam's usual rate. (Malladi et al., arXiv 2205.10287:
   runs of Adam with equal `lr ** 2 * steps` follow the same stochastic differential equation.)
2. *L2.* Between two occurrences of an id only L2 moves its row, by up to one learning rate a step
   once Adam's second moment has decayed. Over an epoch that drift grows with
   `l2 * embedding_lr * rows`, which is kept.
3. *Dense weights.* The paper's own rule for another batch, the square root, gives the rate at the
   base batch from that at 1,024.

What cannot be kept is the number of steps at the base batch: 40 thousand an epoch at 0.5 million
rows would be a batch of 11, hours of work that say more about the processor than about the
method. So the multiplier goes to 32 instead of 128 and the largest batch makes 50 steps or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import PRESETS

PAPER_ROWS = 41_256_555
PAPER_STEPS = 315
PAPER_EPOCHS = 10
MOST_LR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Where an experiment of some size is done.

    Attributes:
        rows: training rows.
        base_batch: the small batch, rows a step.
        max_multiplier: the largest batch is this many times the small one.
        epochs: passes.
        baseline: base rates of training without the clip.
        cowclip: base rates under the `cowclip` rule.
    """

    rows: int
    base_batch: int
    max_multiplier: int
    epochs: int
    baseline: Mapping[str, float]
    cowclip: Mapping[str, float]

    @property
    def steps_at_largest(self) -> int:
        """Steps of an epoch at the largest batch."""
        return math.ceil(self.rows / (self.base_batch * self.max_multiplier))


def regime(
    rows: int,
    *,
    preset: str = "criteo",
    epochs: int = PAPER_EPOCHS,
    max_multiplier: int | None = None,
    steps: int | None = None,
) -> Regime:
    """The regime for a number of training rows; from half the paper's on, the paper's own.

    Args:
        rows: training rows.
        preset: "criteo" or "avazu": where the rates start from.
        epochs: passes.
        max_multiplier: of the largest batch; None: 32, and from half the paper's rows on 128.
        steps: least number of steps an epoch at the largest batch; None: 50.

    Raises:
        InputError: the rows make fewer steps even at base batch 1, or steps are given where the
            base batch is the paper's.

    >>> small = regime(450_000, epochs=4)
    >>> small.base_batch, small.max_multiplier, small.steps_at_largest
    (256, 32, 55)
    >>> round(small.cowclip["l2"], 6), round(small.cowclip["embedding_lr"], 6)
    (0.000242, 0.000378)
    >>> regime(41_256_555).base_batch, regime(41_256_555).max_multiplier
    (1024, 128)
    """
    known = PRESETS[preset]
    if rows >= PAPER_ROWS / 2:
        if steps is not None:
            raise InputError(
                f"--steps {steps}: with {rows} training rows the base batch is the paper's 1,024; "
                "give --max-multiplier instead"
            )
        return Regime(
            rows=rows,
            base_batch=1024,
            max_multiplier=max_multiplier or 128,
            epochs=epochs,
            baseline={},
            cowclip={},
        )
    max_multiplier, steps = max_multiplier or 32, steps or 50
    if rows < steps * max_multiplier:
        raise InputError(
            f"{rows} training rows are too few for {steps} steps at {max_multiplier} times the "
            "batch; use more rows, fewer --steps or a smaller --max-multiplier"
        )
    base = 1 << int(math.log2(rows / (steps * max_multiplier)))
    taken = math.ceil(rows / (base * max_multiplier)) * epochs
    embedding_lr = _raised(known.cowclip.embedding_lr, taken)
    l2 = known.cowclip.l2 * (known.cowclip.embedding_lr * PAPER_ROWS) / (embedding_lr * rows)
    root = math.sqrt(base / known.cowclip.batch_size)
    rates = {"embedding_lr": embedding_lr, "l2": l2}
    return Regime(
        rows=rows,
        base_batch=base,
        max_multiplier=max_multiplier,
        epochs=epochs,
        baseline=rates | {"dense_lr": embedding_lr},
        cowclip=rates | {"dense_lr": known.cowclip.dense_lr * root},
    )


def _raised(rate: float, steps: int) -> float:
    """The rate whose random walk is as wide as that of the paper's largest batch."""
    return min(MOST_LR, rate * max(1.0, math.sqrt(PAPER_STEPS * PAPER_EPOCHS / steps)))
