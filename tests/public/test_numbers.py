"""Every number that a trainer, a joiner and a server tell, with its type, is as recorded."""

import json
import logging
import re
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from starlette.testclient import TestClient

from cowclip_merlin.cli import main
from cowclip_merlin.online import FileLog
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.serving.live.http import make_app
from cowclip_merlin.serving.live.settings import ServingLimits

pytestmark = pytest.mark.runs

RECORDED = Path(__file__).parent / "numbers.txt"
COLUMNS = "time: time\nkey: key\ncategorical: [user]\ncontinuous: [price]\n"
TRAIN = "--from examples --to sync --features labels.yaml --out run --model deepfm --mlp 8"
TRAIN += " --batch-size 16 --capacity 4000 --until-end --sync-every 1 --log-format json"
JOIN = "--impressions impressions --actions clicks --to joined --features one.yaml"
JOIN += " --window 30 --state join.state --until-end --log-format json"


class Ticking:
    """A log in a folder; between two reads, more time passes than between two lines."""

    def __init__(self, monkeypatch):
        self.passed, read, monotonic = 0.0, FileLog.read, time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.passed)

        def read_later(log, *arguments, **options):
            self.passed += 11
            return read(log, *arguments, **options)

        monkeypatch.setattr(FileLog, "read", read_later)


class Watching(logging.Handler):
    """Reads the metrics of a process at each of its lines."""

    def __init__(self):
        super().__init__()
        self.metrics, self.values, self.line, self._url = "", {}, "", None

    def emit(self, record):
        text = record.getMessage()
        if found := re.search(r"for Prometheus: (\S+)", text):
            self._url = found[1]
        elif self._url:
            with urlopen(self._url, timeout=30) as answer:
                self.metrics = max(self.metrics, answer.read().decode(), key=len)
        if values := getattr(record, "values", None):
            self.values, self.line = values, text


def watch(command, name, file):
    """What a command of `cowclip online` tells."""
    logger, watching = logging.getLogger(f"cowclip_merlin.run.{file}"), Watching()
    logger.addHandler(watching)
    try:
        assert main(["online", name, *command.split(), "--metrics", "0"]) == 0
    finally:
        logger.removeHandler(watching)
    yield f"[online {name}: /metrics]"
    yield from families(watching.metrics)
    yield f"[online {name}: line]"
    yield re.sub(r"\d[\d,.]*", "#", re.sub(r"time .*", "time T", watching.line))
    yield f"[online {name}: values of the line]"
    yield from types(watching.values)


def families(text):
    """The metrics without their values, then the samples that have names of their own."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    for name, about in sorted(re.findall(r"^# HELP (\S+) (.*)$", text, re.M)):
        yield f"{name} {kinds[name]}: {about}"
    samples = re.findall(r"^([a-z_]+(?:{[^}]*})?) \S+$", text, re.M)
    yield from sorted(set(samples) - set(kinds))


def types(value, path=""):
    """The paths of JSON with the types of what is there."""
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from types(value[name], f"{path}.{name}".removeprefix("."))
    else:
        yield f"{path}: {type(value).__name__}"


def write_logs():
    Path("one.yaml").write_text(f"label: click\n{COLUMNS}", encoding="utf-8")
    Path("labels.yaml").write_text(
        f"label: [click, buy, sec]\nregression: sec\n{COLUMNS}", encoding="utf-8"
    )
    rows = [
        {"time": 1000 + i, "key": f"k{i}", "user": i % 7, "price": i % 3}
        | {"click": i % 2, "buy": i % 5 % 2, "sec": i / 9}
        for i in range(200)
    ]
    clicks = [{"time": row["time"] + 9, "key": row["key"]} for row in rows[::3]]
    for name, values in (("examples", rows), ("impressions", rows), ("clicks", clicks)):
        FileLog(Path(name)).append([json.dumps(value).encode() for value in values])


def server():
    """What a server of the same model tells."""
    follower = Follower(lambda: FileLog(Path("sync")))
    while follower.step() or follower.model is None:
        pass
    app = make_app(follower, ServingLimits(), log_name="sync")
    with TestClient(app, "http://localhost") as client:
        event = {"user": 1, "price": 2}
        assert client.post("/v1/predict", json={"events": [event]}).status_code == 200
        assert client.post("/v1/predict", json={"events": []}).status_code == 422
        yield "[online serve: /metrics]"
        yield from families(client.get("/metrics").text)
        yield "[online serve: /v1/status]"
        yield from types(client.get("/v1/status").json())
        yield "[online serve: /v1/history]"
        yield from types(client.get("/v1/history").json()[0])
        yield "[online serve: /v1/predict]"
        yield from types(client.post("/v1/predict", json={"events": [event]}).json())


def test_each_process_tells_what_is_recorded(tmp_path, monkeypatch):
    """An intended change is one in `numbers.txt`, too."""
    monkeypatch.chdir(tmp_path)
    write_logs()
    with monkeypatch.context() as patch:
        Ticking(patch)
        found = [*watch(TRAIN, "train", "run/train.log")]
        header, *_ = Path("run/metrics.csv").read_text(encoding="utf-8").splitlines()
        found += ["[online train: metrics.csv]", header]
        found += watch(JOIN, "join", "join.state.log")
    found += server()
    (tmp_path / "found.txt").write_text("\n".join([*found, ""]), encoding="utf-8")
    assert found == RECORDED.read_text(encoding="utf-8").splitlines()
