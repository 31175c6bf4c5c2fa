"""Scale hyper-parameters with the batch size, from the paper's presets or other values.

Source: Zheng et al., arXiv 2204.06240, section 3 (the rules), Algorithm 1 and Tables 8, 9
(the presets). Where a misprint of Table 9 differs from the authors' commands, the presets follow
the commands.

>>> scale("criteo", to=128 * 1024).l2
0.00128
>>> scale("avazu", to=8 * 1024).zeta
0.0001
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from cowclip_merlin.checks import check_not_negative, one_of
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.errors import InputError

K = 1024


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Hyper-parameters that scaling rules change, and related ones.

    Attributes:
        batch_size: rows per step, over all replicas.
        embedding_lr: learning rate of the embedding tables.
        dense_lr: learning rate of every other weight, after warm-up.
        l2: the penalty is `l2 * ||w||^2` for each embedding row `w`.
        r: clip threshold relative to the norm of the row (equation 6).
        zeta: lower bound of the row norm, per coordinate.
        init_std: standard deviation of the embeddings' normal initialization.
        warmup_epochs: epochs over which `dense_lr` rises linearly from 0.
        bound: constant threshold of the non-adaptive clips.
        lambda_rel: bound on the change of a coordinate, relative to the coordinate.
        lambda_abs: constant added to that bound.

    Raises:
        InputError: if a value is negative or not finite, or the batch size is not positive.
    """

    batch_size: int = K
    embedding_lr: float = 1e-4
    dense_lr: float = 1e-4
    l2: float = 1e-5
    r: float = ClipSettings.r
    zeta: float = ClipSettings.zeta
    init_std: float = 1e-2
    warmup_epochs: float = 1.0
    bound: float = ClipSettings.bound
    lambda_rel: float = ClipSettings.lambda_rel
    lambda_abs: float = ClipSettings.lambda_abs

    def __post_init__(self) -> None:
        """Check the values."""
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}; it must be at least 1")
        check_not_negative(vars(self))

    @property
    def clip_settings(self) -> ClipSettings:
        """The hyper-parameters of the clip."""
        return ClipSettings.from_attributes(self)


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """Factors by which a rule multiplies the learning rates and L2.

    Every rule multiplies constant clip bounds by sqrt(s).
    """

    embedding_lr: float
    dense_lr: float
    l2: float


RULES: Mapping[str, Callable[[float], Multipliers]] = MappingProxyType(
    {
        "none": lambda s: Multipliers(embedding_lr=1, dense_lr=1, l2=1),
        "sqrt": lambda s: Multipliers(
            embedding_lr=math.sqrt(s), dense_lr=math.sqrt(s), l2=math.sqrt(s)
        ),
        "sqrt_star": lambda s: Multipliers(embedding_lr=math.sqrt(s), dense_lr=math.sqrt(s), l2=1),
        "linear": lambda s: Multipliers(embedding_lr=s, dense_lr=s, l2=1),
        "n2_lambda": lambda s: Multipliers(embedding_lr=1, dense_lr=math.sqrt(s), l2=s * s),
        "cowclip": lambda s: Multipliers(embedding_lr=1, dense_lr=math.sqrt(s), l2=s),
    }
)
"""Scaling rules by name: the factors for a batch `s` times the base batch."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Hyper-parameters of one data set at the base batch of 1024.

    Attributes:
        cowclip: base values of the `cowclip` rule.
        baseline: base values of every other rule, for training without the clip.
        tuned: batch size -> values that replace the scaled ones from this batch size on, with
            the `cowclip` rule.
    """

    cowclip: Hyperparameters
    baseline: Hyperparameters
    tuned: Mapping[int, Mapping[str, float]]


_BASELINE = Hyperparameters(init_std=1e-4, warmup_epochs=0.0)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "criteo": Preset(
            cowclip=Hyperparameters(dense_lr=8e-4),
            baseline=_BASELINE,
            tuned=MappingProxyType({}),
        ),
        "avazu": Preset(
            cowclip=Hyperparameters(dense_lr=1e-4, r=10.0, zeta=1e-3),
            baseline=_BASELINE,
            tuned=MappingProxyType(
                {
                    4 * K: {"r": 1.0, "zeta": 1e-4},
                    128 * K: {"dense_lr": 16e-4, "l2": 96e-5},
                }
            ),
        ),
    }
)
"""The paper's settings for its two data sets (authors' command lines, Table 9)."""


def scale(
    source: str | Preset | Hyperparameters, *, to: int, rule: str = "cowclip"
) -> Hyperparameters:
    """Scale hyper-parameters to batch size `to`.

    Args:
        source: name of a preset, a preset, or hyper-parameters at their own batch size.
        to: batch size in rows.
        rule: one of `RULES`.

    Raises:
        InputError: if the preset or the rule is unknown, or `to` is not positive.

    >>> base = Hyperparameters(batch_size=512, dense_lr=4e-4, l2=1e-4)
    >>> big = scale(base, to=8192, rule="cowclip")
    >>> big.embedding_lr, big.dense_lr, big.l2
    (0.0001, 0.0016, 0.0016)
    """
    one_of("rule", rule, RULES)
    if to < 1:
        raise InputError(f"batch size is {to}; it must be at least 1")
    if isinstance(source, Hyperparameters):
        return _multiply(source, to=to, rule=rule)
    preset = _preset(source) if isinstance(source, str) else source
    if rule != "cowclip":
        return _multiply(preset.baseline, to=to, rule=rule)
    tuned = {
        k: v
        for since, values in sorted(preset.tuned.items())
        if since <= to
        for k, v in values.items()
    }
    return replace(_multiply(preset.cowclip, to=to, rule=rule), **tuned)


def rebase(preset: str | Preset, *, batch_size: int, values: Mapping[str, float]) -> Preset:
    """Return a preset with another base batch size, and with some base values replaced.

    The result keeps the preset's tuned values only if the base batch size does not change, and
    only those that `values` does not replace.

    Raises:
        InputError: if the preset is unknown, or a value is out of range.

    >>> scale(rebase("avazu", batch_size=512, values={"l2": 1e-4}), to=1024).l2
    0.0002
    """
    preset = _preset(preset) if isinstance(preset, str) else preset
    same_base = batch_size == preset.cowclip.batch_size
    tuned = {
        size: {k: v for k, v in tuned_values.items() if k not in values}
        for size, tuned_values in preset.tuned.items()
    }
    return Preset(
        cowclip=replace(preset.cowclip, batch_size=batch_size, **values),
        baseline=replace(preset.baseline, batch_size=batch_size, **values),
        tuned=tuned if same_base else {},
    )


def _preset(name: str) -> Preset:
    one_of("preset", name, PRESETS)
    return PRESETS[name]


def _multiply(base: Hyperparameters, *, to: int, rule: str) -> Hyperparameters:
    try:
        factors = RULES[rule](to / base.batch_size)
    except OverflowError:
        raise InputError(f"batch size {to} is too large; use a smaller one") from None
    return replace(
        base,
        batch_size=to,
        embedding_lr=base.embedding_lr * factors.embedding_lr,
        dense_lr=base.dense_lr * factors.dense_lr,
        l2=base.l2 * factors.l2,
        bound=base.bound * math.sqrt(to / base.batch_size),
    )
