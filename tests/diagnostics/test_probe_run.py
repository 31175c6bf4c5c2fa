"""The rows of a batch at a step, as parquet, and the figure of them."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.diagnostics import figure_4, probe_run, read_diagnostics
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.counts import read_counts

SETTINGS = RunSettings(
    model="deepfm", mlp=(8,), batch_size=256, base_batch_size=64, epochs=2, seed=5
)


@pytest.fixture(scope="module")
def probed(data, tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "rows.parquet"
    return probe_run(data, SETTINGS, step=14, out=file), pd.read_parquet(file)


@pytest.mark.thorough
def test_it_is_what_a_run_sees_at_that_step(probed, data, tmp_path):
    norms, _ = probed
    train(data, SETTINGS, out=tmp_path / "run", diagnostics_every=14)
    table = read_diagnostics(tmp_path / "run")
    at = table[(table.step == 14) & (table.scope == "all")].iloc[0]
    assert (len(norms), norms.cnt.sum()) == (at.rows, at.occurrences)
    assert norms.g_norm.mean() == pytest.approx(at.g_norm, rel=1e-5)
    assert norms.w_norm.mean() == pytest.approx(at.w_norm, rel=1e-5)


def test_the_file_and_the_figure_have_every_row(probed, data):
    norms, table = probed
    assert [*table.columns] == ["field", "id", "count", "cnt", "w_norm", "g_norm"]
    assert len(table) == len(norms) and table.cnt.sum() == 26 * 256
    np.testing.assert_array_equal(table.g_norm, norms.g_norm)
    counts = read_counts(PreparedData.load(data), "C3").to_pandas().set_index("id")["count"]
    mine = table[table.field == "C3"]
    assert mine["count"].tolist() == counts.loc[mine.id].tolist()
    assert (table.cnt <= table["count"]).all()
    norms, _ = probed
    figure = figure_4(norms.cnt, norms.g_norm)
    sizes = [((norms.cnt >= a) & (norms.cnt <= b)).sum() for a, b in ((1, 1), (2, 9), (10, 1e9))]
    for axes in figure.axes:
        for line, size in zip(axes.get_lines(), sizes):
            assert line.get_ydata().sum() == pytest.approx(100)
            assert f"{size:,} rows" in line.get_label()
    assert sum(sizes) == len(norms)


def test_what_could_only_fail_later_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr("cowclip_merlin.contrib.diagnostics.probe.set_up_tensorflow", None)
    with pytest.raises(InputError, match="validation_fraction: a probe"):
        probe_run(data, replace(SETTINGS, validation_fraction=0.1))
    with pytest.raises(InputError, match="no: no such folder"):
        probe_run(data, SETTINGS, step=1, out=tmp_path / "no" / "rows.parquet")


def test_a_step_beyond_the_run_is_refused(data, tmp_path):
    with pytest.raises(InputError, match=r"step 22: .* 0 to 21"):
        probe_run(data, SETTINGS, step=22, out=tmp_path / "rows.parquet")
    assert not any(tmp_path.iterdir())


def test_division_by_the_count_moves_the_frequent_ids():
    cnt = np.repeat([1, 5, 50], 100)
    figure = figure_4(cnt, cnt * 1e-3)
    peaks = [
        [line.get_xdata()[line.get_ydata().argmax()] for line in axes.get_lines()]
        for axes in figure.axes
    ]
    np.testing.assert_allclose(peaks[0], [1e-3, 5e-3, 5e-2], rtol=0.15)
    np.testing.assert_allclose(peaks[1], 1e-3, rtol=0.15)


def test_gradients_of_norm_zero_are_counted():
    figure = figure_4([1, 1, 2], [0.0, 1.0, 2.0])
    assert "1 rows of norm 0 left out" in figure.legends[0].get_title().get_text()


@settings(max_examples=15)
@given(st.lists(st.integers(0, 300), min_size=1).filter(any))
def test_every_row_of_the_batch_is_in_one_curve_or_counted(cnt):
    counts = np.array(cnt)
    norms = np.where(np.arange(len(cnt)) % 3 == 0, 0.0, 0.5 + np.arange(len(cnt)))
    figure = figure_4(cnt, norms)
    for axes in figure.axes:
        sizes = [int(re.search(r"(\d+) rows", x.get_label())[1]) for x in axes.get_lines()]
        assert sum(sizes) == ((counts > 0) & (norms > 0)).sum()
        for line, size in zip(axes.get_lines(), sizes):
            assert line.get_ydata().sum() == pytest.approx(100 if size else 0)
    zeros = re.search(r"(\d+) rows of norm 0", figure.legends[0].get_title().get_text())
    assert (int(zeros[1]) if zeros else 0) == ((counts > 0) & (norms == 0)).sum()


@pytest.mark.parametrize(
    ("cnt", "g_norm", "message"),
    [
        ([1, 2], [0.1], r"\(2,\) counts but \(1,\) norms"),
        ([0, 0], [0.0, 1.0], "no row is in"),
    ],
)
def test_what_is_no_batch_is_refused(cnt, g_norm, message):
    with pytest.raises(ValueError, match=message):
        figure_4(cnt, g_norm)
