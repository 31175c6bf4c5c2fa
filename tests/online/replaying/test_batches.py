"""Batches of a log do not depend on how the log is read."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.replaying.batches import BatchReader


def events_of(times):
    n = len(times)
    return Events(
        ids=Ids(np.arange(n)[:, None]),
        numbers=np.zeros((n, 1), np.float32),
        labels=np.zeros(n, np.int8),
        times=np.array(times, np.int64),
    )


def pieces_of(events, cuts):
    ends = sorted({0, *cuts, len(events)})
    return [events.filter(slice(a, b)) for a, b in itertools.pairwise(ends)]


def ids_of(batches):
    return [batch.ids.values[:, 0].tolist() for batch in batches]


def expected(times, size, before, first=0):
    """Equal parts of the events before a time, then of the others."""
    cut = max(first, sum(t < before for t in times))
    parts = []
    for start, end in ((first, cut), (cut, len(times))):
        parts += [list(range(i, min(i + size, end))) for i in range(start, end, size)]
    return parts


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40).map(sorted),
    st.lists(st.integers(1, 39), max_size=6),
    st.integers(1, 9),
    st.integers(0, 21),
)
def test_batches_depend_on_the_position_only(times, cuts, size, before):
    events = events_of(times)
    cuts = [cut for cut in cuts if cut < len(times)]
    reader = BatchReader(pieces_of(events, cuts), size)
    assert reader.first_time() == times[0]
    found = [*reader.batches(before=before), *reader.batches()]
    wanted = expected(times, size, before)
    assert ids_of(found) == wanted
    assert reader.first_time() is None
    for done in range(len(wanted)):  # a reader that starts later
        skip = sum(map(len, wanted[:done]))
        again = BatchReader(pieces_of(events, cuts), size, skip=skip)
        assert ids_of([*again.batches(before=before), *again.batches()]) == wanted[done:]
        again = BatchReader([events], size, skip=skip)
        batches = again.batches(before=before)
        assert ids_of([*batches, *again.batches()]) == wanted[done:]


def test_a_log_without_events_has_no_batches():
    reader = BatchReader([], 4)
    assert reader.first_time() is None and list(reader.batches()) == []
