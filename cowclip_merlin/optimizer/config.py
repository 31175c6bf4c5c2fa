"""The settings of CowClip: what works with what, and what "auto" becomes.

`RULES` is the one table of what does not work together. `why_not` reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import NamedTuple

from cowclip_merlin import choices, compat, workers
from cowclip_merlin.checks import check_at_least_one, one_of
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.row_optimizers import LazyAdam, RowWiseAdagrad, VaryingAdam
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.types import JsonObject, KerasOptimizer

tf = compat.tensorflow()
_log = logging.getLogger("cowclip_merlin")


@dataclass(frozen=True, kw_only=True)
class Config(RowSettings):
    """Settings of a `CowClip`'s steps; `resolve` makes them from its arguments.

    Betas and epsilon are the optimizer's with plain Adam, and epsilon also with plain Adagrad.

    Attributes:
        update: "dense", "exact" or "lazy".
        backend: "tensorflow", "numba" or "cupy"; before `resolve` also "auto".
    """

    update: str
    backend: str = "auto"

    @property
    def by_keras(self) -> bool:
        """Whether the Keras optimizer makes the steps, instead of row kernels."""
        return self.update != "exact" and self.backend == "tensorflow"

    def as_dict(self) -> JsonObject:
        """Return plain values by the names of the arguments of `CowClip`."""
        others = ("l2", "update", "clip", "backend", "micro_batches")
        return {name: getattr(self, name) for name in (*choices.THRESHOLDS, *others)}


def resolve(config: Config, optimizer: KerasOptimizer) -> Config:
    """Check the settings, resolve update and backend, and add the numbers of Adam or Adagrad.

    "exact" becomes "lazy" if absent rows do not change: without L2, an absent row has no gradient,
    and Adagrad and plain SGD do not change it.

    Args:
        config: the arguments of `CowClip`.
        optimizer: the embedding optimizer.

    Raises:
        InputError: if a value is out of range or unknown, or the optimizer or the machine does
            not support it.
    """
    one_of("update", config.update, choices.UPDATES)
    one_of("clip", config.clip, choices.CLIPS)
    one_of("backend", config.backend, choices.BACKENDS)
    check_at_least_one({"micro_batches": config.micro_batches})
    if config.update == "exact" and config.l2 == 0 and _leaves_absent_rows(optimizer):
        config = replace(config, update="lazy")
    if config.backend == "auto":
        config = replace(config, backend=_choose_backend(config, optimizer))
    check(config, optimizer)
    # Now: in the graph of a first step, an optimizer's numbers are tensors without a value.
    if is_plain_adagrad(optimizer):
        return replace(config, epsilon=optimizer.epsilon)
    if not is_plain_adam(optimizer):
        return config
    if isinstance(optimizer, VaryingAdam):
        own = {name: getattr(optimizer.moments, name) for name in ("beta_1", "beta_2", "squares")}
    else:
        own = {name: optimizer.get_config()[name] for name in ("beta_1", "beta_2")}
    return replace(config, epsilon=optimizer.epsilon, **own)


def _choose_backend(config: Config, optimizer: KerasOptimizer) -> str:
    """Return the fastest backend that works with the settings; if none does, "tensorflow"."""
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    fast = "cupy" if on_gpu else "numba"
    by_keras = config.update == "dense" and config.micro_batches == 1
    if by_keras or why_not(replace(config, backend=fast), optimizer):
        return "tensorflow"
    return _gpu_backend() if on_gpu else fast


def check(config: Config, optimizer: KerasOptimizer) -> None:
    """Refuse settings that do not work together."""
    if reason := why_not(config, optimizer):
        raise InputError(reason)


class Rule(NamedTuple):
    """Settings that do not work together.

    Attributes:
        update: values of `update` that it is about.
        backend: values of `backend` that it is about.
        refuses: whether it refuses these settings with this embedding optimizer.
        words: why, and the remedy; `why_not` fills in the names.
    """

    update: tuple[str, ...]
    backend: tuple[str, ...]
    refuses: Callable[[Config, KerasOptimizer], bool]
    words: str


_ANY, _BACKENDS, _ROWS = choices.UPDATES, choices.BACKENDS, choices.KERNEL_BACKENDS
_CUPY, _DENSE_OR_LAZY = ("cupy",), ("dense", "lazy")
_EXACT_WORKS = (
    'update="exact" works with Adam, and without L2 with Adagrad and SGD without momentum, '
    "not with {optimizer}"
)
_PLAIN = '; use backend="tensorflow"'

RULES = (
    Rule(("exact",), _BACKENDS, lambda c, o: not c.of_clip.postponable,
         'update="exact" works with the clips {exact_clips}: {clip!r} clips absent rows by the '
         'norms of other rows; use update="dense"'),
    Rule(("exact",), _BACKENDS, lambda c, o: not c.in_row_kernels and c.clips_absent_rows,
         'update="exact" needs 2 * l2 <= r, or L2 alone would be clipped; l2 is {l2}, r is {r}: '
         'use update="dense"'),
    Rule(("exact",), _BACKENDS, lambda c, o: not is_plain_adam(o) and not _leaves_absent_rows(o),
         _EXACT_WORKS + '; use update="dense"'),
    Rule(("exact",), _BACKENDS, lambda c, o: type(o) in _ADAGRADS,
         _EXACT_WORKS + ' and l2 {l2:g}, whose missed steps have no closed form; use l2=0 or '
         'update="dense"'),
    Rule(("exact",), _BACKENDS, lambda c, o: not is_plain_adam(o),
         _EXACT_WORKS + ' and l2 {l2:g}; use l2=0 or update="dense"'),
    Rule(("lazy",), _BACKENDS, lambda c, o: not _updates_rows(o),
         'update="lazy" works with Adam, Adagrad, Ftrl and SGD without momentum, not with '
         '{optimizer}; choose one of them or update="dense"'),
    Rule(_DENSE_OR_LAZY, ("tensorflow",), lambda c, o: c.micro_batches > 1,
         "micro_batches is {micro_batches}, but Keras's optimizers square whole batches; use Adam "
         'with update="exact", or with backend="numba"'),
    Rule(_ANY, _CUPY, lambda c, o: workers.current() is not None,
         'backend="cupy" counts the ids of one GPU, but there are {workers} workers' + _PLAIN),
    Rule(("dense",), ("numba",), lambda c, o: is_plain_adagrad(o),
         'backend="{backend}" updates only rows of the batch with {optimizer}' + _PLAIN),
    Rule(_ANY, _ROWS, lambda c, o: is_plain_adagrad(o) and c.micro_batches > 1,
         'backend="{backend}" squares whole batches with {optimizer}' + _PLAIN),
    Rule(_ANY, _ROWS, lambda c, o: not is_plain_adam(o) and not is_plain_adagrad(o),
         'backend="{backend}" works with Adam and Adagrad, not with {optimizer}' + _PLAIN),
    Rule(_ANY, _ROWS, lambda c, o: c.of_clip.kernel_id is None,
         'backend="{backend}" does not work with the clip {clip!r}' + _PLAIN),
    Rule(_ANY, _CUPY, lambda c, o: isinstance(o, VaryingAdam),
         'backend="cupy" works with constant betas' + _PLAIN),
    Rule(_ANY, _CUPY, lambda c, o: c.micro_batches > 1,
         'backend="cupy" squares whole batches, and does not know micro_batches' + _PLAIN),
    Rule(("dense", "exact"), _CUPY,
         lambda c, o: is_plain_adam(o) and c.clips_absent_rows and c.cuts_l2_alone,
         'backend="cupy" needs 2 * l2 <= r with update={update!r}, or L2 alone would be clipped; '
         "l2 is {l2}, r is {r}" + _PLAIN),
    Rule(("dense", "exact"), _CUPY, lambda c, o: is_plain_adam(o) and c.clips_absent_rows,
         'backend="cupy" does not work with the clip {clip!r} and update={update!r}' + _PLAIN),
)  # fmt: skip
"""What does not work together; the first rule that refuses has the words."""

GROWING_RULES = (
    Rule(("dense", "exact"), _BACKENDS, lambda c, o: True,
         "update={update!r} also updates rows that are absent from the batch, so nobody could tell "
         'which rows changed; use update="lazy"'),
    Rule(_ANY, _BACKENDS, lambda c, o: not is_plain_adam(o) and not is_plain_adagrad(o),
         "the embedding optimizer must be Adam or Adagrad, not {optimizer}; use one of them"),
    Rule(_ANY, _BACKENDS, lambda c, o: c.of_clip.kernel_id is None,
         "clip={clip!r} does not take each row by itself; use one of {kernel_clips}"),
    Rule(_ANY, _CUPY, lambda c, o: True,
         'backend="cupy" needs tables in the memory of a GPU; build the model under '
         'tf.device("CPU") and use backend="numba"'),
)  # fmt: skip
"""What further does not work with tables that grow."""


def why_not(config: Config, optimizer: KerasOptimizer, rules: Sequence[Rule] = RULES) -> str | None:
    """Return why the settings do not work together, with the remedy; None if they do.

    >>> settings = Config(l2=0, update="exact", clip="none")
    >>> why_not(settings, tf.keras.optimizers.legacy.Adam())
    >>> why_not(settings, tf.keras.optimizers.legacy.Nadam()).partition("; ")[2]
    'use update="dense"'
    """
    asked = [x for x in rules if config.update in x.update and config.backend in x.backend]
    rule = next((each for each in asked if each.refuses(config, optimizer)), None)
    if rule is None:
        return None
    group = workers.current()
    return rule.words.format_map(
        config.as_dict()
        | {"optimizer": described(optimizer), "workers": group.size if group else 1}
        | {"exact_clips": ", ".join(choices.exact_clips())}
        | {"kernel_clips": ", ".join(choices.kernel_clips())}
    )


def _gpu_backend() -> str:
    """Return "cupy" if CuPy loads and the row operations build, else "tensorflow"."""
    if find_spec("cupy") is None:
        _log.warning("slower row updates on the GPU: CuPy is not installed")
        return "tensorflow"
    try:
        gpu_ops.require_cupy()
        gpu_ops.build()
    except InputError as error:
        _log.warning("slower row updates on the GPU: %s", error)
        return "tensorflow"
    return "cupy"


def is_plain_adam(optimizer: KerasOptimizer) -> bool:
    """Whether this is Keras's legacy Adam or a `LazyAdam`, without other gradient changes."""
    adam = tf.keras.optimizers.legacy.Adam
    plain = type(optimizer) in (adam, LazyAdam, VaryingAdam) and not optimizer.amsgrad
    return plain and not changes_gradients(optimizer)


