"""The embedding tables of one optimizer, which of them are clipped, and their fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer import embedding_variables
from cowclip_merlin.optimizer.embedding_variables import Pattern, Unmatched, check_patterns, matches
from cowclip_merlin.optimizer.exchange import with_shape
from cowclip_merlin.optimizer.unique_rows import counts_of
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import JsonObject, Pair, Variable, VariableRef

Pairs = list[Pair]


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
        self._registered: list[Variable] = []
        self._layouts: dict[VariableRef, TableLayout] = {}
        self._lookups: dict[VariableRef, Hashable] = {}
        self._shards: set[VariableRef] = set()
        self._row_names: dict[VariableRef, Callable[[int], str]] = {}
        self._stepped: set[VariableRef] = set()

    def __deepcopy__(self, memo: dict[int, object]) -> EmbeddingTables:
        """Copy the object but not its tables: a copied optimizer trains the same tables."""
        result = copy.copy(self)
        result._registered, result._layouts = list(self._registered), dict(self._layouts)
        result._lookups, result._row_names = dict(self._lookups), dict(self._row_names)
        result._shards, result._stepped = set(self._shards), set(self._stepped)
        result._unmatched = copy.deepcopy(self._unmatched, memo)
        return result

    @property
    def registered(self) -> list[Variable]:
        """Tables given to `register`, in this order."""
        return self._registered

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
        embedding_variables.refuse_foreign(tables)
        for table, layout in zip(tables, layouts or ()):
            _refuse_other_rows(table, layout, "its layout has")
            self._layouts[_key(table)] = layout
        self._lookups |= dict(zip(map(_key, tables), lookups or ()))
        known = {_key(table) for table in self._registered}
        self._registered += [table for table in tables if _key(table) not in known]
        for argument in ("embeddings", "skip", "fields"):
            self._unmatched.look_at(argument, tables)

    def name_rows(self, tables: Iterable[Variable], name: Callable[[int], str]) -> None:
        """Name the rows of tables in errors by a function; for tables whose rows change owners."""
        self._row_names |= {_key(table): name for table in tables}

    def read_together(self, table: Variable) -> Hashable:
        """Return a value that tables share which are always read at the same ids."""
        return self._lookups.get(_key(table), _key(table))

    def mark_shards(self, tables: Iterable[Variable]) -> None:
        """Remember tables of which each worker has a part."""
        self._shards |= {_key(table) for table in tables}

    def skips(self, table: Variable) -> bool:
        """Whether a table gets L2 but no clip."""
        return table.shape[-1] == 1 if self.skip is None else matches(table, self.skip)

    def clips(self, pairs: Sequence[Pair]) -> list[bool]:
        """Return for each pair of gradient and table whether the table is clipped."""
        return [not self.skips(table) for _, table in pairs]

    def layout_of(self, table: Variable) -> TableLayout | None:
        """Return the fields of a table; None if they are unknown and the table is one field.

        Raises:
            InputError: if the fields given to `CowClip` do not fill the table.
        """
        layout = self._layouts.get(_key(table), self._of_every_table)
        for pattern, given in self._by_pattern.items() if layout is None else ():
            if matches(table, (pattern,)):
                layout = given
                break
        if layout is not None:
            _refuse_other_rows(table, layout, "the fields of CowClip have")
        return layout

    def describe(self, table: Variable, row: int) -> str:
        """Describe a row, for errors."""
        if name := self._row_names.get(_key(table)):
            return name(row)
        layout = self.layout_of(table)
        return f"row {row} of table {table.name!r}" if layout is None else layout.describe(row)

    def split(self, pairs: Sequence[Pair]) -> tuple[Pairs, Pairs]:
        """Split pairs of gradient and variable into those of tables and all others.

        Raises:
            InputError: if a table has a dense gradient, has two gradients, or is not a matrix.
        """
        return embedding_variables.split(pairs, self.embeddings)

    def group(self, variables: Iterable[Variable]) -> tuple[list[Variable], list[Variable]]:
        """Split variables into tables and all others by their names, before gradients exist."""
        tables, dense = [], []
        for variable in variables:
            if self.embeddings is None:
                named = embedding_variables.looks_like_table(variable)
            else:
                named = matches(variable, self.embeddings)
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
        embedding_variables.refuse_foreign(v for _, v in given)
        pairs = [(with_shape(g), v) for g, v in embedding_variables.with_gradients(given)]
        if pairs and self._unmatched:
            self._refuse_unmatched(given)
        tables, dense = self.split(pairs)
        for slices, table in tables:
            self.layout_of(table)
            if counts_of(slices) is not None:
                continue
            if _key(table) in self._shards:
                embedding_variables.refuse_lost_counts(table)
            embedding_variables.refuse_distinct_ids(slices, table)
        self._refuse_second_model([table for _, table in tables])
        return pairs, (tables, dense)

    def _refuse_second_model(self, tables: Sequence[Variable]) -> None:
        """Refuse other tables than those of earlier steps, whose number of steps they would have.

        Tables that a script has registered before its first step may follow one after another.
        """
        now = {_key(table) for table in tables}
        if not self._stepped:
            self._stepped |= {_key(x) for x in self._registered} - set(self._lookups)
        elif now and not now & self._stepped:
            raise InputError(
                f"this CowClip has trained another model than that of {tables[0].name!r}, and its "
                "steps would go on: make one for each model, as by "
                "CowClip.from_config(optimizer.get_config())"
            )
        self._stepped |= now

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


def _key(table: Variable) -> VariableRef:
    return compat.stored(table).ref()


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
