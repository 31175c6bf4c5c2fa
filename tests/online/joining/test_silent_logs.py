"""A log without an end, and logs that are silent for a while."""

import merged
from joining import (
    ACTIONS,
    IMPRESSIONS,
    LOG,
    SETTINGS,
    click,
    examples_of,
    impression,
    logs_of,
    open_joiner,
    run_to_end,
    stream,
)

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
