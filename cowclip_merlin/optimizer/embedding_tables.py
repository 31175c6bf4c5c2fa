"""The embedding tables of one optimizer, which of them are clipped, and their fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.embedding_variables import (
    Pattern,
    Unmatched,
    check_patterns,
    looks_like_table,
    matches,
    refuse_dense,
    refuse_distinct_ids,
    refuse_foreign,
    refuse_lost_counts,
    refuse_twice_or_no_matrix,
    with_gradients,
)
from cowclip_merlin.optimizer.exchange import with_shape
from cowclip_merlin.optimizer.unique_rows import counts_of
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import JsonObject, Pair, Variable, VariableRef

tf = compat.tensorflow()

if TYPE_CHECKING:
    from cowclip_merlin.optimizer.row_updates.engine import AdagradState, TableState

Pairs = list[Pair]


@dataclass(kw_only=True, eq=False)
class Table:
    """What an optimizer knows of one of its tables.

    Attributes:
        variable: the table.
        registered: whether a model or a script has registered it.
        layout: its fields as registered; None: those of CowClip's argument `fields`, or one field.
        lookup: a value that it shares with tables that are always read at the same ids.
        name_row: names its rows in errors, if rows change owners.
        shard: whether each worker has a part of it.
        stepped: whether it is one of the tables of the model that trains.
        caught_up: whether `catch_up` was called for it.
        state: what an engine keeps of each row.
    """

    variable: Variable
    registered: bool = False
    layout: TableLayout | None = None
    lookup: Hashable | None = None
    name_row: Callable[[int], str] | None = None
    shard: bool = False
    stepped: bool = False
    caught_up: bool = False
    state: TableState | AdagradState | None = None


class EmbeddingTables:
    """Finds an optimizer's tables and their fields by the arguments of `CowClip` and by models.

    Args:
        embeddings: names, regular expressions or variables of the tables, or None.
        skip: names, regular expressions or variables of tables without a clip, or None.
        fields: fields of every table, or by name or regular expression of the table, or None.

    Raises:
        InputError: if an argument has another form.
    """

    def __init__(
        self,
        *,
        embeddings: Sequence[Pattern] | None,
        skip: Sequence[Pattern] | None,
        fields: Mapping[str, int | Mapping[str, int]] | None,
    ) -> None:
        self.embeddings = check_patterns(embeddings, "embeddings")
        self.skip = check_patterns(skip, "skip")
        self._of_every_table, self._by_pattern = _layouts(fields)
        self._unmatched = Unmatched(
            embeddings=self.embeddings, skip=self.skip, fields=tuple(self._by_pattern)
        )
        self._known: dict[VariableRef, Table] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> EmbeddingTables:
        """Copy the object but not its tables: a copied optimizer trains the same tables."""
        result = copy.copy(self)
        result._known = {key: replace(table) for key, table in self._known.items()}
        result._unmatched = copy.deepcopy(self._unmatched, memo)
        return result

    def of(self, variable: Variable) -> Table:
        """Return what is known of a table, for reading and writing."""
        variable = compat.stored(variable)
        return self._known.setdefault(variable.ref(), Table(variable=variable))

    @property
    def registered(self) -> list[Variable]:
        """Tables given to `register`, in this order."""
        return [table.variable for table in self._known.values() if table.registered]

    @property
    def with_state(self) -> list[Variable]:
        """Tables of which an engine keeps state."""
        return [table.variable for table in self._known.values() if table.state is not None]

    def register(
        self,
        tables: Sequence[Variable],
        layouts: Sequence[TableLayout] | None,
        lookups: Sequence[Hashable] | None = None,
    ) -> None:
        """Store tables and their layouts, and match the patterns against them.

        Raises:
            InputError: if a table and its layout differ in rows, or a table is not TensorFlow's.
        """
        refuse_foreign(tables)
        for table, layout in zip(tables, layouts or ()):
            _refuse_other_rows(table, layout, "its layout has")
            self.of(table).layout = layout
        for table, lookup in zip(tables, lookups or ()):
            self.of(table).lookup = lookup
        for variable in tables:
            if not (table := self.of(variable)).registered:
                table.registered = True
                self._known[table.variable.ref()] = self._known.pop(table.variable.ref())
        for argument in ("embeddings", "skip", "fields"):
            self._unmatched.look_at(argument, tables)

    def read_together(self, table: Variable) -> Hashable:
        """Return a value that tables share which are always read at the same ids."""
        known = self.of(table)
        return known.variable.ref() if known.lookup is None else known.lookup

    def name_rows(self, tables: Iterable[Variable], name: Callable[[int], str]) -> None:
        """Name the rows of tables in errors by a function; for tables whose rows change owners."""
        for table in tables:
            self.of(table).name_row = name

    def mark_shards(self, tables: Iterable[Variable]) -> None:
        """Remember tables of which each worker has a part."""
        for table in tables:
            self.of(table).shard = True

    def skips(self, table: Variable) -> bool:
        """Whether a table gets L2 but no clip."""
        return table.shape[-1] == 1 if self.skip is None else matches(table, self.skip)

    def clips(self, tables: Iterable[Variable]) -> list[bool]:
        """Return for each table whether it is clipped."""
        return [not self.skips(table) for table in tables]

    def layout_of(self, table: Variable) -> TableLayout | None:
        """Return the fields of a table; None if they are unknown and the table is one field.

        Raises:
            InputError: if the fields given to `CowClip` do not fill the table.
        """
        if (known := self.of(table).layout) is not None:
            return known
        given = (layout for name, layout in self._by_pattern.items() if matches(table, (name,)))
        layout = self._of_every_table or next(given, None)
        if layout is not None:
            _refuse_other_rows(table, layout, "the fields of CowClip have")
        return layout

    def describe(self, table: Variable, row: int) -> str:
        """Describe a row, for errors."""
        if name := self.of(table).name_row:
            return name(row)
        layout = self.layout_of(table)
        return f"row {row} of table {table.name!r}" if layout is None else layout.describe(row)

    def split(self, pairs: Sequence[Pair]) -> tuple[Pairs, Pairs]:
        """Split pairs of gradient and variable into those of tables and all others.

        Raises:
            InputError: if a table has a dense gradient, has two gradients, or is not a matrix.
        """
        tables, dense = [], []
        for gradient, variable in pairs:
            sparse = isinstance(gradient, tf.IndexedSlices)
            named = sparse if self.embeddings is None else matches(variable, self.embeddings)
            if not sparse and (named or (self.embeddings is None and looks_like_table(variable))):
                refuse_dense(variable)
            (tables if named else dense).append((gradient, variable))
        refuse_twice_or_no_matrix([variable for _, variable in tables])
        return tables, dense

    def group(self, variables: Iterable[Variable]) -> tuple[list[Variable], list[Variable]]:
        """Split variables into tables and all others by their names, before gradients exist."""
        tables, dense = [], []
        for variable in variables:
            given = self.embeddings
            named = looks_like_table(variable) if given is None else matches(variable, given)
            (tables if named else dense).append(variable)
        return tables, dense

    def check_step(self, given: Sequence[Pair]) -> tuple[Pairs, tuple[Pairs, Pairs]]:
        """Return the pairs of a step that have a gradient, and their `split`.

        Args:
            given: pairs of gradient and variable; gradients may be None. Those that are returned
                have the shape that collective operations need.

        Raises:
            InputError: if a variable is refused, a pattern matches nothing, fields do not fill a
                table, ids are distinct, a gradient of a shard has lost its counts, or the tables
                are those of a second model.
        """
        refuse_foreign(v for _, v in given)
        pairs = [(with_shape(g), v) for g, v in with_gradients(given)]
        if pairs and self._unmatched:
            self._refuse_unmatched(given)
        tables, dense = self.split(pairs)
        for slices, table in tables:
            self.layout_of(table)
            if counts_of(slices) is not None:
                continue
            if self.of(table).shard:
                refuse_lost_counts(table)
            refuse_distinct_ids(slices, table)
        self._refuse_second_model([table for _, table in tables])
        return pairs, (tables, dense)

    def _refuse_second_model(self, tables: Sequence[Variable]) -> None:
        """Refuse other tables than those of earlier steps, whose number of steps they would have.

        Tables that a script has registered before its first step may follow one after another.
        """
        now, known = [self.of(table) for table in tables], self._known.values()
        if not any(each.stepped for each in known):
            for each in known:
                each.stepped = each.registered and each.lookup is None
        elif now and not any(each.stepped for each in now):
            raise InputError(
                f"this CowClip has trained another model than that of {tables[0].name!r}, and its "
                "steps would go on: make one for each model, as by "
                "CowClip.from_config(optimizer.get_config())"
            )
        for each in now:
            each.stepped = True

    def _refuse_unmatched(self, given: Sequence[Pair]) -> None:
        """Refuse patterns of `embeddings` without a variable, and others without a table."""
        found, _ = self.split([pair for pair in given if pair[0] is not None])
        # A variable without a gradient, as in a frozen layer, may be a table.
        may_be_tables = [v for _, v in found] + [v for g, v in given if g is None]
        for argument, variables in (
            ("embeddings", [v for _, v in given]),
            ("skip", may_be_tables),
            ("fields", may_be_tables),
        ):
            self._unmatched.look_at(argument, variables)
            self._unmatched.refuse(argument, variables)

    def get_config(self) -> JsonObject:
        """Return the arguments as plain values.

        Raises:
            InputError: if a variable is among them.
        """
        by_pattern = {pattern: dict(each.fields) for pattern, each in self._by_pattern.items()}
        every = self._of_every_table
        return {
            "skip": _names_only(self.skip, "skip"),
            "embeddings": _names_only(self.embeddings, "embeddings"),
            "fields": dict(every.fields) if every else by_pattern or None,
        }


def _layouts(
    fields: Mapping[str, int | Mapping[str, int]] | None,
) -> tuple[TableLayout | None, dict[str, TableLayout]]:
    """Convert `fields` to one layout for every table, or to layouts by pattern."""
    if fields is None:
        return None, {}
    nested = [isinstance(value, Mapping) for value in fields.values()]
    if not any(nested):
        return TableLayout(fields), {}
    if not all(nested):
        raise InputError(
            "fields: give either field -> number of rows for all tables, or table -> "
            "{field: number of rows}, not both"
        )
    check_patterns(fields, "fields")
    return None, {pattern: TableLayout(given) for pattern, given in fields.items()}


def _refuse_other_rows(table: Variable, layout: TableLayout, whose: str) -> None:
    if layout.rows != table.shape[0]:
        raise InputError(
            f"table {table.name!r} has {table.shape[0]} rows, but {whose} {layout.rows} in all: "
            f"correct them, or give fields for each table, as in fields={{{table.name!r}: "
            "{field: number of rows}}"
        )


def _names_only(patterns: Iterable[Pattern] | None, argument: str) -> list[str] | None:
    """Return the patterns as plain values for JSON.

    Raises:
        InputError: if a pattern is a variable.
    """
    for pattern in patterns or ():
        if not isinstance(pattern, str):
            raise InputError(
                f"{argument} holds the variable {pattern.name!r}, which a configuration "
                "cannot: give its name or a regular expression instead"
            )
    return None if patterns is None else list(patterns)
