"""Reads and checks a features file, the YAML description of a log of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

_KEYS = ("label", "time", "key", "weight", "regression", "categorical", "continuous", "columns")
_KEYS += ("prepared", "vectors", "vector_separator")
_TIME = ("name", "format")
_LISTS = ("separator", "max_values", "keep", "combiner")
_OF_TABLE = ("ttl", "admit", "min_rows", "buckets", "text")
_CATEGORICAL = ("name", "table", "optional", *_OF_TABLE, *_LISTS)
_CHOICES = {"keep": choices.KEEP_VALUES, "combiner": choices.COMBINERS}
_SHARED_ROLES = {("time", "categorical"), ("key", "categorical")}
_CONTINUOUS = ("name", "optional", "transform", "minimum", "maximum")
_VECTOR = ("name", "length")
_LONGEST = 1 << 16  # numbers of a vector
_MOST_BUCKETS = 2**31 - 1  # rows are 32-bit numbers


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
        categorical = self._entries("categorical", _CATEGORICAL)
        continuous = self._entries("continuous", _CONTINUOUS)
        vectors = self._entries("vectors", _VECTOR)
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
            categorical=tuple(self._categorical(*entry) for entry in enumerate(categorical)),
            continuous=tuple(self._continuous(*entry, prepared) for entry in enumerate(continuous)),
            columns=self._columns(),
            vectors=tuple(self._vector(*entry) for entry in enumerate(vectors)),
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
        self._check_keys(given, _TIME, "time")
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

    def _entries(self, key: str, known: Sequence[str]) -> list[JsonObject]:
        """The columns of a list as mappings, a plain name as one with a name only."""
        given = self.value.get(key, [])
        if not isinstance(given, list):
            self._refuse(f"{key} is {given!r}; give a list of columns, each after a dash", key)
        entries = [item if isinstance(item, dict) else {"name": item} for item in given]
        for i, entry in enumerate(entries):
            self._check_keys(entry, known, key, i)
            self._checked_name(entry.get("name"), f"name of {key} column {i + 1}", key, i)
        return entries

    def _categorical(self, i: int, entry: Mapping[str, Json]) -> CategoricalColumn:
        name, ttl, admit = entry["name"], entry.get("ttl"), entry.get("admit", 1)
        min_rows = entry.get("min_rows", 0)
        if type(admit) is not int or not 1 <= admit <= MOST_ADMIT:
            what = f"admit of {name!r} is {admit!r}; give a whole number from 1 to {MOST_ADMIT}"
            self._refuse(what, "categorical", i, "admit")
        if type(min_rows) is not int or min_rows < 0:
            what = f"min_rows of {name!r} is {min_rows!r}; give a whole number from 0 on"
            self._refuse(what, "categorical", i, "min_rows")
        buckets, lists = self._buckets(i, entry), self._lists(i, entry)
        try:
            seconds = 0 if ttl is None else parse_duration(ttl, f"ttl of {name!r}")
        except InputError as error:
            self._refuse(str(error), "categorical", i, "ttl")
        rules = FieldRules(admit=admit, ttl=seconds, min_rows=min_rows)
        return CategoricalColumn(
            name=name,
            rules=rules,
            buckets=buckets,
            lists=lists,
            table=self._table(i, entry),
            text=self._flag("text", "categorical", i, entry),
            optional=self._flag("optional", "categorical", i, entry),
        )

    def _flag(self, key: str, kind: str, i: int, entry: Mapping[str, Json]) -> bool:
        if type(value := entry.get(key, False)) is not bool:
            what = f"{key} of {entry['name']!r} is {value!r}; give true or false"
            self._refuse(what, kind, i, key)
        return value

    def _table(self, i: int, entry: Mapping[str, Json]) -> str | None:
        """The column whose table this one shares."""
        if "table" not in entry:
            return None
        table, name = entry["table"], entry["name"]
        others = self._entries("categorical", _CATEGORICAL)
        own = [other["name"] for other in others if "table" not in other]
        if table not in own:
            what = f"table of {name!r} is {table!r}; name a column with a table of its own"
            self._refuse(f"{what}: {', '.join(own)}", "categorical", i, "table")
        for key in _OF_TABLE:
            if key in entry:
                what = f"{key} of {name!r} has no effect, as it has the ids of {table!r}; give it"
                self._refuse(f"{what} there", "categorical", i, key)
        return table

    def _buckets(self, i: int, entry: Mapping[str, Json]) -> int | None:
        buckets = entry.get("buckets")
        given = "buckets" in entry
        if given and (type(buckets) is not int or not 1 <= buckets <= _MOST_BUCKETS):
            what = f"buckets of {entry['name']!r} is {buckets!r}; give a whole number from 1 to"
            self._refuse(f"{what} {_MOST_BUCKETS:,}", "categorical", i, "buckets")
        return buckets

    def _lists(self, i: int, entry: Mapping[str, Json]) -> ListRules | None:
        """How a column with several values per row is read; None for any other column."""
        given = {key: entry[key] for key in _LISTS if key in entry}
        for key, reason in _wrong_list_rules(given):
            self._refuse(f"{key} of {entry['name']!r} {reason}", "categorical", i, key)
        return ListRules(**given) if given else None

    def _continuous(
        self, i: int, entry: Mapping[str, Json], prepared: PreparedData | None
    ) -> ContinuousColumn:
        name, optional = entry["name"], self._flag("optional", "continuous", i, entry)
        try:
            if prepared is None:
                scaling = scaling_of(entry)
            elif entry.keys() - {"name", "optional"}:
                raise InputError("the prepared folder gives the transform; name the column only")
            else:
                scaling = NumberScaling.from_prepared(prepared, name)
            return ContinuousColumn(name=name, scaling=scaling, optional=optional)
        except InputError as error:
            self._refuse(f"{name!r}: {error}", "continuous", i)

    def _vector(self, i: int, entry: Mapping[str, Json]) -> VectorColumn:
        name, length = entry["name"], entry.get("length")
        if type(length) is not int or not 1 <= length <= _LONGEST:
            what = f"length of {name!r} is {length!r}; give how many numbers each vector has"
            self._refuse(f"{what}, from 1 to {_LONGEST:,}", "vectors", i, "length")
        return VectorColumn(name=name, length=length)

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


def _wrong_list_rules(given: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield each setting of a column with several values per row that cannot be, and why."""
    for key, value in given.items():
        if "separator" not in given:
            yield key, "has no effect without separator; give one, such as '|', or remove it"
        elif key == "separator" and (not isinstance(value, str) or not value):
            yield key, f"is {value!r}; give text, such as '|'"
        elif key == "max_values" and (type(value) is not int or value < 1):
            yield key, f"is {value!r}; give a whole number from 1 on"
        elif key in _CHOICES and value not in _CHOICES[key]:
            yield key, f"is {value!r}; choose one of {', '.join(_CHOICES[key])}"
        elif key == "keep" and "max_values" not in given:
            yield key, "has no effect without max_values; give it, or remove keep"
