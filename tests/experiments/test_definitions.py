"""Experiment files: all that are there are sound, and wrong ones are refused in one line."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import (
    Experiment,
    ExperimentLine,
    experiment_names,
    load_experiment,
    parse_experiment,
)
from cowclip_merlin.experiments.definitions.reader import FOLDER
from cowclip_merlin.experiments.planning.grid import expand_sweep
from cowclip_merlin.experiments.planning.plan import feasible_multipliers, plan_runs
from cowclip_merlin.experiments.planning.sizing import sizing_for
from cowclip_merlin.training.build import build_optimizer


def optimizer_of(settings):
    """The run's optimizer, for a data set of one field."""
    data = SimpleNamespace(tables={"C1": 4})
    return build_optimizer(settings, settings.hyperparameters("criteo"), data, steps=1)


LINE = {"label": "a", "multipliers": [1]}
WHOLE = {"title": "t", "claim": "c", "lines": [LINE]}


def test_the_papers_tables_are_there():
    assert {f"table{n}" for n in (*range(1, 13),)} <= set(experiment_names())


def test_every_file_is_found_by_its_name_whatever_its_folder():
    stems = sorted(path.stem for path in FOLDER.rglob("*.yaml"))
    assert stems == sorted(experiment_names()), "no name twice, no file too deep"


ON_DATA = [name for name in experiment_names() if isinstance(load_experiment(name), Experiment)]


