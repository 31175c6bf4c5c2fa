"""Scale hyper-parameters with the batch size, from the paper's presets or other values.

Source: Zheng et al., arXiv 2204.06240, section 3 (the rules), Algorithm 1 and Tables 8, 9
(the presets). Where a misprint of Table 9 differs from the authors' commands, the presets follow
the commands. The rule `sde` is the square root rule of Malladi et al., arXiv 2205.10287, and for
Adagrad a rule of our own; docs/method.md explains both.

>>> scale("criteo", to=128 * 1024).l2
0.00128
>>> scale("avazu", to=8 * 1024).zeta
0.0001
>>> at = scale("criteo", to=8 * 1024, rule="sde")
>>> round(at.embedding_lr, 6), at.beta_1, round(at.beta_2, 6)
(0.000283, 0.7, 0.992)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from cowclip_merlin import choices
from cowclip_merlin.checks import check_whole, one_of
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option

K = 1024

BETA_1_FLOOR = 0.7
"""The rule `sde` does not lower beta_1 below this value; docs/method.md says how it was chosen."""

_MOST_BETA = 1 - 1e-6  # float32 holds 1 - beta of a larger one badly


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(Settings):
    """Hyper-parameters that scaling rules change, and related ones.

    Raises:
        InputError: if a value is out of range.
    """

    batch_size: int = option(K, "rows per step, over all replicas", at_least=1)
    embedding_lr: float = option(1e-4, "learning rate of the embedding tables", at_least=0)
    dense_lr: float = option(1e-4, "learning rate of the other weights", at_least=0)
    l2: float = option(1e-5, "L2 regularization of the embedding tables", at_least=0)
    r: float = option(RowSettings.r, "clip threshold relative to a row's norm", at_least=0)
    zeta: float = option(
        RowSettings.zeta, "lower bound of a row's norm, per coordinate", at_least=0
    )
    init_std: float = option(1e-2, "standard deviation of the tables' initial values", at_least=0)
    warmup_epochs: float | None = option(
        None,
        "epochs over which the dense learning rate rises from 0",
        shown="1 with the rule cowclip, else 0",
        at_least=0,
    )
    clip: str | None = option(
        None,
        "what limits gradients: {choices}",
        shown="cowclip with the rule cowclip, else none",
        choices=lambda: choices.CLIPS,
    )
    bound: float = option(
        RowSettings.bound, "threshold of the clips global, field and column", at_least=0
    )
    lambda_rel: float = option(
        RowSettings.lambda_rel,
        "clippy: largest change of a weight, relative to the weight",
        at_least=0,
    )
    lambda_abs: float = option(
        RowSettings.lambda_abs, "clippy: constant that is added to this limit", at_least=0
    )
    beta_1: float = option(
        RowSettings.beta_1, "decay of Adam's first moments per step", at_least=0, at_most=_MOST_BETA
    )
    beta_2: float = option(
        RowSettings.beta_2,
        "decay of Adam's second moments per step",
        at_least=0,
        at_most=_MOST_BETA,
    )
    epsilon: float = option(
        RowSettings.epsilon, "constant in the denominator of Adam and Adagrad", above=0
    )
    optimizer: str = option("adam", "{choices}", choices=lambda: choices.OPTIMIZERS)
    initial_accumulator: float = option(1e-7, "initial value of Adagrad's accumulators", at_least=0)
    micro_batches: int = option(
        1,
        "parts of a batch whose squared gradients the second moments of rows take; see CowClip",
        at_least=1,
    )

    @property
    def of_rows(self) -> dict[str, float]:
        """L2, the thresholds of clips and micro-batches, by the names of `RowSettings`."""
        names = (*choices.THRESHOLDS, "l2", "micro_batches")
        return {name: getattr(self, name) for name in names}

    @property
    def optimizer_words(self) -> str:
        """The optimizer with its own hyper-parameters, for logs."""
        own = f"initial accumulator {self.initial_accumulator:.3g}"
        if self.optimizer == "adam":
            own = f"betas {self.beta_1:.6g}, {self.beta_2:.6g}"
        return f"{self.optimizer} ({own}, epsilon {self.epsilon:.3g})"


NOT_SCALED = ("init_std", "warmup_epochs", "lambda_rel", "lambda_abs")
"""Hyper-parameters that no rule changes with the batch size."""


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """Factors by which a rule multiplies the hyper-parameters.

    Every rule multiplies constant clip bounds by sqrt(s).

    Attributes:
        embedding_lr: factor of the embedding rate.
        dense_lr: factor of the dense rate.
        l2: factor of L2.
        forgetting: factor of 1 - beta_1 and 1 - beta_2, within the limits of `scale`.
        epsilon: factor of epsilon.
        initial_accumulator: factor of Adagrad's initial accumulators.
        clip: factor of r and zeta.
        micro_batches: whether second moments of rows keep the squares of the base batch.
    """

    embedding_lr: float
    dense_lr: float
    l2: float
    forgetting: float = 1.0
    epsilon: float = 1.0
    initial_accumulator: float = 1.0
    clip: float = 1.0
    micro_batches: bool = False


def _sde(s: float, *, micro_batches: bool = False) -> Multipliers:
    return Multipliers(
        embedding_lr=math.sqrt(s),
        dense_lr=math.sqrt(s),
        l2=1,
        forgetting=s,
        epsilon=1 / math.sqrt(s),
        clip=1 / s,
        micro_batches=micro_batches,
    )


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
        "sde": _sde,
        "invariant": lambda s: _sde(s, micro_batches=True),
    }
)
"""Scaling rules by name: the factors for a batch `s` times the base batch."""

ADAM_RULES = ("sde", "invariant")
"""Rules that scale Adam's betas and epsilon, too."""


