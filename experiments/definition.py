"""Experiments as files: `<name>.yaml` beside this module, checked when they are read."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import PRESETS, RULES
from cowclip_merlin.training.settings import CLIPS, MODELS, OVERRIDES, UPDATES

FOLDER = Path(__file__).parent
NAMED = {"largest": 1, "beyond": 2}
RUN_KINDS = ("runs", "curves", "time")
KINDS = (*RUN_KINDS, "sweep", "hyperparameters", "parameters", "frequencies", "gradients")
MEASURES = {"auc": "AUC %", "log_loss": "log loss", "minutes": "minutes of training"}
OPTIMIZERS = ("adam", "adagrad")


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
    if not path.is_file():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"no experiment {name!r}; {hint}there are {', '.join(names())}")
    return parse(path, _read(path))


def _read(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no YAML ({error}); mend the file") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no mapping; begin with `title:`")
    return value


def parse(path: Path, value: Mapping[str, Any]) -> Experiment:
    """An experiment from what its file holds.

    Raises:
        InputError: a key or value is unknown, missing or of the wrong kind.
    """
    given = dict(value)
    lines = given.pop("lines", None) or []
    if not isinstance(lines, list):
        raise InputError(f"{path}: lines is {lines!r}; it must be a list")
    _known(path, "", given, Experiment, without=("name", "lines"))
    _required(path, "", given, ("title", "claim"))
    parsed = tuple(_line(path, number, line) for number, line in enumerate(lines, 1))
    for name in ("notes", "reference"):
        if given.get(name) is not None:
            given[name] = tuple(given[name])
    name = re.sub(r"[^\w-]", "_", path.stem, flags=re.ASCII)  # files are named after it
    experiment = Experiment(name=name, lines=parsed, **given)
    _one_of(path, "kind", experiment.kind, KINDS)
    _one_of(path, "measure", experiment.measure, MEASURES)
    _one_of(path, "preset", experiment.preset, PRESETS)
    if experiment.kind in (*RUN_KINDS, "gradients") and not parsed:
        raise InputError(f"{path}: lines is missing; {experiment.kind} needs at least one")
    if experiment.kind == "sweep":
        experiment = _sweep(path, experiment)
    _check_reference(path, experiment)
    return experiment


def _line(path: Path, number: int, value: Any) -> Line:
    where = f"lines[{number}]."
    if not isinstance(value, dict):
        raise InputError(f"{path}: lines[{number}] is {value!r}; it must be a mapping")
    _known(path, where, value, Line)
    _required(path, where, value, ("label", "multipliers"))
    multipliers = value["multipliers"]
    if not isinstance(multipliers, list) or not multipliers:
        raise InputError(f"{path}: {where}multipliers is {multipliers!r}; give a list like [1, 8]")
    for multiplier in multipliers:
        whole = isinstance(multiplier, int) and multiplier >= 1
        if not whole and multiplier not in NAMED:
            raise InputError(
                f"{path}: {where}multipliers holds {multiplier!r}; use whole numbers from 1 on, "
                f"or {' or '.join(NAMED)}"
            )
    line = Line(**{**value, "multipliers": tuple(multipliers)})
    _one_of(path, where + "model", line.model, MODELS)
    _one_of(path, where + "rule", line.rule, RULES)
    _one_of(path, where + "optimizer", line.optimizer, OPTIMIZERS)
    _one_of(path, where + "clip", line.clip, (None, *CLIPS))
    _one_of(path, where + "update", line.update, (None, *UPDATES))
    _one_of(path, where + "dense_rule", line.dense_rule, (None, "linear"))
    numbers = {n: _numbers(path, where + n, getattr(line, n)) for n in ("overrides", "factors")}
    return replace(line, **numbers)


def _known(
    path: Path, where: str, given: Mapping[str, Any], kind: Any, without: tuple[str, ...] = ()
) -> None:
    known = [f.name for f in fields(kind) if f.name not in without]
    for key in given:
        if key not in known:
            raise InputError(f"{path}: unknown {where}{key}; use {', '.join(known)}")


def _required(path: Path, where: str, given: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key not in given:
            raise InputError(f"{path}: {where}{key} is missing; give it")


def _one_of(path: Path, name: str, value: Any, known: Any) -> None:
    if value not in known:
        choices = ", ".join(str(k) for k in known if k is not None)
        raise InputError(f"{path}: {name} is {value!r}; choose one of {choices}")


def _numbers(path: Path, where: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Rates by name; YAML takes 1e-4, without a point, for text."""
    return {name: _number(path, where, name, value) for name, value in values.items()}


def _number(path: Path, where: str, name: str, value: Any) -> float:
    _one_of(path, f"a name in {where}", name, OVERRIDES)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"{path}: {where}.{name} is {value!r}; give a number from 0 on")
    return number


def _check_reference(path: Path, experiment: Experiment) -> None:
    if experiment.reference is None:
        return
    label, multiplier = experiment.reference
    found = [line for line in experiment.lines if line.label == label]
    if not found or multiplier not in found[0].multipliers:
        raise InputError(
            f"{path}: reference is {label!r} at {multiplier!r}, which is no cell of the table"
        )


def _sweep(path: Path, experiment: Experiment) -> Experiment:
    """The sweep with its grid as numbers."""
    if len(experiment.lines) != 1:
        raise InputError(f"{path}: a sweep needs one line, not {len(experiment.lines)}; give one")
    if not experiment.grid and not experiment.grid_factors:
        raise InputError(f"{path}: grid and grid_factors are missing; give one of them")
    grids = {n: _grid(path, n, getattr(experiment, n)) for n in ("grid", "grid_factors")}
    return replace(experiment, **grids)


def _grid(path: Path, where: str, grid: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: {where}.{name} is {values!r}; give a list of numbers")
    return {n: tuple(_number(path, where, n, v) for v in values) for n, values in grid.items()}
