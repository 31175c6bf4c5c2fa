"""What one training run is: its settings, checked, and the hyper-parameters they end in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.checks import check_not_negative, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import PRESETS, RULES, Hyperparameters, rebase, scale

OVERRIDES = tuple(each.name for each in fields(Hyperparameters) if each.name != "batch_size")
"""Hyper-parameters that a run may set at its base batch size."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run, as the command line or a script gives them.

    Attributes:
        model: one of `choices.MODELS`.
        batch_size: rows per step.
        base_batch_size: batch size at which the preset's and the overriding values hold.
        preset: name of a preset; by default the kind of the data if it has one, else "criteo".
        rule: scaling rule from the base batch to `batch_size`.
        clip: one of `choices.CLIPS`; by default "cowclip" under the rule of that name, "none"
            under any other.
        update: one of `choices.UPDATES`; see `CowClip`.
        backend: what updates rows, one of `choices.BACKENDS`; see `CowClip`.
        optimizer: one of `choices.OPTIMIZERS`, for tables and dense weights alike. The rates of
            the presets are those of Adam.
        initial_accumulator: where Adagrad's sums of squares start; None: at Keras's 0.1.
        epochs: passes over the training rows.
        seed: of initialisation and row order.
        overrides: values at the base batch size that replace the preset's.
        embedding_dim: length of an embedding row.
        mlp: widths of the hidden layers.
        continuous: one of `choices.CONTINUOUS`; see the models.
        tables: one of `choices.TABLES`; see the models.
        validation_fraction: share of the train rows, in [0, 1), that is not trained on and that
            the metrics are of, instead of the test rows; 0: none, the metrics are of the test
            rows. Which rows these are does not depend on `seed`.
        precision: in which the hidden and cross layers compute, one of `choices.PRECISIONS`.
        jit_compile: whether XLA compiles the layers after the lookups.

    Raises:
        InputError: a value is unknown or out of range.

    >>> RunSettings(model="deepfm", batch_size=4096).hyperparameters("criteo").l2
    4e-05
    """

    model: str
    batch_size: int
    base_batch_size: int = 1024
    preset: str | None = None
    rule: str = "cowclip"
    clip: str | None = None
    update: str = "dense"
    backend: str = "auto"
    epochs: int = 10
    seed: int = 1234
    overrides: Mapping[str, float] = field(default_factory=dict)
    embedding_dim: int = 10
    mlp: tuple[int, ...] = (400, 400, 400)
    continuous: str = "deep"
    tables: str = "fused"
    optimizer: str = "adam"
    initial_accumulator: float | None = None
    validation_fraction: float = 0.0
    precision: str = "float32"
    jit_compile: bool = False

    def __post_init__(self) -> None:
        """Refuse what could only fail later."""
        one_of("model", self.model, choices.MODELS)
        one_of("rule", self.rule, RULES)
        one_of("update", self.update, choices.UPDATES)
        one_of("backend", self.backend, choices.BACKENDS)
        one_of("optimizer", self.optimizer, choices.OPTIMIZERS)
        one_of("continuous", self.continuous, choices.CONTINUOUS)
        one_of("tables", self.tables, choices.TABLES)
        one_of("precision", self.precision, choices.PRECISIONS)
        if self.preset is not None:
            one_of("preset", self.preset, PRESETS)
        if self.clip is not None:
            one_of("clip", self.clip, choices.CLIPS)
        for name in ("batch_size", "base_batch_size", "epochs", "embedding_dim"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed is {self.seed}; it must be at least 0 and below 2**32")
        if any(width < 1 for width in self.mlp):
            raise InputError(f"mlp is {self.mlp}; every width must be at least 1")
        for name in self.overrides:
            one_of("override", name, OVERRIDES)
        self._check_accumulator()
        if not 0 <= self.validation_fraction < 1:
            raise InputError(
                f"validation_fraction is {self.validation_fraction:g}; it must be at least 0 and "
                "below 1"
            )

    def _check_accumulator(self) -> None:
        start = self.initial_accumulator
        if start is None:
            return
        if self.optimizer != "adagrad":
            raise InputError(
                f"initial_accumulator is Adagrad's, the optimizer is {self.optimizer!r}; use "
                '"adagrad" or leave it away'
            )
        check_not_negative({"initial_accumulator": start})

    @property
    def scored_split(self) -> str:
        """Rows that the metrics of a run are of: "test" or "validation"."""
        return "validation" if self.validation_fraction else "test"

    @property
    def effective_clip(self) -> str:
        """The clip in force."""
        return self.clip or ("cowclip" if self.rule == "cowclip" else "none")

    def hyperparameters(self, kind: str) -> Hyperparameters:
        """The values this run trains with on data of this kind ("criteo", "avazu", "table")."""
        name = self.preset or (kind if kind in PRESETS else "criteo")
        preset = rebase(name, batch_size=self.base_batch_size, values=self.overrides)
        return scale(preset, to=self.batch_size, rule=self.rule)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"overrides": dict(self.overrides), "mlp": list(self.mlp)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        """The inverse of `as_dict`."""
        return cls(**{**values, "mlp": tuple(values["mlp"])})
