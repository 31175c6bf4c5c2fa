"""A training on several logs as one: each event once, in an order that is repeated after kills.

KILLS=30 python -m pytest tests/online/training/test_partitions.py

`KILLS` is how many: 2 without it.
"""

import os
import random

import pytest
from streams import Killed, final_state, killed_at, log_of, messages, stream_trainer

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.logs.merging.merged_log import MergedLog
from cowclip_merlin.online.training.stream_folder import ORDER

pytestmark = pytest.mark.runs

KILLS = int(os.environ.get("KILLS", "2"))
MORE = 300  # events before each kill
CALLS = 14  # of those that change something, before a kill at most


class Parts:
    """Three logs, and the events that they were given."""

    def __init__(self, folder, run):
        self.logs = [FileLog(folder / f"part-{i}") for i in range(3)]
        self.run, self.values, self.random = run, [], random.Random(1)

    def open(self):
        self.run.mkdir(exist_ok=True)
        return MergedLog(self.logs, name="events", order=self.run / ORDER, turn=5)

    def add(self, number):
        new = messages(range(len(self.values), len(self.values) + number))
        self.values += new
        for value in new:
            self.random.choices(self.logs, [1, 2, 4])[0].append([value])


def read_all(log):
    place, found = log.start(), []
    while part := log.read(place, 100):
        found += [message.value for message in part]
        place = part[-1].after
    return found


@pytest.mark.thorough
def test_each_event_is_trained_once_in_one_order(tmp_path, settings, monkeypatch):
    """As a training on a single log that has the events in the order of the file."""
    run = tmp_path / "run"
    parts = Parts(tmp_path, run)
    for _ in range(KILLS):
        parts.add(MORE)
        with monkeypatch.context() as patch:
            killed_at(patch, parts.random.randrange(3, CALLS))
            with pytest.raises(Killed):
                stream_trainer(run, settings, parts.open(), snapshot_every=1e-9).run()
    stream_trainer(run, settings, parts.open()).run()
    order = read_all(parts.open())
    assert sorted(order) == sorted(parts.values) != order
    stream_trainer(tmp_path / "whole", settings, log_of(tmp_path / "one", order)).run()
    assert final_state(run) == final_state(tmp_path / "whole")


@pytest.mark.thorough
def test_a_lost_order_is_refused_and_skip_goes_on(tmp_path, settings):
    parts = Parts(tmp_path, tmp_path / "run")
    parts.add(100)
    stream_trainer(parts.run, settings, parts.open()).run()
    (parts.run / ORDER).unlink()
    with pytest.raises(InputError, match=r"order .* is not known"):
        stream_trainer(parts.run, settings, parts.open()).run()
    parts.add(50)
    log = parts.open()
    end, later = log.end, iter([64])

    def end_before_more():
        """The place to go on from; other events come then."""
        place = end()
        parts.add(next(later, 0))
        return place

    log.end = end_before_more
    work = stream_trainer(parts.run, settings, log, on_restart="skip")
    work.run()
    assert work.trained == 164
    parts.add(32)
    work = stream_trainer(parts.run, settings, parts.open())
    work.run()
    assert work.trained == 196
