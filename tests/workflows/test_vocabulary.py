"""The hash of what ids mean, and the counts of several parts of a log."""

from collections import Counter

import pyarrow as pa
import pytest

from cowclip_merlin.workflows.prepared.counts import ValuesHash, add_counts


def hash_of(fields, size=1000, kind=None):
    found = ValuesHash()
    for name, values in fields.items():
        chunks = [values[i : i + size] for i in range(0, len(values), size)]
        found.add(name, pa.chunked_array(chunks, kind or pa.string()))
    return found.hexdigest()


def test_how_the_texts_are_laid_out_does_not_count():
    fields = {"a": [f"v{i}" for i in range(1000)], "b": ["", "é"], "c": []}
    whole = hash_of(fields)
    assert whole == hash_of(fields, size=7) == hash_of(fields, kind=pa.large_string())
    parts = {name: pa.array(values, pa.string()) for name, values in fields.items()}
    assert whole == hash_of(parts, size=7)  # parts of one buffer


@pytest.mark.parametrize(
    "other",
    [
        {"a": ["ab", "c"], "b": ["d"]},
        {"a": ["bc", "a"], "b": ["d"]},
        {"a": ["a"], "b": ["bc", "d"]},
        {"b": ["a", "bc"], "a": ["d"]},
        {"a": ["a", "bc", "d"]},
    ],
)
def test_what_ids_stand_for_counts(other):
    assert hash_of({"a": ["a", "bc"], "b": ["d"]}) != hash_of(other)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.int64()])
def test_counts_of_several_parts_add_up(kind):
    text = int if kind == pa.int64() else "é{}".format
    parts = [{1: 4, 2: 1}, {}, {3: 2, None: 5, 1: 3}, {None: 1, 2: 2}]
    tables, known = [], Counter()
    for part in parts:
        values = [None if x is None else text(x) for x in part]
        known.update(dict(zip(values, part.values())))
        columns = {"value": pa.array(values, kind), "count": pa.array(part.values(), pa.int64())}
        tables.append(pa.table(columns))
    found = add_counts(tables)
    assert dict(zip(found["value"].to_pylist(), found["count"].to_pylist())) == known
    if kind != pa.int64():
        assert found["value"].to_pylist() == [text(1), text(2), text(3), None]
        assert found["value"].type == pa.string()
