"""Refused messages as ranges: the same messages, in little memory."""

import json
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from streams import FEATURES, event, log_of

from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.training.batch_journal import RefusedMessages, are_in
from cowclip_merlin.online.training.event_reader import EventReader

KINDS = ("event", "refused", "damaged")


@given(
    kinds=st.lists(st.sampled_from(KINDS), max_size=40),
    parts=st.lists(st.integers(1, 7), min_size=1),
    takes=st.lists(st.integers(0, 90)),
)
def test_the_ranges_are_the_refused_messages(kinds, parts, takes):
    numbers = 2 * np.arange(len(kinds)) + 1  # as in a log with gaps
    refused, events = (np.array([k == kind for k in kinds], bool) for kind in ("refused", "event"))
    collected, ranges, first, i = RefusedMessages(), [], 0, 0
    while first < len(kinds):
        part = slice(first, first := first + parts[i % len(parts)])
        collected.add(numbers[part], refused[part], events[part])
        if i < len(takes):
            ranges += collected.take(takes[i])
        i += 1
    ranges += collected.take(until=1000)
    found = are_in(ranges, numbers)
    assert found[refused].all() and not found[events].any()
    assert collected.take(until=1000) == []


def test_a_stream_with_a_wrong_clock_takes_no_memory(tmp_path):
    later = int(time.time()) + 2 * 86400
    ahead = json.dumps(event(0, time=later)).encode()
    log = log_of(tmp_path / "log", [ahead] * 3000 + [b"no event"] + [ahead] * 1000)
    damaged = DamagedMessages(None)
    reader = EventReader(log, FEATURES, log.start(), damaged=damaged)
    while not reader.at_end():
        assert reader.next_batch(8, wait=0) is None
    assert damaged.count == 4001
    assert reader.take_refused() == [(1, 4001)]
