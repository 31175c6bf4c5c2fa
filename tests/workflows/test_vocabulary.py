"""The hash that says whether two prepared folders mean the same by an id."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cowclip_merlin.workflows.prepared.counts import hash_values


def hash_of(folder, fields, **how):
    folder.mkdir()
    for name, values in fields.items():
        table = pa.table({name: values, f"{name}_size": range(len(values))})
        pq.write_table(table, folder / f"unique.{name}.parquet", **how)
    return hash_values(folder, SimpleNamespace(tables=fields))


def test_how_the_file_is_laid_out_does_not_count(tmp_path):
    fields = {"a": [f"v{i}" for i in range(1000)], "b": ["", "é"], "c": []}
    fields["c"] = pa.array([], pa.string())
    whole = hash_of(tmp_path / "whole", fields)
    assert whole == hash_of(tmp_path / "pieces", fields, row_group_size=7, use_dictionary=False)
    large = fields | {"a": pa.array(fields["a"], pa.large_string())}
    assert whole == hash_of(tmp_path / "large", large)


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
def test_what_ids_stand_for_counts(tmp_path, other):
    assert hash_of(tmp_path / "1", {"a": ["a", "bc"], "b": ["d"]}) != hash_of(tmp_path / "2", other)