def multipliers(rule: str, s: float, *, optimizer: str = "adam") -> Multipliers:
    """Return the factors of a rule for a batch `s` times the base batch.

    Raises:
        InputError: if the rule is unknown, or is not for this optimizer.

    >>> multipliers("sde", 8, optimizer="adagrad").initial_accumulator
    0.015625
    """
    one_of("rule", rule, RULES)
    if optimizer == "adam" or rule not in ADAM_RULES:
        return RULES[rule](s)
    if rule != "sde":
        raise InputError(
            f"rule {rule!r} changes Adam's second moments, but the optimizer is {optimizer!r}; "
            "use 'sde'"
        )
    return Multipliers(
        embedding_lr=1,
        dense_lr=1,
        l2=1,
        epsilon=1 / s,
        initial_accumulator=1 / (s * s),
        clip=1 / s,
    )


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
            cowclip=Hyperparameters(dense_lr=8e-4, warmup_epochs=1.0),
            baseline=_BASELINE,
            tuned=MappingProxyType({}),
        ),
        "avazu": Preset(
            cowclip=Hyperparameters(dense_lr=1e-4, r=10.0, zeta=1e-3, warmup_epochs=1.0),
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
    source: str | Preset | Hyperparameters, *, to: int, rule: str | None = None
) -> Hyperparameters:
    """Scale hyper-parameters to batch size `to`.

    Where `source` does not say a warm-up or a clip, `cowclip` warms up for one epoch and clips,
    and the other rules do neither. What it says stays: the warm-up counts epochs, and the
    initialization is that of the model. `sde` and `invariant` keep these limits:

    - beta_1 is at least `BETA_1_FLOOR`, or its base value if that is lower.
    - beta_2 is at least beta_1 ** 2, or its base value if that is lower. Otherwise the step of an
      absent row would grow while its moments decay. So a very large `to` (500 times the base with
      the usual betas) no longer keeps the memory of Adam, and 1 - beta_2 cannot exceed 1.
    - For a smaller batch, both betas grow, up to 1 - 1e-6.

    With these limits a step back does not undo a step, so scale from the base values each time.

    For hyper-parameters with the optimizer Adagrad, `sde` keeps the rates. It divides the initial
    accumulator by s^2, and epsilon, r and zeta by s.

    Args:
        source: name of a preset, a preset, or hyper-parameters at their own batch size.
        to: batch size in rows.
        rule: one of `RULES`; by default the paper's "cowclip" for its presets, else "sde".

    Raises:
        InputError: if the preset or the rule is unknown, the rule is not for the optimizer, or `to`
            is not positive or too large.

    >>> base = Hyperparameters(batch_size=512, dense_lr=4e-4, l2=1e-4)
    >>> big = scale(base, to=8192, rule="cowclip")
    >>> big.embedding_lr, big.dense_lr, big.l2, big.warmup_epochs, big.clip
    (0.0001, 0.0016, 0.0016, 1.0, 'cowclip')
    """
    rule = rule or ("sde" if isinstance(source, Hyperparameters) else "cowclip")
    one_of("rule", rule, RULES)
    check_whole({"batch size": to})
    if to < 1:
        raise InputError(f"batch size is {to}; it must be at least 1")
    if isinstance(source, Hyperparameters):
        return _multiply(source, to=to, rule=rule)
    preset = _preset(source) if isinstance(source, str) else source
    if not isinstance(preset, Preset):
        check_hyperparameters(source)
    if rule != "cowclip":
        return _multiply(preset.baseline, to=to, rule=rule)
    tuned = {
        k: v
        for since, values in sorted(preset.tuned.items())
        if since <= to
        for k, v in values.items()
    }
    return replace(_multiply(preset.cowclip, to=to, rule=rule), **tuned)


