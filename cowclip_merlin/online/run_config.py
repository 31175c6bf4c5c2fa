"""Read and write what a run of online training is: its settings and the columns of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from cowclip_merlin.addresses import FilePath, path_of
from cowclip_merlin.errors import MALFORMED, InputError
from cowclip_merlin.online.events.features import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    LogFeatures,
    VectorColumn,
)
from cowclip_merlin.online.events.numbers import NumberScaling
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.system.files import read_json
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Json, JsonObject

CONFIG = "config.json"
_SHOWN = 3  # differences in an error
_CUT = 60  # characters of a value in an error


def online_config(settings: OnlineSettings, features: LogFeatures) -> JsonObject:
    """Return plain values for JSON, which `load_online_config` reads."""
    columns = _plain(asdict(features))
    for column in columns["categorical"]:
        for name in ("lists", "table"):  # as in folders of versions that had none
            if column[name] is None:
                del column[name]
    for column in (*columns["categorical"], *columns["continuous"]):
        for name in ("text", "optional"):  # likewise
            if not column.get(name, True):
                del column[name]
    if not columns["vectors"]:  # likewise
        del columns["vector_separator"]
    for name in ("weight", "more_labels", "regression", "vectors", "scales"):
        if not columns[name]:
            del columns[name]
    return {"features": columns, "settings": settings.as_dict()}


def load_online_config(run: str | FilePath) -> tuple[OnlineSettings, LogFeatures]:
    """Read the settings and the columns of a run folder.

    Raises:
        InputError: the folder is not one of online training, or damaged.
    """
    file = path_of(run) / CONFIG
    if not file.exists():
        raise InputError(f"{run}: no {CONFIG}; give the folder that cowclip online train wrote")
    config = read_json(file)
    try:
        return _settings(config["settings"]), features_of_json(config["features"])
    except MALFORMED as error:
        raise InputError(f"{file}: damaged ({error!r:.80}); use a new folder") from None


def refuse_difference(out: Path, before: Json, config: Mapping[str, Json]) -> None:
    """Refuse to go on with other settings than those of a folder.

    Args:
        out: the folder.
        before: its configuration.
        config: what it should be.

    Raises:
        InputError: a value differs; the message names the first ones.
    """
    known = before if isinstance(before, dict) else {}
    found = [
        each for name, now in config.items() for each in _differences(known.get(name), now, name)
    ]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise InputError(
            f"{out}: the run there has another {', '.join(found[:_SHOWN])}{more}; go on with the "
            "same log and settings, or use another `out`"
        )


class Changes(NamedTuple):
    """What changed between two starts of a run.

    Attributes:
        columns: each such as "categorical column 'age' is new".
        others: each such as "ttl of 'item' (60, now 120)".
    """

    columns: list[str]
    others: list[str]


def changes_of_run(
    out: Path, before: Json, config: Mapping[str, Json], held: Sequence[str] | None
) -> Changes:
    """Refuse to go on with other settings, except those that may change between two starts.

    These are the rates, `max_rows`, `capacity`, and of columns `admit`, `ttl`, `min_rows` and
    `optional`. Columns may be new at the end of their list if they are optional.

    Args:
        out: the folder.
        before: its configuration.
        config: what it should be, by the features file.
        held: columns of the newest snapshot, of which none may go; None if there is none.

    Raises:
        InputError: another value differs; the message names the first ones.
    """
    told: list[str] = []
    try:
        known = deepcopy(before)
        for kind in ("categorical", "continuous"):
            told += _take_columns(out, kind, known["features"], config["features"], held)
        if told:  # the order of a text file's columns does not concern a stream
            known["features"]["columns"] = config["features"]["columns"]
        before, taken_over = known, _with_changes(known, config)
    except InputError:  # which is a ValueError, too
        raise
    except MALFORMED:
        taken_over = before
    refuse_difference(out, taken_over, config)
    changed = [each for n in config for each in _differences(before[n], config[n], n, now="now")]
    return Changes(told, changed)


def _take_columns(
    out: Path, kind: str, known: JsonObject, config: JsonObject, held: Sequence[str] | None
) -> list[str]:
    """Give a configuration the new columns of another one; return a line for each change.

    Raises:
        InputError: a column of the run is missing, or at another place, or a new one is required.
    """
    before, now = known[kind], config[kind]
    kept = [each for each in before if held is None or each["name"] in held]
    for i, column in enumerate(kept):
        if [each["name"] for each in now[i : i + 1]] != [column["name"]]:
            found = f"{now[i]['name']!r} in the features file" if i < len(now) else "missing now"
            raise InputError(
                f"{out}: {kind} column {i + 1} of the run is {column['name']!r}, but {found}; keep "
                "the columns of a run in their order, new ones after them, or use another `out`"
            )
    new = now[len(kept) :]
    for column in new:
        if not column.get("optional"):
            raise InputError(
                f"{out}: {kind} column {column['name']!r} is new, and the messages before lack it; "
                "add `optional: true` to it in the features file"
            )
    known[kind] = kept + new
    names = [each["name"] for each in now]
    gone = [each["name"] for each in before if each["name"] not in names]
    told = [f"column {name!r} is gone, which the newest snapshot does not have" for name in gone]
    return told + [f"{kind} column {each['name']!r} is new" for each in new if each not in before]


def _with_changes(before: Json, config: Mapping[str, Json]) -> JsonObject:
    """Return a configuration with those values of `config` that may change."""
    known, new = deepcopy(before), config["settings"]
    known["settings"] |= {name: new[name] for name in ("max_rows", "capacity")}
    known["settings"]["run"]["overrides"] = new["run"]["overrides"]
    for kind in ("categorical", "continuous"):
        for column, now in zip(known["features"][kind], config["features"][kind]):
            for name in ("rules", "optional"):
                column.pop(name, None)
                column |= {name: now[name]} if name in now else {}
    return known


def _differences(
    old: Json, new: Json, name: str, of: str = "", *, now: str = "not"
) -> Iterator[str]:
    """Describe what differs: settings by their names, columns by theirs.

    >>> list(_differences({"admit": 1}, {"admit": 2}, "rules", " of 'item'"))
    ["admit of 'item' (1, not 2)"]
    """
    if old == new:
        return
    columns = [_by_name(value) for value in (old, new)]
    if all(columns):
        old, new = columns
        if list(old) != list(new):
            yield f"{name} ({_compared(list(old), list(new), now)})"
        for each in [each for each in new if each in old]:
            yield from _differences(old[each], new[each], name, f" of {each!r}", now=now)
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in {**new, **old}:
            yield from _differences(old.get(key), new.get(key), key, of, now=now)
    else:
        yield f"{name}{of} ({_compared(old, new, now)})"


def _by_name(value: Json) -> JsonObject:
    """Columns or files by their names; empty for any other value, and for equal names."""
    entries = value if isinstance(value, list) else []
    named = {each["name"]: each for each in entries if isinstance(each, dict) and "name" in each}
    return named if len(named) == len(entries) else {}


def _compared(old: Json, new: Json, now: str = "not") -> str:
    """Both values; of long ones the part with the first difference.

    >>> _compared([1] * 40, [1] * 39 + [2])
    '... 1, 1, 1, 1, 1, 1, 1], not ... 1, 1, 1, 1, 1, 1, 2]'
    """
    texts = [repr(old), repr(new)]
    start = 0
    if max(map(len, texts)) > _CUT:
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(*texts))
        start = max(0, sum(1 for _ in alike) - 20)
    shown = [
        ("..." if start else "") + t[start : start + _CUT] + ("..." if t[start + _CUT :] else "")
        for t in texts
    ]
    return f", {now} ".join(shown)


def _plain(value: Json) -> Json:
    """The same values as JSON reads them back."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _settings(values: Mapping[str, Json]) -> OnlineSettings:
    return OnlineSettings(**{**values, "run": RunSettings.from_dict(values["run"])})


def features_of_json(values: Mapping[str, Json]) -> LogFeatures:
    """Return the columns from the `features` of a configuration."""
    categorical = [_categorical(each) for each in values["categorical"]]
    continuous = [
        ContinuousColumn(**{**each, "scaling": NumberScaling(**each["scaling"])})
        for each in values["continuous"]
    ]
    columns = tuple(values["columns"])
    lists = {"categorical": tuple(categorical), "continuous": tuple(continuous)}
    lists |= {n: tuple(values[n]) for n in ("more_labels", "regression") if n in values}
    lists["vectors"] = tuple(VectorColumn(**each) for each in values.get("vectors", ()))
    return LogFeatures(**{**values, **lists, "columns": columns})


def _categorical(values: Mapping[str, Json]) -> CategoricalColumn:
    lists = values.get("lists")
    return CategoricalColumn(
        **{**values, "rules": FieldRules(**values["rules"]), "lists": lists and ListRules(**lists)}
    )
