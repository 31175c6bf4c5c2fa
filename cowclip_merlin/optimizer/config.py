"""Settings of CowClip and their checks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.clip import CLIPS
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.row_adam import RowAdam

tf = compat.tensorflow()

UPDATES = ("dense", "lazy")
BACKENDS = ("auto", "tensorflow")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Arguments of `CowClip`; see there."""

    r: float
    zeta: float
    l2: float
    update: str
    clip: str
    bound: float
    skip: tuple[Any, ...] | None
    embeddings: tuple[Any, ...] | None
    fields: dict[str, int] | None
    backend: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        for argument in ("skip", "embeddings"):
            for pattern in getattr(self, argument) or ():
                if not isinstance(pattern, str):
                    raise InputError(
                        f"{argument} holds the variable {pattern.name!r}, which a configuration "
                        "cannot: give its name or a regular expression instead"
                    )
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def check(config: Config) -> Config:
    """The same settings.

    Raises:
        InputError: a value is out of range or unknown.
    """
    for name in ("r", "zeta", "l2", "bound"):
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} is {value}; it must be a finite number >= 0")
    if config.update == "exact":
        raise InputError(
            'update="exact" is not available yet; update="dense" gives the same numbers, '
            'update="lazy" is a cheaper algorithm'
        )
    for name, known in (("update", UPDATES), ("clip", CLIPS), ("backend", BACKENDS)):
        if getattr(config, name) not in known:
            raise InputError(
                f"unknown {name} {getattr(config, name)!r}; choose one of {', '.join(known)}"
            )
    return config


def row_optimizer(optimizer: Any) -> Any:
    """An optimizer of the same kind that moves only the rows of a sparse gradient.

    Raises:
        InputError: the optimizer has no such form.
    """
    legacy = tf.keras.optimizers.legacy
    if isinstance(optimizer, RowAdam):
        return optimizer
    if type(optimizer) is legacy.Adam and not optimizer.amsgrad:
        config = optimizer.get_config()
        config.pop("amsgrad")
        return RowAdam(**(config | {"learning_rate": optimizer._hyper["learning_rate"]}))
    plain_sgd = type(optimizer) is legacy.SGD and optimizer.get_config()["momentum"] == 0
    if plain_sgd or type(optimizer) in (legacy.Adagrad, legacy.Ftrl):
        return optimizer
    raise InputError(
        f'update="lazy" works with Adam, Adagrad, Ftrl and SGD without momentum, '
        f'not with {type(optimizer).__name__}; choose one of them or update="dense"'
    )
