"""The hash that says whether two prepared folders mean the same by an id."""

import pyarrow as pa
import pytest

from cowclip_merlin.workflows.prepared.counts import ValuesHash


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
