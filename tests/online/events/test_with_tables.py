"""The events of a log, as a growing table takes them."""

import numpy as np

from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.online.events.ids import MISSING
from cowclip_merlin.online.events.requests import encode_requests
from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.tables.growing_table import GrowingTable
from cowclip_merlin.tables.initial_rows import RowMemory

CAPACITY = 5000


def growing_table(features):
    w, m, v = (np.zeros((CAPACITY, 2), np.float32) for _ in range(3))
    memory = [RowMemory(w=w, slots={"m": m, "v": v}, std=1.0, seed=1)]
    rules = list(features.rules.values())
    return GrowingTable(rules, memory=memory, capacity=CAPACITY, max_rows=CAPACITY - 50)


def test_ids_of_a_log_get_rows_and_expire_by_the_features_file(tmp_path):
    generate_drifting(tmp_path / "log.csv", rows=6000, days=8)
    features = load_features(tmp_path / "log.csv.yaml")
    table, seen = growing_table(features), []
    for events in EventLog([tmp_path / "log.csv"], features, block_bytes=20_000):
        rows = table.admit(events.ids, events.times)
        assert (rows.values >= len(features.categorical)).all()  # those before are of absent ids
        seen.append(events)
    ids, times = Events.concatenate(seen).ids.values, Events.concatenate(seen).times
    assert table.statistics().rows == tuple(len(np.unique(column)) for column in ids.T)
    request = encode_requests(
        [{"user": 1, "item": "no such", "category": 1, "site": None, "device": 1, "hour": 1,
          "price": None}], features,
    )  # fmt: skip
    assert request.events.ids.values[0, 3] == MISSING
    looked_up = table.lookup(request.events.ids).values[0]
    assert looked_up[1] == 1 and looked_up[3] >= len(features.categorical)  # absent; has a row

    while table.expire():
        pass
    item = 1  # the only field with a time to live
    last = {id_: time for id_, time in zip(ids[:, item].tolist(), times.tolist())}
    ttl = features.rules["item"].ttl
    alive = sum(table.clock - time < ttl for time in last.values())
    assert table.statistics().rows[item] == alive < len(last)