@pytest.mark.parametrize("name", ON_DATA)
def test_every_file_is_sound(name):
    experiment = load_experiment(name)
    assert experiment.title and experiment.claim
    if experiment.kind == "sweep":
        experiment = expand_sweep(experiment)
    labels = [line.label for line in experiment.lines]
    assert len(set(labels)) == len(labels)
    for line in experiment.lines:
        assert set(line.published) <= set(line.multipliers)
    for run in plan_runs(experiment, sizing_for(41_256_555), seeds=1):
        optimizer_of(run.settings)  # refuses what does not go together


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"title": None, "tilte": "x"}, "unknown tilte"),
        ({"claim": ...}, "claim is missing"),
        ({"lines": []}, "lines is missing"),
        ({"lines": "a"}, "lines is 'a'"),
        ({"lines": ["a"]}, r"lines\[1\] is 'a'"),
        ({"lines": [LINE, {"label": "b"}]}, r"lines\[2\]\.multipliers is missing"),
        ({"lines": [LINE | {"multipliers": [0]}]}, r"multipliers holds 0"),
        ({"lines": [LINE | {"multipliers": 8}]}, r"multipliers is 8"),
        ({"lines": [LINE | {"model": "dfm"}]}, r"lines\[1\]\.model is 'dfm'.*deepfm"),
        ({"lines": [LINE | {"rule": "cube"}]}, r"rule is 'cube'"),
        ({"lines": [LINE | {"clip": "cow"}]}, r"clip is 'cow'"),
        ({"lines": [LINE | {"activation": "tanh"}]}, r"lines\[1\]\.activation is 'tanh'.*gelu"),
        ({"lines": [LINE | {"dropout": 1.0}]}, r"lines\[1\]\.dropout is 1\.0; .*below 1"),
        ({"lines": [LINE | {"batch_norm": 1}]}, r"batch_norm is 1; give true or false"),
        ({"lines": [LINE | {"lr_every": 2}]}, r"lines\[1\]\.lr_every has no effect with .*step"),
        ({"lines": [LINE | {"lr_schedule": "plateau"}]}, r"'plateau', .* only a sweep"),
        ({"lines": [LINE | {"overrides": {"lr": 1}}]}, r"overrides is 'lr'"),
        ({"lines": [LINE | {"overrides": {"l2": "low"}}]}, r"overrides\.l2 is 'low'"),
        ({"lines": [LINE | {"overrides": {"l2": True}}]}, r"overrides\.l2 is True"),
        ({"lines": [LINE | {"factors": {"l2": -1}}]}, r"factors\.l2 is -1"),
        ({"kind": "sweep", "lines": [LINE, LINE | {"label": "b"}]}, "needs one line, not 2"),
        ({"kind": "sweep"}, "grid and grid_factors are missing"),
        ({"kind": "sweep", "grid": {"r": 1}}, r"grid\.r is 1"),
        ({"kind": "curves", "lines": []}, "lines is missing; .*curves"),
        ({"kind": "run"}, "kind is 'run'"),
        ({"measure": "auroc"}, "measure is 'auroc'"),
        ({"preset": "criteo2"}, "preset is 'criteo2'"),
        ({"reference": ["b", 1]}, "not a cell; "),
        ({"title": 5}, "title is 5; "),
        ({"notes": "one"}, "notes is 'one'; "),
        ({"reference": "a"}, "reference is 'a'; "),
        ({"lines": [LINE | {"label": False}]}, r"lines\[1\]\.label is False; "),
        ({"lines": [LINE, LINE]}, r"lines\[2\]\.label is 'a', .*lines\[1\]"),
        ({"lines": [LINE | {"multipliers": [True]}]}, "multipliers holds True"),
        ({"lines": [LINE | {"multipliers": [[1]]}]}, r"multipliers holds \[1\]"),
        ({"lines": [LINE | {"multipliers": [1, 8, 1]}]}, "multipliers holds 1 twice"),
        ({"lines": [LINE | {"rule": ["none"]}]}, r"rule is \['none'\]; .*text"),
        ({"lines": [LINE | {"epochs": "3"}]}, r"epochs is '3'; "),
        ({"lines": [LINE | {"keep_top": 0}]}, "keep_top is 0; "),
        ({"lines": [LINE | {"published": 80.76}]}, "published is 80.76; "),
        ({"lines": [LINE | {"published": {1: "80.76"}}]}, "numbers by multiplier"),
        ({"lines": [LINE | {"published": {8: 80.31}}]}, "published is for 8, "),
        ({"lines": [LINE | {"overrides": [1]}]}, r"overrides is \[1\]; "),
        ({"lines": [LINE | {"reset_embeddings": 1}]}, "reset_embeddings is 1; give true or false"),
        ({"kind": "sweep", "grid": [1]}, r"grid is \[1\]; "),
        ({"kind": "sweep", "grid": {"r": [1, 1.0]}}, r"grid\.r is \[1, 1\.0\]; .*once"),
        (
            {"kind": "sweep", "grid": {"r": [1]}, "grid_factors": {"r": [2]}},
            "r is in grid .*grid_factors",
        ),
        (
            {"kind": "parameters", "lines": [LINE | {"multipliers": ["largest"]}]},
            "'largest', .*parameters",
        ),
    ],
)
def test_wrong_files_are_refused_with_the_place(tmp_path, changed, words):
    value = {k: v for k, v in {**WHOLE, **changed}.items() if v is not ...}
    with pytest.raises(InputError, match=words):
        parse_experiment(tmp_path / "mine.yaml", value)


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


def test_a_key_that_is_given_twice(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: t\nclaim: c\nlines: [{label: a, label: b, multipliers: [1]}]")
    with pytest.raises(InputError, match=r"mine\.yaml: .*\(label twice in line 3"):
        load_experiment(str(file))


def test_a_file_that_is_no_yaml(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: [")
    with pytest.raises(InputError, match=r"mine\.yaml: not valid YAML") as error:
        load_experiment(str(file))
    assert "\n" not in str(error.value)
    file.write_text("title: 2024-13-45")
    with pytest.raises(InputError, match=r"mine\.yaml: .*in line 1 is no timestamp"):
        load_experiment(str(file))
    file.write_text("just words")
    with pytest.raises(InputError, match="is not a mapping"):
        load_experiment(str(file))


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="did you mean table2"):
        load_experiment("tabel2")


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
