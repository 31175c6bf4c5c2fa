"""Features files, events, data and searches at addresses: read there by every command."""

import csv
import json
import os

import numpy as np
import pytest

from cowclip_merlin.addresses import Address, beside, expand
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.tuning.settings_file import read_settings
from cowclip_merlin.online import EventLog, FileLog, load_features
from cowclip_merlin.online.events.event_log import RawLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.workflows import read_log
from cowclip_merlin.workflows.raw.log_format import LogFormat

FEATURES = "label: click\ntime: time\ncategorical: [user]\ncontinuous: [price]\n"
DAY = 86_400
ROWS = 360
REPLAY = ["--model", "deepfm", "--batch-size", "32", "--mlp", "8", "--capacity", "500"]
REPLAY += ["--batch-days", "1", "--sync", "never,1h"]


def text_of(first, end):
    rows = (f"{i % 3 // 2},{i * DAY // 180},{i % 40},{i / 7:.3f}" for i in range(first, end))
    return "\n".join(["click,time,user,price", *rows, ""])


@pytest.fixture
def there(request, tmp_path, monkeypatch):
    """A features file and two days of events, at an address and in the current folder."""
    kind = getattr(request, "param", "memory")
    files_there = request.getfixturevalue(kind)
    monkeypatch.chdir(tmp_path)
    files = {"f.yaml": FEATURES, "day_1.csv": text_of(0, 180), "day_2.csv": text_of(180, ROWS)}
    for name, text in files.items():
        files_there.pipe_file(f"logs/{name}", text.encode())
        (tmp_path / name).write_text(text)
    return f"{kind}://logs"


def events_of(*files, features):
    return Events.concatenate(list(EventLog(files, load_features(features))))


def replay(*files, out, code=0, more=()):
    words = ["online", "replay", *files, "--out", out, *REPLAY, *more]
    assert main(words) == code


@pytest.mark.parametrize(
    "there", ["memory", pytest.param("s3", marks=pytest.mark.system)], indirect=True
)
def test_events_are_those_of_local_files(there):
    found = events_of(f"{there}/day_*.csv", features=f"{there}/f.yaml")
    expected = events_of("day_1.csv", "day_2.csv", features="f.yaml")
    assert len(found) == ROWS and load_features(f"{there}/f.yaml") == load_features("f.yaml")
    for name in ("ids", "numbers", "times", "labels"):
        a, b = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(getattr(a, "values", a), getattr(b, "values", b))


@pytest.mark.parametrize("start", ["memory://logs", "file://{here}", "{here}"])
def test_a_pattern_gives_files_of_its_kind_in_order_and_none_twice(start, there, memory, tmp_path):
    start = start.format(here=tmp_path)
    memory.pipe_file("/logs/day_10.csv", b"")
    (tmp_path / "day_10.csv").touch()
    found = expand([f"{start}/day_*.csv"])
    assert [str(file) for file in found] == [f"{start}/day_{day}.csv" for day in (1, 2, 10)]
    assert all(file.is_file() for file in found)
    for twice in ([f"{start}/day_*.csv", f"{start}/day_2.csv"], [f"{start}/day_2.csv"] * 2):
        with pytest.raises(InputError, match=f"^{start}/day_2.csv: occurs twice; give each"):
            expand(twice)


def test_links_to_one_file_are_refused_where_files_are_read(there, tmp_path, capsys):
    (tmp_path / "links").mkdir()
    for name, link in (("day_1.csv", os.symlink), ("day_2.csv", os.link)):
        link(tmp_path / name, tmp_path / "links" / name)
    words = r"^links/day_1.csv: is the same file as day_1.csv; give each file once$"
    files = ["day_*.csv", "links/day_*.csv"]
    log_format = LogFormat(kind="table", label="click", categorical=("user",))
    with pytest.raises(InputError, match=words):
        EventLog(files, load_features("f.yaml"))
    with pytest.raises(InputError, match=words):
        RawLog(files, load_features("f.yaml"))
    with pytest.raises(InputError, match=words):
        read_log(files, log_format)
    with pytest.raises(InputError, match=words.replace("day_1", "day_2")):
        read_log(["day_2.csv", "links/day_2.csv"], log_format)
    table = ["prepare", "table", *files, "--out", "DATA", "--label", "click"]
    for command in ([*table, "--categorical", "user"], ["score", "RUN", *files, "--out", "s.csv"]):
        assert main(command) == 2
        assert "links/day_1.csv: is the same file as day_1.csv;" in capsys.readouterr().err


def test_errors_name_the_address_and_the_line(there, memory):
    with pytest.raises(InputError, match=f"^{there}/none.yaml: no such file; check the path"):
        load_features(f"{there}/none.yaml")
    with pytest.raises(InputError, match=f"^{there}/no.csv: no such file; check the path"):
        events_of(f"{there}/no.csv", features="f.yaml")
    memory.pipe_file("/logs/wrong.yaml", b"label: click\ntime: 3\n")
    with pytest.raises(InputError, match=f"^{there}/wrong.yaml: line 2: time is 3"):
        load_features(f"{there}/wrong.yaml")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("DATA", "s3://b/logs/DATA"),
        ("../DATA", "s3://b/DATA"),
        ("gs://c/DATA",) * 2,
        ("/data",) * 2,
    ],
)
def test_a_file_names_what_is_beside_it(name, found, tmp_path):
    assert str(beside(Address("s3://b/logs/f.yaml"), name)) == found
    assert beside(tmp_path / "f.yaml", "DATA") == tmp_path / "DATA"


