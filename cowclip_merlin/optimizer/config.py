"""Check the settings of CowClip and resolve "auto" and other defaults."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec

from cowclip_merlin import choices, compat, workers
from cowclip_merlin.checks import check_at_least_one, check_not_negative, one_of
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.row_optimizers import LazyAdam, RowWiseAdagrad, VaryingAdam
from cowclip_merlin.optimizer.row_updates import gpu_ops
from cowclip_merlin.types import JsonObject, KerasOptimizer

tf = compat.tensorflow()
_log = logging.getLogger("cowclip_merlin")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a `CowClip`'s steps; `resolve` makes them from the arguments of the same name.

    Attributes:
        clip_settings: thresholds of the clip.
        l2: the penalty is `l2 * ||w||^2`.
        update: "dense", "exact" or "lazy".
        clip: one of `choices.CLIPS`.
        backend: "tensorflow", "numba" or "cupy"; before `resolve` also "auto".
        micro_batches: equal parts of a batch whose squared gradients the second moments take.
    """

    clip_settings: ClipSettings
    l2: float
    update: str
    clip: str
    backend: str
    micro_batches: int = 1

    @property
    def by_keras(self) -> bool:
        """Whether the Keras optimizer makes the steps, instead of row kernels."""
        return self.update != "exact" and self.backend == "tensorflow"

    def as_dict(self) -> JsonObject:
        """Return plain values by the names of the arguments of `CowClip`."""
        flat = asdict(self)
        return flat.pop("clip_settings") | flat


def resolve(config: Config, optimizer: KerasOptimizer) -> Config:
    """Check the settings and resolve update and backend.

    Args:
        config: the arguments of `CowClip`.
        optimizer: the embedding optimizer.

    Raises:
        InputError: if a value is out of range or unknown, or the optimizer or the machine does
            not support it.
    """
    config = replace(config, update=resolve_update(check(config), optimizer))
    return check(replace(config, backend=choose_backend(config, optimizer)))


def check(config: Config) -> Config:
    """Check the settings and return them.

    Raises:
        InputError: if a value is out of range or unknown.
    """
    check_not_negative({"l2": config.l2})
    one_of("update", config.update, choices.UPDATES)
    one_of("clip", config.clip, choices.CLIPS)
    one_of("backend", config.backend, choices.BACKENDS)
    check_at_least_one({"micro_batches": config.micro_batches})
    if config.micro_batches > 1 and config.by_keras:
        raise InputError(
            f"micro_batches is {config.micro_batches}, but Keras's optimizers square whole "
            'batches; use Adam with update="exact", or with backend="numba"'
        )
    if config.update == "exact":
        _check_exact(config)
    return config


def _check_exact(config: Config) -> None:
    if not choices.CLIPS[config.clip].postponable:
        raise InputError(
            f'update="exact" works with the clips {", ".join(choices.exact_clips())}: '
            f'{config.clip!r} clips absent rows by the norms of other rows; use update="dense"'
        )
    if choices.CLIPS[config.clip].kernel_id is None and clips_absent_rows(config):
        raise InputError(
            f'update="exact" needs 2 * l2 <= r, or L2 alone would be clipped; l2 is {config.l2}, '
            f'r is {config.clip_settings.r}: use update="dense"'
        )


def clips_absent_rows(config: Config) -> bool:
    """Whether the clip may scale the L2 gradient of absent rows."""
    return choices.CLIPS[config.clip].clips_absent_rows(config.l2, config.clip_settings)


def resolve_update(config: Config, optimizer: KerasOptimizer) -> str:
    """Return the update of the steps: "exact" becomes "lazy" if absent rows do not change.

    Without L2, an absent row has no gradient, and Adagrad and plain SGD do not change it.

    Args:
        config: the arguments of `CowClip`.
        optimizer: the embedding optimizer.

    Raises:
        InputError: if `update="exact"` cannot postpone the steps of the optimizer.
    """
    if config.update != "exact" or is_plain_adam(optimizer):
        return config.update
    still = type(optimizer) in _ADAGRADS or _is_plain_sgd(optimizer)
    if still and config.l2 == 0:
        return "lazy"
    reason = f'and l2 {config.l2:g}; use l2=0 or update="dense"' if still else 'use update="dense"'
    raise InputError(
        f'update="exact" works with Adam, and without L2 with Adagrad and SGD without momentum, '
        f"not with {described(optimizer)}{' ' if still else '; '}{reason}"
    )


