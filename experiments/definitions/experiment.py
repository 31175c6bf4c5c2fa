"""Define an experiment: several lines, each with the settings or rules of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NAMED_MULTIPLIERS = {"largest": 1, "beyond": 2}
"""Name -> multiple of the largest batch."""

RUN_KINDS = ("runs", "curves", "time")
KINDS = (*RUN_KINDS, "sweep", "hyperparameters", "parameters", "frequencies", "gradients")
MEASURES = {"auc": "AUC %", "log_loss": "log loss", "minutes": "minutes of training"}
RMSE = "rmse"
"""Measure of the tables of a label that is a number, in place of those above."""


OF_RUN = ("optimizer", "lr_schedule", "lr_factor", "lr_every", "lr_floor")
OF_RUN += ("activation", "dropout", "batch_norm", "reset_embeddings")
"""Attributes of a line that are those of `RunSettings`."""


@dataclass(frozen=True, kw_only=True)
class ExperimentLine:
    """One line of an experiment: settings, and the batches to run them at.

    A table shows it as a row, a figure as a curve.

    Attributes:
        label: text of the row or the curve.
        multipliers: multiples of the base batch. "largest" stands for the largest batch of the
            data set, "beyond" for twice that.
        published: multiplier -> the paper's number.
        model: name of the architecture.
        rule: scaling rule.
        clip: name of the clip; None: that of the rule.
        optimizer: one of `choices.OPTIMIZERS`.
        lr_schedule: how the rates fall; "plateau" only where validation rows are scored.
        lr_factor: by what a fall of "plateau" and "step" multiplies the rates.
        lr_every: epochs from fall to fall of "step".
        lr_floor: the smallest rates, as a share of the first ones.
        activation: of the hidden layers.
        dropout: share of the hidden layers' outputs that a step sets to 0.
        batch_norm: whether the hidden layers normalize by the batch.
        reset_embeddings: whether each epoch starts with new embeddings.
        update: name of the update; None: that of the command line.
        epochs: number of epochs; None: that of the sizing.
        overrides: values at the base batch. They replace those of the sizing and the preset.
        factors: factors of the rates at the base batch.
        dense_rule: None, or "linear": the dense rate grows with s, not with its square root.
        keep_top: number of ids to keep per field, the most frequent ones. The others become out
            of vocabulary.
        min_count: keep only ids that occur at least this often in the training rows.
        notes: multiplier -> note for readers about the published number.
        group: None: use only the tuned values of "cowclip" or "baseline", by rule and clip.
            Another name: use the values of that sweep too. They win over `overrides`.
    """

    label: str
    multipliers: tuple[int | str, ...]
    published: Mapping[int | str, float] = field(default_factory=dict)
    model: str = "deepfm"
    rule: str = "cowclip"
    clip: str | None = None
    optimizer: str = "adam"
    lr_schedule: str = "constant"
    lr_factor: float = 0.1
    lr_every: float = 1.0
    lr_floor: float | None = None
    activation: str = "relu"
    dropout: float = 0.0
    batch_norm: bool = False
    reset_embeddings: bool = False
    update: str | None = None
    epochs: int | None = None
    overrides: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    dense_rule: str | None = None
    keep_top: int | None = None
    min_count: int | None = None
    notes: Mapping[int | str, str] = field(default_factory=dict)
    group: str | None = None

    @property
    def tuned_group(self) -> str:
        """Group whose tuned values apply to the line."""
        return self.group or self.base_group

    @property
    def base_group(self) -> str:
        """Group of the line's base rates: "cowclip" if its rule or clip is CowClip."""
        return "cowclip" if "cowclip" in (self.rule, self.clip) else "baseline"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment, as read from a YAML file.

    Attributes:
        name: name of the file.
        title: title in one line.
        claim: the paper's claim, or the purpose of the experiment.
        kind: "runs" for a table of training runs, "curves" and "time" for figures of some; a
            "sweep" is scored on validation rows; other kinds train no such runs.
        lines: rows of the table, or curves of the figure.
        measure: the measure in a cell, a name of `MEASURES`, or `RMSE`.
        corner: heading of the first column.
        preset: preset of the rates, "criteo" or "avazu".
        reference: label and multiplier of the cell that all cells are compared with.
        caption: text below a figure.
        notes: text below the table.
        grid: for "sweep": name -> values to try at the base batch.
        grid_factors: for "sweep": name -> factors of the base value to try.
        source: name of the user's file; empty for the experiments of this package.
    """

    name: str
    title: str
    claim: str
    kind: str = "runs"
    lines: tuple[ExperimentLine, ...] = ()
    measure: str = "auc"
    corner: str = "rule"
    preset: str = "criteo"
    reference: tuple[str, int | str] | None = None
    caption: str = ""
    notes: tuple[str, ...] = ()
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    grid_factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    source: str = ""

    @property
    def cli_name(self) -> str:
        """Its name on the command line."""
        return self.source or self.name


NEVER = "never"
"""A serving copy that is never synced, or an id that never expires."""

PUBLISHED = ("auc", "gain")
"""Measures that a line may give published numbers for: AUC in %, gain in points."""


@dataclass(frozen=True, kw_only=True)
class ReplayLine:
    """One line of an experiment that replays a log.

    Lines with equal rules are scored in the same replay.

    Attributes:
        label: text of the row or the point.
        sync: event time between two syncs of the serving copy that is scored, such as "1h", or
            "never".
        admit: occurrences after which an id gets a row, for all columns; None: as in the features
            file.
        ttl: event time without an occurrence after which an id loses its row, for all columns, or
            "never"; None: as in the features file.
        published: measure -> published number; see `PUBLISHED`.
        note: note for readers about the published number.
    """

    label: str
    sync: str
    admit: int | None = None
    ttl: str | None = None
    published: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class CollisionLine:
    """One line of an experiment that hashes ids into buckets.

    Attributes:
        label: text of the row or the curve.
        load: distinct ids of a column per bucket; 0 for no hashing.
        epochs: passes over the training rows.
        columns: columns to hash; empty for all categorical columns.
    """

    label: str
    load: float
    epochs: int = 10
    columns: tuple[str, ...] = ()


LOG_KINDS: Mapping[str, type[ReplayLine | CollisionLine]] = {
    "sync": ReplayLine,
    "rules": ReplayLine,
    "collisions": CollisionLine,
}
"""Kind of an experiment on a log -> class of its lines. "sync" compares sync intervals, "rules"
what the rows kept cost, "collisions" what shared rows cost."""


@dataclass(frozen=True, kw_only=True)
class LogExperiment:
    """An experiment on a log, as read from a YAML file.

    Attributes:
        name: name of the file.
        title: title in one line.
        claim: the paper's claim, or the purpose of the experiment.
        kind: one of `LOG_KINDS`.
        lines: rows of the table, of the kind's class.
        corner: heading of the first column.
        reference: label of the line that all lines are compared with.
        caption: text below the figure.
        notes: text below the table.
        source: name of the user's file; empty for the experiments of this package.
    """

    name: str
    title: str
    claim: str
    kind: str
    lines: tuple[ReplayLine | CollisionLine, ...]
    reference: str
    corner: str = "line"
    caption: str = ""
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def cli_name(self) -> str:
        """Its name on the command line."""
        return self.source or self.name
