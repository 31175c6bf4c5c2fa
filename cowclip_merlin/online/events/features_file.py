"""Reads and checks a features file, the YAML description of a log of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from cowclip_merlin import choices
from cowclip_merlin.addresses import FilePath, beside, path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    LogFeatures,
    VectorColumn,
    check_labels,
)
from cowclip_merlin.online.events.messages import LATE
from cowclip_merlin.online.events.numbers import NumberScaling, scaling_of
from cowclip_merlin.online.events.sample_rates import SAMPLE_RATE
from cowclip_merlin.online.events.times import is_time_format, parse_duration
from cowclip_merlin.system.yaml_file import line_of_key, read_yaml
from cowclip_merlin.tables.layout import MOST_ADMIT, FieldRules
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows.prepared.folder import PreparedData

_SHARED_ROLES = {("time", "categorical"), ("key", "categorical")}
Check = tuple[Callable[[Json], bool], str]
"""Whether a value can be, and what to do if not."""


def _whole(least: int, most: int | None = None, what: str = "a whole number") -> Check:
    words = f"give {what} from {least} " + ("on" if most is None else f"to {most:,}")
    return lambda x: type(x) is int and least <= x <= (x if most is None else most), words


def _one_of(choices: Sequence[str]) -> Check:
    return lambda x: isinstance(x, str) and x in choices, f"choose one of {', '.join(choices)}"


_TEXT: Check = (lambda x: isinstance(x, str) and x != "", "give text, such as '|'")
_FLAG: Check = (lambda x: type(x) is bool, "give true or false")
_ANY: Check = (lambda x: True, "")  # is checked by whoever reads it
_LENGTH = _whole(1, 1 << 16, "how many numbers each vector has,")
_OF_TABLE = {"ttl": _ANY, "admit": _whole(1, MOST_ADMIT), "min_rows": _whole(0)}
_OF_TABLE |= {"buckets": _whole(1, 2**31 - 1), "text": _FLAG}  # rows are 32-bit numbers
_LISTS = {"separator": _TEXT, "max_values": _whole(1), "keep": _one_of(choices.KEEP_VALUES)}
_LISTS |= {"combiner": _one_of(choices.COMBINERS)}
_NEEDS = {"max_values": "separator", "keep": "separator", "combiner": "separator"}
_ENTRIES: dict[str, dict[str, Check]] = {
    "categorical": {"name": _ANY, "table": _ANY, "optional": _FLAG, **_OF_TABLE, **_LISTS},
    "continuous": {"name": _ANY, "optional": _FLAG}
    | dict.fromkeys(("transform", "minimum", "maximum"), _ANY),
    "vectors": {"name": _ANY, "length": _LENGTH},
}
_KEYS = ("label", "time", "key", "weight", "regression", "categorical", "continuous", "columns")
_KEYS += ("prepared", "vectors", "vector_separator")


def load_features(path: str | FilePath) -> LogFeatures:
    """Read a features file.

    Raises:
        InputError: it is missing, no YAML, or says something that cannot be; with its line.
    """
    path = path_of(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    return _FeaturesFile(path, read_yaml(path, first_key="label")).parse()


class _FeaturesFile:
    """One file that is being checked."""

    def __init__(self, path: FilePath, value: Mapping[str, Json]) -> None:
        self.path, self.value = path, value

    def parse(self) -> LogFeatures:
        """The features."""
        self._check_keys(self.value, _KEYS)
        prepared = self._prepared()
        categorical, continuous, vectors = (self._entries(kind) for kind in _ENTRIES)
        own = [entry["name"] for entry in categorical if "table" not in entry]
        time, time_format = self._time()
        label, *more_labels = self._labels()
        features = LogFeatures(
            label=label,
            more_labels=tuple(more_labels),
            regression=self._regression([label, *more_labels]),
            time=time,
            time_format=time_format,
            key=self._name("key") if "key" in self.value else None,
            weight=self._name("weight") if "weight" in self.value else None,
            categorical=tuple(self._categorical(*each, own) for each in enumerate(categorical)),
            continuous=tuple(self._continuous(*each, prepared) for each in enumerate(continuous)),
            columns=self._columns(),
            vectors=tuple(VectorColumn(**entry) for entry in vectors),
            vector_separator=self._vector_separator(),
            scales=self._scales(prepared),
        )
        if not features.inputs:
            self._refuse("names no categorical and no continuous column; name at least one")
        self._check_roles(features)
        return features

    def _refuse(self, what: str, *keys: str | int) -> NoReturn:
        raise InputError(f"{self.path}: line {line_of_key(self.path, *keys)}: {what}")

    def _check_keys(
        self, given: Mapping[str, Json], known: Sequence[str], *keys: str | int
    ) -> None:
        for key in given:
            if key not in known:
                self._refuse(f"unknown {key!r}; there are {', '.join(known)}", *keys, key)

    def _name(self, key: str) -> str:
        """A column's name that has to be there."""
        if key not in self.value:
            self._refuse(f"no {key!r}; name the column of the log, as in `{key}: {key}`")
        return self._checked_name(self.value[key], key, key)

    def _labels(self) -> list[str]:
        """The names of the labels: one, or a list."""
        given = self.value.get("label")
        if not isinstance(given, list):
            return [self._name("label")]
        if not given:
            self._refuse("label is []; name at least one column of the log", "label")
        for i, name in enumerate(given):
            self._checked_name(name, f"label {i + 1}", "label", i)
        return given

    def _regression(self, labels: Sequence[str]) -> tuple[str, ...]:
        """The names of the labels that are numbers."""
        given = self.value.get("regression", [])
        names = given if isinstance(given, list) else [given]
        for i, name in enumerate(names):
            self._checked_name(name, f"regression {i + 1}", "regression")
        try:
            check_labels(labels, names)
        except InputError as error:
            self._refuse(str(error), "regression")
        return tuple(names)

    def _scales(self, prepared: PreparedData | None) -> dict[str, list[float]]:
        """The mean and spread of the prepared folder's numbers, as far as they are labels here."""
        known = {} if prepared is None else prepared.statistics.scales
        names = [self.value.get("regression", [])]
        names = names[0] if isinstance(names[0], list) else names
        return {name: list(known[name]) for name in names if name in known}

    def _time(self) -> tuple[str, str | None]:
        """Name and format of the time column."""
        given = self.value.get("time")
        if not isinstance(given, dict):
            return self._name("time"), None
        self._check_keys(given, ("name", "format"), "time")
        name, time_format = given.get("name"), given.get("format")
        if not isinstance(time_format, str) or not is_time_format(time_format):
            what = f"format is {time_format!r}; write year, month and day, as in %Y-%m-%d %H:%M"
            self._refuse(what, "time", "format")
        return self._checked_name(name, "name of the time column", "time", "name"), time_format

    def _checked_name(self, name: Json, what: str, *keys: str | int) -> str:
        if not isinstance(name, str) or not name:
            self._refuse(
                f"{what} is {name!r}; give a column's name, in quotes if it looks like a number",
                *keys,
            )
        return name

    def _entries(self, kind: str) -> list[JsonObject]:
        """The columns of a list as mappings, a plain name as one with a name only."""
        given, checks = self.value.get(kind, []), _ENTRIES[kind]
        if not isinstance(given, list):
            self._refuse(f"{kind} is {given!r}; give a list of columns, each after a dash", kind)
        entries = [item if isinstance(item, dict) else {"name": item} for item in given]
        for i, entry in enumerate(entries):
            self._check_keys(entry, tuple(checks), kind, i)
            name = self._checked_name(entry.get("name"), f"name of {kind} column {i + 1}", kind, i)
            for key in [*entry, *({"length"} & checks.keys() - entry.keys())]:
                (is_right, remedy), value, needs = checks[key], entry.get(key), _NEEDS.get(key)
                if needs and needs not in entry:
                    what = f"{key} of {name!r} has no effect without {needs}; give one, such as '|'"
                    self._refuse(f"{what}, or remove it", kind, i, key)
                if not is_right(value):
                    self._refuse(f"{key} of {name!r} is {value!r}; {remedy}", kind, i, key)
        return entries

    def _categorical(
        self, i: int, entry: Mapping[str, Json], own: Sequence[str]
    ) -> CategoricalColumn:
        """A column of ids; `own` are those with a table of their own."""
        given = dict(entry)
        name, table = given["name"], given.get("table")

        def refuse(key: str, what: str) -> NoReturn:
            self._refuse(f"{key} of {name!r} {what}", "categorical", i, key)

        if "table" in given and table not in own:
            words = "name a column with a table of its own"
            refuse("table", f"is {table!r}; {words}: {', '.join(own)}")
        for key in [key for key in _OF_TABLE if "table" in given and key in given]:
            refuse(key, f"has no effect, as it has the ids of {table!r}; give it there")
        if "keep" in given and "max_values" not in given:
            refuse("keep", "has no effect without max_values; give it, or remove keep")
        try:
            ttl = given.pop("ttl", None)
            ttl = 0 if ttl is None else parse_duration(ttl, f"ttl of {name!r}")
        except InputError as error:
            self._refuse(str(error), "categorical", i, "ttl")
        rules = {key: given.pop(key) for key in ("admit", "min_rows") if key in given}
        lists = {key: given.pop(key) for key in _LISTS if key in given}
        return CategoricalColumn(
            **given, rules=FieldRules(ttl=ttl, **rules), lists=ListRules(**lists) if lists else None
        )

    def _continuous(
        self, i: int, entry: Mapping[str, Json], prepared: PreparedData | None
    ) -> ContinuousColumn:
        name = entry["name"]
        try:
            if prepared is None:
                scaling = scaling_of(entry)
            elif entry.keys() - {"name", "optional"}:
                raise InputError("the prepared folder gives the transform; name the column only")
            else:
                scaling = NumberScaling.from_prepared(prepared, name)
            return ContinuousColumn(
                name=name, scaling=scaling, optional=entry.get("optional", False)
            )
        except InputError as error:
            self._refuse(f"{name!r}: {error}", "continuous", i)

    def _vector_separator(self) -> str:
        separator = self.value.get("vector_separator", LogFeatures.vector_separator)
        if not isinstance(separator, str) or not separator:
            self._refuse(f"vector_separator is {separator!r}; give text", "vector_separator")
        if "vector_separator" in self.value and not self.value.get("vectors"):
            self._refuse("vector_separator has no effect without vectors", "vector_separator")
        return separator

    def _prepared(self) -> PreparedData | None:
        """The folder whose transform of numbers is to be used, relative to the file."""
        if "prepared" not in self.value:
            return None
        folder = self._checked_name(self.value["prepared"], "prepared", "prepared")
        try:
            return PreparedData.load(beside(self.path, folder))
        except InputError as error:
            self._refuse(str(error), "prepared")

    def _columns(self) -> tuple[str, ...]:
        given = self.value.get("columns", [])
        if not isinstance(given, list) or ("columns" in self.value and not given):
            self._refuse(
                f"columns is {given!r}; list all columns of a file without a header", "columns"
            )
        for i, name in enumerate(given):
            self._checked_name(name, f"column {i + 1}", "columns", i)
            if name in given[:i]:
                self._refuse(f"column {name!r} twice; give each one a name", "columns", i)
        return tuple(given)

    def _check_roles(self, features: LogFeatures) -> None:
        """Refuse a column of two roles; only time and key may be categorical, too."""
        roles = [(name, ("label",)) for name in features.labels] + [(features.time, ("time",))]
        if features.key:
            roles.append((features.key, ("key",)))
        if features.weight:
            roles.append((features.weight, ("weight",)))
        for kind in ("categorical", "continuous", "vectors"):
            columns = getattr(features, kind)
            roles += [(column.name, (kind, i)) for i, column in enumerate(columns)]
        for i, (name, keys) in enumerate(roles):
            if name in (SAMPLE_RATE, LATE):
                what = f"column {name!r} is one that cowclip online join adds; rename the column"
                self._refuse(what, *keys)
            for earlier, (first, *_) in roles[:i]:
                if name == earlier and (first, keys[0]) not in _SHARED_ROLES:
                    what = f"column {name!r} is also {first}; give each column one role"
                    self._refuse(what, *keys)
                if name == earlier and name in features.lists:
                    what = f"column {name!r} is also {first}, of which a row has one; remove"
                    self._refuse(f"{what} its separator", *keys)
            if features.columns and name not in features.columns:
                self._refuse(f"column {name!r} is not among the columns; check the names", *keys)
