"""Logs without an end, silent logs, damaged messages, forms of times, and logs that are trimmed."""

import json
from dataclasses import replace

import merged
import pytest
from joining import (
    ACTIONS,
    FEATURES,
    IMPRESSIONS,
    LOG,
    SETTINGS,
    ListLog,
    click,
    examples_of,
    impression,
    logs_of,
    open_joiner,
    run_to_end,
    stream,
)

from cowclip_merlin.online import FileLog, service
from cowclip_merlin.online.joining import loop
from cowclip_merlin.online.joining.loop import JoinLoop
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.system.signals import GracefulStop


class Clock:
    """Replaces the module `time` of the loop; each look takes a second."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def live_loop(logs, settings, folder, monkeypatch, rounds):
    """Run a loop without an end for some rounds, on a clock of its own."""
    monkeypatch.setattr(loop, "time", Clock())
    joiner, store = open_joiner(logs, settings, folder)
    stop = GracefulStop()
    joining = JoinLoop(joiner, *logs[:2], idle=settings.idle, until_end=False, log=LOG, stop=stop)
    for _ in range(rounds):
        joining._step()
    store.close()
    return joiner


def test_a_silent_log_holds_windows_open_only_for_a_while(tmp_path, monkeypatch):
    settings = JoinSettings(window=60, lateness=0, idle=50)
    logs = logs_of([("a", 100), ("b", 300)], [])
    joiner = live_loop(logs, settings, tmp_path, monkeypatch, rounds=3)
    assert joiner.watermark is None
    joiner = live_loop(logs, settings, tmp_path, monkeypatch, rounds=60)
    assert joiner.watermark == 300
    assert examples_of(logs[2]) == [("a", 100, 0, None)]


def test_a_click_that_comes_after_its_log_was_silent_is_late(tmp_path, monkeypatch):
    settings = JoinSettings(window=60, late=600, lateness=0, idle=50)
    logs = logs_of([("a", 100), ("b", 300)], [])
    live_loop(logs, settings, tmp_path, monkeypatch, rounds=60)
    logs[1].values += [click("a", 110), click("b", 310)]
    joiner = live_loop(logs, settings, tmp_path, monkeypatch, rounds=3)
    assert examples_of(logs[2]) == [("a", 100, 0, None), ("a", 100, 1, 1), ("b", 300, 1, None)]
    assert (joiner.counts.late_positives, joiner.counts.positives) == (1, 1)


def test_a_late_positive_is_written_once(tmp_path, monkeypatch):
    """One click after the window is there when the window ends, one within it comes later."""
    settings = JoinSettings(window=60, late=600, lateness=0, idle=50)
    logs = logs_of([("a", 100), ("b", 300)], [("a", 170)])
    live_loop(logs, settings, tmp_path, monkeypatch, rounds=60)
    logs[1].values += [click("a", 110), click("a", 175)]
    joiner = live_loop(logs, settings, tmp_path, monkeypatch, rounds=3)
    assert examples_of(logs[2]) == [("a", 100, 0, None), ("a", 100, 1, 1)]
    assert (joiner.counts.late_positives, joiner.counts.repeated_clicks) == (1, 2)


def test_an_impression_that_comes_after_its_log_was_silent(tmp_path, monkeypatch):
    """Its window is over when it comes: it is a negative at once, or a positive."""
    settings = JoinSettings(window=60, late=600, lateness=0, idle=50)
    logs = logs_of([], [("a", 100), ("b", 300)])
    live_loop(logs, settings, tmp_path, monkeypatch, rounds=60)
    logs[0].values += [impression("c", 90), impression("b", 230), impression("b", 290)]
    joiner = live_loop(logs, settings, tmp_path, monkeypatch, rounds=3)
    # b: 300 is 70 s after 230, so late; the impression at 290 is a repeat.
    assert examples_of(logs[2]) == [("b", 230, 0, None), ("b", 230, 1, 1), ("c", 90, 0, None)]
    assert joiner.counts.clicks_without_impression == 1


def test_reads_what_both_logs_have(tmp_path, monkeypatch):
    impressions, clicks = stream(11, 300, SETTINGS)
    logs = logs_of(impressions, clicks)
    monkeypatch.setattr(loop, "READ_AT_ONCE", 17)
    joiner = live_loop(logs, SETTINGS, tmp_path, monkeypatch, rounds=200)
    assert joiner.positions == {IMPRESSIONS: logs[0].end(), ACTIONS: logs[1].end()}
    counts = run_to_end(logs, SETTINGS, tmp_path)
    assert examples_of(logs[2]) == merged.join(impressions, clicks, SETTINGS)[0]
    assert counts == merged.join(impressions, clicks, SETTINGS)[1]


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


def test_damaged_messages_are_set_aside(tmp_path):
    logs = logs_of([("b", 100), ("c", 101)], [("c", 102)])
    logs[0].values[1:1] = DAMAGED
    counts = run_to_end(logs, JoinSettings(window=60), tmp_path)
    assert examples_of(logs[2]) == [("b", 100, 0, None), ("c", 101, 1, None)]
    number = len(DAMAGED)
    assert (counts["impressions"], counts["damaged_impressions"]) == (2 + number, number)
    lines = [json.loads(x) for x in (tmp_path / "damaged-impressions").read_text().splitlines()]
    assert [line["after"] for line in lines] == [[2 + i] for i in range(number)]
    for line, reason in zip(lines, DAMAGED.values(), strict=True):
        assert reason in line["reason"]
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


TRIMMED = JoinSettings(window=30, lateness=0)


def joined(folder, *, trim):
    logs = [FileLog(folder / name, segment_bytes=1) for name in ("i", "a", "to")]
    for i in range(40):
        logs[0].append([impression(str(i), 100 + i)])
        if i % 3 == 0:
            logs[1].append([click(str(i), 110 + i)])
    joiner, store = open_joiner(logs, TRIMMED, folder, features=FEATURES)
    more = {"idle": 1.0, "until_end": True, "trim": trim, "log": LOG, "stop": GracefulStop()}
    JoinLoop(joiner, *logs[:2], **more).run()
    store.close()
    return logs


def test_the_examples_are_the_same_and_the_logs_are_short(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "LINE_EVERY", 0.0)
    monkeypatch.setattr(loop, "READ_AT_ONCE", 7)
    (tmp_path / "kept").mkdir()
    (tmp_path / "trimmed").mkdir()
    kept = joined(tmp_path / "kept", trim=False)
    trimmed = joined(tmp_path / "trimmed", trim=True)
    found, wanted = ([m.value for m in x[2].read(x[2].start(), 99)] for x in (trimmed, kept))
    assert found == wanted
    assert [log.start()[0] for log in kept] == [0, 0, 0]
    assert [log.start()[0] for log in trimmed] == [39, 13, 0]  # all but the newest file of each
