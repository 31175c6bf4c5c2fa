"""A replay of events, and the state that it ends with."""

import logging

from cowclip_merlin.online import ReplaySettings
from cowclip_merlin.online.replaying.replay import Replay
from cowclip_merlin.tables.snapshot import load_snapshot

SYNC = ("never", "1d", "5h", "30min")
LOG = logging.getLogger("test")


def replay_of(folder, trainer, events, sync=SYNC, days=1.0, every=0.0):
    pieces = [events.filter(slice(a, a + 700)) for a in range(0, len(events), 700)]
    settings = ReplaySettings(batch_days=days, sync=sync, snapshot_every=every)
    return Replay(trainer, pieces, settings, folder, LOG)


def final_state(folder):
    snapshot = load_snapshot(folder / "snapshots")
    return {name: x.tobytes() for name, x in snapshot.arrays.items()}
