"""Settings of one training run, how to run it, and the hyper-parameters that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of, parse_files
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import (
    ADAM_RULES,
    PRESETS,
    RULES,
    Hyperparameters,
    clip_of,
    rebase,
    scale,
)
from cowclip_merlin.settings import Settings, device_option, option, parse_names
from cowclip_merlin.settings.json_dataclass import dataclass_from_json
from cowclip_merlin.targets import Target, check_esmm, only_clicks
from cowclip_merlin.training.run_rules import check_run
from cowclip_merlin.types import Json, JsonObject

_NOT_RATES = ("batch_size", "micro_batches", "clip", "optimizer")
OVERRIDES = tuple(each.name for each in fields(Hyperparameters) if each.name not in _NOT_RATES)
"""Hyper-parameters that a user may set at the base batch size."""

SCHEDULE = ("lr_schedule", "lr_factor", "lr_patience", "lr_every", "lr_floor")
"""Settings that say how the learning rates fall."""


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """Settings of a run, as the command line or a script gives them.

    The rates of the presets are for Adam. `choices`, `CowClip` and the models tell more about the
    names to choose from.

    Raises:
        InputError: if a value is unknown or out of range.

    >>> RunSettings(model="deepfm", batch_size=4096).hyperparameters("criteo").l2
    4e-05
    """

    model: str = option(help="{choices}", metavar="NAME", choices=lambda: choices.MODELS)
    batch_size: int = option(help="rows per step", at_least=1)
    base_batch_size: int = option(1024, "batch size of the rates below", at_least=1)
    preset: str | None = option(
        None,
        "values for rates not given: {choices}",
        choices=PRESETS,
        metavar="NAME",
        shown="that of the data's kind if it has one, else criteo",
    )
    rule: str = option(
        "cowclip",
        f"how learning rates and L2 ({', '.join(ADAM_RULES)}: what is Adam's or Adagrad's, too) "
        "change with the batch size: {choices}",
        metavar="RULE",
        choices=RULES,
    )
    clip: str | None = option(
        None,
        "what limits gradients: {choices}",
        shown="cowclip with the rule cowclip, else none",
        metavar="CLIP",
        choices=lambda: choices.CLIPS,
    )
    update: str = option(
        "dense",
        "rows that a step updates: dense (all), exact (the same result, updated when needed) or "
        "lazy (those of the batch)",
        metavar="UPDATE",
        choices=choices.UPDATES,
    )
    backend: str = option(
        "auto",
        "code that updates rows: {choices}",
        metavar="NAME",
        choices=choices.BACKENDS,
    )
    epochs: int = option(10, "passes over the training rows", at_least=1)
    reset_embeddings: bool = option(
        False,
        "start each epoch with new embeddings and keep the hidden layers, against overfitting of "
        "rare ids",
    )
    seed: int = option(1234, "seed of initial weights and row order", at_least=0, below=2**32)
    overrides: Mapping[str, float] = option(
        help="values at the base batch size that replace the preset's", default_factory=dict
    )
    embedding_dim: int = option(10, "length of an embedding row", at_least=1)
    mlp: tuple[int, ...] = option((400, 400, 400), "hidden widths", metavar="N,N", at_least=1)
    cross_layers: int = option(3, "cross layers of dcn and dcnv2", at_least=1)
    activation: str = option(
        "relu",
        "activation of the hidden layers: {choices}",
        metavar="NAME",
        choices=choices.ACTIVATIONS,
    )
    dropout: float = option(
        0.0,
        "share of the hidden layers' outputs that a step of training sets to 0",
        at_least=0,
        below=1,
    )
    batch_norm: bool = option(
        False, "normalize by the batch before each activation of the hidden layers"
    )
    continuous: str = option(
        "deep",
        "layers that read continuous columns: deep (the MLP) or all (also linear and cross parts)",
        metavar="HOW",
        choices=choices.CONTINUOUS,
    )
    tables: str = option(
        "fused",
        "fused (one table for all fields), per_field or sharded (rows divided among workers)",
        metavar="HOW",
        choices=choices.RUN_TABLES,
    )
    combiner: str = option(
        "mean",
        "how the embeddings of a column of prepare --multi are combined: "
        f"{', '.join(choices.COMBINERS)}; by column: tags=sum,genres=mean",
        metavar="HOW",
    )
    multi_task: str = option(
        "shared_bottom",
        "several labels: shared_bottom (all layers but the outputs), mmoe (experts with a gate per "
        "label) or esmm (the second label follows the first)",
        metavar="HOW",
        choices=choices.MULTI_TASKS,
    )
    experts: int = option(4, "experts of --multi-task mmoe", at_least=1)
    optimizer: str = option("adam", "{choices}", metavar="NAME", choices=choices.OPTIMIZERS)
    validation_fraction: float = option(
        0.0,
        "fraction of the train rows to hold out and score instead of the test rows; the same rows "
        "for every seed",
        shown="",
        metavar="F",
        at_least=0,
        below=1,
    )
    validation_split: str = option(
        "random",
        "which rows to hold out: {choices}; last: of the log; given: those of prepare "
        "--validation; none: train on these, too",
        metavar="HOW",
        choices=choices.VALIDATION_SPLITS,
    )
    precision: str = option(
        "float32",
        "precision of hidden and cross layers: {choices}",
        metavar="NAME",
        choices=choices.PRECISIONS,
    )
    jit_compile: bool = option(
        False,
        "compile everything between lookups and optimizer with XLA; faster on a GPU",
        negatable=True,
    )
    evaluate_every: int | None = option(
        None,
        "score the held-out rows after so many training rows, too",
        shown="after each epoch only",
        metavar="ROWS",
        at_least=1,
    )
    monitor: str = option(
        "auc",
        "score of the held-out rows that the best weights, early stopping and a plateau follow: "
        "{choices} (of the first label; of a number its RMSE)",
        metavar="NAME",
        choices=choices.MONITORS,
    )
    early_stopping: int | None = option(
        None,
        "stop after N scorings (epochs, without --evaluate-every) without a better one, and keep "
        "the weights of the best; a fall of a plateau starts the count again; 0: never",
        shown="never",
        at_least=0,
    )
    lr_schedule: str = option(
        "constant",
        "how both learning rates fall: {choices}; plateau: when the held-out rows score no better; "
        "linear and cosine: over the whole run",
        metavar="NAME",
        choices=choices.LR_SCHEDULES,
    )
    lr_factor: float = option(
        0.1, "plateau, step: by what a fall multiplies the rates", above=0, below=1
    )
    lr_patience: int = option(1, "plateau: scorings without a better one before a fall", at_least=1)
    lr_every: float = option(1.0, "step: epochs from fall to fall", above=0)
    lr_floor: float | None = option(
        None,
        "the smallest rates, as a share of the first ones",
        shown="0.01 for plateau and step, 0 for linear and cosine",
        at_least=0,
        below=1,
    )
    class_weight: str | None = option(
        None,
        "weights of the labels in the loss of training, times those of prepare --weight: balanced, "
        "or such as 0:1,1:10; scores stay click rates",
        metavar="WEIGHTS",
    )
    pretrained_embeddings: str | None = option(
        None,
        "parquet files of ids and vectors that embeddings start with, as item=FILE",
        metavar="COL=FILE",
    )
    freeze_embeddings: str | None = option(
        None,
        "columns whose embeddings stay as they start, as a,b; not with --tables sharded",
        metavar="COLS",
    )

    def __post_init__(self) -> None:
        """Check the values."""
        if self.early_stopping == 0:
            object.__setattr__(self, "early_stopping", None)
        if self.tables == "growing":
            raise InputError(
                "tables 'growing' is for online training, and a run on a prepared folder has fixed "
                f"vocabularies; choose one of {', '.join(choices.RUN_TABLES)}"
            )
        super().__post_init__()
        for name in self.overrides:
            one_of("override", name, OVERRIDES)
        check_run(self)

    @property
    def rate_floor(self) -> float:
        """The smallest learning rates, as a share of the first ones."""
        if self.lr_floor is not None:
            return self.lr_floor
        return 0.0 if self.lr_schedule in ("linear", "cosine") else 0.01

    @property
    def pretrained(self) -> dict[str, str]:
        """Column -> file of the vectors that its embeddings start with."""
        given = self.pretrained_embeddings
        return {} if given is None else parse_files("`pretrained_embeddings`", given)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Columns whose embeddings stay as they start."""
        return parse_names(self.freeze_embeddings or "")

    @property
    def combiner_of(self) -> dict[str, str]:
        """Column -> combiner; "" stands for all columns."""
        parts = [part.strip().rpartition("=") for part in self.combiner.split(",")]
        return {name: combiner for name, _, combiner in parts}

    def combiners(self, multi: Collection[str]) -> dict[str, str]:
        """Return the combiner of each multi-valued column.

        Args:
            multi: names of these columns.

        Raises:
            InputError: if the settings name another column, or there is no such column.

        >>> settings = RunSettings(model="dcn", batch_size=8, combiner="tags=sum")
        >>> settings.combiners(["genres", "tags"])
        {'genres': 'mean', 'tags': 'sum'}
        """
        given = self.combiner_of
        if not multi and self.combiner != "mean":
            raise InputError("`combiner` has no effect: no column has several values per row")
        for name in given:
            if name and name not in multi:
                raise InputError(
                    f"`combiner`: {name!r} is no column with several values per row; these are "
                    f"{', '.join(multi)}"
                )
        return {name: given.get(name, given.get("", "mean")) for name in multi}

    def multi_task_of(self, targets: Sequence[Target]) -> dict[str, str | int]:
        """Return the settings of `models.Architecture` for these targets.

        Raises:
            InputError: if `multi_task` cannot be meant for them.

        >>> settings = RunSettings(model="dcn", batch_size=8)
        >>> settings.multi_task_of([Target("y")]), settings.multi_task_of([Target("y")] * 2)
        ({}, {'multi_task': 'shared_bottom', 'mmoe_experts': 4})
        >>> settings.multi_task_of([Target("price", True)])
        {'multi_task': 'shared_bottom', 'mmoe_experts': 4}
        """
        if len(targets) < 2 and self.multi_task != "shared_bottom":
            raise InputError(
                f"`multi_task` {self.multi_task} has no effect with one label; remove it, or "
                "name several labels"
            )
        if only_clicks(targets):
            return {}
        if self.multi_task == "esmm":
            check_esmm(targets)
        return {"multi_task": self.multi_task, "mmoe_experts": self.experts}

    @property
    def scored_split(self) -> str:
        """The split that the run scores: "test" or "validation"."""
        held_out = self.validation_fraction or self.validation_split == "given"
        return "validation" if held_out else "test"

    @property
    def effective_clip(self) -> str:
        """The clip that the run uses: `clip`, or the default of its rule."""
        return self.clip or clip_of(self.rule)

    def unused_overrides(self) -> dict[str, tuple[str, ...]]:
        """Map each override that the run's clip does not use to the clips that do.

        >>> given = RunSettings(model="dcn", batch_size=8, rule="none", overrides={"r": 1.0})
        >>> given.unused_overrides()
        {'r': ('cowclip', 'adaptive_field')}
        """
        used = choices.CLIPS[self.effective_clip].settings
        names = [name for name in choices.THRESHOLDS if name not in used]
        return {name: choices.clips_using(name) for name in names if name in self.overrides}

    def hyperparameters(self, kind: str) -> Hyperparameters:
        """Return the scaled values for data of this kind ("criteo", "avazu", "table")."""
        name = self.preset or (kind if kind in PRESETS else "criteo")
        given = {**self.overrides, "optimizer": self.optimizer}
        preset = rebase(name, batch_size=self.base_batch_size, values=given)
        scaled = scale(preset, to=self.batch_size, rule=self.rule)
        return replace(scaled, clip=self.effective_clip)

    def as_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        return asdict(self) | {"overrides": dict(self.overrides), "mlp": list(self.mlp)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Json]) -> RunSettings:
        """Build settings from the values that `as_dict` returned.

        Raises:
            TypeError: if a value is missing or has the wrong type.
            InputError: if a value is unknown or out of range.
        """
        return dataclass_from_json(cls, values)


@dataclass(frozen=True, kw_only=True)
class RunOptions(Settings):
    """How one process runs a training.

    Raises:
        InputError: if a value is unknown or out of range.
    """

    resume: bool = option(False, "resume from the last checkpoint")
    warm_start: str | None = option(
        None,
        "go on from the weights and the optimizer state of this run, matching ids by their values; "
        "its settings and one epoch are the defaults",
        flag="--from",
        metavar="RUN",
    )
    checkpoint_every: int = option(
        0,
        "steps between checkpoints within an epoch; 0: only after each epoch",
        metavar="STEPS",
        at_least=0,
    )
    diagnostics_every: int = option(
        0,
        "steps between records of clip and norms for cowclip inspect; 0: no records",
        metavar="STEPS",
        at_least=0,
    )
    device: str = device_option()
    data_memory: float | None = option(
        None,
        "device memory for rows; larger data is streamed",
        shown="the free memory of a GPU, no limit on the CPU",
        metavar="MB",
    )
