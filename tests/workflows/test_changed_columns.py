"""What counts of new rows are told, and which values of a training log decide a range."""

import numpy as np
import pyarrow as pa
import pytest

from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare
from cowclip_merlin.workflows.nvtabular_graph import Statistics
from cowclip_merlin.workflows.prepared.changes import Baseline, ValueCounts, warn_of_sentinels
from cowclip_merlin.workflows.raw.log_format import LogFormat

FORMAT = LogFormat(
    kind="table", label="", categorical=("a", "b"), continuous=("x",), multi={"b": "|"}
)
ROWS = pa.table(
    {
        "a": pa.array(["u", None, "v", None]).dictionary_encode(),
        "b": pa.array([["t"], [], [], ["t", "s"]]),
        "x": pa.array([-1.0, None, 5.0, 8.0]),
    }
)


def counted(parts, **more):
    counts = ValueCounts(FORMAT, **more)
    for table, rows in parts:
        counts.add(table, rows)
    return counts


def test_missing_values_and_extremes_of_some_rows():
    first, rest = np.array([True, True, False, True]), np.array([False, False, True, False])
    counts = counted([(ROWS, first)])
    assert counts.rows == 3 and counts.missing == {"a": 2, "b": 1, "x": 1}
    assert counts.extremes == {"x": (-1.0, 8.0, -1.0, 8.0)} and not counts.outside
    both = counted([(ROWS, first), (ROWS, rest)])
    assert both.rows == 4 and both.missing == {"a": 2, "b": 2, "x": 1}
    assert both.extremes == counted([(ROWS, None)]).extremes == {"x": (-1.0, 5.0, 5.0, 8.0)}


@pytest.mark.parametrize(("log", "limits"), [(False, (-1.0, 5.0)), (True, (0.0, np.log(6.0)))])
def test_numbers_outside_of_a_range(log, limits):
    low, high = ({"x": float(np.float32(limit))} for limit in limits)
    ranges = Statistics(cardinalities={}, minimum=low, maximum=high)
    counts = counted([(ROWS, None)], ranges=ranges, log=log)
    assert counts.outside == {"x": 1} and not counts.extremes


@pytest.mark.parametrize(
    ("values", "unknown", "limit"),
    [(1000, 140, 0.57), (1000, 0, 0.5), (1000, 900, 0.95), (3, 0, 0.6), (0, 0, 0.75)],
)
def test_half_of_the_known_values_has_to_be_known(values, unknown, limit):
    base = Baseline(rows=9, missing={}, values={"a": values}, unknown={"a": unknown})
    assert not base.far_more_unknown("a", limit - 0.005)
    assert base.far_more_unknown("a", limit + 0.005)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([1, 7, 200, 999999999], "999999999, decides its range; all others are from 1 to 200"),
        ([-99999, 1.5, 7], "-99999, decides its range; all others are from 1.5 to 7"),
        ([1, 2, 100], ""),
        ([0, 10**9], ""),
        ([5], ""),
    ],
)
def test_one_value_that_decides_a_range(numbers, told, caplog):
    rows = ROWS.take([0] * len(numbers)).set_column(2, "x", pa.array(numbers, pa.float64()))
    warn_of_sentinels(counted([(rows, None)]).extremes)
    assert len(caplog.messages) == bool(told) and all(told in line for line in caplog.messages)


def test_prepare_notes_what_the_rows_are_like(tmp_path, caplog):
    lines = [f"{i % 2},{i % 9 or ''},{i if i % 50 != 6 else 999999999}" for i in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(["y,a,x", *lines, ""]))
    columns = {"label": "y", "categorical": ("a",), "continuous": ("x",)}
    settings = {"files": [tmp_path / "log.csv"], "kind": "table"}
    data = prepare(PrepareSettings(out=tmp_path / "data", **settings, **columns))
    base = data.baseline
    assert base.rows == data.rows["train"] and base.missing["x"] == 0 < base.missing["a"] < 40
    assert 0 < base.values["a"] <= data.rows["test"] and base.unknown == {"a": 0}
    assert [line for line in caplog.messages if "column 'x': one value, 999999999" in line]
    caplog.clear()
    new = prepare(PrepareSettings(out=tmp_path / "new", **settings, like=data.path))
    assert PreparedData.load(new.path).baseline == base and not caplog.messages
