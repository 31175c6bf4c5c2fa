"""The columns of a stream, and the features file that describes them in YAML."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from cowclip_merlin import choices
from cowclip_merlin.addresses import FilePath, beside, path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.columns import (
    CategoricalColumn,
    ContinuousColumn,
    IdColumn,
    ListRules,
    StreamColumn,
    VectorColumn,
)
from cowclip_merlin.online.events.values import (
    NumberScaling,
    is_time_format,
    parse_duration,
    scaling_of,
)
from cowclip_merlin.system.yaml_file import line_of_key, read_yaml
from cowclip_merlin.tables.layout import MOST_ADMIT, FieldRules
from cowclip_merlin.targets import Scales, Target, check_targets, targets_of
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows.prepared.folder import PreparedData
from cowclip_merlin.workflows.raw.log_format import EVENTS, LogFormat, separator_of

SAMPLE_RATE = "cowclip_sample_rate"
"""Column of an event: the probability q in (0, 1] with which negatives like it were kept."""
LATE = "cowclip_late"
"""Column that is 1 in positives whose click came after the window of their impression."""


@dataclass(frozen=True, kw_only=True)
class LogFeatures:
    """The columns of a log of events.

    Attributes:
        label: name of the 0/1 column; the first label of several.
        time: name of the column with the time of an event: seconds since 1970, or a date.
        categorical: columns of ids, in model order.
        continuous: columns of numbers, in model order.
        key: name of the column that identifies an event, if there is one.
        columns: all columns of a text file without a header, in file order; empty if its first
            line names them.
        time_format: how the time column writes dates, as for `datetime.strptime`; None for seconds
            and ISO 8601.
        weight: name of the column with the weight of an event, if there is one.
        more_labels: names of the labels of further targets.
        regression: those of these that are numbers; the others are 0 or 1.
        vectors: columns with a vector per row, in model order, behind the continuous ones.
        scales: labels that are numbers -> mean and spread, which training divides them by.

    Raises:
        InputError: a name in `regression` is not one of `more_labels`.
    """

    label: str
    time: str
    categorical: tuple[CategoricalColumn, ...]
    continuous: tuple[ContinuousColumn, ...] = ()
    key: str | None = None
    columns: tuple[str, ...] = ()
    time_format: str | None = None
    weight: str | None = None
    more_labels: tuple[str, ...] = ()
    regression: tuple[str, ...] = ()
    vectors: tuple[VectorColumn, ...] = ()
    scales: Scales = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check the labels."""
        check_targets(self.labels, self.regression)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels."""
        return (self.label, *self.more_labels)

    @property
    def targets(self) -> tuple[Target, ...]:
        """What the model predicts, the first label first."""
        return targets_of(self.labels, self.regression)

    @property
    def columns_of_model(self) -> tuple[CategoricalColumn | ContinuousColumn | VectorColumn, ...]:
        """The columns that a model reads."""
        return (*self.categorical, *self.continuous, *self.vectors)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that a model reads."""
        return tuple(column.name for column in self.columns_of_model)

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of the time, key and weight columns, as far as there are such."""
        return tuple(name for name in (self.time, self.key, self.weight) if name)

    def column(self, name: str) -> StreamColumn:
        """Return an input, or the time, the key or the weight, which may be an input, too."""
        found = (column for column in self.columns_of_model if column.name == name)
        return next(found, IdColumn(name=name) if name == self.key else StreamColumn(name=name))

    @property
    def rules(self) -> dict[str, FieldRules]:
        """When ids get and lose their embedding rows, by table, for a growing table."""
        return {column.name: column.rules for column in self.categorical if not column.table}

    @property
    def shared(self) -> dict[str, str]:
        """The column whose table another one shares, by that other column."""
        return {column.name: column.table for column in self.categorical if column.table}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the columns with a table of their own, in the order of the model's tables.

        >>> liked = CategoricalColumn(name="liked", table="item")
        >>> columns = (liked, CategoricalColumn(name="user"), CategoricalColumn(name="item"))
        >>> features = LogFeatures(label="click", time="time", categorical=columns)
        >>> features.tables, features.table_of_column
        (('item', 'user'), (0, 1, 0))
        """
        return tuple(dict.fromkeys(column.table or column.name for column in self.categorical))

    @property
    def table_of_column(self) -> tuple[int, ...] | None:
        """The number of the table of each categorical column; None if no columns share one."""
        tables = self.tables
        if not self.shared:
            return None
        return tuple(tables.index(column.table or column.name) for column in self.categorical)

    @property
    def lists(self) -> dict[str, ListRules]:
        """How columns with several values per row are read, by column."""
        return {column.name: column.lists for column in self.categorical if column.lists}

    def only(self, inputs: Collection[str]) -> LogFeatures:
        """Return the columns with only these inputs, in their order."""
        kinds = {
            kind: tuple(column for column in getattr(self, kind) if column.name in inputs)
            for kind in ("categorical", "continuous", "vectors")
        }
        return replace(self, **kinds)

    @property
    def lengths(self) -> dict[str, int]:
        """The length of the vectors of each column that has some."""
        return {column.name: column.length for column in self.vectors}

    @property
    def num_numbers(self) -> int:
        """How many numbers a model reads of a row: of the continuous columns and the vectors."""
        return len(self.continuous) + sum(self.lengths.values())

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Names of the columns that become 64-bit ids: the categorical ones and the key."""
        names = [column.name for column in self.categorical]
        return tuple(dict.fromkeys([*names, self.key] if self.key else names))

    def log_format(self, file: FilePath) -> LogFormat:
        """How to read a file of this log: as text, except for the labels and the vectors."""
        names = [name for name in (*self.beside, *self.inputs) if name not in self.lengths]
        return LogFormat(
            kind=EVENTS,
            label=self.label,
            more_labels=self.more_labels,
            regression=self.regression,
            categorical=tuple(dict.fromkeys(names)),
            file_columns=self.columns,
            header=not self.columns,
            separator=separator_of(file),
            multi={name: rules.separator for name, rules in self.lists.items()},
            vectors=self.lengths,
            vector_separator=(*self.vectors, VectorColumn)[0].separator,
        )


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
        (label, *more_labels), separator = self._labels(), self._vector_separator()
        regression = self._names("regression", "regression")
        # Training divides labels that are numbers by what the prepared folder says of them.
        known = {} if prepared is None else prepared.statistics.scales
        columns = {
            "key": self._name("key") if "key" in self.value else None,
            "weight": self._name("weight") if "weight" in self.value else None,
            "categorical": tuple(self._categorical(*each, own) for each in enumerate(categorical)),
            "continuous": tuple(
                self._continuous(*each, prepared) for each in enumerate(continuous)
            ),
            "columns": self._columns(),
            "vectors": tuple(VectorColumn(**entry, separator=separator) for entry in vectors),
        }
        try:
            features = LogFeatures(
                label=label,
                more_labels=tuple(more_labels),
                regression=tuple(regression),
                time=time,
                time_format=time_format,
                scales={name: list(known[name]) for name in regression if name in known},
                **columns,
            )
        except InputError as error:
            self._refuse(str(error), "regression")
        if label in regression:  # whose AUC the training follows
            words = f"the first label {label!r} is a number; put a label of 0 and 1 first"
            self._refuse(words, "regression")
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
        return self._names("label", "label")

    def _names(self, key: str, what: str) -> list[str]:
        """The names in a list; one alone is a list of one."""
        given = self.value.get(key, [])
        names = given if isinstance(given, list) else [given]
        for i, name in enumerate(names):
            self._checked_name(name, f"{what} {i + 1}", key, i)
        return names

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
        separator = self.value.get("vector_separator", VectorColumn.separator)
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
        for i, name in enumerate(self._names("columns", "column")):
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
