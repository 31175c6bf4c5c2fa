"""Load experiments by name, or from the user's files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions.experiment import (
    KINDS,
    LOG_KINDS,
    Experiment,
    LogExperiment,
)
from cowclip_merlin.experiments.definitions.parser import (
    check_one_of,
    parse_experiment,
    parse_log_experiment,
)
from cowclip_merlin.system.yaml_file import read_yaml

FOLDER = Path(__file__).parent


def experiment_names() -> list[str]:
    """Return the names of this package's experiments, tables first.

    >>> "table2" in experiment_names()
    True
    """
    return sorted(_of_package(), key=_order)


@cache
def _of_package() -> Mapping[str, str]:
    """Return the text of each experiment of this package by name; to parse all takes 0.2 s."""
    files = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml"))]
    _, *parts = re.split(r"^(\w+):\n", "\n".join(files), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _order(name: str) -> tuple[int, int, str]:
    kinds = ("table", "figure")
    kind = next((i for i, each in enumerate(kinds) if name.startswith(each)), len(kinds))
    number = "".join(c for c in name if c.isdigit())
    return kind, int(number or 0), name


def load_experiment(name: str) -> Experiment | LogExperiment:
    """Load one experiment of this package by its name, or from the user's YAML file.

    Raises:
        InputError: if the experiment or file does not exist, or has settings that cannot run.

    >>> load_experiment("table2").corner
    'rule'
    """
    if name.endswith((".yaml", ".yml")):
        return _load_own(Path(name))
    if name not in _of_package():
        known = experiment_names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"no experiment {name!r}; {hint}use one of {', '.join(known)}")
    return _load(Path(name), _of_package()[name])


def _load(path: Path, text: str | None = None) -> Experiment | LogExperiment:
    value = read_yaml(path, first_key="title", text=text)
    kind = value.get("kind", KINDS[0])
    if kind is not None:
        check_one_of(path, "kind", kind, (*KINDS, *LOG_KINDS))
    parse = parse_log_experiment if kind in LOG_KINDS else parse_experiment
    return parse(path, value)


def _load_own(path: Path) -> Experiment | LogExperiment:
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    if path.stem in _of_package():
        raise InputError(f"{path}: {path.stem} is an experiment of this package; rename the file")
    return replace(_load(path), source=path.name)


def load_experiments(names: Sequence[str], *, sweeps: bool) -> list[Experiment | LogExperiment]:
    """Load experiments by name.

    Args:
        names: names of experiments or files.
        sweeps: True accepts only sweeps, False only other experiments.

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
