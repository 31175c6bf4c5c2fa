"""Figures: what is drawn, files that come out the same, tables as files."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.experiments import figures
from cowclip_merlin.experiments.figures import Curve
from cowclip_merlin.experiments.files import load_experiment
from cowclip_merlin.experiments.on_data.outputs import multiplier_figure
from cowclip_merlin.experiments.on_data.plan import plan_runs
from cowclip_merlin.experiments.results import example_result
from cowclip_merlin.experiments.sizing import sizing_for
from cowclip_merlin.experiments.tables import Cell

TEXT = dict(name="f", title="T", caption="C", alt="A", data="D", command="cowclip")


def drawn(axes):
    return {line.get_label(): line for line in axes.get_lines() if line.get_label()[:1] != "_"}


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(-9, 9) | st.just(math.nan), min_size=n, max_size=n), min_size=1
        )
    )
)
def test_means_and_range_leave_out_what_was_not_measured(runs):
    line = Curve(label="x", x=range(len(runs[0])), runs=runs)
    with np.testing.suppress_warnings() as quiet:
        quiet.filter(RuntimeWarning)  # NumPy's word on a column of NaN
        np.testing.assert_allclose(line.means(), np.nanmean(runs, axis=0), atol=1e-12)
        low, high = line.range()
        np.testing.assert_array_equal(low, np.nanmin(runs, axis=0))
        np.testing.assert_array_equal(high, np.nanmax(runs, axis=0))


def test_a_run_of_another_length_is_refused():
    with pytest.raises(ValueError, match="must have 2 values"):
        Curve(label="x", x=(1, 2), runs=((1.0, 2.0), (1.0,)))


def test_epochs_show_mean_and_range_and_keep_a_lines_style_in_every_panel():
    a = Curve(label="a", x=(1, 2), runs=((1.0, 2.0), (3.0, math.nan)))
    b = Curve(label="b", x=(1, 2), runs=((0.0, 0.0),))
    figure = figures.draw_epochs({"auc": [a, b], "loss": [b]})
    left, right = figure.axes
    assert drawn(left)["a"].get_ydata().tolist() == [2.0, 2.0]
    band = left.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1.0, 3.0)
    assert drawn(left)["b"].get_color() == drawn(right)["b"].get_color()
    assert len(left.collections) == 1, "one seed has no band"


def test_equal_lines_are_drawn_once():
    a, b = (Curve(label="a", x=(1, 2), runs=((1.0, 2.0), (1.5, 2.5))) for _ in range(2))
    (axes,) = figures.draw_epochs({"auc": [a, b]}).axes
    assert len(axes.get_lines()) == len(axes.collections) == 1


def test_times_are_relative_to_the_first_lines_smallest_batch():
    dense = Curve(label="dense", x=(256, 1024), runs=((80.0, 20.0),))
    exact = Curve(label="exact", x=(256,), runs=((40.0,),))
    left, right = figures.draw_times([dense, exact], rows=2560).axes
    assert drawn(left)["dense"].get_ydata().tolist() == [1.0, 0.25]
    assert drawn(left)["exact"].get_ydata().tolist() == [0.5]
    assert drawn(right)["dense"].get_ydata().tolist() == [8000.0, 20_000 / 3]


@pytest.mark.parametrize("seconds", [(0.9, 0.8), (80.0, 20.0), (8e4, 0.2)])
def test_every_axis_of_times_has_numbers_to_read(seconds):
    line = Curve(label="dense", x=(256, 512), runs=(seconds,))
    figure = figures.draw_times([line], rows=2560)
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


def test_multipliers_stand_beside_the_published_numbers():
    ours = Curve(label="a", x=(1, 8), runs=((1.0, 2.0), (1.5, 2.5)))
    paper = Curve(label="a", x=(1, 8), runs=((80.0, 81.0),))
    figure = figures.draw_multipliers([ours], [paper])
    assert [axes.get_title() for axes in figure.axes] == ["measured here", "published"]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["1x", "8x"]
    assert len(figures.draw_multipliers([ours]).axes) == 1


@settings(max_examples=15)
@given(st.lists(st.integers(1, 10**9), min_size=1))
def test_every_id_is_in_the_bin_of_its_occurrences(counts):
    _, right = figures.draw_ids({"C1": counts, "C2": [0]}).axes
    data = right.patches[0].get_data()
    expected, _ = np.histogram(counts, bins=data.edges)
    assert data.values.tolist() == expected.tolist()
    assert f"seen once: {100 * counts.count(1) / len(counts):.1f}%" in right.get_title()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.draw_epochs({}),
        lambda: figures.draw_multipliers([]),
        lambda: figures.draw_times([], rows=1),
        lambda: figures.draw_ids({"C1": []}),
    ],
)
def test_nothing_to_draw_is_an_error(draw):
    with pytest.raises(ValueError, match=r"no (runs|times|ids)"):
        draw()


def test_a_name_that_is_no_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot name"):
        figures.write_figure(tmp_path, None, **TEXT | {"name": "../x"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_no_cell(number):
    """So it is never written."""
    with pytest.raises(ValueError, match=f"the number {number}"):
        Cell(mean=number)


@pytest.mark.parametrize(
    "fields", [[f"C{k}" for k in range(26)], [f"crossed_{k}" for k in range(11)]]
)
def test_the_legend_of_a_figure_lies_within_it(fields):
    figure = figures.draw_ids({field: [5, 3, 1] for field in fields})
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(fields)
    inside, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= inside.x0 and inside.x1 <= whole.x1
    markers = [line.get_marker() for line in figure.axes[0].get_lines()]
    assert len(set(markers[:7])) == 7, "told apart without colours"


def test_a_diverged_seed_takes_no_value_of_another_one():
    """Each point is the mean of the seeds that finished there."""
    experiment = load_experiment("table2")
    label = experiment.lines[0].label
    runs = {
        run: example_result(
            auc=0.7 + run.settings.seed / 100, seed=run.settings.seed,
            status="diverged" if (run.multiplier, run.settings.seed) == (8, 1) else "done",
        )
        for run in plan_runs(experiment, sizing_for(450_000, epochs=3), seeds=3)
        if run.label == label
    }  # fmt: skip
    ours, _ = multiplier_figure(experiment, runs).axes
    ((line, *_),) = (c for c in ours.containers if c.get_label() == label)
    drawn_at = dict(zip(*line.get_data()))
    assert drawn_at == pytest.approx({m: 72.5 if m == 8 else 72 for m in drawn_at})


def test_a_rule_that_was_published_at_one_batch_is_a_point():
    experiment = load_experiment("table2")
    runs = {
        run: example_result(auc=0.7)
        for run in plan_runs(experiment, sizing_for(450_000, epochs=3), seeds=1)
    }
    _, published = multiplier_figure(experiment, runs).axes
    found = {line.label: line.published for line in experiment.lines}
    shown = {c.get_label(): dict(zip(*c[0].get_data())) for c in published.containers}
    assert shown == found and shown["sqrt"] == {8: 80.28}
