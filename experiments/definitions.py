"""Experiments: tables and figures of the papers and of users, read from YAML files."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cowclip_merlin import choices
from cowclip_merlin.checks import is_finite, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.values import parse_duration
from cowclip_merlin.scaling import PRESETS, RULES
from cowclip_merlin.settings import Settings, option, option_of, options_of
from cowclip_merlin.system.yaml_file import read_yaml
from cowclip_merlin.tables.layout import MOST_ADMIT
from cowclip_merlin.training.run_settings import OVERRIDES, RunSettings
from cowclip_merlin.types import Json, JsonObject
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


@dataclass(frozen=True, kw_only=True)
class LogExperiment(_Definition):
    """An experiment on a log."""

    kind: str = option(help="what it compares", choices=LOG_KINDS)
    lines: tuple[ReplayLine | CollisionLine, ...] = option(help="rows, of the kind's class")
    reference: str = option(help="label of the line that all lines are compared with")
    corner: str = option("line", "heading of the first column")


_PLAIN: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "str": (str, "give a text, in quotes"),
    "int": (int, "give a whole number"),
    "float": ((int, float), "give a number"),
    "bool": (bool, "give true or false"),
}
_WORDS = {
    "tuple[str | int, ...]": "give a list like [1, 8]",
    "tuple[str, ...]": "give a list of texts",
    "tuple[int, ...]": "give a list of whole numbers, like [400, 400]",
    "tuple[str, int | str]": "give a label and a multiplier, like [no scaling, 1]",
    "Mapping[int | str, float]": "give numbers by multiplier, like {1: 80.76}",
    "Mapping[int | str, str]": "give texts by multiplier, like {1: a misprint}",
    "Mapping[str, int]": "give whole numbers by kind of data, like {criteo: 1024}",
    "Mapping[str, float]": "give numbers by name, like {l2: 1e-5}",
    "Mapping[str, tuple[float, ...]]": "give lists of numbers by name, like {r: [1, 0.1]}",
}


def _fits(value: Json, annotation: str) -> bool:
    """Whether a value has the type of an annotation; rates by name are checked one by one."""
    if annotation in _PLAIN:
        right = isinstance(value, _PLAIN[annotation][0])
        right = right and (annotation == "bool" or not isinstance(value, bool))
        return right and value != "" and (annotation != "float" or is_finite(value))
    if annotation == "tuple[str, int | str]":
        return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
    if annotation.startswith("tuple"):
        of = {"tuple[str, ...]": "str", "tuple[int, ...]": "int"}.get(annotation)
        return isinstance(value, list) and (of is None or all(_fits(x, of) for x in value))
    inner = {"float]": "float", "str]": "str", "int]": "int"}.get(
        annotation.rpartition(", ")[2], ""
    )
    if annotation == "Mapping[str, float]" or not inner or not isinstance(value, dict):
        return isinstance(value, dict)
    return all(_fits(each, inner) for each in value.values())


Line = TypeVar("Line", ExperimentLine, ReplayLine, CollisionLine)


def _checked(
    path: Path, where: str, value: Json, of: type, *, without: Sequence[str] = ()
) -> JsonObject:
    """Return the values of a class; a key without a value counts as absent.

    Raises:
        InputError: if it is no mapping, or a key or value is unknown, missing or of a wrong type.
    """
    if not isinstance(value, dict):
        raise InputError(f"{path}: {where.rstrip('.')} is {value!r}; it must be a mapping")
    given = {key: each for key, each in value.items() if each is not None}
    known = {each.name: each for each in fields(of) if each.name not in without}
    for key in given:
        if key not in known:
            raise InputError(f"{path}: unknown {where}{key}; use {', '.join(known)}")
    for key, each in known.items():
        if key not in given and each.default is each.default_factory is MISSING:
            raise InputError(f"{path}: {where}{key} is missing; give it")
    options = options_of(of)
    for name, each in given.items():
        annotation = str(known[name].type).removesuffix(" | None")
        if not _fits(each, annotation):
            words = _WORDS.get(annotation) or _PLAIN.get(annotation, ("", "it must be a list"))[1]
            raise InputError(f"{path}: {where}{name} is {each!r:.60}; {words}")
        if name in options and options[name].choices is not None:
            check_one_of(path, where + name, each, options[name].known)
    return given


def check_one_of(path: Path, name: str, value: Json, known: Collection[str]) -> None:
    """Refuse a value that is not among the known ones."""
    if value not in list(known):
        raise InputError(f"{path}: {name} is {value!r}; choose one of {', '.join(known)}")


def check_rates(path: Path, where: str, values: Mapping[str, Json]) -> dict[str, float]:
    """Convert base values to numbers, by name; YAML reads 1e-4, without a point, as text."""
    return {name: _rate(path, where, name, value) for name, value in values.items()}


def _rate(path: Path, where: str, name: str, value: Json) -> float:
    check_one_of(path, f"a name in {where}", name, OVERRIDES)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"{path}: {where}.{name} is {value!r}; give a number from 0 on")
    return number


def _line(path: Path, number: int, value: Json, of: type[Line]) -> Line:
    """Parse line `number` of an experiment, counted from 1."""
    where = f"lines[{number}]."
    given = _checked(path, where, value, of)
    for name in ("overrides", "factors"):
        if name in given:
            given[name] = check_rates(path, where + name, given[name])
    try:
        line = of(**given)
        _CHECKS[of](line)
    except InputError as error:
        raise InputError(f"{path}: {where}{error}") from None
    return line


def _check_line(line: ExperimentLine) -> None:
    if not line.multipliers:
        raise InputError("multipliers is []; give a list like [1, 8]")
    for index, multiplier in enumerate(line.multipliers):
        number = type(multiplier) is int and multiplier >= 1  # a bool is an int, too
        if not number and multiplier not in list(NAMED_MULTIPLIERS):
            names = " or ".join(NAMED_MULTIPLIERS)
            raise InputError(
                f"multipliers holds {multiplier!r}; use whole numbers from 1 on, or {names}"
            )
        if multiplier in line.multipliers[:index]:
            raise InputError(f"multipliers holds {multiplier!r} twice; give it once")
    for name in ("published", "notes"):
        for multiplier in getattr(line, name):
            if multiplier not in line.multipliers:
                raise InputError(
                    f"{name} is for {multiplier!r}, which is not among the multipliers; add it "
                    "there, or remove it here"
                )
    of_run = {name: getattr(line, name) for name in OF_RUN}  # its plan says if its rows fit it
    RunSettings(model=line.model, batch_size=1, validation_fraction=0.1, **of_run)


def _check_replay_line(line: ReplayLine) -> None:
    for name in ("sync", "ttl"):
        if getattr(line, name) not in (None, NEVER):
            try:
                parse_duration(getattr(line, name), name)
            except InputError as error:
                raise InputError(f"{error}, or never") from None
    if (line.admit or 1) > MOST_ADMIT:
        raise InputError(f"admit is {line.admit}; give 1 to {MOST_ADMIT}")
    for name, number in line.published.items():
        if name not in PUBLISHED:
            known = ", ".join(PUBLISHED)
            raise InputError(f"a name in published is {name!r}; choose one of {known}")
        if type(number) not in (int, float):  # a bool is an int, too
            raise InputError(f"published.{name} is {number!r}; give a number")


_CHECKS: Mapping[type, Any] = {
    ExperimentLine: _check_line,
    ReplayLine: _check_replay_line,
    CollisionLine: lambda line: None,
}


def parse_experiment(path: Path, value: Mapping[str, Json]) -> Experiment | LogExperiment:
    """Parse an experiment; a key without a value counts as absent.

    Raises:
        InputError: if a key or value is unknown, missing or of the wrong type, or cannot run.
    """
    kind = KINDS[0] if value.get("kind") is None else value["kind"]
    check_one_of(path, "kind", kind, (*KINDS, *LOG_KINDS))
    on_log, line_type = kind in LOG_KINDS, LOG_KINDS.get(kind, ExperimentLine)
    made = LogExperiment if on_log else Experiment
    given = _checked(path, "", value, made, without=("name", "source"))
    parts = enumerate(given.get("lines", ()), 1)
    given["lines"] = tuple(_line(path, number, part, line_type) for number, part in parts)
    for name in ("grid", "grid_factors"):
        given[name] = _grid(path, name, given.get(name, {}))
    if on_log:
        given = {name: each for name, each in given.items() if not name.startswith("grid")}
    file_safe = re.sub(r"[^\w-]", "_", path.stem, flags=re.ASCII)  # its files are named so
    experiment = made(name=file_safe, **given)
    try:
        _check_labels(experiment)
        _check_on_log(experiment) if on_log else _check_on_data(experiment)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return experiment


def _grid(path: Path, where: str, grid: Mapping[str, Json]) -> dict[str, tuple[float, ...]]:
    found = {}
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: {where}.{name} is {values!r}; give a list of numbers")
        found[name] = tuple(_rate(path, where, name, value) for value in values)
        if len(set(found[name])) < len(values):
            raise InputError(f"{path}: {where}.{name} is {values!r}; give each number once")
    return found


def _check_labels(experiment: Experiment | LogExperiment) -> None:
    """Refuse duplicate labels, because tables and results identify lines by their labels."""
    first: dict[tuple[str, str | None], int] = {}
    for number, line in enumerate(experiment.lines, 1):
        key = line.label, getattr(line, "data", None)
        if first.setdefault(key, number) != number:
            raise InputError(
                f"lines[{number}].label is {line.label!r}, the same as "
                f"lines[{first[key]}].label; give each line its own label"
            )


def _check_on_log(experiment: LogExperiment) -> None:
    labels = [line.label for line in experiment.lines]
    if experiment.reference not in labels:
        raise InputError(
            f"reference is {experiment.reference!r}; choose one of {', '.join(labels)}"
        )


def _check_on_data(experiment: Experiment) -> None:
    kind, lines, measure = experiment.kind, experiment.lines, experiment.measure
    if measure not in MEASURES:
        raise InputError(f"measure is {measure!r}; choose one of {', '.join(MEASURES)}")
    if kind in (*RUN_KINDS, "gradients") and not lines:
        raise InputError(f"lines is missing; {kind} needs at least one")
    for name, batch in experiment.base_batch.items():
        one_of("kind in base_batch", name, DATA)
        if batch < 1:
            raise InputError(f"base_batch.{name} is {batch}; it must be at least 1")
    if kind == "sweep":
        if len(lines) != 1:
            raise InputError(f"a sweep needs one line, not {len(lines)}; give one")
        if not experiment.grid and not experiment.grid_factors:
            raise InputError("grid and grid_factors are missing; give one of them")
        for name in experiment.grid:
            if name in experiment.grid_factors:
                raise InputError(f"{name} is in grid and in grid_factors; remove one")
    for number, line in enumerate(lines, 1):
        if kind not in ("runs", "sweep") and line.chooses_epoch:
            name = "lr_schedule" if line.early_stopping is None else "early_stopping"
            raise InputError(
                f"lines[{number}].{name} is {getattr(line, name)!r}, which needs validation rows, "
                f"but {kind} scores none; remove it, or use the kind runs"
            )
        if line.data is not None and line.data not in experiment.base_batch:
            raise InputError(
                f"lines[{number}].data is {line.data!r}, which base_batch lacks; add it there"
            )
        for multiplier in line.multipliers:  # these kinds have the paper's sizes for all data
            if kind in ("hyperparameters", "parameters") and multiplier in NAMED_MULTIPLIERS:
                raise InputError(
                    f"lines[{number}].multipliers holds {multiplier!r}, which {kind} cannot take; "
                    "use whole numbers"
                )
    cells = [(line.label, multiplier) for line in lines for multiplier in line.multipliers]
    if experiment.reference is not None and experiment.reference not in cells:
        raise InputError(
            f"reference is {list(experiment.reference)!r}, which is not a cell; give a label and "
            "one of its multipliers"
        )


FILES = ("cowclip", "bars", "monolith", "sweeps")


@cache
def _of_package() -> Mapping[str, str]:
    """Return the text of each experiment of this package by name; to parse all takes 0.2 s."""
    folder = Path(__file__).parent
    texts = [(folder / f"{name}.yaml").read_text(encoding="utf-8") for name in FILES]
    _, *parts = re.split(r"^(\w+):\n", "\n".join(texts), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def experiment_names() -> list[str]:
    """Return the names of this package's experiments, tables first.

    >>> "table2" in experiment_names()
    True
    """

    def order(name: str) -> tuple[int, int, str]:
        kinds = [name.startswith("table"), name.startswith("figure"), True]
        return kinds.index(True), int("".join(c for c in name if c.isdigit()) or 0), name

    return sorted(_of_package(), key=order)


def load_experiment(name: str) -> Experiment | LogExperiment:
    """Load one experiment of this package by its name, or from the user's YAML file.

    Raises:
        InputError: if the experiment or file does not exist, or has settings that cannot run.

    >>> load_experiment("table2").corner
    'rule'
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"{path}: no such file; check the path")
        if path.stem in _of_package():
            raise InputError(
                f"{path}: {path.stem} is an experiment of this package; rename the file"
            )
        return replace(parse_experiment(path, read_yaml(path, first_key="title")), source=path.name)
    if name not in _of_package():
        known = experiment_names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"no experiment {name!r}; {hint}use one of {', '.join(known)}")
    path, text = Path(name), _of_package()[name]
    return parse_experiment(path, read_yaml(path, first_key="title", text=text))


def load_experiments(names: Sequence[str], *, sweeps: bool) -> list[Experiment | LogExperiment]:
    """Load experiments by name; `sweeps`: accept only sweeps, or only other experiments.

    Raises:
        InputError: if an experiment does not exist, or the other command runs it, or two have the
            same name.
    """
    found = [load_experiment(name) for name in names]
    for experiment in found:
        if [each.name for each in found].count(experiment.name) > 1:
            raise InputError(
                f"{experiment.cli_name}: two experiments write the files {experiment.name}; give "
                "it once, or rename a file"
            )
        if (experiment.kind == "sweep") != sweeps:
            verb = "sweep" if experiment.kind == "sweep" else "experiment"
            raise InputError(f"{experiment.name} is run by `cowclip {verb} {experiment.cli_name}`")
    return found
