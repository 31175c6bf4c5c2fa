"""What an experiment is: its lines, their settings and what they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.values import parse_duration
from cowclip_merlin.scaling import PRESETS, RULES
from cowclip_merlin.settings import Settings, option, option_of
from cowclip_merlin.tables.layout import MOST_ADMIT
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.workflows.prepare_settings import KINDS as DATA

NAMED_MULTIPLIERS = {"largest": 1, "beyond": 2}
"""Name -> multiple of the largest batch."""

RUN_KINDS = ("runs", "curves", "time")
KINDS = (*RUN_KINDS, "sweep", "hyperparameters", "parameters", "frequencies", "gradients")


class Measure(NamedTuple):
    """What a table shows of results: an attribute times a factor."""

    attribute: str
    heading: str
    factor: float
    decimals: int

    def of(self, result: Any) -> float:
        """Return the number of a result."""
        return self.factor * getattr(result, self.attribute)


MEASURES: Mapping[str, Measure] = {
    "auc": Measure("auc", "AUC %", 100, 2),
    "log_loss": Measure("log_loss", "log loss", 1, 4),
    "minutes": Measure("seconds", "minutes of training", 1 / 60, 2),
}
RMSE = "rmse"
"""Measure of the tables of a label that is a number, in place of those above."""

OF_RUN = ("optimizer", "lr_schedule", "lr_factor", "lr_every", "lr_floor")
OF_RUN += ("early_stopping", "embedding_dim", "cross_layers", "activation", "dropout", "batch_norm")
OF_RUN += ("reset_embeddings",)
"""Attributes of a line that are those of `RunSettings`."""


def _by_name() -> Any:
    return field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExperimentLine(Settings):
    """Settings, and the batches to run them at: a row of a table, or a curve of a figure.

    A multiplier is a multiple of the base batch; "largest" stands for the largest batch of the
    data set, "beyond" for twice that. The group "cowclip" or "baseline" follows from rule and clip.
    Tuned values of another `group` win over `overrides`. Mappings of a line:

    - published: multiplier -> the paper's number
    - notes: multiplier -> note for readers about that number
    - overrides: name -> value at the base batch in place of those of sizing and preset
    - factors: name -> factor of the rate at the base batch
    """

    label: str = option(help="text of the row or the curve")
    multipliers: tuple[str | int, ...] = option(help="multiples of the base batch")
    published: Mapping[int | str, float] = _by_name()
    model: str = option("deepfm", "name of the architecture", choices=choices.MODELS)
    rule: str = option("cowclip", "scaling rule", choices=RULES)
    clip: str | None = option(None, "name of the clip", shown="the rule's", choices=choices.CLIPS)
    optimizer: str = option_of(RunSettings, "optimizer")
    lr_schedule: str = option_of(RunSettings, "lr_schedule")
    lr_factor: float = option_of(RunSettings, "lr_factor")
    lr_every: float = option_of(RunSettings, "lr_every")
    lr_floor: float | None = option_of(RunSettings, "lr_floor")
    early_stopping: int | None = option_of(RunSettings, "early_stopping")
    embedding_dim: int = option_of(RunSettings, "embedding_dim")
    cross_layers: int = option_of(RunSettings, "cross_layers")
    mlp: tuple[int, ...] = option((), "hidden widths", shown="the command's", at_least=1)
    activation: str = option_of(RunSettings, "activation")
    dropout: float = option_of(RunSettings, "dropout")
    batch_norm: bool = option_of(RunSettings, "batch_norm")
    reset_embeddings: bool = option_of(RunSettings, "reset_embeddings")
    update: str | None = option(None, "update", shown="the command's", choices=choices.UPDATES)
    epochs: int | None = option(None, "number of epochs", shown="the sizing's", at_least=1)
    overrides: Mapping[str, float] = _by_name()
    factors: Mapping[str, float] = _by_name()
    dense_rule: str | None = option(
        None, "linear: the dense rate grows with s, not with its root", choices=("linear",)
    )
    keep_top: int | None = option(None, "ids to keep per field, the most frequent", at_least=1)
    min_count: int | None = option(None, "keep ids that occur as often in training", at_least=1)
    notes: Mapping[int | str, str] = _by_name()
    group: str | None = option(None, "further group of tuned values")
    data: str | None = option(None, "kind of data that has the line", shown="all", choices=DATA)

    def __post_init__(self) -> None:
        """Check the values; the plan of the line says whether its rows fit it."""
        super().__post_init__()
        if not self.multipliers:
            raise InputError("multipliers is []; give a list like [1, 8]")
        for index, multiplier in enumerate(self.multipliers):
            number = type(multiplier) is int and multiplier >= 1  # a bool is an int, too
            if not number and multiplier not in list(NAMED_MULTIPLIERS):
                names = " or ".join(NAMED_MULTIPLIERS)
                raise InputError(
                    f"multipliers holds {multiplier!r}; use whole numbers from 1 on, or {names}"
                )
            if multiplier in self.multipliers[:index]:
                raise InputError(f"multipliers holds {multiplier!r} twice; give it once")
        for name in ("published", "notes"):
            for multiplier in getattr(self, name):
                if multiplier not in self.multipliers:
                    raise InputError(
                        f"{name} is for {multiplier!r}, which is not among the multipliers; add it "
                        "there, or remove it here"
                    )
        of_run = {name: getattr(self, name) for name in OF_RUN}
        RunSettings(model=self.model, batch_size=1, validation_fraction=0.1, **of_run)

    @property
    def chooses_epoch(self) -> bool:
        """Whether validation rows choose the epoch or the rates; the test rows only score."""
        return self.early_stopping is not None or self.lr_schedule == "plateau"

    @property
    def tuned_group(self) -> str:
        """Group whose tuned values apply to the line."""
        return self.group or self.base_group

    @property
    def base_group(self) -> str:
        """Group of the line's base rates: "cowclip" if its rule or clip is CowClip."""
        return "cowclip" if "cowclip" in (self.rule, self.clip) else "baseline"


