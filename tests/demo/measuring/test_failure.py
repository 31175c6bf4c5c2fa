import json

import pytest

from cowclip_merlin.demo.measuring.failure import kill_cost, take_stock
from cowclip_merlin.demo.measuring.sync_watch import Sync
from cowclip_merlin.online.logs.file_log import FileLog


class Watch:
    def __init__(self, syncs):
        self.syncs, self.starts = syncs, {1: (0.0, 0), 2: (26.0, 4000)}


def sync(generation, seen, trained, lag=0):
    return Sync(generation, 9, seen - 0.1, seen, (trained,), trained, {"lag": lag})


def test_the_cost_of_a_kill():
    syncs = [sync(1, 10, 3000), sync(1, 20, 5000), sync(2, 31, 5000, 4000), sync(2, 33, 9000, 100)]
    cost = kill_cost(Watch(syncs), start=5, killed=22, rate=1000)
    assert (cost.killed_after, cost.without_syncs, cost.caught_up_after) == (17, 11, 11)
    assert cost.retrained == 1000  # trained 5,000, and the snapshot has 4,000
    assert kill_cost(Watch(syncs[:3]), start=5, killed=22, rate=1000).caught_up_after is None
    assert kill_cost(Watch(syncs[:2]), start=5, killed=22, rate=1000) is None
    assert kill_cost(Watch(syncs[2:]), start=5, killed=22, rate=1000) is None


@pytest.mark.parametrize("lost", [[], [3], [0, 11]])
def test_accounts(features, tmp_path, lost):
    logs = [FileLog(tmp_path / name) for name in ("imp", "act", "ex")]
    shown = [{"request": i, "time": 100 + i} for i in range(20)]
    joined = [x | {"click": 0} for x in shown[:15] if x["request"] not in lost]
    joined.append(shown[2] | {"click": 1})
    for log, rows in zip(logs, ([*shown, shown[0]], [{"request": 2, "time": 104}], joined)):
        log.append([json.dumps(row).encode() for row in rows])
    last = sync(1, 10, len(joined) - 1)._replace(position=(len(joined), 0, 5))
    accounts = take_stock(features, *logs, window=5, last=last)
    assert (accounts.impressions, accounts.clicks) == (20, 1)
    assert accounts.due == 14  # the times 100 to 113 are over at 119 - 5
    assert accounts.lost == len(lost)
    assert accounts.examples == len(joined) == accounts.read and accounts.repeated == 1
    assert accounts.trained == accounts.examples - accounts.repeated


def test_accounts_of_empty_logs(features, tmp_path):
    logs = [FileLog(tmp_path / name) for name in ("imp", "act", "ex")]
    accounts = take_stock(features, *logs, window=5, last=None)
    assert set(vars(accounts).values()) == {0}
