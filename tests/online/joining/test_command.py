"""`cowclip online join` on folders."""

import json
import re
import signal
import subprocess
import sys
import time
from urllib.request import urlopen

import merged
import pytest
from joining import FEATURES, SETTINGS, ListLog, click, examples_of, impression, stream

from cowclip_merlin.cli import main
from cowclip_merlin.online import FileLog, open_log, service
from cowclip_merlin.online.joining import loop
from cowclip_merlin.online.joining.loop import JoinLoop, join_logs

FILE = "label: click\ntime: time\nkey: request\ncategorical: [item]\n"


@pytest.fixture
def folder(tmp_path):
    """Two logs and a features file."""
    impressions, clicks = stream(1, 300, SETTINGS)
    FileLog(tmp_path / "impressions").append([impression(*each) for each in impressions])
    FileLog(tmp_path / "actions").append([click(*each) for each in clicks])
    (tmp_path / "features.yaml").write_text(FILE)
    return tmp_path


def words(folder, *more):
    paths = {
        "--impressions": "impressions",
        "--actions": "actions",
        "--to": "examples",
        "--features": "features.yaml",
        "--state": "state",
    }
    given = [word for name, path in paths.items() for word in (name, str(folder / path))]
    settings = ["--window", "30", "--late", "20s", "--lateness", "8", "--negatives", "0.5"]
    return ["online", "join", *given, *settings, *more]


def examples_in(folder):
    log = FileLog(folder / "examples", create=False)
    return examples_of(ListLog([m.value for m in log.read(log.start(), 10**6)]))


def test_joins_until_the_end(folder, capsys):
    assert main(words(folder, "--until-end")) == 0
    expected, counts = merged.join(*stream(1, 300, SETTINGS), SETTINGS)
    assert examples_in(folder) == expected
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"{counts['impressions']:,} impressions" in last
    assert f"{counts['late_positives']:,} late positives" in last
    assert (folder / "state.log").read_text().endswith(last + "\n")


@pytest.mark.system
def test_a_signal_stops_it_and_the_same_command_goes_on(folder):
    command = [sys.executable, "-m", "cowclip_merlin", *words(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    examples = FileLog(folder / "examples")
    until = time.monotonic() + 60
    while not examples.end()[0] and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert err == "cowclip: stopped; the same command goes on\n"
    assert "positives" in out.splitlines()[-1]
    assert main(words(folder, "--until-end")) == 0
    assert examples_in(folder) == merged.join(*stream(1, 300, SETTINGS), SETTINGS)[0]


def test_prints_the_progress(folder, monkeypatch, capsys):
    monkeypatch.setattr(service, "LINE_EVERY", 0.0)
    monkeypatch.setattr(loop, "READ_AT_ONCE", 100)
    assert main(words(folder, "--until-end")) == 0
    lines = capsys.readouterr().out.splitlines()[1:-1]
    assert len(lines) > 3
    assert all("not read yet: " in line and "event time 1970-01-01" in line for line in lines[2:])


@pytest.mark.system
def test_joins_the_logs_of_a_server(tmp_path, redis_server):
    urls = [redis_server.url(f"join-{name}") for name in ("impressions", "actions", "examples")]
    impressions, clicks = stream(1, 300, SETTINGS)
    open_log(urls[0], create=True).append([impression(*each) for each in impressions])
    open_log(urls[1], create=True).append([click(*each) for each in clicks])
    for _ in range(2):  # the second time goes on at the end
        join_logs(*urls, FEATURES, SETTINGS, state=tmp_path / "state", until_end=True)
    log = open_log(urls[2])
    examples = examples_of(ListLog([m.value for m in log.read(log.start(), 10**6)]))
    assert examples == merged.join(impressions, clicks, SETTINGS)[0]


def test_prometheus_and_collectors_can_watch_it(folder, capsys, monkeypatch):
    seen, run = [], JoinLoop.run

    def run_and_read(self):
        run(self)
        self._tell()
        line = json.loads(capsys.readouterr().out.splitlines()[1])["message"]
        with urlopen(line.removeprefix("metrics for Prometheus: ")) as answer:
            seen.append(answer.read().decode())

    monkeypatch.setattr(JoinLoop, "run", run_and_read)
    assert main(words(folder, "--until-end", "--metrics", "0", "--log-format", "json")) == 0
    _, counts = merged.join(*stream(1, 300, SETTINGS), SETTINGS)
    found = dict(re.findall(r"^cowclip_join_(\w+) (\S+)$", seen[0], re.M))
    assert {k: float(found[f"{k}_total"]) for k in counts} == counts
    assert float(found["lag_impressions"]) == float(found["lag_actions"]) == 0


@pytest.mark.system
def test_joins_topics_of_several_partitions(folder, kafka_server, capsys):
    """Messages that are too late have other times in another order; the requests are the same."""
    topics, given = {"impressions": 3, "actions": 2}, []
    for name, source in zip(topics, stream(1, 300, SETTINGS)):
        url = kafka_server.topic(f"parted-{name}", topics[name])
        log = open_log(url, create=True, several=True)
        make = impression if name == "impressions" else click
        for first in range(0, len(source), 20):
            log.append([make(*each) for each in source[first : first + 20]])
        log.close()
        given += [f"--{name}", url]
    assert main(words(folder, "--until-end", *given)) == 0
    rows = examples_in(folder)
    expected, _ = merged.join(*stream(1, 300, SETTINGS), SETTINGS)
    assert {row[0] for row in rows} == {row[0] for row in expected} != set()
    state = str(folder / "other")
    to = kafka_server.topic("parted-examples", 3)
    assert main(words(folder, *given, "--to", to, "--state", state)) == 2
    told = capsys.readouterr().err
    assert "3 partitions" in told and told.count("\n") == 1


def test_swapped_logs_and_another_schema_are_no_success(folder, capsys):
    swapped = words(folder, "--until-end")
    swapped[3], swapped[5], swapped[7] = swapped[5], swapped[3], str(folder / "others")
    assert main(swapped) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "messages of --impressions could be joined; the newest: no 'item'" in error
    (folder / "state").unlink()
    FileLog(folder / "other").append([b'{"id": "a", "time": 7}'])
    other = words(folder, "--until-end")
    other[5] = str(folder / "other")
    assert main(other) == 2
    assert "none of the 1 messages of --actions could be joined" in capsys.readouterr().err


def test_a_new_state_of_old_examples_is_told(folder, capsys):
    assert main(words(folder, "--until-end")) == 0
    before = len(examples_in(folder))
    assert main(words(folder, "--until-end")) == 0  # goes on
    assert "written again" not in "".join(capsys.readouterr())
    (folder / "state").unlink()
    assert main(words(folder, "--until-end")) == 0
    assert f"has {before:,} examples, but the state" in capsys.readouterr().out
    assert len(examples_in(folder)) == 2 * before
