"""What the columns of a log of events are: its features file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.numbers import NumberScaling
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.targets import Scales, Target, check_targets, targets_of
from cowclip_merlin.workflows.raw.log_format import EVENTS, LogFormat, separator_of


@dataclass(frozen=True, kw_only=True)
class ListRules:
    """How a column with several values per row is read, and combined to one embedding.

    Attributes:
        separator: what stands between the values of a text.
        max_values: keep at most so many values of a row; 0: all.
        keep: which ones to keep then: "first" or "last".
        combiner: one of `choices.COMBINERS`.
    """

    separator: str
    max_values: int = 0
    keep: str = "first"
    combiner: str = "mean"


@dataclass(frozen=True, kw_only=True)
class CategoricalColumn:
    """A column of ids.

    Attributes:
        name: of the column.
        rules: when its ids get and lose their embedding rows.
        buckets: number of buckets that its ids are hashed into; None keeps all ids apart.
        lists: how its values are read if a row may have several; None: each row has one.
        table: the column whose ids and embeddings it has, too; None: it has its own.
        text: whether "47.0" and "47" are two values; else both are 47.
        optional: whether a message or a request may lack it, which is a missing value then.
    """

    name: str
    rules: FieldRules = field(default_factory=FieldRules)
    buckets: int | None = None
    lists: ListRules | None = None
    table: str | None = None
    text: bool = False
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class ContinuousColumn:
    """A column of numbers.

    Attributes:
        name: of the column.
        scaling: how its values are transformed.
        optional: whether a message or a request may lack it, which is a missing value then.
    """

    name: str
    scaling: NumberScaling = field(default_factory=NumberScaling)
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class VectorColumn:
    """A column with a vector of numbers per row, which the model reads unscaled.

    Attributes:
        name: of the column.
        length: of each vector.
    """

    name: str
    length: int


def check_labels(labels: Sequence[str], regression: Sequence[str]) -> None:
    """Check the labels of a stream, whose first one is 0 or 1.

    Args:
        labels: names of all labels.
        regression: those of them that are numbers.

    Raises:
        InputError: a number is no label, or the first one.
    """
    check_targets(labels, regression)
    if labels[0] in regression:
        raise InputError(f"the first label {labels[0]!r} is a number; put a label of 0 and 1 first")


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
        vector_separator: what stands between the numbers of a vector in text.
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
    vector_separator: str = "|"
    scales: Scales = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check the labels."""
        check_labels(self.labels, self.regression)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels."""
        return (self.label, *self.more_labels)

    @property
    def targets(self) -> tuple[Target, ...]:
        """What the model predicts, the first label first."""
        return targets_of(self.labels, self.regression)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that a model reads."""
        columns = (*self.categorical, *self.continuous, *self.vectors)
        return tuple(column.name for column in columns)

    @property
    def names(self) -> frozenset[str]:
        """Names of all columns that the features file names."""
        return frozenset([*self.labels, *self.beside, *self.inputs, *self.columns])

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of the time, key and weight columns, as far as there are such."""
        return tuple(name for name in (self.time, self.key, self.weight) if name)

    @property
    def key_keeps_text(self) -> bool:
        """Whether "47.0" and "47" are two keys, as in a column that is the key, too."""
        return any(column.text for column in self.categorical if column.name == self.key)

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

    @property
    def optional(self) -> frozenset[str]:
        """Names of the columns that a message or a request may lack."""
        columns = (*self.categorical, *self.continuous)
        return frozenset(column.name for column in columns if column.optional)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the inputs that a message or a request has to give."""
        return tuple(name for name in self.inputs if name not in self.optional)

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
            vector_separator=self.vector_separator,
        )
