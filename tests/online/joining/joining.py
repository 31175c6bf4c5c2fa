"""Logs in memory, and a join that a test drives message by message."""

import json
import logging
import random

from cowclip_merlin.online.events.columns import CategoricalColumn
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.joining.joiner import ACTIONS, IMPRESSIONS, Joiner
from cowclip_merlin.online.joining.loop import JoinLoop
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.joining.state import JoinState
from cowclip_merlin.online.logs.message_log import Message, MessageLog
from cowclip_merlin.system.signals import GracefulStop

FEATURES = LogFeatures(
    label="click", time="time", key="request", categorical=(CategoricalColumn(name="item"),)
)
NOW = 10_000.0
SETTINGS = JoinSettings(window=30, late=20, lateness=8, negatives=0.5)
LOG = logging.getLogger("test")


class ListLog(MessageLog):
    """A log in a list. `before_append` may raise before, `after_append` after the append."""

    def __init__(self, values=(), name="list"):
        self.values, self.name = list(values), name
        self.before_append = self.after_append = lambda: None

    def append(self, values):
        self.before_append()
        self.values += values
        self.after_append()
        return self.end()

    def read(self, position, most, wait=0.0):
        first = position[0]
        return [
            Message((first + i + 1,), value)
            for i, value in enumerate(self.values[first : first + most])
        ]

    def start(self):
        return (0,)

    def end(self):
        return (len(self.values),)

    def trim(self, position):
        """All messages may stay."""


def impression(key, time):
    return json.dumps({"request": key, "time": time, "item": f"i{key}"}).encode()


def click(key, time):
    return json.dumps({"request": key, "time": time}).encode()


def logs_of(impressions, clicks):
    """Three logs, of the messages (key, time) of each; the third is for the examples."""
    return (
        ListLog([impression(*each) for each in impressions], "impressions"),
        ListLog([click(*each) for each in clicks], "actions"),
        ListLog(name="examples"),
    )


def open_joiner(logs, settings, folder, *, features=FEATURES, clock=lambda: NOW):
    """A joiner, and its store to close."""
    store = JoinState(folder / "state", settings)
    try:
        damaged = folder / "damaged-impressions", folder / "damaged-actions"
        return Joiner(*logs, features, settings, store, damaged, clock), store
    except BaseException:
        store.close()
        raise


def run_to_end(logs, settings, folder, **more):
    """Join all there is, in a new process as it were; return the counts."""
    joiner, store = open_joiner(logs, settings, folder, **more)
    try:
        loop = JoinLoop(
            joiner, *logs[:2], idle=settings.idle, until_end=True, log=LOG, stop=GracefulStop()
        )
        loop.run()
        return joiner.counts.as_dict()
    finally:
        store.close()


def feed(logs, settings, folder, order):
    """Join both logs message by message.

    Args:
        order: pairs (name of a log, number of messages); what is left then follows at random.
    """
    joiner, store = open_joiner(logs, settings, folder)
    sources = dict(zip((IMPRESSIONS, ACTIONS), logs))
    for name, most in order:
        if messages := sources[name].read(joiner.positions[name], most):
            joiner.take(name, messages)
        ended = [n for n in sources if joiner.positions[n] == sources[n].end()]
        joiner.advance([n for n in sources if n not in ended])
    counts = joiner.counts.as_dict()
    store.close()
    return counts | (run_to_end(logs, settings, folder))


def examples_of(log):
    """The examples of a log as sorted tuples, as `merged.join` returns them."""
    rows = map(json.loads, log.values)
    return sorted(
        ((row["request"], row["time"], row["click"], row.get("cowclip_late")) for row in rows),
        key=str,
    )


def stream(seed, requests, settings):
    """Impressions and clicks (key, time): shuffled within the lateness and beyond, with repeats."""
    draw = random.Random(seed)
    shown, clicked, span = [], [], settings.window + settings.late + settings.lateness
    for i in range(requests):
        time = 1000 + i // 2
        shown += [(f"r{i}", time)] * draw.choice([1, 1, 1, 2])
        if draw.random() < 0.6:
            after = draw.randrange(-settings.lateness - 2, span + 4)
            clicked += [(f"r{i}", max(time + after, 0))] * draw.choice([1, 1, 2])
        if draw.random() < 0.05:
            clicked.append((f"unknown{i}", time))
    return (
        _shuffled(shown, draw, settings.lateness + 3),
        _shuffled(clicked, draw, settings.lateness + 3),
    )


def _shuffled(messages, draw, by):
    """In order of times, each of which is off by a little; some messages are far off."""
    return sorted(messages, key=lambda m: m[1] + draw.choice([0, 0, 1, by, 3 * by]))
