"""How the learning rates of a run fall: with its steps, or when its scores no longer improve.

Both rates, of the embeddings and of the dense weights, fall by the same factor. A warm-up of the
dense rate goes on besides.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.training.stopping.early_stopping import Rows, lowered, plateau_falls
from cowclip_merlin.types import JsonObject, LearningRateSchedule, Tensor, Variable
from cowclip_merlin.workers.agreement import numbers_of_all

if TYPE_CHECKING:
    from cowclip_merlin.training.run_settings import RunSettings
    from cowclip_merlin.workers import Workers


class FallingRates:
    """The factor of a run's learning rates.

    Args:
        settings: of the run.
        steps: steps per epoch.
    """

    def __init__(self, settings: RunSettings, steps: int) -> None:
        self._settings, self._steps, tf = settings, steps, compat.tensorflow()
        self._falls = 0
        # A checkpoint has neither: the position of the run and its scores tell both.
        self._first, self._scale = (
            tf.Variable(value, trainable=False, dtype=tf.float32) for value in (0.0, 1.0)
        )

    def of(self, rate: float | LearningRateSchedule) -> float | LearningRateSchedule:
        """Return the rate that falls from this one, which may be a schedule itself."""
        constant = self._settings.lr_schedule == "constant"
        return rate if constant else _falling_class()(rate, self)

    def start(self, made: int, *, done: int = 0) -> None:
        """Count steps from here: a run that starts from another one has its optimizer's counts.

        Args:
            made: steps that the optimizer has made.
            done: those that this run has made.
        """
        self._first.assign(float(made - done))

    def follow(self, rows: Rows, group: Workers | None) -> bool:
        """Set the rates by the scores so far, as worker 0 knows them; return whether they fell."""
        if self._settings.lr_schedule != "plateau":
            return False
        found = plateau_falls(rows, self._settings)
        falls = int(numbers_of_all(group, len(found))[0])
        self._scale.assign(lowered(self._settings, falls))
        before, self._falls = self._falls, falls
        return falls > before

    def factor(self, step: Tensor) -> Tensor:
        """Return the factor of the rates after so many steps of the optimizer."""
        tf, settings = compat.tensorflow(), self._settings
        if settings.lr_schedule == "plateau":
            return self._scale
        done = tf.cast(step, tf.float32) - self._first
        return factor_after(done / (settings.epochs * self._steps), settings)


def factor_after(share: Tensor, settings: RunSettings) -> Tensor:
    """Return the factor of rates that fall as a run goes on, after this share of it, float32."""
    tf, floor = compat.tensorflow(), settings.rate_floor
    if settings.lr_schedule == "step":
        falls = tf.floor(share * settings.epochs / settings.lr_every)
        return tf.maximum(tf.pow(settings.lr_factor, falls), floor)
    left = 1 - tf.minimum(share, 1.0)
    if settings.lr_schedule == "cosine":
        left = (1 - tf.cos(math.pi * left)) / 2
    return floor + (1 - floor) * left


@cache
def _falling_class() -> type:
    """Return the class of a rate times the factor of now; TensorFlow is loaded when it is used."""

    class Falling(compat.tensorflow().keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, rate: float | LearningRateSchedule, falling: FallingRates) -> None:
            self._rate, self._falling = rate, falling

        def __call__(self, step: Tensor | Variable) -> Tensor:
            rate = self._rate(step) if callable(self._rate) else self._rate
            return rate * self._falling.factor(step)

        def get_config(self) -> JsonObject:
            """Return the rate that falls; the run's settings say how."""
            return {"rate": self._rate}

    return Falling
