"""The embedding tables of one optimizer: which variables they are, their fields, and refusals."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.unique_rows import counts_of
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.types import Gradient, IndexedSlices, JsonObject, Pair, Variable, VariableRef

tf = compat.tensorflow()

if TYPE_CHECKING:
    from cowclip_merlin.optimizer.row_updates.engine import AdagradState, TableState

Pairs = list[Pair]

Pattern: TypeAlias = "str | Variable"
"""A regular expression of names, or a variable itself."""


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
        self.embeddings = _check_patterns(embeddings, "embeddings")
        self.skip = _check_patterns(skip, "skip")
        self._of_every_table, self._by_pattern = _layouts(fields)
        given = {"embeddings": self.embeddings, "skip": self.skip, "fields": self._by_pattern}
        self._unmatched = {  # regular expressions that have matched no variable yet
            argument: [p for p in some or () if isinstance(p, str)]
            for argument, some in given.items()
        }
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
        for argument in self._unmatched:
            self._look_at(argument, tables)

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
                raise InputError(
                    f"the gradient of embedding table {variable.name!r} {tuple(variable.shape)} is "
                    "dense, so the ids' counts are lost: remove the Keras regularizer (l2(0), too: "
                    "see docs/optimizer.md) or L2 term from it and pass l2=... to CowClip, look "
                    "rows up with tf.gather or an embedding layer, and accumulate gradients by "
                    "concatenating their values and indices, not by tf.add_n"
                )
            (tables if named else dense).append((gradient, variable))
        seen: set[VariableRef] = set()
        for _, table in tables:
            if len(table.shape) != 2:
                raise InputError(
                    f"embedding table {table.name!r} has the shape {tuple(table.shape)}: give it "
                    "[rows, d], and [rows, 1] for one number a row"
                )
            if table.ref() in seen:
                raise InputError(
                    f"embedding table {table.name!r} {tuple(table.shape)} has two gradients in one "
                    "step, and counts are those of both: give each variable once"
                )
            seen.add(table.ref())
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
        pairs = [(_with_shape(g), v) for g, v in given if g is not None]
        if without := ", ".join(v.name for g, v in given if g is None):
            if not pairs:
                raise InputError(
                    f"No gradients provided for any variable ({without:.500}): there is no loss, "
                    "or it does not depend on them"
                )
            tf.get_logger().warning("Gradients do not exist for variables %.500s", without)
        if pairs and any(self._unmatched.values()):
            self._refuse_unmatched(given)
        tables, dense = self.split(pairs)
        for slices, table in tables:
            self.layout_of(table)
            if counts_of(slices) is not None:
                continue
            if self.of(table).shard:
                raise InputError(
                    f"the gradient of {table.name!r}, of which each worker has a part, has lost "
                    "the ids' counts: give CowClip the gradients as the tape returns them "
                    "(LossScaleOptimizer changes them, and bfloat16 does not need it), or use "
                    'tables="fused"'
                )
            _refuse_distinct_ids(slices, table)
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
            self._look_at(argument, variables)
            for pattern in self._unmatched[argument]:
                names = ", ".join([repr(v.name) for v in variables[:4]]) or "none"
                raise InputError(
                    f"{argument}: {pattern!r} matches no table of this step (looked at "
                    f"{names}{', ...' * (len(variables) > 4)}): correct or remove it; if its table "
                    "gets gradients in another call of apply_gradients, call "
                    "register_tables([table]) before"
                )

    def _look_at(self, argument: str, variables: Sequence[Variable]) -> None:
        """Forget the patterns of this argument that match one of the variables."""
        left = self._unmatched[argument]
        left[:] = [p for p in left if not any(matches(v, (p,)) for v in variables)]

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


def matches(variable: Variable, patterns: Sequence[Pattern]) -> bool:
    """Whether a pattern is this variable itself, or a regular expression found in its name."""
    return any(
        re.search(p, variable.name) is not None if isinstance(p, str) else p is variable
        for p in patterns
    )


def looks_like_table(variable: Variable) -> bool:
    """Whether a variable has the name and shape of an embedding table in Keras and Merlin."""
    name = variable.name.rsplit("/", 1)[-1].split(":")[0]
    return name.endswith("embeddings") and len(variable.shape) == 2


def refuse_foreign(variables: Iterable[Variable]) -> None:
    """Refuse variables whose gradients or steps are not those of TensorFlow and Keras 2.

    Raises:
        InputError: a variable of HugeCTR's Sparse Operation Kit, or of Keras 3.
    """
    for variable in variables:
        homes = {kind.__module__.partition(".")[0] for kind in type(variable).__mro__}
        if "sparse_operation_kit" in homes:
            raise InputError(
                f"table {variable.name!r} belongs to HugeCTR's Sparse Operation Kit, which sums "
                "the gradients of equal ids before CowClip could count them: use an embedding "
                "layer of Keras or Merlin"
            )
        if "keras" in homes and not isinstance(variable, tf.Variable):
            raise InputError(
                f"variable {variable.name!r} belongs to Keras 3: import cowclip_merlin, "
                "and build the model by `from tensorflow import keras`, not by `import keras`"
            )


def _check_patterns(
    patterns: Iterable[Pattern] | None, argument: str
) -> tuple[Pattern, ...] | None:
    """Return the patterns as a tuple; refuse one that is no regular expression and no variable."""
    if patterns is None:
        return None
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for p in patterns:
        if isinstance(p, str):
            try:
                re.compile(p)
            except re.error as error:
                raise InputError(
                    f"{argument}: {p!r} is not a regular expression ({error})"
                ) from error
        elif not hasattr(p, "assign"):
            raise InputError(f"{argument}: {p!r} is neither a name, a regex nor a variable")
    return patterns


def _with_shape(gradient: Gradient) -> Gradient:
    """Convert a gradient's dense shape, if any, to a tensor, as collective operations need it."""
    if not isinstance(gradient, tf.IndexedSlices) or gradient.dense_shape is None:
        return gradient
    shape = tf.convert_to_tensor(gradient.dense_shape)
    return tf.IndexedSlices(gradient.values, gradient.indices, shape)


