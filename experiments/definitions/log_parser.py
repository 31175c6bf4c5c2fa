"""Parse a `LogExperiment` from a YAML mapping; reject settings that cannot run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions.checks import (
    check_labels,
    check_mapping,
    check_one_of,
    file_safe_name,
)
from cowclip_merlin.experiments.definitions.log_experiment import (
    LOG_KINDS,
    NEVER,
    PUBLISHED,
    CollisionLine,
    LogExperiment,
    ReplayLine,
)
from cowclip_merlin.online.events.durations import parse_duration
from cowclip_merlin.tables.layout import MOST_ADMIT
from cowclip_merlin.types import Json


def parse_log_experiment(path: Path, value: Mapping[str, Json]) -> LogExperiment:
    """Parse an experiment on a log; a key without a value counts as absent.

    Raises:
        InputError: if a key or value is unknown, missing or of the wrong type.
    """
    required, without = ("title", "claim", "kind", "lines", "reference"), ("name", "source")
    given = check_mapping(path, "", value, LogExperiment, required=required, without=without)
    check_one_of(path, "kind", given["kind"], LOG_KINDS)
    lines = tuple(_line(path, n, given["kind"], x) for n, x in enumerate(given["lines"], 1))
    check_labels(path, lines)
    check_one_of(path, "reference", given["reference"], [line.label for line in lines])
    changed = {"lines": lines, "notes": tuple(given.get("notes", ()))}
    return LogExperiment(name=file_safe_name(path), **given | changed)


def _line(path: Path, number: int, kind: str, value: Json) -> ReplayLine | CollisionLine:
    """Parse line `number`, counted from 1, as the kind's class."""
    where, line_type = f"lines[{number}].", LOG_KINDS[kind]
    given = check_mapping(path, where, value, line_type, required=_REQUIRED[line_type])
    _CHECKS[line_type](path, where, given)
    columns = {"columns": tuple(given["columns"])} if "columns" in given else {}
    return line_type(**given | columns)


def _check_replay_line(path: Path, where: str, given: Mapping[str, Json]) -> None:
    for name in ("sync", "ttl"):
        if given.get(name, NEVER) != NEVER:
            try:
                parse_duration(given[name], f"{where}{name}")
            except InputError as error:
                raise InputError(f"{path}: {error}, or never") from None
    if given.get("admit", 1) > MOST_ADMIT:
        raise InputError(f"{path}: {where}admit is {given['admit']}; give 1 to {MOST_ADMIT}")
    for name, number in given.get("published", {}).items():
        check_one_of(path, f"a name in {where}published", name, PUBLISHED)
        if type(number) not in (int, float):  # a bool is an int, too
            raise InputError(f"{path}: {where}published.{name} is {number!r}; give a number")


def _check_collision_line(path: Path, where: str, given: Mapping[str, Json]) -> None:
    if given["load"] < 0:
        raise InputError(f"{path}: {where}load is {given['load']}; give a number from 0 on")


_REQUIRED: Mapping[type, tuple[str, ...]] = {
    ReplayLine: ("label", "sync"),
    CollisionLine: ("label", "load"),
}
_CHECKS: Mapping[type, Callable[[Path, str, Mapping[str, Json]], None]] = {
    ReplayLine: _check_replay_line,
    CollisionLine: _check_collision_line,
}