_ADAGRADS = (tf.keras.optimizers.legacy.Adagrad, RowWiseAdagrad)


def is_plain_adagrad(optimizer: KerasOptimizer) -> bool:
    """Whether this is Keras's legacy Adagrad or the row-wise one, without other changes."""
    return type(optimizer) in _ADAGRADS and not changes_gradients(optimizer)


def row_slots(optimizer: KerasOptimizer) -> tuple[str, ...]:
    """Return the names of what an Adam or Adagrad keeps for each row of a table."""
    return ("accumulator",) if type(optimizer) in _ADAGRADS else ("m", "v")


def _leaves_absent_rows(optimizer: KerasOptimizer) -> bool:
    """Whether the optimizer does not change a row without a gradient: Adagrad and plain SGD."""
    sgd = type(optimizer) is tf.keras.optimizers.legacy.SGD
    return type(optimizer) in _ADAGRADS or (sgd and optimizer.get_config()["momentum"] == 0)


def _updates_rows(optimizer: KerasOptimizer) -> bool:
    """Whether the optimizer, as `row_optimizer` returns it, updates only rows of the batch."""
    known = isinstance(optimizer, LazyAdam) or _leaves_absent_rows(optimizer)
    return known or type(optimizer) is tf.keras.optimizers.legacy.Ftrl


