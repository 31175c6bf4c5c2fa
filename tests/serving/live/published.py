"""A trainer that publishes as simply as can be: every sync at once, every snapshot on demand."""

import json
import time
from dataclasses import asdict

from cowclip_merlin.online import FileLog
from cowclip_merlin.online.sync.sync_message import (
    DENSE,
    GENERATION,
    SNAPSHOT,
    SYNCED,
    SyncMessage,
    split_changes,
)
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.tables.snapshot import save_snapshot


def publish(folder, settings, features, events):
    """Train on these events, and write the first sync to the log in a folder."""
    made = PublishedTrainer(settings, features, folder / "run", FileLog(folder / "sync"))
    made.start()
    made.train(events)
    made.sync(auc=0.71)
    return made


def follower_of(made):
    """A follower of these syncs that has read all of them."""
    follower = Follower(lambda: made.log)
    while follower.step():
        pass
    return follower


class PublishedTrainer:
    """Trains on events, and writes its sync log and its run folder."""

    def __init__(self, settings, features, run, log):
        self.trainer, self.run, self.log = OnlineTrainer(settings, features), run, log
        self.changes, self.generation, self.number = None, 0, 0
        run.mkdir(exist_ok=True)
        config = {"features": asdict(features), "settings": settings.as_dict()}
        (run / "config.json").write_text(json.dumps(config))
        self.trained, self.event_time = 0, None

    def start(self):
        """Begin a generation with a snapshot."""
        self.generation, self.seq = self.generation + 1, 0
        self.save()
        self.changes = self.trainer.table.track_changes()
        self.send(GENERATION, {"run": str(self.run.resolve()), "snapshot": self.number})

    def save(self):
        self.number += 1
        arrays = {f"trainer.{name}": x for name, x in self.trainer.state().items()}
        columns = {"columns": list(self.trainer.features.inputs)}
        save_snapshot(self.run / "snapshots", self.number, arrays, columns)

    def snapshot(self):
        self.save()
        self.send(SNAPSHOT, {"run": str(self.run.resolve()), "snapshot": self.number})

    def send(self, kind, info=None, arrays=None):
        where = {"generation": self.generation, "seq": self.seq}
        message = SyncMessage(kind=kind, info=info or {}, arrays=arrays or {}, **where)
        self.log.append([message.encode()])
        self.seq += 1

    def train(self, events):
        self.trainer.train(events)
        self.trained += len(events)
        self.event_time = int(events.times[-1])

    def sync(self, *, dense=True, auc=None):
        trainer, changes = self.trainer, self.changes.collect()
        values = [memory.w[changes.rows] for memory in trainer.table.memory]
        for part in split_changes(changes, values, trainer.table.num_fields, most=512):
            self.send(*part)
        if dense:
            weights = {f"dense{i}": x for i, x in enumerate(trainer.dense_weights())}
            self.send(DENSE, {}, weights)
        self.changes.clear()
        info = {"trained": self.trained, "event_time": self.event_time, "time": time.time()}
        self.send(SYNCED, info | {"rows": trainer.table.num_rows, "lag": 0, "auc": auc})