def choose_backend(config: Config, optimizer: KerasOptimizer) -> str:
    """Choose the backend: "tensorflow", "numba" or "cupy".

    Args:
        config: the arguments of `CowClip`, with the resolved update.
        optimizer: the embedding optimizer.

    Raises:
        InputError: if the requested backend does not support the settings, or is not installed.
    """
    reason = _why_no_kernels(config, optimizer)
    group = workers.current()
    if group and config.backend == "cupy":
        raise InputError(
            f'backend="cupy" counts the ids of one GPU, but there are {group.size} workers; use '
            'backend="tensorflow"'
        )
    if config.backend == "auto":
        if reason or (config.update == "dense" and config.micro_batches == 1):
            return "tensorflow"
        if not tf.config.list_logical_devices("GPU"):
            return "numba"
        return "tensorflow" if group or _why_no_cupy(config, optimizer) else _gpu_backend()
    if config.backend == "cupy":
        reason = reason or _why_no_cupy(config, optimizer)
    if config.backend != "tensorflow" and reason:
        raise InputError(f'backend="{config.backend}" {reason}; use backend="tensorflow"')
    return config.backend


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


def _why_no_kernels(config: Config, optimizer: KerasOptimizer) -> str | None:
    if is_plain_adagrad(optimizer):
        if config.update == "dense":
            return f"updates only rows of the batch with {described(optimizer)}"
        if config.micro_batches > 1:
            return f"squares whole batches with {described(optimizer)}"
    elif not is_plain_adam(optimizer):
        return f"works with Adam and Adagrad, not with {described(optimizer)}"
    if choices.CLIPS[config.clip].kernel_id is None:
        return f"does not work with the clip {config.clip!r}"
    return None


def _why_no_cupy(config: Config, optimizer: KerasOptimizer) -> str | None:
    """Return why the CUDA kernels, which do not clip absent rows, do not support the settings."""
    if not is_plain_adam(optimizer):
        return f"works with Adam, not with {described(optimizer)}"
    if isinstance(optimizer, VaryingAdam):
        return "works with constant betas"
    if config.micro_batches > 1:
        return "squares whole batches, and does not know micro_batches"
    if config.update == "lazy" or not clips_absent_rows(config):
        return None
    if choices.CLIPS[config.clip].cuts_l2_alone(config.l2, config.clip_settings):
        return (
            f"needs 2 * l2 <= r with update={config.update!r}, or L2 alone would be clipped; "
            f"l2 is {config.l2}, r is {config.clip_settings.r}"
        )
    return f"does not work with the clip {config.clip!r} and update={config.update!r}"


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


def _is_plain_sgd(optimizer: KerasOptimizer) -> bool:
    sgd = tf.keras.optimizers.legacy.SGD
    return type(optimizer) is sgd and optimizer.get_config()["momentum"] == 0


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
    """Return an optimizer of the same type that updates only the rows of a sparse gradient.

    Raises:
        InputError: if the optimizer has no such variant.
    """
    legacy = tf.keras.optimizers.legacy
    if isinstance(optimizer, LazyAdam):
        return optimizer
    if type(optimizer) is legacy.Adam and not optimizer.amsgrad:
        config = optimizer.get_config()
        config.pop("amsgrad")
        config["learning_rate"] = optimizer._hyper["learning_rate"]
        return LazyAdam(**config, gradient_transformers=optimizer.gradient_transformers)
    if _is_plain_sgd(optimizer) or type(optimizer) in (*_ADAGRADS, legacy.Ftrl):
        return optimizer
    raise InputError(
        f'update="lazy" works with Adam, Adagrad, Ftrl and SGD without momentum, '
        f'not with {described(optimizer)}; choose one of them or update="dense"'
    )
