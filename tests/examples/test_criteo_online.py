"""Criteo's log with times that a line of awk adds, as docs/online-data.md has it."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import load_features

ROOT = Path(__file__).parents[2]


@pytest.mark.system
@pytest.mark.skipif(shutil.which("awk") is None, reason="this machine has no awk")
def test_rows_are_spread_over_seven_days(log, tmp_path):
    (command,) = re.findall(r"^awk .*$", (ROOT / "docs/online-data.md").read_text(), re.MULTILINE)
    shutil.copy(log, tmp_path / "train.txt")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    features = load_features(ROOT / "examples/criteo.yaml")
    events = Events.concatenate(list(EventLog([tmp_path / "timed.txt"], features)))
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    assert events.ids.values.shape == (len(lines), 26) and events.numbers.shape == (len(lines), 13)
    assert events.labels.tolist() == [int(line[0]) for line in lines]
    seconds = np.arange(len(lines)) * 604_800 // len(lines)
    assert np.array_equal(events.times, seconds) and events.times[-1] < 604_800
