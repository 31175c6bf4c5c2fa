"""Read and write what a run of online training is: its settings and the columns of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from cowclip_merlin.addresses import FilePath, path_of
from cowclip_merlin.errors import MALFORMED, InputError
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.system.files import read_json
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Json, JsonObject

CONFIG = "config.json"
_SHOWN = 3  # differences in an error
_CUT = 60  # characters of a value in an error


def online_config(settings: OnlineSettings, features: LogFeatures) -> JsonObject:
    """Return plain values for JSON, which `load_online_config` reads."""
    return {"features": _plain(asdict(features)), "settings": settings.as_dict()}


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
    _refuse(out, _differences(before, config))


def _refuse(out: Path, differences: Sequence[_Difference]) -> None:
    if differences:
        found = [each.text("not") for each in differences]
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
    except InputError:  # which is a ValueError, too
        raise
    except MALFORMED:  # then all values differ
        known = before
    found = _differences(known, config)
    _refuse(out, [each for each in found if not _may_change(each.path)])
    return Changes(told, [each.text("now") for each in found])


def _may_change(path: _Path) -> bool:
    """Return whether a value may differ between two starts of a run."""
    if path[0] == "features":  # rules, and whether a column is optional
        return len(path) > 3 and path[3] in ("rules", "optional")
    return path[1:] in (("max_rows",), ("capacity",)) or path[1:3] == ("run", "overrides")


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


_Path = tuple[str | tuple[str], ...]
"""Keys from the outermost mapping inward; the name of an entry of a list is a tuple."""


class _Difference(NamedTuple):
    """A value that two configurations have at one place."""

    path: _Path
    old: Json
    new: Json

    def text(self, now: str) -> str:
        """Describe it: settings by their names, columns by theirs.

        >>> _Difference(("features", "categorical", ("item",), "rules", "admit"), 1, 2).text("now")
        "admit of 'item' (1, now 2)"
        """
        name = [key for key in self.path if isinstance(key, str)][-1]
        of = "".join(f" of {key[0]!r}" for key in self.path if isinstance(key, tuple))
        return f"{name}{of} ({_compared(self.old, self.new, now)})"


def _differences(before: Json, config: Mapping[str, Json]) -> list[_Difference]:
    """Return what differs in the values of `config`; of entries of a list, those in both."""
    known = before if isinstance(before, dict) else {}
    old = dict(_flat({name: known.get(name) for name in config}))
    new = dict(_flat(config))
    entries = {_entry(path) for path in old} & {_entry(path) for path in new}
    both = [path for path in dict.fromkeys([*new, *old]) if _entry(path) in entries]
    found = [_Difference(path, old.get(path), new.get(path)) for path in both]
    return [each for each in found if each.old != each.new]


def _entry(path: _Path) -> _Path:
    """The part of a path up to its last entry of a list."""
    names = [i for i, key in enumerate(path) if isinstance(key, tuple)]
    return path[: names[-1] + 1] if names else ()


def _flat(value: Json, path: _Path = ()) -> Iterator[tuple[_Path, Json]]:
    """Yield each value below `value` with its path; a list of entries as their names first."""
    entries = value if isinstance(value, list) else []
    named = {each["name"]: each for each in entries if isinstance(each, dict) and "name" in each}
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(each, (*path, key))
    elif named and len(named) == len(entries):
        yield path, list(named)
        for name, each in named.items():
            yield from _flat(each, (*path, (name,)))
    else:
        yield path, value


def _compared(old: Json, new: Json, now: str) -> str:
    """Both values; of long ones the part with the first difference.

    >>> _compared([1] * 40, [1] * 39 + [2], "not")
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
    _check_whole(OnlineSettings, values)
    return OnlineSettings(**{**values, "run": RunSettings.from_dict(values["run"])})


def features_of_json(values: Mapping[str, Json]) -> LogFeatures:
    """Return the columns from the `features` of a configuration."""
    return _made(LogFeatures, values)


def _made(kind: Any, value: Json) -> Any:
    """Build a value of a type from JSON: a whole dataclass, a tuple of them, or a plain value."""
    if isinstance(value, list):
        inner = (*get_args(kind), Any)[0]
        return tuple(_made(inner, each) for each in value)
    kind = next((each for each in get_args(kind) if is_dataclass(each)), kind)  # of "X | None"
    if value is None or not is_dataclass(kind):
        return value
    _check_whole(kind, value)
    hints = get_type_hints(kind)
    return kind(**{name: _made(hints[name], each) for name, each in value.items()})


def _check_whole(kind: Any, value: Mapping[str, Json]) -> None:
    """Refuse a dataclass that lacks a value: its file is not of this version."""
    for field in fields(kind):
        if field.name not in value:
            raise TypeError(f"{field.name} is missing")
