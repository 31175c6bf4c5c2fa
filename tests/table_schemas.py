"""Schemas of models whose columns may share a table."""

import numpy as np

from cowclip_merlin import compat


def schema_of_tables(fields, *, tables=None, lists=(), continuous=()):
    """A Merlin schema with the target "click".

    Args:
        fields: categorical column -> number of its ids.
        tables: column -> name of its domain, if it is not that of the column.
        lists: columns with several ids per row; of a mapping, the values are their combiners.
        continuous: columns of numbers.
    """
    compat.merlin_models()
    from merlin.schema import ColumnSchema, Schema, Tags

    columns = [
        ColumnSchema(
            name,
            dtype=np.int64,
            tags=[Tags.CATEGORICAL],
            is_list=name in lists,
            is_ragged=name in lists,
            properties={
                "domain": {"min": 0, "max": rows - 1, "name": (tables or {}).get(name, name)}
            }
            | ({"combiner": lists[name]} if isinstance(lists, dict) and name in lists else {}),
        )
        for name, rows in fields.items()
    ]
    columns += [ColumnSchema(c, dtype=np.float32, tags=[Tags.CONTINUOUS]) for c in continuous]
    tags = [Tags.TARGET, Tags.BINARY_CLASSIFICATION]
    return Schema([*columns, ColumnSchema("click", dtype=np.int8, tags=tags)])