def changes_gradients(optimizer: KerasOptimizer) -> list[str]:
    """List the arguments by which a Keras optimizer changes a whole gradient before its step."""
    names = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_transformers")
    return [name for name in names if getattr(optimizer, name, None)]


def refuse_aggregators(*optimizers: KerasOptimizer) -> None:
    """Refuse an optimizer with its own way to sum over replicas, which would not be called.

    Raises:
        InputError: one of them has a `gradient_aggregator`.
    """
    usual = tf.keras.optimizers.legacy.SGD().gradient_aggregator
    for optimizer in optimizers:
        if getattr(optimizer, "gradient_aggregator", usual) is not usual:
            raise InputError(
                f"{type(optimizer).__name__} has a gradient_aggregator, but CowClip sums over "
                "replicas itself: set gradient_aggregator of the CowClip instead"
            )


def described(optimizer: KerasOptimizer) -> str:
    """Return the name of an optimizer with its additional settings.

    >>> described(tf.keras.optimizers.legacy.Adam(amsgrad=True, clipnorm=1.0))
    'Adam with amsgrad, clipnorm'
    """
    more = ["amsgrad"] if getattr(optimizer, "amsgrad", False) else []
    more += changes_gradients(optimizer)
    return f"{type(optimizer).__name__}{' with ' if more else ''}{', '.join(more)}"


def row_optimizer(optimizer: KerasOptimizer) -> KerasOptimizer:
    """Return a `LazyAdam` in place of Adam, which would update all rows; any other as it is."""
    if type(optimizer) is not tf.keras.optimizers.legacy.Adam or optimizer.amsgrad:
        return optimizer
    config = optimizer.get_config()
    config.pop("amsgrad")
    config["learning_rate"] = optimizer._hyper["learning_rate"]
    return LazyAdam(**config, gradient_transformers=optimizer.gradient_transformers)