def test_the_prepared_folder_of_a_features_file_is_beside_it(there, memory):
    memory.pipe_file("/logs/sub/f.yaml", f"{FEATURES}prepared: ../DATA\n".encode())
    with pytest.raises(InputError, match=r"line 5: memory://logs/DATA: no such folder with a data"):
        load_features(f"{there}/sub/f.yaml")


@pytest.mark.parametrize("size", [0, 5, 4096, 100_001])
def test_a_checksum_is_that_of_a_local_file(size, memory, tmp_path):
    content = np.random.default_rng(size).bytes(size)
    memory.pipe_file("/logs/a", content)
    (tmp_path / "a").write_bytes(content)
    assert checksum("memory://logs/a") == checksum(tmp_path / "a")


def test_produce_plays_what_is_there(there, capsys):
    words = ["--features", f"{there}/f.yaml", "--rate", "0"]
    assert main(["online", "produce", f"{there}/day_*.csv", *words, "--to", "EVENTS"]) == 0
    assert "360 events" in capsys.readouterr().out
    log = FileLog("EVENTS")
    assert json.loads(log.read(log.start(), 1)[0].value)["user"] == "0"


@pytest.mark.runs
def test_a_replay_is_there_as_it_would_be_here(there, memory, capsys, tmp_path):
    of_log = ["--features", f"{there}/f.yaml"]
    replay(f"{there}/day_*.csv", out=f"{there}/REPLAY", more=of_log)
    replay("day_1.csv", "day_2.csv", out="REPLAY", more=["--features", "f.yaml"])
    here = (tmp_path / "REPLAY/replay.csv").read_bytes()
    assert memory.cat_file("/logs/REPLAY/replay.csv") == here
    assert f"figures: {there}/REPLAY" in capsys.readouterr().out
    replay(f"{there}/day_*.csv", out=f"{there}/REPLAY", more=of_log, code=2)
    told = capsys.readouterr().err
    assert f"{there}/REPLAY: already exists; use --resume to go on with the replay" in told
    replay(f"{there}/day_*.csv", out=f"{there}/REPLAY", more=[*of_log, "--resume"])
    replay(f"{there}/day_1.csv", out=f"{there}/REPLAY", more=[*of_log, "--resume"], code=2)
    assert f"{there}/REPLAY: the run there has another log" in capsys.readouterr().err


DATA, TUNED = "memory://a/DATA", "memory://a/TUNED"
MODEL = ["--model", "deepfm", "--batch-size", "256", "--mlp", "8"]
SEARCHED = 1200


@pytest.fixture
def searched(memory, tmp_path, monkeypatch):
    """A prepared folder; the log that it is made of is beside it, and a features file."""
    monkeypatch.chdir(tmp_path)
    rows = (f"{i * 7 % 3 // 2},{i * 400},{i % 30},{i / 9:.3f}" for i in range(SEARCHED))
    log = "\n".join(["y,time,user,age", *rows, ""])
    memory.pipe_file("/a/log.csv", log.encode())
    features = "label: y\ntime: time\ncategorical: [user]\ncontinuous: [age]\n"
    memory.pipe_file("/a/f.yaml", features.encode())
    columns = ["--label", "y", "--categorical", "user", "--continuous", "age"]
    assert main(["prepare", "table", "memory://a/log.csv", "--out", DATA, *columns]) == 0
    return DATA


@pytest.mark.runs
@pytest.mark.thorough
def test_a_search_is_there_and_goes_on_there(searched, memory, capsys):
    pytest.importorskip("optuna")
    words = ["tune", searched, "--out", TUNED, *MODEL, "--epochs", "1"]
    assert main([*words, "--trials", "1"]) == 0
    found = [name.removeprefix("/a/TUNED/") for name in memory.find("/a/TUNED")]
    assert {"study.db", "settings.yaml", "trials.csv", "history.svg"} <= set(found)
    assert f"cowclip train {searched} --settings {TUNED}/settings.yaml" in capsys.readouterr().out
    assert main([*words, "--trials", "2"]) == 2
    assert f"{TUNED}: already exists; use --resume to go on" in capsys.readouterr().err
    assert main([*words, "--trials", "2", "--resume"]) == 0
    trials = list(csv.DictReader(memory.cat_file("/a/TUNED/trials.csv").decode().splitlines()))
    assert len(trials) == 2
    assert read_settings(Address(f"{TUNED}/settings.yaml"))["epochs"] == 1


@pytest.mark.runs
def test_experiments_read_what_is_there(searched, capsys):
    options = ["--out", "RESULTS", "--seeds", "1", "--mlp", "8", "--dry-run"]
    assert main(["experiment", "table2", "--data", searched, "--steps", "2", *options]) == 0
    log = ["--log", "memory://a/lo*.csv", "--features", "memory://a/f.yaml"]
    assert main(["experiment", "monolith_sync", *log, *options]) == 0
    missing = ["--log", "memory://a/none.csv", "--features", "memory://a/f.yaml"]
    assert main(["experiment", "monolith_sync", *missing, *options]) == 2
    assert "memory://a/none.csv: no such file; check the path" in capsys.readouterr().err
