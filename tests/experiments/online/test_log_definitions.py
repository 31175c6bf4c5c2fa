"""Files of experiments on a log: those of the package are sound, wrong ones are refused."""

import pytest
import yaml

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import (
    LOG_KINDS,
    LogExperiment,
    experiment_names,
    load_experiment,
    parse_log_experiment,
)
from cowclip_merlin.experiments.definitions.experiment import KINDS
from cowclip_merlin.experiments.kinds import RUNS, WRITERS

ON_LOG = {"monolith_sync", "monolith_collisions", "admission", "expiry"}
LINE = {"label": "a", "sync": "1h"}
WHOLE = {"kind": "sync", "title": "t", "claim": "c", "reference": "a", "lines": [LINE]}


def hashed(**changed):
    """A definition of kind "collisions" whose line has something changed."""
    line = {"label": "a", "load": 1} | changed
    return {"kind": "collisions", "lines": [{k: v for k, v in line.items() if v is not ...}]}


def test_the_experiments_are_there_and_sound():
    found = {name: load_experiment(name) for name in experiment_names()}
    on_log = {name for name, each in found.items() if isinstance(each, LogExperiment)}
    assert on_log == ON_LOG
    assert [line.sync for line in found["monolith_sync"].lines] == [
        "never", "1d", "5h", "1h", "30min",
    ]  # fmt: skip
    assert [line.admit for line in found["admission"].lines] == [1, 2, 3, 5, 10]
    loads = [line.load for line in found["monolith_collisions"].lines]
    assert loads == [0, 0.059, 0.163, 1, 4]
    assert [line.ttl for line in found["expiry"].lines] == ["1h", "6h", "1d", "3d", "never"]


def test_every_kind_can_be_defined_and_run():
    assert set(LOG_KINDS) <= set(RUNS) and set(LOG_KINDS) | set(KINDS) == set(WRITERS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"title": ...}, "title is missing"),
        ({"reference": ...}, "reference is missing"),
        ({"reference": "b"}, "reference is 'b'; "),
        ({"kind": "runs"}, r"kind is 'runs'; "),
        ({"preset": "criteo"}, "unknown preset"),
        ({"lines": "a"}, "lines is 'a'; "),
        ({"lines": ["a"]}, r"lines\[1\] is 'a'; "),
        ({"lines": [LINE, LINE]}, r"lines\[2\]\.label is 'a', .*lines\[1\]"),
        ({"lines": [{"label": "a"}]}, r"lines\[1\]\.sync is missing"),
        ({"lines": [LINE | {"sync": "often"}]}, r"lines\[1\]\.sync is 'often'.* never"),
        ({"lines": [LINE | {"sync": 3600}]}, r"lines\[1\]\.sync is 3600; .*text"),
        ({"lines": [LINE | {"ttl": "0h"}]}, r"lines\[1\]\.ttl is '0h'"),
        ({"lines": [LINE | {"ttl": False}]}, r"lines\[1\]\.ttl is False; "),
        ({"lines": [LINE | {"admit": 0}]}, r"lines\[1\]\.admit is 0; "),
        ({"lines": [LINE | {"admit": 256}]}, r"lines\[1\]\.admit is 256; .*255"),
        ({"lines": [LINE | {"multipliers": [1]}]}, r"unknown lines\[1\]\.multipliers"),
        ({"lines": [LINE | {"published": {"AUC": 1}}]}, "is 'AUC'; .* auc, gain"),
        ({"lines": [LINE | {"published": {"auc": "79"}}]}, r"published\.auc is '79'"),
        (hashed(load=...), r"lines\[1\]\.load is missing"),
        (hashed(load=-1), r"lines\[1\]\.load is -1; "),
        (hashed(load="1"), r"lines\[1\]\.load is '1'; "),
        (hashed(epochs=0), r"lines\[1\]\.epochs is 0; "),
        (hashed(columns="user"), r"lines\[1\]\.columns is 'user'; "),
    ],
)
def test_wrong_files_are_refused_with_the_place(tmp_path, changed, words):
    value = {k: v for k, v in {**WHOLE, **changed}.items() if v is not ...}
    with pytest.raises(InputError, match=words):
        parse_log_experiment(tmp_path / "mine.yaml", value)


def test_an_unknown_kind_is_refused_with_all_kinds(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(WHOLE | {"kind": "snyc"}))
    with pytest.raises(InputError, match=r"kind is 'snyc'.*runs.*sweep.*sync, rules"):
        load_experiment(str(path))