def check_hyperparameters(values: object) -> None:
    """Refuse what `CowClip.of` cannot take, such as a batch size or the name of a preset.

    Raises:
        InputError: it is no `Hyperparameters`.
    """
    if not isinstance(values, Hyperparameters):
        raise InputError(
            f"{values!r:.60} is no Hyperparameters; give what cowclip_merlin.scale(..., to=BATCH) "
            "returns"
        )


def clip_of(rule: str) -> str:
    """The clip that goes with a rule where the user names none."""
    return "cowclip" if rule == "cowclip" else "none"


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
        factors = multipliers(rule, to / base.batch_size, optimizer=base.optimizer)
    except OverflowError:
        raise InputError(f"batch size {to} is too large; use a smaller one") from None
    beta_1, beta_2 = _betas(base, factors.forgetting)
    warmup = float(rule == "cowclip") if base.warmup_epochs is None else base.warmup_epochs
    return replace(
        base,
        warmup_epochs=warmup,
        clip=base.clip or clip_of(rule),
        batch_size=to,
        embedding_lr=base.embedding_lr * factors.embedding_lr,
        dense_lr=base.dense_lr * factors.dense_lr,
        l2=base.l2 * factors.l2,
        r=base.r * factors.clip,
        zeta=base.zeta * factors.clip,
        bound=base.bound * math.sqrt(to / base.batch_size),
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=base.epsilon * factors.epsilon,
        initial_accumulator=base.initial_accumulator * factors.initial_accumulator,
        micro_batches=_parts(base, to) if factors.micro_batches else base.micro_batches,
    )


def _parts(base: Hyperparameters, to: int) -> int:
    """Return how many micro-batches of the base's size a batch has, at least 1."""
    return max(1, round(base.micro_batches * to / base.batch_size))


def _betas(base: Hyperparameters, factor: float) -> tuple[float, float]:
    """Multiply 1 - beta_1 and 1 - beta_2, within the limits of `scale`."""
    beta_1 = _beta(base.beta_1, factor, least=BETA_1_FLOOR)
    return beta_1, _beta(base.beta_2, factor, least=beta_1 * beta_1)


def _beta(base: float, factor: float, *, least: float) -> float:
    wanted = base - (factor - 1) * (1 - base)  # bit-equal to the base with factor 1
    return min(max(wanted, min(least, base)), _MOST_BETA)
