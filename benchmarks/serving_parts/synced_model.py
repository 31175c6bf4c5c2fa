"""A model whose rows are sent again and again with the same values, so that answers are known."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.run_config import online_config
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.sync.publisher import Publisher
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.system.files import write_json
from cowclip_merlin.tables.layout import FieldRules
from cowclip_merlin.tables.snapshot import save_snapshot
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import JsonObject

TTL = 40
"""Syncs after which an id that was not seen is gone."""

TURNS = 20
"""Syncs after which every known id was sent again."""

_BATCH = 1024
_NEW = 10**12  # first of the new ids, far from those of the log


class SyncedModel:
    """A trained model, its run folder and its sync log.

    Each sync sends a part of the known ids again, with unchanged values, as many new ids, and the
    new ids that are gone by then. So servers work as after training, and answers stay the same.

    Attributes:
        requests: rows of the log as JSON objects; some ids are absent.
        expected: the probability of each request, float32.
    """

    def __init__(self, folder: Path, *, events: int, rows: int, seed: int) -> None:
        self.log, self._folder, self._rows = FileLog(folder / "sync"), folder, rows
        generate_drifting(folder / "log.csv", rows=events, days=3, seed=seed)
        features = load_features(folder / "log.csv.yaml")
        rules = FieldRules(ttl=TTL)
        columns = tuple(replace(column, rules=rules) for column in features.categorical)
        self._features = replace(features, categorical=columns)
        run = RunSettings(
            model="deepfm",
            batch_size=_BATCH,
            update="lazy",
            overrides={"embedding_lr": 1e-3, "dense_lr": 1e-3, "init_std": 0.05},
            seed=seed,
        )
        self._trainer = OnlineTrainer(OnlineSettings(run=run), self._features)
        self._events = self._train()
        self._numbers, self._clock = itertools.count(_NEW), 1
        self._write_run()
        self.requests, self.expected = self._make_requests()

    @property
    def num_rows(self) -> int:
        """Ids that have a row."""
        return self._trainer.table.num_rows

    def _train(self) -> Events:
        """Train on the log, at one moment of event time."""
        log = self._folder / "log.csv"
        events = Events.concatenate(list(EventLog([log], self._features)))
        events = replace(events, times=np.ones(len(events), np.int64))
        for first in range(0, len(events), _BATCH):
            self._trainer.train(events.filter(slice(first, first + _BATCH)))
        return events

    def _write_run(self) -> None:
        run = self._folder / "run"
        arrays = {f"trainer.{name}": x for name, x in self._trainer.state().items()}
        columns = {"columns": list(self._features.inputs)}
        save_snapshot(run / "snapshots", 1, arrays, columns)
        write_json(run / "config.json", online_config(self._trainer.settings, self._features))
        self._generation, self._publisher = 0, None
        self.begin()

    def begin(self) -> None:
        """Begin a generation, as a trainer that has started again; servers load the snapshot."""
        if self._publisher is not None:
            self._publisher.close()
        self._generation += 1
        self._publisher = Publisher(self.log, self._trainer)
        self._publisher.begin(self._generation, str((self._folder / "run").resolve()), 1)
        self._publisher.wait()

    def _make_requests(self) -> tuple[list[JsonObject], npt.NDArray[np.float32]]:
        """The first events of the log; every fourth has an item that nobody has seen."""
        with open(self._folder / "log.csv", encoding="utf-8") as file:
            names, *lines = (line.rstrip("\n").split(",") for line in itertools.islice(file, 2001))
        rows = [dict(zip(names, line, strict=True)) for line in lines]
        requests = [{name: row[name] or None for name in self._features.inputs} for row in rows]
        events = self._events.filter(np.arange(len(self._events)) < len(rows))  # a copy
        column = [c.name for c in self._features.categorical].index("item")
        for i in range(0, len(rows), 4):
            requests[i]["item"], events.ids.values[i, column] = str(-i - 1), -i - 1
        return requests, self._trainer.predict(events)

    def sync(self) -> None:
        """Send the next part of the rows, and wait until the log has them."""
        table, part = self._trainer.table, self._clock % TURNS
        self._clock += 1
        known = self._events.ids.values[part::TURNS]
        most = max(self._rows // 2 // known.shape[1], 1)
        table.admit(known, self._clock)
        new = np.fromiter(self._numbers, np.int64, most * known.shape[1])
        table.admit(new.reshape(most, -1), self._clock)
        looked = 0
        while looked < table.statistics().high_water:
            looked += 100_000
            table.expire(100_000)
        info = {"trained": len(self._events), "event_time": time.time(), "auc": None, "lag": 0}
        self._publisher.sync(
            {**info, "rows": table.num_rows, "position": [0]}, dense=self._clock % 5 == 0
        )
        self._publisher.wait()

    @contextmanager
    def syncing(self, every: float, *, begin_at: int | None = None) -> Iterator[list[float]]:
        """Sync every so many seconds within the block; yields the seconds that each sync took."""
        took: list[float] = []

        def sync() -> None:
            begun = time.perf_counter()
            if len(took) == begin_at:
                self.begin()
            self.sync()
            took.append(time.perf_counter() - begun)

        with repeated(sync, lambda: max(every - (took[-1] if took else 0), 0.01)):
            yield took

    def close(self) -> None:
        """End the publisher's thread."""
        self._publisher.close()

    def bodies(self, events: int, number: int) -> list[bytes]:
        """Bodies of requests with so many events each."""
        first = [i * events % (len(self.requests) - events + 1) for i in range(number)]
        return [json.dumps({"events": self.requests[i : i + events]}).encode() for i in first]


@contextmanager
def repeated(call: Callable[[], None], pause: Callable[[], float]) -> Iterator[None]:
    """Call again and again in a thread within the block, after so many seconds each time."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause()):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
