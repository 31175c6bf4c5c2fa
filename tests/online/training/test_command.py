"""`cowclip online train`: its run folder, and mistakes in one line."""

import json
import re
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from streams import log_of, messages

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online import open_log
from cowclip_merlin.online.run_config import load_online_config
from cowclip_merlin.online.training.loop import StreamTrainer
from cowclip_merlin.tables.snapshot import load_snapshot

FEATURES = "label: click\ntime: time\nkey: key\ncategorical: [user, item]\ncontinuous: [price]\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(FEATURES)
    log_of(tmp_path / "EVENTS", messages(range(200)))
    return tmp_path


def train(*more, **options):
    words = {"from": "EVENTS", "features": "f.yaml", "out": "RUN", "model": "deepfm"}
    words |= {"batch-size": "32", "mlp": "8", "capacity": "4000"} | options
    flat = [text for name, value in words.items() for text in (f"--{name}", str(value))]
    return main(["online", "train", *flat, "--until-end", *more])


def test_trains_and_goes_on(folder, capsys, monkeypatch):
    monkeypatch.setattr("cowclip_merlin.online.service.LINE_EVERY", 600.0)  # none but the last
    assert train("--to", "SYNC") == 0
    assert "trained 200 events: RUN" in capsys.readouterr().out
    settings, features = load_online_config("RUN")
    assert settings.run.batch_size == 32 and features.key == "key"
    log_of(folder / "EVENTS", messages(range(200, 300)))
    assert train("--to", "SYNC") == 0
    out = capsys.readouterr().out
    assert "resumed after 200 events" in out and "trained 300 events" in out
    rows = (folder / "RUN/metrics.csv").read_text().splitlines()
    assert len(rows) == 3 and rows[-1].split(",")[1] == "300"
    assert json.loads((folder / "RUN/generation.json").read_text()) == 2


@pytest.mark.system
def test_trains_on_the_partitions_of_a_topic_and_goes_on(folder, kafka_server, capsys):
    url = kafka_server.topic("trained", 3)
    log = open_log(url, create=True, several=True)
    for first, end, trained in ((0, 200, 200), (200, 300, 300)):
        log.append(messages(range(first, end)))
        assert train(**{"from": url}) == 0
        assert f"trained {trained} events: RUN" in capsys.readouterr().out
    newest = load_snapshot(Path("RUN/snapshots"))
    assert newest.extra["position"] == [300, 100, 100, 100]
    log.close()


def test_other_settings_and_a_damaged_configuration_are_refused(folder, capsys):
    assert train() == 0
    for options, words in (
        ({"mlp": "9"}, "RUN: the run there has another mlp ([8], not [9])"),
        ({"batch-size": "64"}, "another batch_size (32, not 64)"),
    ):
        assert train(**options) == 2
        assert words in capsys.readouterr().err
    config = json.loads((folder / "RUN/config.json").read_text())
    config["settings"]["run"]["overrides"] = {"l2": 10**400}
    (folder / "RUN/config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"RUN/config\.json: damaged \("):
        load_online_config("RUN")


def test_prometheus_and_collectors_can_watch_it(folder, capsys, monkeypatch):
    lines, seen, run = [], [], StreamTrainer.run

    def run_and_read(self):
        run(self)
        lines.extend(capsys.readouterr().out.splitlines())
        with urlopen(re.search(r'for Prometheus: ([^\s"]+)', "".join(lines))[1]) as answer:
            seen.append(answer.read().decode())

    monkeypatch.setattr(StreamTrainer, "run", run_and_read)
    assert train("--metrics", "0", "--log-format", "json") == 0
    found = dict(re.findall(r"^(cowclip_train_\w+) (\S+)$", seen[0], re.M))
    assert float(found["cowclip_train_events_total"]) == 200
    assert float(found["cowclip_train_lag_events"]) == 0
    assert 0 < float(found["cowclip_train_rows"]) < 200
    assert 0 <= float(found["cowclip_train_snapshot_age_seconds"]) < 60
    assert float(found["cowclip_train_event_age_seconds"]) > 1e6
    assert capsys.readouterr().out == "trained 200 events: RUN\n"
    newest = json.loads(lines[-1])
    assert newest["values"]["trained"] == 200 and newest["level"] == "INFO"
    assert (folder / "RUN/train.log").read_text().splitlines() == lines


def test_a_port_that_is_taken_leaves_nothing(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert train("--to", "SYNC", metrics=taken.getsockname()[1]) == 2
    assert "metrics" in capsys.readouterr().err
    assert not (folder / "RUN").exists() and not (folder / "SYNC").exists()


def test_a_topic_with_another_schema_is_no_success(folder, capsys):
    (folder / "f.yaml").write_text(FEATURES.replace("[user, item]", "[usr, item]"))
    assert train() == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "EVENTS: none of its 200 messages is an event of the features file" in error
    assert "no 'usr', but 'user'" in error


def test_it_says_the_rates_that_the_rule_makes_of_those_given(folder, capsys):
    assert train("--embedding-lr", "0.01", "--dense-lr", "0.02", "--l2", "0.032") == 0
    words = "batch 32 = 0.03125 x 1024, rule cowclip: embedding lr 0.01, dense lr 0.00353553, l2"
    assert f"{words} 0.001" in capsys.readouterr().out
