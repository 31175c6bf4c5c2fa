"""Experiment files: all that are there are sound, and wrong ones are refused in one line."""

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import Experiment, ExperimentLine
from cowclip_merlin.experiments.files import experiment_names, load_experiment, parse_experiment
from cowclip_merlin.experiments.on_data.plan import feasible_multipliers, plan_runs
from cowclip_merlin.experiments.on_data.sweeps import expand_sweep
from cowclip_merlin.experiments.sizing import sizing_for
from cowclip_merlin.training.build import build_optimizer


def optimizer_of(settings):
    """The run's optimizer, for a data set of one field."""
    data = SimpleNamespace(tables={"C1": 4})
    return build_optimizer(settings, settings.hyperparameters("criteo"), data, steps=1)


LINE = {"label": "a", "multipliers": [1]}
WHOLE = {"title": "t", "claim": "c", "lines": [LINE]}


def test_every_experiment_of_the_files_is_found_by_its_name():
    files = (Path(__file__).parents[2] / "experiments").rglob("*.yaml")
    names = [x for file in files for x in re.findall(r"^(\w+):$", file.read_text(), re.MULTILINE)]
    assert sorted(names) == sorted(experiment_names()), "no name twice, no file too deep"


ON_LOG = {
    "monolith_sync": ("sync", ["never", "1d", "5h", "1h", "30min"]),
    "admission": ("admit", [1, 2, 3, 5, 10]),
    "monolith_collisions": ("load", [0, 0.059, 0.163, 1, 4]),
    "expiry": ("ttl", ["1h", "6h", "1d", "3d", "never"]),
}
ON_DATA = [name for name in experiment_names() if isinstance(load_experiment(name), Experiment)]


def test_the_papers_tables_and_the_experiments_on_a_log_are_there():
    assert {f"table{n}" for n in range(1, 13)} <= set(ON_DATA)
    assert set(ON_DATA) | set(ON_LOG) == set(experiment_names())
    for name, (what, values) in ON_LOG.items():
        assert [getattr(line, what) for line in load_experiment(name).lines] == values


@pytest.mark.parametrize("name", ON_DATA)
def test_every_file_is_sound(name):
    experiment = load_experiment(name)
    assert experiment.title and experiment.claim
    if experiment.kind == "sweep":
        experiment = expand_sweep(experiment)
    labels = [(line.label, line.data) for line in experiment.lines]
    assert len(set(labels)) == len(labels)
    for line in experiment.lines:
        assert set(line.published) <= set(line.multipliers)
    for run in plan_runs(experiment, sizing_for(41_256_555), seeds=1):
        optimizer_of(run.settings)  # refuses what does not go together


ODD_VALUES = ("a", "", "r", 10**400)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.sampled_from(ODD_VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((1, "r")), inner),
    max_leaves=4,
)
KEYS = tuple(field.name for field in fields(Experiment) if field.name != "name")
OF_A_LINE = tuple(field.name for field in fields(ExperimentLine))


@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING), st.sampled_from(OF_A_LINE), ANYTHING)
def test_whatever_a_file_holds_is_taken_or_refused_in_one_line(changed, key, value):
    line = LINE | {key: value}
    try:
        experiment = parse_experiment(Path("mine.yaml"), {**WHOLE, "lines": [line], **changed})
    except InputError as error:
        assert "\n" not in str(error) and str(error).startswith("mine.yaml: ")
    else:
        assert isinstance(experiment.title, str) and isinstance(experiment.notes, tuple)


def test_a_key_without_a_value_is_as_good_as_absent(tmp_path):
    line = LINE | {"published": None, "update": None}
    experiment = parse_experiment(tmp_path / "mine.yaml", {**WHOLE, "notes": None, "lines": [line]})
    assert experiment == parse_experiment(tmp_path / "mine.yaml", WHOLE)


def test_largest_and_beyond_follow_the_sizing():
    (line,) = [line for line in load_experiment("beyond").lines if line.label == "CowClip"]
    size = sizing_for(450_000)
    assert list(feasible_multipliers(line, size)) == ["largest", "beyond"]
    runs = plan_runs(load_experiment("beyond"), size, seeds=1)
    assert sorted({run.settings.batch_size for run in runs}) == [8192, 16384]


def test_rates_may_be_written_without_a_point_and_names_with_a_space(tmp_path):
    file = tmp_path / "my table.yaml"
    file.write_text(
        "title: t\nclaim: c\nlines: [{label: a, multipliers: [1], overrides: {l2: 1e-4}}]"
    )
    experiment = load_experiment(str(file))
    assert experiment.lines[0].overrides == {"l2": 1e-4}
    assert experiment.name == "my_table"
