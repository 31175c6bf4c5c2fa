"""Experiments as files: `<name>.yaml` beside this module, checked when they are read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.checks import (
    check_kinds,
    check_known,
    check_one_of,
    check_required,
    rates,
    read_yaml,
)
from cowclip_merlin.scaling import PRESETS, RULES
from cowclip_merlin.training.run_settings import CLIPS, MODELS, UPDATES

FOLDER = Path(__file__).parent
NAMED = {"largest": 1, "beyond": 2}
RUN_KINDS = ("runs", "curves", "time")
KINDS = (*RUN_KINDS, "sweep", "hyperparameters", "parameters", "frequencies", "gradients")
MEASURES = {"auc": "AUC %", "log_loss": "log loss", "minutes": "minutes of training"}
OPTIMIZERS = ("adam", "adagrad")
SIZED_KINDS = ("hyperparameters", "parameters")  # at the paper's sizes, whatever the data are


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a table: settings, and the batches they are run at.

    Attributes:
        label: as the table shows it.
        multipliers: of the base batch; "largest" stands for the regime's largest,
            "beyond" for twice that.
        published: multiplier -> the paper's number.
        model: name of the architecture.
        rule: scaling rule.
        clip: None: the rule's own.
        optimizer: "adam" or "adagrad".
        update: None: what the command says.
        epochs: None: the regime's.
        overrides: values at the base batch in place of the regime's and the preset's.
        factors: what rates are multiplied by at the base batch.
        dense_rule: None, or "linear": the dense rate grows with s, not with its root.
        keep_top: only so many ids of each field, the most frequent; others are out of vocabulary.
        min_count: only ids that occur so often in the training rows.
        notes: multiplier -> what a reader should know about the published number.
        group: None: only the tuned values of "cowclip" or "baseline", by rule and clip. Another
            name: a sweep's own, whose tuned values come after those and after `overrides`.
    """

    label: str
    multipliers: tuple[int | str, ...]
    published: Mapping[Any, float] = field(default_factory=dict)
    model: str = "deepfm"
    rule: str = "cowclip"
    clip: str | None = None
    optimizer: str = "adam"
    update: str | None = None
    epochs: int | None = None
    overrides: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    dense_rule: str | None = None
    keep_top: int | None = None
    min_count: int | None = None
    notes: Mapping[Any, str] = field(default_factory=dict)
    group: str | None = None

    @property
    def tuned_group(self) -> str:
        """Whose tuned values are used."""
        return self.group or self.start

    @property
    def start(self) -> str:
        """Whose base rates are used: a table under CowClip starts where CowClip starts."""
        return "cowclip" if "cowclip" in (self.rule, self.clip) else "baseline"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One file.

    Attributes:
        name: of the file.
        title: one line.
        claim: what the paper shows with it, or why it is here.
        kind: "runs" for a table of training runs, "curves" and "time" for figures of some; a
            "sweep" is scored on validation rows; the others need no such runs.
        lines: rows of the table.
        measure: what a cell holds, of `MEASURES`.
        corner: what the rows are.
        preset: whose rates, "criteo" or "avazu".
        reference: label and multiplier of the cell that verdicts are against.
        caption: below a figure.
        notes: below the table.
        grid: for "sweep": name -> values at the base batch that are tried.
        grid_factors: for "sweep": name -> what the base value is multiplied by.
        source: the file's name if it is one of your own; empty for those beside this module.
    """

    name: str
    title: str
    claim: str
    kind: str = "runs"
    lines: tuple[Line, ...] = ()
    measure: str = "auc"
    corner: str = "rule"
    preset: str = "criteo"
    reference: tuple[str, Any] | None = None
    caption: str = ""
    notes: tuple[str, ...] = ()
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    grid_factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    source: str = ""

    @property
    def word(self) -> str:
        """What the command line calls it by."""
        return self.source or self.name


def names() -> list[str]:
    """The experiments that there are, tables first.

    >>> "table2" in names()
    True
    """
    return sorted((path.stem for path in FOLDER.glob("*.yaml")), key=_order)


def _order(name: str) -> tuple[int, int, str]:
    kinds = ("table", "figure")
    kind = next((i for i, each in enumerate(kinds) if name.startswith(each)), len(kinds))
    number = "".join(c for c in name if c.isdigit())
    return kind, int(number or 0), name


def load(name: str) -> Experiment:
    """Read one experiment by its name, or a file of your own.

    Raises:
        InputError: there is none, or it holds something that cannot be run.

    >>> load("table2").corner
    'rule'
    """
    own = name.endswith((".yaml", ".yml"))
    path = Path(name) if own else FOLDER / f"{name}.yaml"
    if own and not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    if own and path.stem in names():
        raise InputError(f"{path}: {path.stem} is an experiment of this package; rename the file")
    if not path.is_file():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"no experiment {name!r}; {hint}there are {', '.join(names())}")
    return replace(parse(path, read_yaml(path)), source=path.name if own else "")


def parse(path: Path, value: Mapping[str, Any]) -> Experiment:
    """An experiment from what its file holds; a key without a value is as good as absent.

    Raises:
        InputError: a key or value is unknown, missing or of the wrong kind.
    """
    given = {key: each for key, each in value.items() if each is not None}
    check_known(path, "", given, Experiment, without=("name", "source"))
    check_required(path, "", given, ("title", "claim"))
    check_kinds(path, "", given, Experiment)
    _check_choices(path, given)
    lines = tuple(
        _line(path, number, each) for number, each in enumerate(given.pop("lines", ()), 1)
    )
    _check_labels(path, lines)
    lists = {name: tuple(given[name]) for name in ("notes", "reference") if name in given}
    name = re.sub(r"[^\w-]", "_", path.stem, flags=re.ASCII)  # files are named after it
    experiment = Experiment(name=name, lines=lines, **given | lists)
    if experiment.kind in (*RUN_KINDS, "gradients") and not lines:
        raise InputError(f"{path}: lines is missing; {experiment.kind} needs at least one")
    if experiment.kind == "sweep":
        experiment = _sweep(path, experiment)
    _check_reference(path, experiment)
    _check_sizes(path, experiment)
    return experiment


def _check_choices(path: Path, given: Mapping[str, Any]) -> None:
    for name, known in {"kind": KINDS, "measure": MEASURES, "preset": PRESETS}.items():
        if name in given:
            check_one_of(path, name, given[name], known)


def _line(path: Path, number: int, value: Any) -> Line:
    where = f"lines[{number}]."
    if not isinstance(value, dict):
        raise InputError(f"{path}: lines[{number}] is {value!r}; it must be a mapping")
    given = {key: each for key, each in value.items() if each is not None}
    check_known(path, where, given, Line)
    check_required(path, where, given, ("label", "multipliers"))
    check_kinds(path, where, given, Line)
    _check_multipliers(path, where, given)
    for name, known in _CHOICES.items():
        if name in given:
            check_one_of(path, where + name, given[name], known)
    numbers = {n: rates(path, where + n, given[n]) for n in ("overrides", "factors") if n in given}
    return Line(**{**given, **numbers, "multipliers": tuple(given["multipliers"])})


_CHOICES: Mapping[str, Any] = {
    "model": MODELS,
    "rule": RULES,
    "optimizer": OPTIMIZERS,
    "clip": CLIPS,
    "update": UPDATES,
    "dense_rule": ("linear",),
}


def _check_multipliers(path: Path, where: str, given: Mapping[str, Any]) -> None:
    """They are numbers or names, each once; what is published or noted belongs to one of them."""
    multipliers: Sequence[Any] = given["multipliers"]
    if not multipliers:
        raise InputError(f"{path}: {where}multipliers is []; give a list like [1, 8]")
    for place, multiplier in enumerate(multipliers):
        if not (type(multiplier) is int and multiplier >= 1) and multiplier not in (*NAMED,):
            raise InputError(
                f"{path}: {where}multipliers holds {multiplier!r}; use whole numbers from 1 on, "
                f"or {' or '.join(NAMED)}"
            )
        if multiplier in multipliers[:place]:
            raise InputError(f"{path}: {where}multipliers holds {multiplier!r} twice; give it once")
    for name in ("published", "notes"):
        for multiplier in given.get(name, ()):
            if multiplier not in multipliers:
                raise InputError(
                    f"{path}: {where}{name} is for {multiplier!r}, which is not among the "
                    "multipliers; add it there, or take it out here"
                )


def _check_labels(path: Path, lines: Sequence[Line]) -> None:
    """Rows are told apart by their labels."""
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if first.setdefault(line.label, number) != number:
            raise InputError(
                f"{path}: lines[{number}].label is {line.label!r}, as that of "
                f"lines[{first[line.label]}]; give each line a label of its own"
            )


def _check_reference(path: Path, experiment: Experiment) -> None:
    if experiment.reference is None:
        return
    cells = [(line.label, m) for line in experiment.lines for m in line.multipliers]
    if experiment.reference not in cells:
        raise InputError(
            f"{path}: reference is {list(experiment.reference)!r}, which is no cell of the table; "
            "give a label and one of its multipliers"
        )


def _check_sizes(path: Path, experiment: Experiment) -> None:
    """Names of multipliers stand for a size of the data, which some tables have not."""
    if experiment.kind not in SIZED_KINDS:
        return
    for number, line in enumerate(experiment.lines, 1):
        for multiplier in line.multipliers:
            if multiplier in NAMED:
                raise InputError(
                    f"{path}: lines[{number}].multipliers holds {multiplier!r}, which "
                    f"{experiment.kind} cannot take; use whole numbers"
                )


def _sweep(path: Path, experiment: Experiment) -> Experiment:
    """The sweep with its grid as numbers."""
    if len(experiment.lines) != 1:
        raise InputError(f"{path}: a sweep needs one line, not {len(experiment.lines)}; give one")
    if not experiment.grid and not experiment.grid_factors:
        raise InputError(f"{path}: grid and grid_factors are missing; give one of them")
    grids = {n: _grid(path, n, getattr(experiment, n)) for n in ("grid", "grid_factors")}
    for name in grids["grid"]:
        if name in grids["grid_factors"]:
            raise InputError(f"{path}: {name} is in grid and in grid_factors; leave one out")
    return replace(experiment, **grids)


def _grid(path: Path, where: str, grid: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    found = {}
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: {where}.{name} is {values!r}; give a list of numbers")
        found[name] = tuple(rates(path, where, {name: value})[name] for value in values)
        if len(set(found[name])) < len(values):
            raise InputError(f"{path}: {where}.{name} is {values!r}; give each number once")
    return found
