"""Files of experiments on a log: those of the package are sound."""

import pytest

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


def test_a_kind_on_prepared_data_is_none_on_a_log(tmp_path):
    value = {"kind": "runs", "title": "t", "claim": "c", "reference": "a"}
    with pytest.raises(InputError, match=r"kind is 'runs'; "):
        parse_log_experiment(tmp_path / "mine.yaml", value | {"lines": [{"label": "a"}]})
