"""Settings of one training run, and the hyper-parameters that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.checks import check_not_negative, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import ADAM_RULES, PRESETS, RULES, Hyperparameters, rebase, scale
from cowclip_merlin.system.json_dataclass import dataclass_from_json

_BY_RULE = ("batch_size", "micro_batches")
OVERRIDES = tuple(each.name for each in fields(Hyperparameters) if each.name not in _BY_RULE)
"""Hyper-parameters that a user may set at the base batch size."""

ADAMS = ("beta_1", "beta_2", "epsilon")
"""Hyper-parameters that only Adam has."""

_ADDED = (
    "backend",
    "optimizer",
    "initial_accumulator",
    "validation_fraction",
    "validation_split",
    "precision",
    "jit_compile",
    "early_stopping",
)
"""Settings that runs of earlier versions do not have."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run, as the command line or a script gives them.

    Attributes:
        model: one of `choices.MODELS`.
        batch_size: rows per step.
        base_batch_size: batch size at which the values of `preset` and `overrides` hold.
        preset: name of a preset; by default that of the data's kind if it has one, else "criteo".
        rule: scaling rule from the base batch to `batch_size`, one of `scaling.RULES`.
        clip: one of `choices.CLIPS`; by default "cowclip" with the rule of that name, "none"
            with any other.
        update: one of `choices.UPDATES`; see `CowClip`.
        backend: code that updates rows, one of `choices.BACKENDS`; see `CowClip`.
        optimizer: one of `choices.OPTIMIZERS`, for tables and dense weights. The rates of the
            presets are for Adam.
        initial_accumulator: initial value of Adagrad's accumulators; None: Keras's 0.1.
        epochs: passes over the training rows.
        seed: random seed of initial weights and row order.
        overrides: values at the base batch size that replace the preset's.
        embedding_dim: length of an embedding row.
        mlp: widths of the hidden layers.
        continuous: one of `choices.CONTINUOUS`; see the models.
        tables: one of `choices.RUN_TABLES`; see the models.
        validation_fraction: fraction of the train rows, in [0, 1), to hold out and score instead
            of the test rows; 0: score the test rows. The held-out rows do not depend on `seed`.
        validation_split: which rows to hold out, one of `choices.VALIDATION_SPLITS`: "random", or
            "last" for the last train rows, which suit data that `prepare` split by time.
        precision: precision of the hidden and cross layers, one of `choices.PRECISIONS`.
        jit_compile: whether XLA compiles the layers after the lookups.
        early_stopping: stop after so many epochs without a higher validation AUC, and keep the
            weights of the best epoch; None: train all epochs and keep the last weights.

    Raises:
        InputError: if a value is unknown or out of range.

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
    validation_split: str = "random"
    precision: str = "float32"
    jit_compile: bool = False
    early_stopping: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        one_of("model", self.model, choices.MODELS)
        one_of("rule", self.rule, RULES)
        one_of("update", self.update, choices.UPDATES)
        one_of("backend", self.backend, choices.BACKENDS)
        one_of("optimizer", self.optimizer, choices.OPTIMIZERS)
        one_of("continuous", self.continuous, choices.CONTINUOUS)
        self._check_tables()
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
        self._check_adam()
        self._check_validation()

    def _check_validation(self) -> None:
        one_of("validation_split", self.validation_split, choices.VALIDATION_SPLITS)
        if not 0 <= self.validation_fraction < 1:
            raise InputError(
                f"validation_fraction is {self.validation_fraction:g}; it must be at least 0 and "
                "below 1"
            )
        if self.validation_split != "random" and not self.validation_fraction:
            raise InputError(
                f"validation_split {self.validation_split!r} has no effect without a "
                "validation_fraction; give one, such as 0.1"
            )
        self._check_early_stopping()

    def _check_early_stopping(self) -> None:
        if self.early_stopping is None:
            return
        if self.early_stopping < 1:
            raise InputError(f"early_stopping is {self.early_stopping}; it must be at least 1")
        if not self.validation_fraction:
            raise InputError(
                f"early_stopping is {self.early_stopping}, but validation_fraction is 0 and test "
                "rows select no epoch; also set validation_fraction, such as 0.1"
            )

    def _check_tables(self) -> None:
        if self.tables == "growing":
            raise InputError(
                "tables 'growing' is for online training, and a run on a prepared folder has fixed "
                f"vocabularies; choose one of {', '.join(choices.RUN_TABLES)}"
            )
        one_of("tables", self.tables, choices.RUN_TABLES)
        clips = choices.kernel_clips()
        if self.tables == "sharded" and self.effective_clip not in clips:
            raise InputError(
                f"the clip {self.effective_clip!r} needs norms over the rows of all workers, but "
                f"tables 'sharded' gives each worker a part; choose one of {', '.join(clips)}"
            )

    def _check_accumulator(self) -> None:
        start = self.initial_accumulator
        if start is None:
            return
        if self.optimizer != "adagrad":
            raise InputError(
                f"initial_accumulator is for Adagrad, but the optimizer is {self.optimizer!r}; "
                'use "adagrad", or remove initial_accumulator'
            )
        check_not_negative({"initial_accumulator": start})

    def _check_adam(self) -> None:
        if self.optimizer == "adam":
            return
        if self.rule in ADAM_RULES:
            raise InputError(
                f"rule {self.rule!r} scales Adam's betas, but the optimizer is "
                f"{self.optimizer!r}; use 'sqrt_star', which has the same rates and L2"
            )
        for name in set(ADAMS) & set(self.overrides):
            raise InputError(
                f"{name} is for Adam, but the optimizer is {self.optimizer!r}; remove {name}"
            )

    @property
    def scored_split(self) -> str:
        """The split that the run scores: "test" or "validation"."""
        return "validation" if self.validation_fraction else "test"

    @property
    def effective_clip(self) -> str:
        """The clip that the run uses: `clip`, or the default of its rule."""
        return self.clip or ("cowclip" if self.rule == "cowclip" else "none")

    def unused_overrides(self) -> dict[str, tuple[str, ...]]:
        """Map each override that the run's clip does not use to the clips that do.

        >>> given = RunSettings(model="dcn", batch_size=8, rule="none", overrides={"r": 1.0})
        >>> given.unused_overrides()
        {'r': ('cowclip', 'adaptive_field')}
        """
        used = choices.CLIPS[self.effective_clip].settings
        names = [each.name for each in fields(choices.ClipSettings) if each.name not in used]
        return {name: choices.clips_using(name) for name in names if name in self.overrides}

    def hyperparameters(self, kind: str) -> Hyperparameters:
        """Return the scaled values for data of this kind ("criteo", "avazu", "table")."""
        name = self.preset or (kind if kind in PRESETS else "criteo")
        preset = rebase(name, batch_size=self.base_batch_size, values=self.overrides)
        return scale(preset, to=self.batch_size, rule=self.rule)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"overrides": dict(self.overrides), "mlp": list(self.mlp)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        """Build settings from the values that `as_dict` returned.

        Raises:
            TypeError: if a value is missing or has the wrong type.
            InputError: if a value is unknown or out of range.
        """
        return dataclass_from_json(cls, values, added=_ADDED)
