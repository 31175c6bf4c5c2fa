"""Read and write what a run of online training is: its settings and the columns of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

from cowclip_merlin.addresses import FilePath, path_of
from cowclip_merlin.errors import MALFORMED, InputError
from cowclip_merlin.online.events.features import (
    AddedColumn,
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
        if not column["text"]:  # likewise
            del column["text"]
    if not columns["vectors"]:  # likewise
        del columns["vector_separator"]
    for name in ("weight", "more_labels", "regression", "vectors", "scales", "added"):
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


def changes_of_run(out: Path, before: Json, config: Mapping[str, Json]) -> list[str]:
    """Refuse to go on with other settings, except those that may change between two starts.

    These are the rates, `max_rows`, `capacity`, and the rules of columns: `admit`, `ttl` and
    `min_rows`. Columns may be new at the end of their list.

    Args:
        out: the folder.
        before: its configuration.
        config: what it should be, by the features file.

    Returns:
        What changed, each such as "ttl of 'item' (60, now 120)".

    Raises:
        InputError: another value differs; the message names the first ones.
    """
    told: list[str] = []
    try:
        before, told = _with_new_columns(out, before, config)
        taken_over = _with_changes(before, config)
    except InputError:  # which is a ValueError, too
        raise
    except MALFORMED:
        taken_over = before
    refuse_difference(out, taken_over, config)
    changed = [each for n in config for each in _differences(before[n], config[n], n, now="now")]
    return told + changed


def _with_new_columns(
    out: Path, before: Json, config: Mapping[str, Json]
) -> tuple[JsonObject, list[str]]:
    """Return a configuration with the new columns of `config`, and a line for each of them.

    Raises:
        InputError: a column of the run is missing, or at another place.
    """
    known, told = deepcopy(before), []
    known["features"].pop("added", None)  # what a features file does not say
    for kind in ("categorical", "continuous"):
        columns, now = known["features"][kind], config["features"][kind]
        _refuse_moved(out, kind, *([each["name"] for each in x] for x in (columns, now)))
        new = now[len(columns) :]
        columns += new
        told += [f"{kind} column {each['name']!r} is new" for each in new]
    if told:  # the order of a text file's columns does not concern a stream
        known["features"]["columns"] = config["features"]["columns"]
    return known, told


def _refuse_moved(out: Path, kind: str, before: list[str], now: list[str]) -> None:
    for i, name in enumerate(before):
        if now[i : i + 1] != [name]:
            found = f"{now[i]!r} in the features file" if i < len(now) else "missing now"
            raise InputError(
                f"{out}: {kind} column {i + 1} of the run is {name!r}, but {found}; keep the "
                "columns of a run in their order, new ones after them, or use another `out`"
            )


def _with_changes(before: Json, config: Mapping[str, Json]) -> JsonObject:
    """Return a configuration with those values of `config` that may change."""
    known, new = deepcopy(before), config["settings"]
    known["settings"] |= {name: new[name] for name in ("max_rows", "capacity")}
    known["settings"]["run"]["overrides"] = new["run"]["overrides"]
    rules = {each["name"]: each["rules"] for each in config["features"]["categorical"]}
    for column in known["features"]["categorical"]:
        column["rules"] = rules.get(column["name"], column["rules"])
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
    added = values.get("added", ())
    lists["added"] = tuple(AddedColumn(name=x["name"], until=tuple(x["until"])) for x in added)
    return LogFeatures(**{**values, **lists, "columns": columns})


def _categorical(values: Mapping[str, Json]) -> CategoricalColumn:
    lists = values.get("lists")
    return CategoricalColumn(
        **{**values, "rules": FieldRules(**values["rules"]), "lists": lists and ListRules(**lists)}
    )
