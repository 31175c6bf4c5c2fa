"""One recorded file of each format: it is read, and the same is written again."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.results import example_result, read_results, write_results
from cowclip_merlin.online import OnlineSettings
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.run_config import load_online_config, online_config
from cowclip_merlin.online.sync.sync_message import SyncMessage
from cowclip_merlin.online.training.steps import Step, StepJournal
from cowclip_merlin.tables.snapshot import load_snapshot, save_snapshot
from cowclip_merlin.training import RunSettings
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.workflows import LogFormat, PreparedData

FORMATS = Path(__file__).parent / "formats"
RUN = RunSettings(
    model="deepfm",
    batch_size=4096,
    update="exact",
    overrides={"l2": 2e-5},
    mlp=(16, 8),
    validation_fraction=0.1,
)
ONLINE = OnlineSettings(run=replace(RUN, update="lazy"), max_rows=500, absent="zeros", window=1000)


def recorded(name):
    return json.loads((FORMATS / name).read_text(encoding="utf-8"))


def plain(value):
    return json.loads(json.dumps(value))


def test_the_description_of_a_prepared_folder_is_read():
    data = PreparedData.load(FORMATS / "dataset")
    assert data.log_format == LogFormat(
        kind="table", label="click", categorical=("user", "item"), continuous=("age",)
    )
    assert (data.rows, data.clicks, data.fitted_rows) == ({"train": 52, "test": 8}, 20, 52)
    assert data.cardinalities == {"user": 8, "item": 10}
    assert data.fingerprint.startswith("05c0eb") and data.vocabulary.startswith("575fd7")
    assert len(data.checksums) == 8


@pytest.mark.runs
def test_prepare_describes_a_folder_in_the_same_way(data):
    written = json.loads((data / "dataset.json").read_text(encoding="utf-8"))
    before = recorded("dataset/dataset.json")
    assert set(written) == set(before)
    for part in ("layout", "recipe", "statistics", "baseline", "rows"):
        assert set(written[part]) == set(before[part])
    assert set(written["settings"]) >= set(before["settings"]) - {
        "label",
        "categorical",
        "continuous",
    }


def test_the_configuration_of_a_run():
    config = RunConfig.load(FORMATS / "run")
    assert config.settings == RUN and config.values == RUN.hyperparameters("criteo")
    written, before = plain(config.as_dict()), recorded("run/config.json")
    assert written.pop("versions") and before.pop("versions")
    assert written == before


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("settings", "backend"), "backend is missing"),
        (("hyperparameters", "micro_batches"), "micro_batches is missing"),
        (("data_path",), "data_path is missing"),
        (("row_order",), "row_order is missing"),
    ],
)
def test_a_configuration_without_a_value_is_refused(tmp_path, names, words):
    config = recorded("run/config.json")
    *parents, name = names
    del (config[parents[0]] if parents else config)[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=rf"damaged config\.json \({words}\); train again"):
        RunConfig.load(tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("features", "vectors"), "vectors"),
        (("features", "key"), "key is missing"),
        (("settings", "lr_events"), "lr_events is missing"),
        (("settings", "run", "combiner"), "combiner is missing"),
    ],
)
def test_a_stream_without_a_value_is_refused(tmp_path, names, words):
    config = part = recorded("stream/config.json")
    for name in names[:-1]:
        part = part[name]
    del part[names[-1]]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=rf"damaged \(.*{words}.*\); use a new folder"):
        load_online_config(tmp_path)


def test_the_configuration_of_a_stream():
    settings, features = load_online_config(FORMATS / "stream")
    assert settings == ONLINE and features == load_features(FORMATS / "features.yaml")
    assert plain(online_config(settings, features)) == recorded("stream/config.json")


def test_the_journal_of_steps(tmp_path):
    steps = [Step((1024, 0, 9), 1, 17), Step((1536,), 2, 18)]
    text = """\
{"until": [1024, 0, 9], "factor": 1, "now": 17}
{"until": [1536], "factor": 2, "now": 18}
"""
    journal = StepJournal(tmp_path)
    journal.begin(40000, keep=[])
    for step in steps:
        journal.note(step)
    journal.close()
    assert (tmp_path / "40000.jsonl").read_text() == text
    assert StepJournal(tmp_path).after(40000) == steps


def test_a_message_to_servers():
    data = (FORMATS / "sync.message").read_bytes()
    message = SyncMessage.decode(data)
    assert (message.kind, message.generation, message.seq) == ("rows", 2, 7)
    assert message.info == {"absent": 1}
    assert message.arrays["ids"].tolist() == [3, -(2**63)]
    assert message.arrays["table0"].dtype == np.float32
    assert message.encode() == data


def files_of(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_snapshot(tmp_path):
    number, arrays, extra = load_snapshot(FORMATS / "snapshots")
    assert number == 40000 and extra == {"position": {"log": 12}}
    assert arrays["w"].tolist() == [[0, 1, 2], [3, 4, 5]] and arrays["step"] == 7
    save_snapshot(tmp_path, number, arrays, extra)
    assert files_of(tmp_path) == files_of(FORMATS / "snapshots")


def test_a_log_in_a_folder(tmp_path):
    values = [b'{"user":7}', b"", b"\xc0msg"]
    log = FileLog(FORMATS / "log", create=False)
    assert [message.value for message in log.read(log.start(), most=9)] == values
    FileLog(tmp_path).append(values)
    assert files_of(tmp_path) == files_of(FORMATS / "log")


def test_a_table_of_results(tmp_path):
    results = read_results(FORMATS)
    assert results == [
        example_result(
            run_id="deepfm-none-b32-s1",
            mlp="16-8",
            versions="numpy 1.26.4",
            auc_error=0.001,
            beta_1=0.9,
        )
    ]
    write_results(tmp_path, results)
    assert (tmp_path / "results.csv").read_bytes() == (FORMATS / "results.csv").read_bytes()