NEVER = "never"
"""A serving copy that is never synced, or an id that never expires."""

PUBLISHED = ("auc", "gain")
"""Measures that a line may give published numbers for: AUC in %, gain in points."""


@dataclass(frozen=True, kw_only=True)
class ReplayLine(Settings):
    """A row of an experiment that replays a log; lines with equal rules share a replay.

    `published` maps a measure of `PUBLISHED` to the paper's number.
    """

    label: str = option(help="text of the row or the point")
    sync: str = option(help='event time between two syncs of the scored copy, as 1h, or "never"')
    admit: int | None = option(
        None, "occurrences that give an id a row", shown="features file", at_least=1
    )
    ttl: str | None = option(None, "event time until an unseen id goes", shown="features file")
    published: Mapping[str, float] = _by_name()
    note: str | None = option(None, "note for readers about the published number")

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        for name in ("sync", "ttl"):
            if getattr(self, name) not in (None, NEVER):
                try:
                    parse_duration(getattr(self, name), name)
                except InputError as error:
                    raise InputError(f"{error}, or never") from None
        if (self.admit or 1) > MOST_ADMIT:
            raise InputError(f"admit is {self.admit}; give 1 to {MOST_ADMIT}")
        for name, number in self.published.items():
            if name not in PUBLISHED:
                known = ", ".join(PUBLISHED)
                raise InputError(f"a name in published is {name!r}; choose one of {known}")
            if type(number) not in (int, float):  # a bool is an int, too
                raise InputError(f"published.{name} is {number!r}; give a number")


@dataclass(frozen=True, kw_only=True)
class CollisionLine(Settings):
    """A row of an experiment that hashes ids into buckets."""

    label: str = option(help="text of the row or the curve")
    load: float = option(help="distinct ids of a column per bucket; 0 for no hashing", at_least=0)
    epochs: int = option(10, "passes over the training rows", at_least=1)
    columns: tuple[str, ...] = option(
        (), "columns to hash; empty for all categorical ones", unique=True
    )


LOG_KINDS: Mapping[str, type[ReplayLine | CollisionLine]] = {
    "sync": ReplayLine,
    "rules": ReplayLine,
    "collisions": CollisionLine,
}
"""Kind of an experiment on a log -> class of its lines. "sync" compares sync intervals, "rules"
what the rows kept cost, "collisions" what shared rows cost."""


def _check_labels(lines: Sequence[ExperimentLine | ReplayLine | CollisionLine]) -> None:
    """Refuse duplicate labels, because tables and results identify lines by their labels."""
    first: dict[tuple[str, str | None], int] = {}
    for number, line in enumerate(lines, 1):
        key = line.label, getattr(line, "data", None)
        if first.setdefault(key, number) != number:
            raise InputError(
                f"lines[{number}].label is {line.label!r}, the same as "
                f"lines[{first[key]}].label; give each line its own label"
            )


@dataclass(frozen=True, kw_only=True)
class _Definition(Settings):
    """What all experiments have."""

    name: str = option(help="name of the file")
    title: str = option(help="title in one line")
    claim: str = option(help="the paper's claim, or the purpose of the experiment")
    caption: str = option("", "text below a figure")
    notes: tuple[str, ...] = option((), "text below the table")
    source: str = option("", "name of the user's file; empty for those of this package")

    @property
    def cli_name(self) -> str:
        """Its name on the command line."""
        return self.source or self.name


