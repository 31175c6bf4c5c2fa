"""Parts of tables become the parts of another number of workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.snapshot import load_part, part_folder
from cowclip_merlin.tables.snapshot_writer import SnapshotWriter
from cowclip_merlin.training.checkpoint import ShardedRows

DENSE = {"weights.30": np.arange(4.0)}  # as many rows as the part of the second one


@settings(max_examples=100)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5))
def test_joined_rows_are_those_of_the_whole_table(rows, before, now):
    table = np.arange(rows * 2).reshape(rows, 2)
    for rank in range(now):
        parts = ({"t": table[q::before]} for q in range(before))
        found = ShardedRows(["t"]).joined(parts, before, rank, now)
        assert np.array_equal(found["t"], table[rank::now])


@pytest.fixture
def tables():
    rng = np.random.default_rng(0)
    shapes = {"": (11, 4), ".m": (11, 4), ".accumulator": (11, 1), ".last": (11,)}
    return {f"weights.3{name}": rng.random(shape, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def saved(tmp_path, tables):
    """A checkpoint of three workers."""
    for rank in (1, 2, 0):
        writer = SnapshotWriter(tmp_path, rank=rank, workers=3)
        own = {name: x[rank::3] for name, x in tables.items()}
        writer.begin(7, own if rank else own | DENSE, {})
        assert writer.finished(wait=True) == 7
        writer.close()
    return tmp_path


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_any_number_of_workers_reads_its_rows(saved, tables, size):
    for rank in range(size):
        found = load_part(saved, 7, ShardedRows(tables.keys()), rank=rank, size=size).arrays
        assert found.keys() == tables.keys() | DENSE.keys()
        for name, whole in tables.items():
            assert np.array_equal(found[name], whole[rank::size]), name
        assert np.array_equal(found["weights.30"], np.arange(4.0))


@pytest.mark.parametrize("size", [2, 3])
def test_a_missing_part_is_one_line(saved, tables, size):
    (part_folder(saved, 2, 3) / "7" / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"2-of-3/7/manifest\.json: no such file"):
        load_part(saved, 7, ShardedRows(tables.keys()), rank=size - 1, size=size)
