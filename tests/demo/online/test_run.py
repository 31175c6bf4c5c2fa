"""The demo with the real producer and joiner, and a trainer and servers without a model."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from cowclip_merlin.demo.online import pipeline, run
from cowclip_merlin.demo.online.processes import DemoSettings, Processes
from cowclip_merlin.demo.online.report import StatusBlock, table_text
from cowclip_merlin.demo.online.run import Demo
from cowclip_merlin.errors import InputError

pytestmark = pytest.mark.system

FAKES = Path(__file__).with_name("fake_parts.py")
SECONDS = 6.0


@pytest.fixture
def fakes(monkeypatch):
    """Starts fakes instead of trainer and servers; remembers all processes."""
    started, start_cowclip = [], Processes.start_cowclip

    def start(self, name, *words, may_finish=False):
        if words[1] in ("train", "serve"):
            given = dict(zip(words[2::2], words[3::2]))
            logs = (given.get("--from"), given.get("--to"))
            if words[1] == "serve":
                logs = (str(Path(given["--from"]).with_name("examples")), given["--from"])
            last = given.get("--port") or given["--out"]
            process = self.start(name, [sys.executable, str(FAKES), words[1], *logs, last])
        else:
            process = start_cowclip(self, name, *words, may_finish=may_finish)
        started.append(process)
        return process

    monkeypatch.setattr(Processes, "start_cowclip", start)
    monkeypatch.setattr(run, "_QUIET", 0.5)
    monkeypatch.setattr(run, "_LOOK_EVERY", 0.1)
    return started


def ended(process):
    try:
        os.kill(process._popen.pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_demo(fakes, tmp_path):
    out = io.StringIO()
    demo = DemoSettings(rate=500, window=1, delay=0.1)
    object.__setattr__(demo, "minutes", SECONDS / 60)  # shorter than anybody may ask for
    result = Demo(demo, tmp_path, StatusBlock(out)).run()
    assert len(fakes) == 6 and all(map(ended, fakes))
    assert "kill -9 of the trainer" in out.getvalue()
    accounts = result["accounts"]
    # Probes are impressions, too.
    assert 3000 <= accounts["impressions"] < 3100 and accounts["lost"] == 0 < accounts["due"]
    assert accounts["trained"] == accounts["read"] == accounts["examples"]
    assert result["kill"]["without_syncs"] > 0 and result["kill"]["retrained"] >= 0
    latency = result["latency"]
    assert latency["probes"] >= 1 and latency["given_up"] == 0
    assert 0 < latency["seconds"]["total"]["p50"] < 30
    assert result["auc"]["impressions"] > 100 and result["auc"]["whole"]["best"] > 0.6
    assert result["rows"]["held"] == accounts["trained"] // 10
    assert result["memory"].keys() == {each.name for each in fakes}
    assert json.loads((tmp_path / "demo.json").read_text())["kill"] == result["kill"]
    assert (tmp_path / "demo.svg").exists() and "event to served" in table_text(result)


def test_a_part_that_fails_ends_the_demo(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr(
        pipeline.Pipeline, "start_producer", lambda self: self.trainer._popen.kill()
    )
    with pytest.raises(InputError, match="trainer ended with code -9"):
        Demo(DemoSettings(minutes=1), tmp_path, StatusBlock(io.StringIO())).run()
    assert len(fakes) == 5 and all(map(ended, fakes))
