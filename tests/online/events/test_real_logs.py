"""Real logs in time order: one of text with hours as times, one of parquet with dates."""

import numpy as np
import pytest

from cowclip_merlin.online.events.event_log import EventLog


def test_avazu(real, features_file):
    features = features_file(
        "label: click\ntime: {name: hour, format: '%y%m%d%H'}\nkey: id\n"
        "categorical: [hour, C1, site_id, device_ip]\n"
    )
    log = EventLog([real / "avazu_9k.csv.gz"], features, max_bad_fraction=0)
    pieces = list(log)
    assert log.events == 8999
    keys = np.concatenate([piece.keys for piece in pieces])
    assert len(np.unique(keys)) == 8999  # numbers beyond 64 bits are hashed
    assert {int(t) for piece in pieces for t in piece.times} == {1413849600}  # the first hour


@pytest.mark.thorough
def test_flights(real, features_file):
    """Few delays are 0 or 1 minutes; all other rows are set aside."""
    features = features_file("label: delay\ntime: date\ncategorical: [origin, destination]\n")
    log = EventLog([real / "flights_3m.parquet"], features, max_bad_fraction=1)
    last = 0
    for events, _ in zip(log, range(20)):
        assert last <= events.times[0] and (np.diff(events.times) >= 0).all()
        last = events.times[-1]
    assert last > 978_307_260 and log.damaged.count > log.events > 0
    assert log.damaged.first[0].reason == "delay is 33, neither 0 nor 1"
