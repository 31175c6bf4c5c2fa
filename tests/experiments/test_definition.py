"""Experiment files: all that are there are sound, and wrong ones are refused in one line."""

from types import SimpleNamespace

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definition import load, names, parse
from cowclip_merlin.experiments.grid import expand
from cowclip_merlin.experiments.plan import allowed, plan
from cowclip_merlin.experiments.regime import regime
from cowclip_merlin.training.build import build_optimizer


def optimizer_of(settings):
    """The run's optimizer, for a data set of one field."""
    data = SimpleNamespace(cardinalities={"C1": 4})
    return build_optimizer(settings, settings.hyperparameters("criteo"), data, steps=1)


LINE = {"label": "a", "multipliers": [1]}
WHOLE = {"title": "t", "claim": "c", "lines": [LINE]}


def test_the_papers_tables_are_there():
    assert {f"table{n}" for n in (*range(1, 13),)} <= set(names())


@pytest.mark.parametrize("name", names())
def test_every_file_is_sound(name):
    experiment = load(name)
    assert experiment.title and experiment.claim
    if experiment.kind == "sweep":
        experiment = expand(experiment)
    labels = [line.label for line in experiment.lines]
    assert len(set(labels)) == len(labels)
    for line in experiment.lines:
        assert set(line.published) <= set(line.multipliers)
    for run in plan(experiment, regime(41_256_555), seeds=1):
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
        ({"lines": [LINE | {"overrides": {"lr": 1}}]}, r"overrides is 'lr'"),
        ({"lines": [LINE | {"overrides": {"l2": "low"}}]}, r"overrides\.l2 is 'low'"),
        ({"lines": [LINE | {"overrides": {"l2": True}}]}, r"overrides\.l2 is True"),
        ({"lines": [LINE | {"factors": {"l2": -1}}]}, r"factors\.l2 is -1"),
        ({"kind": "sweep", "lines": [LINE, LINE | {"label": "b"}]}, "needs one line, not 2"),
        ({"kind": "sweep"}, "grid and grid_factors are missing"),
        ({"kind": "sweep", "grid": {"r": 1}}, r"grid\.r is 1"),
        ({"kind": "curves", "lines": []}, "lines is missing; curves needs"),
        ({"kind": "run"}, "kind is 'run'"),
        ({"measure": "auroc"}, "measure is 'auroc'"),
        ({"preset": "criteo2"}, "preset is 'criteo2'"),
        ({"reference": ["b", 1]}, "no cell of the table"),
    ],
)
def test_wrong_files_are_refused_with_the_place(tmp_path, changed, words):
    value = {k: v for k, v in {**WHOLE, **changed}.items() if v is not ...}
    with pytest.raises(InputError, match=words):
        parse(tmp_path / "mine.yaml", value)


def test_a_file_that_is_no_yaml(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: [")
    with pytest.raises(InputError, match=r"mine\.yaml: no YAML"):
        load(str(file))
    file.write_text("just words")
    with pytest.raises(InputError, match="holds no mapping"):
        load(str(file))


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="did you mean table2"):
        load("tabel2")


def test_largest_and_beyond_follow_the_regime():
    (line,) = [line for line in load("beyond").lines if line.label == "CowClip"]
    size = regime(450_000)
    assert list(allowed(line, size)) == ["largest", "beyond"]
    runs = plan(load("beyond"), size, seeds=1)
    assert sorted({run.settings.batch_size for run in runs}) == [8192, 16384]


def test_rates_may_be_written_without_a_point_and_names_with_a_space(tmp_path):
    file = tmp_path / "my table.yaml"
    file.write_text(
        "title: t\nclaim: c\nlines: [{label: a, multipliers: [1], overrides: {l2: 1e-4}}]"
    )
    experiment = load(str(file))
    assert experiment.lines[0].overrides == {"l2": 1e-4}
    assert experiment.name == "my_table"