# Operations whose output has the entries of their inputs; those whose output has each id once, and
# the number of this output.
_SAME_ENTRIES = {"Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "EnsureShape", "ConcatV2"}
_DISTINCT = {"Unique": 0, "UniqueV2": 0, "UniqueWithCounts": 0, "UniqueWithCountsV2": 0} | {
    f"SparseSegment{name}GradV2": 1 for name in ("Sum", "Mean", "SqrtN")
}


def _refuse_distinct_ids(slices: IndexedSlices, variable: Variable) -> None:
    """Refuse a gradient whose entries are distinct ids; without a graph it cannot be seen."""
    waiting, seen = [slices.indices], set()
    while waiting:
        tensor = waiting.pop()
        made_by = getattr(tensor, "op", None)
        if made_by is None or tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        if _DISTINCT.get(made_by.type) == tensor.value_index:
            raise InputError(
                f"the gradient of embedding table {variable.name!r} has one entry for each "
                f"distinct id (operation {made_by.type}), so the ids' counts are lost: look up "
                "every occurrence of an id, not the result of tf.unique"
            )
        if made_by.type in _SAME_ENTRIES:
            waiting += made_by.inputs


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
    _check_patterns(fields, "fields")
    return None, {pattern: TableLayout(given) for pattern, given in fields.items()}


def _refuse_other_rows(table: Variable, layout: TableLayout, whose: str) -> None:
    if layout.rows != table.shape[0]:
        raise InputError(
            f"table {table.name!r} has {table.shape[0]} rows, but {whose} {layout.rows} in all: "
            f"correct them, or give fields for each table, as in fields={{{table.name!r}: "
            "{field: number of rows}}"
        )


def _names_only(patterns: Iterable[Pattern] | None, argument: str) -> list[str] | None:
    """Return the patterns as plain values for JSON; refuse a variable."""
    for pattern in patterns or ():
        if not isinstance(pattern, str):
            raise InputError(
                f"{argument} holds the variable {pattern.name!r}, which a configuration "
                "cannot: give its name or a regular expression instead"
            )
    return None if patterns is None else list(patterns)
