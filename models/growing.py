"""Growing tables of the five models: the schema, and the table that gives rows to ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cowclip_merlin import compat, workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.ctr_model import CTRModel, attach, find_cowclip
from cowclip_merlin.optimizer.config import GROWING_RULES, described, row_slots, why_not
from cowclip_merlin.optimizer.exchange import strategy_of
from cowclip_merlin.tables.growing_shard import GrowingShard
from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.variables import create_slots, row_memory
from cowclip_merlin.targets import Scales, check_targets, only_clicks, targets_of
from cowclip_merlin.types import KerasOptimizer

if TYPE_CHECKING:
    from merlin.schema import Schema

    from cowclip_merlin.optimizer import CowClip

Table = TypeVar("Table", bound=GrowingTable)


def growing_schema(
    *,
    categorical: Sequence[str],
    continuous: Sequence[str] = (),
    label: str = "label",
    more_labels: Sequence[str] = (),
    regression: Sequence[str] = (),
    combiners: Mapping[str, str] | None = None,
    share_embedding: Mapping[str, str] | None = None,
    vectors: Mapping[str, int] | None = None,
    scales: Scales | None = None,
) -> Schema:
    """Make the Merlin schema of a model with `tables="growing"`, whose ids have no largest value.

    Args:
        categorical: names of the columns of ids, in model order.
        continuous: names of the columns of numbers, in model order.
        label: name of the 0/1 column, or of the first label.
        more_labels: names of the labels of further targets, of a model with `multi_task`.
        regression: the labels that are numbers; the others are 0 or 1.
        combiners: column with several ids per row -> "mean", "sum" or "sqrtn".
        share_embedding: column -> the column whose ids and embeddings it has, too.
        vectors: column with a vector per row -> its length. The model reads their numbers behind
            those of the continuous columns.
        scales: label that is a number -> its mean and spread, which training divides it by.

    Raises:
        InputError: if there is no such column or label, or a column whose ids are shared shares
            those of another one itself.

    >>> schema = growing_schema(categorical=["user", "item"], continuous=["age"], label="click")
    >>> schema.column_names
    ['user', 'item', 'age', 'click']
    """
    import numpy as np

    merlin = compat.merlin_schema()
    ColumnSchema, Tags = merlin.ColumnSchema, merlin.Tags
    several, shared = combiners or {}, share_embedding or {}
    for name, table in shared.items():
        if name not in categorical or table not in categorical or table in shared:
            raise InputError(
                f"share_embedding: {name!r} cannot have the ids of {table!r}; give two categorical "
                "columns, of which the second one has ids of its own"
            )
    ids = [
        ColumnSchema(
            name,
            dtype=np.int32,
            tags=[Tags.CATEGORICAL],
            properties=({"combiner": several[name]} if name in several else {})
            | ({"domain": {"name": shared.get(name, name)}} if shared else {}),
            is_list=name in several,
            is_ragged=name in several,
        )
        for name in categorical
    ]
    numbers = [ColumnSchema(name, dtype=np.float32, tags=[Tags.CONTINUOUS]) for name in continuous]
    for name, length in (vectors or {}).items():
        count = {"value_count": {"min": length, "max": length}}
        kind = {"dtype": np.float32, "tags": [Tags.CONTINUOUS], "is_list": True, "is_ragged": False}
        numbers.append(ColumnSchema(name, properties=count, **kind))
    kinds = {False: Tags.BINARY_CLASSIFICATION, True: Tags.REGRESSION}
    check_targets([label, *more_labels], regression)
    targets = targets_of([label, *more_labels], regression)
    dtype = np.int8 if only_clicks(targets) else np.float32  # a missing label is NaN
    labels = [
        ColumnSchema(
            target.name,
            dtype=dtype,
            tags=[Tags.TARGET, kinds[target.regression]],
            properties=dict(zip(("mean", "spread"), (scales or {}).get(target.name, ()))),
        )
        for target in targets
    ]
    return merlin.Schema([*ids, *numbers, *labels])


def growing_table(
    model: CTRModel,
    optimizer: KerasOptimizer,
    *,
    fields: Mapping[str, FieldRules] | None = None,
    **settings: Any,
) -> GrowingTable:
    """Make the table that gives rows of a model with `tables="growing"` to ids.

    It writes the first values of new rows into the memory of the model's tables and of the
    optimizer's state of rows. Call it once, before the first step.

    Args:
        model: one of the five models, made with `tables="growing"` and a capacity, on the CPU.
        optimizer: `CowClip(update="lazy")` with Adam or Adagrad, or an optimizer that holds one.
        fields: field -> when its ids get and lose their rows; other fields have `FieldRules()`.
            Columns that share a table are one field, with the name of the table.
        **settings: of `GrowingTable`: `max_rows`, `admission_filter`, `window`, `counters`,
            `absent`, `index_cells`.

    Raises:
        InputError: the model, the optimizer or a setting does not fit.
    """
    if group := workers.current():
        raise InputError(
            f"growing_table: there are {group.size} workers, which would give the same row to "
            "different ids; train in one process"
        )
    return _make(GrowingTable, model, optimizer, fields, settings)


def growing_shard(
    model: CTRModel,
    optimizer: KerasOptimizer,
    group: workers.Workers,
    *,
    fields: Mapping[str, FieldRules] | None = None,
    **settings: Any,
) -> GrowingShard:
    """Make this worker's part of the table that `growing_table` makes, as each worker must.

    Args:
        model: as for `growing_table`.
        optimizer: as for `growing_table`.
        group: this process and the others.
        fields: as for `growing_table`.
        **settings: of `GrowingShard`.

    Raises:
        InputError: the model, the optimizer or a setting does not fit.
    """
    compat.all_to_all()  # refuse an old TensorFlow before the first step
    make = partial(GrowingShard, rank=group.rank, size=group.size)
    table = _make(make, model, optimizer, fields, settings)
    layers = model.row_sync.layers
    find_cowclip(optimizer).tables.mark_shards([layer.table for layer in layers])
    model.row_sync.shared_rows = table.num_fields
    return table


def _make(
    kind: Callable[..., Table],
    model: CTRModel,
    optimizer: KerasOptimizer,
    fields: Mapping[str, FieldRules] | None,
    settings: Mapping[str, Any],
) -> Table:
    cowclip = find_cowclip(optimizer)
    _refuse_model(model)
    _refuse_optimizer(optimizer, cowclip)
    inner, architecture = cowclip.embedding_optimizer, model.blocks[0].architecture
    columns = model.blocks[0].columns
    layers, slots = model.row_sync.layers, row_slots(inner)
    start = inner.get_config().get("initial_accumulator_value", 0.0)  # of Adagrad
    for layer in layers:
        create_slots(inner, layer.table, slots)
    table = kind(
        _rules(columns.table_rows, fields or {}),
        # Equal seeds would give the tables of a model equal numbers.
        memory=[
            row_memory(
                layer.table,
                {name: inner.get_slot(layer.table, name) for name in slots},
                start=start,
                std=layer.std,
                seed=layer.seed + i,
            )
            for i, layer in enumerate(layers)
        ],
        capacity=architecture.capacity,
        seed=architecture.seed,
        field_of_column=columns.table_of_field if columns.tables else None,
        **settings,
    )
    attach(model, optimizer)
    names = list(columns.table_rows)
    cowclip.tables.name_rows([layer.table for layer in layers], partial(_name_row, table, names))
    model.row_sync.grows_with, cowclip.reserved_rows = cowclip, architecture.capacity
    model.row_sync.zero_rows = table.num_fields if table.absent == "zeros" else 0
    return table


def _name_row(table: GrowingTable, names: Sequence[str], row: int) -> str:
    """Name a row in an error by its field and id, as they are now."""
    if row < len(names):
        return f"the ids without a row of field {names[row]!r}"
    owner = table.owner_of(row)
    if owner is None:
        return f"row {row}, which no id has"
    return f"id {owner[1]} of field {names[owner[0]]!r}"


def _rules(known: Mapping[str, int], rules: Mapping[str, FieldRules]) -> list[FieldRules]:
    for name in rules:
        if name not in known:
            raise InputError(f"fields: no field {name!r}; the model has {', '.join(known)}")
    return [rules.get(name, FieldRules()) for name in known]


def _refuse_model(model: CTRModel) -> None:
    tables = model.blocks[0].architecture.tables
    if tables != "growing":
        raise InputError(
            f"growing_table: the model has tables={tables!r}; build it with "
            'tables="growing" and capacity=...'
        )
    if model.row_sync.grows_with is not None:
        raise InputError("growing_table: the model has a growing table already; use that one")
    if any(strategy_of(layer.table) is not None for layer in model.row_sync.layers):
        raise InputError(
            "growing_table: the tables have a copy in each replica; build the model outside of the "
            "scope of a tf.distribute strategy"
        )


def _refuse_optimizer(optimizer: KerasOptimizer, cowclip: CowClip | None) -> None:
    if cowclip is None:
        raise InputError(
            f"growing_table needs CowClip, not {described(optimizer)}: it updates only the rows of "
            'a batch; use cc.CowClip(update="lazy")'
        )
    reason = why_not(cowclip.config, cowclip.embedding_optimizer, GROWING_RULES)
    if reason:
        raise InputError(f"growing_table: {reason}")
