"""The join on Flink: equal to the one by SQLite and to pandas, also when it is killed.

`make flink-check` makes the environment and sets FLINK_PYTHON. The others need no Flink.
"""

import json
import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from importlib.util import find_spec

import merged
import pytest
from joining import FEATURES, ListLog, click, examples_of, impression, logs_of, run_to_end

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.joining.flink import example_files, newest_checkpoint, statements
from cowclip_merlin.online.joining.settings import JoinSettings

pytestmark = pytest.mark.system

PYTHON = os.environ.get("FLINK_PYTHON")
needs_flink = pytest.mark.skipif(not PYTHON, reason="FLINK_PYTHON is not set: make flink-check")
SETTINGS = JoinSettings(window=90_000, late=3000, lateness=800, negatives=0.5)
FILE = "label: click\ntime: time\nkey: request\ncategorical: [item]\n"


def streams(requests):
    """Shuffled within the lateness, delayed, and with repeats."""
    draw, span = random.Random(1), SETTINGS.window + SETTINGS.late
    shown, clicked = [], []
    for i in range(requests):
        at = 10_000 + 20 * i
        shown += [(f"r{i}", at)] * draw.choice([1, 1, 2])
        if draw.random() < 0.6:
            after = draw.choice([draw.randrange(-800, 1000), draw.randrange(span + 2000), span])
            clicked += [(f"r{i}", at + after)] * draw.choice([1, 1, 2])
            if draw.random() < 0.2:
                clicked.append((f"r{i}", at + after + draw.randrange(2000)))
        if draw.random() < 0.05:
            clicked.append((f"unknown{i}", at))
    return (
        sorted(shown, key=lambda m: m[1] + draw.randrange(801)),
        sorted(clicked, key=lambda m: m[1] + draw.randrange(801)),
    )


def write(file, messages):
    file.parent.mkdir()
    file.write_bytes(b"".join(message + b"\n" for message in messages))


def start(folder):
    words = ["--impressions", "impressions", "--actions", "actions", "--to", "examples",
             "--features", "features.yaml", "--state", "checkpoints", "--until-end",
             "--window", "90000", "--late", "3000", "--lateness", "800",
             "--negatives", "0.5"]  # fmt: skip
    command = [os.path.abspath(PYTHON), "-m", "cowclip_merlin", "online", "join"]
    command += ["--engine", "flink", *words]
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )


def lines_in(folder):
    return [line for file in example_files(folder) for line in file.read_bytes().splitlines()]


def kill(process):
    """Kill Python and its Java process."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@needs_flink
def test_both_joins_equal_a_merge_by_pandas_also_when_flink_is_killed(tmp_path):
    impressions, clicks = streams(100_000)
    expected, _ = merged.join(impressions, clicks, SETTINGS)
    logs = logs_of(impressions, clicks)
    run_to_end(logs, SETTINGS, tmp_path, clock=lambda: 1e9)
    assert examples_of(logs[2]) == expected
    (tmp_path / "features.yaml").write_text(FILE)
    write(tmp_path / "impressions/part", [impression(*each) for each in impressions] + [b"{"])
    write(tmp_path / "actions/part", [b"{", b"{}", *(click(*each) for each in clicks)])
    process = start(tmp_path)
    try:
        until = time.monotonic() + 300
        while newest_checkpoint(tmp_path / "checkpoints") is None and time.monotonic() < until:
            assert process.poll() is None, (tmp_path / "output.txt").read_text()[-3000:]
            time.sleep(0.01)
        kill(process)
        assert len(lines_in(tmp_path / "examples")) < len(expected)
        process = start(tmp_path)
        assert process.wait(600) == 0, (tmp_path / "output.txt").read_text()[-3000:]
    finally:
        if process.poll() is None:
            kill(process)
    lines = lines_in(tmp_path / "examples")
    assert examples_of(ListLog(lines)) == expected
    assert sorted(lines) == sorted(logs[2].values)
    assert all(json.loads(line)["cowclip_sample_rate"] == 0.5 for line in lines)


@needs_flink
def test_the_plan_only_inserts(tmp_path):
    (tmp_path / "features.yaml").write_text(FILE)
    code = """
import sys
from pathlib import Path
from cowclip_merlin.online.joining.flink import explain
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online import load_features

settings = JoinSettings(window=90_000, late=3000, negatives=0.5)
print(explain(load_features("features.yaml"), settings, Path(".")))
"""
    done = subprocess.run(
        [os.path.abspath(PYTHON), "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    modes = {line.partition("changelogMode=[")[2] for line in done.stdout.splitlines()}
    assert modes - {""} <= {"I])", "NONE])"}
    assert "IntervalJoin(joinType=[LeftOuterJoin]" in done.stdout
    assert "IntervalJoin(joinType=[InnerJoin]" in done.stdout


def test_hidden_files_are_not_read(tmp_path):
    for name in (".part-0.inprogress", "_metadata", "part-1", "part-0"):
        (tmp_path / name).touch()
    (tmp_path / "_staging").mkdir()
    (tmp_path / "_staging/part-2").touch()
    assert [file.name for file in example_files(tmp_path)] == ["part-0", "part-1"]


def test_kafka_topics_become_kafka_tables():
    urls = [f"kafka://host:9092/{name}" for name in "iae"]
    made = statements(*urls, FEATURES, SETTINGS, until_end=False)
    tables = [statement for statement in made if statement.startswith("CREATE TABLE")]
    for topic, table in zip("iae", tables, strict=True):
        assert "'connector' = 'kafka'" in table
        assert f"'properties.bootstrap.servers' = 'host:9092', 'topic' = '{topic}'" in table
    assert not any("scan.bounded" in table for table in tables[:2])


def test_late_positives_need_a_second_join():
    for settings, joins in ((SETTINGS, 2), (JoinSettings(window=60), 1)):
        last = statements("i", "a", "e", FEATURES, settings, until_end=True)[-1]
        assert last.count(" JOIN ") == joins


@pytest.mark.skipif(find_spec("pyflink") is not None, reason="PyFlink is installed")
def test_without_pyflink_there_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "features.yaml").write_text(FILE)
    words = "--impressions i --actions a --to e --features features.yaml --window 60 --state c"
    assert main(["online", "join", "--engine", "flink", *words.split()]) == 2
    assert "error: PyFlink is not installed; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "names", "lateness", "message"),
    [
        ("redis://host/stream", {}, 1, "folder or kafka://"),
        ("it's", {}, 1, "holds a quote"),
        ("folder", {"key": "it's"}, 1, "needs names of letters"),
        ("folder", {"label": "klick\u00e9"}, 1, "'klick\u00e9'.* needs names of letters"),
        ("folder", {}, 100 * 86_400, "takes 99 at most"),
    ],
)
def test_refuses_what_flink_cannot_do(url, names, lateness, message):
    features, settings = replace(FEATURES, **names), JoinSettings(window=60, lateness=lateness)
    with pytest.raises(InputError, match=message):
        statements(url, "a", "e", features, settings, until_end=True)
