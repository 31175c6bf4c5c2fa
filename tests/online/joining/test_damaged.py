"""Messages that cannot be read, and the forms of times."""

import json
from dataclasses import replace

import pytest
from joining import FEATURES, ListLog, click, examples_of, logs_of, run_to_end

from cowclip_merlin.online.joining.settings import JoinSettings

DAMAGED = {
    b"": "no JSON",
    b"{": "no JSON",
    b"[1]": "not a JSON object",
    b"\xff": "no JSON",
    b"[" * 100_000: "no JSON",
    b'{"request": "a", "time": 5}': "no 'item'",
    b'{"time": 5, "item": 1}': "no 'request'",
    b'{"request": null, "time": 5, "item": 1}': "request is missing",
    b'{"request": "", "time": 5, "item": 1}': "request is missing",
    b'{"request": 1.5, "time": 5, "item": 1}': "request is 1.5",
    b'{"request": "\\ud800", "time": 5, "item": 1}': "UTF-8 cannot express",
    b'{"request": "a", "time": null, "item": 1}': "time is missing",
    b'{"request": "a", "time": "soon", "item": 1}': "time is 'soon'",
    b'{"request": "a", "time": true, "item": 1}': "time is 'true'",
    b'{"request": "a", "time": [5], "item": 1}': "time is [5]",
    b'{"request": "a", "time": -5, "item": 1}': "before 1970",
    b'{"request": "a", "time": 5e9, "item": 1}': "after 2106",
    b'{"request": "a", "time": 1e999, "item": 1}': "time is 'inf'",
    b'{"request": "a", "time": NaN, "item": 1}': "time is 'nan'",
    b'{"request": "a", "time": 96401, "item": 1}': "in the future",
    b'{"request": "a", "time": 5, "item": 1}, {}': "no JSON",
}


@pytest.mark.parametrize("value", DAMAGED, ids=lambda v: repr(v[:40]))
def test_a_damaged_message_is_set_aside(tmp_path, value):
    good = [("b", 100), ("c", 101)]
    logs = logs_of(good, [("c", 102)])
    logs[0].values.insert(1, value)
    counts = run_to_end(logs, JoinSettings(window=60), tmp_path)
    assert examples_of(logs[2]) == [("b", 100, 0, None), ("c", 101, 1, None)]
    assert (counts["impressions"], counts["damaged_impressions"]) == (3, 1)
    (line,) = (tmp_path / "damaged-impressions").read_text().splitlines()
    assert json.loads(line)["after"] == [2]
    assert DAMAGED[value] in json.loads(line)["reason"]
    assert not (tmp_path / "damaged-actions").exists()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(100, 100), (100.9, 100), ("100", 100), ("1970-01-01T00:01:40Z", 100), ("100.5", 100)],
)
def test_times_are_seconds_or_dates(tmp_path, given, seconds):
    row = {"request": 7, "time": given, "item": 1}
    logs = ListLog([json.dumps(row).encode()]), ListLog([click("7", seconds + 60)]), ListLog()
    counts = run_to_end(logs, JoinSettings(window=60, lateness=0), tmp_path)
    assert counts["positives"] == 1
    assert json.loads(logs[2].values[0])["time"] == given


def test_times_in_a_format_of_their_own(tmp_path):
    features = replace(FEATURES, time_format="%y%m%d%H")
    row = {"request": "a", "time": "70010200", "item": 1}
    late = {"request": "a", "time": "70010201"}
    logs = [ListLog([json.dumps(row).encode()]), ListLog([json.dumps(late).encode()]), ListLog()]
    settings = JoinSettings(window=3600)
    counts = run_to_end(logs, settings, tmp_path, features=features, clock=lambda: 1e6)
    assert counts["positives"] == 1