@dataclass(frozen=True, kw_only=True)
class Experiment(_Definition):
    """An experiment on prepared data.

    "runs" makes a table of trainings, "curves" and "time" draw some; a "sweep" scores the points of
    its grid on validation rows; other kinds have no such runs. For a sweep, `grid` maps a name to
    values at the base batch, and `grid_factors` to factors of the base value. `base_batch` maps
    each kind of data that it is for to its base batch; without it, any data have one by their rows.
    """

    kind: str = option("runs", "what it makes", choices=KINDS)
    lines: tuple[ExperimentLine, ...] = option((), "rows of the table, or curves of the figure")
    measure: str = option("auc", "the measure in a cell, a name of `MEASURES` or `RMSE`")
    corner: str = option("rule", "heading of the first column")
    preset: str = option("criteo", "preset of the rates", choices=PRESETS)
    base_batch: Mapping[str, int] = _by_name()
    epochs: int | None = option(None, "passes over the rows", shown="10", at_least=1)
    reference: tuple[str, int | str] | None = option(
        None, "label and multiplier of the cell that all cells are compared with"
    )
    grid: Mapping[str, tuple[float, ...]] = _by_name()
    grid_factors: Mapping[str, tuple[float, ...]] = _by_name()

    @property
    def has_own_widths(self) -> bool:
        """Whether each line says its hidden widths, so that the command's have no effect."""
        return bool(self.lines) and all(line.mlp for line in self.lines)

    def check(self) -> None:
        """Refuse what cannot run on any data."""
        _check_labels(self.lines)
        kind, lines, measure = self.kind, self.lines, self.measure
        if measure not in MEASURES:
            raise InputError(f"measure is {measure!r}; choose one of {', '.join(MEASURES)}")
        if kind in (*RUN_KINDS, "gradients") and not lines:
            raise InputError(f"lines is missing; {kind} needs at least one")
        for name, batch in self.base_batch.items():
            one_of("kind in base_batch", name, DATA)
            if batch < 1:
                raise InputError(f"base_batch.{name} is {batch}; it must be at least 1")
        if kind == "sweep":
            self._check_sweep()
        for number, line in enumerate(lines, 1):
            if kind not in ("runs", "sweep") and line.chooses_epoch:
                name = "lr_schedule" if line.early_stopping is None else "early_stopping"
                raise InputError(
                    f"lines[{number}].{name} is {getattr(line, name)!r}, which needs validation "
                    f"rows, but {kind} scores none; remove it, or use the kind runs"
                )
            if line.data is not None and line.data not in self.base_batch:
                raise InputError(
                    f"lines[{number}].data is {line.data!r}, which base_batch lacks; add it there"
                )
            for multiplier in line.multipliers:  # these kinds have the paper's sizes for all data
                if kind in ("hyperparameters", "parameters") and multiplier in NAMED_MULTIPLIERS:
                    raise InputError(
                        f"lines[{number}].multipliers holds {multiplier!r}, which {kind} cannot "
                        "take; use whole numbers"
                    )
        cells = [(line.label, multiplier) for line in lines for multiplier in line.multipliers]
        if self.reference is not None and self.reference not in cells:
            raise InputError(
                f"reference is {list(self.reference)!r}, which is not a cell; give a label and "
                "one of its multipliers"
            )

    def _check_sweep(self) -> None:
        if len(self.lines) != 1:
            raise InputError(f"a sweep needs one line, not {len(self.lines)}; give one")
        if not self.grid and not self.grid_factors:
            raise InputError("grid and grid_factors are missing; give one of them")
        for name in self.grid:
            if name in self.grid_factors:
                raise InputError(f"{name} is in grid and in grid_factors; remove one")


@dataclass(frozen=True, kw_only=True)
class LogExperiment(_Definition):
    """An experiment on a log."""

    kind: str = option(help="what it compares", choices=LOG_KINDS)
    lines: tuple[ReplayLine | CollisionLine, ...] = option(help="rows, of the kind's class")
    reference: str = option(help="label of the line that all lines are compared with")
    corner: str = option("line", "heading of the first column")

    def check(self) -> None:
        """Refuse a reference that is no line."""
        _check_labels(self.lines)
        labels = [line.label for line in self.lines]
        if self.reference not in labels:
            raise InputError(f"reference is {self.reference!r}; choose one of {', '.join(labels)}")
