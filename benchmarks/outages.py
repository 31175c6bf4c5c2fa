"""What an outage of an online trainer costs: lost events, or a backlog that has to be trained.

The log is generated with drift over seven days. The trainer learns the first five days, and then
scores each batch before it trains on it. The model is DeepFM with growing tables.

skip: the trainer is killed four times at random moments of the last two days. It goes on from its
last snapshot with the newest event, as Monolith does. The events since the snapshot are lost. The
table shows AUC from the first kill on, by the time between snapshots.

backlog: the trainer is away for 12 hours and then trains the backlog at K times the batch size,
with the scaling rule and with the hyper-parameters of the small batch. The table shows the seconds
for the backlog, and AUC of the hours after it. Seconds are medians over seeds.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.scaling import RULES
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Array, JsonObject
from harness import Benchmark, markdown

if TYPE_CHECKING:
    from cowclip_merlin.online.events.features import LogFeatures

HOUR, DAYS, ONLINE_FROM = 3600, 7, 5
AWAY, KILLS = 12, 4  # hours without a trainer; kills
State = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class OutageSettings(Settings):
    """What is trained, and what goes wrong."""

    rows: int = option(200_000, "events of the log", at_least=1)
    seeds: int = option(5, "logs and models", at_least=1)
    batch_size: int = option(256, "events in a step", at_least=1)
    snapshot_hours: tuple[int, ...] = option((1, 6, 12, 24), "between snapshots", at_least=1)
    catch_up: tuple[int, ...] = option((1, 8, 16, 32), "times the batch size", at_least=1)
    rule: str = option("cowclip", "scaling rule for the backlog", choices=tuple(RULES))


@dataclass(frozen=True)
class Log:
    """A generated log: its columns, the events by time, and the time of the first one."""

    features: LogFeatures
    events: Events
    start: int

    def between(self, first: float, last: float) -> Events:
        """Events from one time to another, in hours since the start."""
        times = [self.start + hours * HOUR for hours in (first, last)]
        a, b = np.searchsorted(self.events.times, times)
        return self.events.filter(slice(int(a), int(b)))


class Training:
    """A trainer that scores each batch before its step."""

    def __init__(
        self,
        settings: OutageSettings,
        log: Log,
        seed: int,
        state: State | None = None,
        catch_up: int = 1,
    ) -> None:
        run = RunSettings(
            model="deepfm",
            batch_size=settings.batch_size,
            base_batch_size=settings.batch_size,
            overrides={"embedding_lr": 1e-3, "dense_lr": 1e-3, "init_std": 1e-2},
            rule=settings.rule,
            update="lazy",
            mlp=(100, 100),
            seed=seed,
        )
        self._batch_size, self._catch_up = settings.batch_size, catch_up
        self._given = OnlineSettings(run=run, capacity=1 << 20), log.features
        self.scores: list[Array] = []
        self.start(state)

    def start(self, state: State | None) -> None:
        """Begin, or go on in a new process, so to speak, with a state."""
        self.trainer = None
        gc.collect()  # a model stays in cycles, with its tables
        self.trainer = OnlineTrainer(*self._given, catch_up=self._catch_up)
        if state is not None:
            self.trainer.restore(state)

    def train(self, events: Events, *, scored: bool = False) -> None:
        """Train events in batches; keep their scores if `scored`."""
        for batch in _batches(events, self._batch_size):
            if scored:
                self.scores.append(self.trainer.predict(batch))
            self.trainer.train(batch)

    def backlog(self, events: Events, *, scaled: bool) -> float:
        """Train events in large batches; return the seconds that it took."""
        started = time.perf_counter()
        for batch in _batches(events, self._batch_size * self._catch_up):
            rows = self.trainer.table.admit(batch.ids, batch.times)
            factor = self._catch_up if scaled else 1
            self.trainer.step(rows, batch, batch_factor=factor)
            self.trainer.table.expire()
        return time.perf_counter() - started

    def snapshot(self) -> State:
        """A copy of the state."""
        return {name: np.array(x) for name, x in self.trainer.state().items()}

    def auc(self, events: Events) -> float:
        """AUC of the scores, which are those of these events."""
        return roc_auc(events.labels, np.concatenate(self.scores))


def _batches(events: Events, size: int) -> Iterator[Events]:
    for first in range(0, len(events), size):
        yield events.filter(slice(first, first + size))


def skip_auc(settings: OutageSettings, log: Log, seed: int, learned: State) -> dict[str, float]:
    """AUC from the first kill on, by hours between snapshots; "none" without kills."""
    start, end = ONLINE_FROM * 24.0, DAYS * 24.0
    kills = np.sort(np.random.default_rng(seed).uniform(start, end, KILLS)).tolist()
    found = {}
    for hours in (math.inf, *settings.snapshot_hours):
        run, saved = Training(settings, log, seed, learned), learned
        moments = [(kills[0], "score"), (end, "end")]
        if hours < math.inf:
            saves = [start + hours * i for i in range(1, int((end - start) / hours) + 1)]
            moments = [(at, "kill") for at in kills] + [(at, "save") for at in saves]
            moments = [*sorted(moments), (end, "end")]
        now, scored = start, False
        for at, what in moments:
            run.train(log.between(now, at), scored=scored)
            now, scored = at, scored or what in ("kill", "score")
            if what == "save":
                saved = run.snapshot()
            elif what == "kill":
                run.start(saved)
        name = f"{hours} h" if hours < math.inf else "none"
        found[name] = run.auc(log.between(kills[0], end))
    return found


def backlog_auc(
    settings: OutageSettings, log: Log, seed: int, learned: State
) -> dict[str, dict[str, float]]:
    """Seconds for the backlog and AUC after it, by K with and without the scaling rule."""
    away, back = ONLINE_FROM * 24, ONLINE_FROM * 24 + AWAY
    waiting, after = log.between(away, back), log.between(back, back + 12)
    cases = [
        (f"{times}" if scaled else f"{times}, not scaled", times, scaled)
        for times in settings.catch_up
        for scaled in ((True, False) if times > 1 else (True,))
    ]
    found = {}
    for name, times, scaled in [*cases, ("not trained", 0, False)]:
        run = Training(settings, log, seed, learned, catch_up=max(times, 1))
        seconds = run.backlog(waiting, scaled=scaled) if times else 0.0
        run.train(after, scored=True)
        events = len(waiting) if times else 0
        found[name] = {"seconds": seconds, "auc": run.auc(after), "events": events}
    return found


def measure(settings: OutageSettings) -> JsonObject:
    """Measure both parts with each seed."""
    set_up_tensorflow(0, "cpu")
    skip, backlog = [], []
    for seed in range(1, settings.seeds + 1):
        with TemporaryDirectory() as name:
            file = Path(name) / "log.csv"
            generate_drifting(file, rows=settings.rows, days=DAYS, seed=seed)
            features = load_features(f"{file}.yaml")
            events = Events.concatenate(list(EventLog([file], features)))
        log = Log(features, events, int(events.times[0]))
        before = Training(settings, log, seed)
        before.train(log.between(0, ONLINE_FROM * 24))
        learned = before.snapshot()
        skip.append(skip_auc(settings, log, seed, learned))
        backlog.append(backlog_auc(settings, log, seed, learned))
    first = next(iter(backlog[0]))
    seconds = {name: [each[name]["seconds"] for each in backlog] for name in backlog[0]}
    aucs = [{name: x["auc"] for name, x in each.items()} for each in backlog]
    return {
        "what": "outages of an online trainer",
        "kills": KILLS,
        "skip": {name: _spread(name, skip, "none") for name in skip[0]},
        "backlog": {
            name: {"seconds": statistics.median(seconds[name])} | _spread(name, aucs, first)
            for name in backlog[0]
        },
        "skip_by_seed": skip,
        "backlog_by_seed": backlog,
    }


def _spread(name: str, runs: list[dict[str, float]], other: str) -> dict[str, float]:
    """Mean in percent; mean and standard deviation of the difference from another case."""
    differences = [100 * (run[name] - run[other]) for run in runs]
    return {
        "auc": 100 * statistics.mean(run[name] for run in runs),
        "difference": statistics.mean(differences),
        "spread": statistics.pstdev(differences),
    }


def text(result: JsonObject) -> str:
    """Both tables."""

    def cells(x: dict[str, float]) -> list[str]:
        return [f"{x['auc']:.2f}", f"{x['difference']:+.2f} ±{x['spread']:.2f}"]

    skip = [[name, *cells(x)] for name, x in result["skip"].items()]
    backlog = [[name, f"{x['seconds']:.1f}", *cells(x)] for name, x in result["backlog"].items()]
    first = markdown(["snapshots every", "AUC %", "difference"], "lrr", skip)
    return f"{first}\n\n{markdown(['K', 'seconds', 'AUC % after', 'difference'], 'lrrr', backlog)}"


BENCHMARK = Benchmark(about=__doc__, settings=OutageSettings, measure=measure, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
