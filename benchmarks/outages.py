"""What an outage of an online trainer costs: lost events, or a backlog that has to be trained.

    python benchmarks/outages.py [--rows 200000] [--seeds 5] [--batch-size 256]
        [--learning-rate 1e-3] [--snapshot-hours 1,6,12,24] [--outage-hours 12]
        [--catch-up 1,8,16,32] [--rule cowclip] [--json FILE] [--overwrite]

The log is generated with drift over seven days. The trainer learns the first five days, and then
scores each batch before it trains on it. The model is DeepFM with growing tables.

skip: the trainer is killed four times at random moments of the last two days. It goes on from its
last snapshot with the newest event, as Monolith does. The events since the snapshot are lost. The
table shows AUC from the first kill on, by the time between snapshots.

backlog: the trainer is away for some hours and then trains the backlog at K times the batch size,
with the scaling rule and with the hyper-parameters of the small batch. The table shows the seconds
for the backlog, and AUC of the hours after it. Seconds are medians over seeds.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.checks import check_at_least_one
from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.scaling import RULES
from cowclip_merlin.settings import option
from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Array, JsonObject
from harness.benchmark import Benchmark
from harness.tables import markdown

if TYPE_CHECKING:
    from cowclip_merlin.online.events.features import LogFeatures

Result = JsonObject

HOUR, DAYS, ONLINE_FROM = 3600, 7, 5
KILLS = 4


@dataclass(frozen=True, kw_only=True)
class OutageSettings:
    """What is trained, and what goes wrong.

    Attributes:
        rows: events of the log.
        seeds: logs and models.
        batch_size: events in a step.
        learning_rate: of embedding tables and dense weights, at the batch size.
        snapshot_hours: hours of event time between snapshots.
        outage_hours: hours of event time without a trainer.
        catch_up: times the batch size for the backlog.
        rule: scaling rule for the batches of the backlog.

    Raises:
        InputError: a number is below 1.
    """

    rows: int = option(200_000, "events of the log")
    seeds: int = option(5, "logs and models")
    batch_size: int = option(256, "events in a step")
    learning_rate: float = option(1e-3, "of embedding tables and dense weights")
    snapshot_hours: tuple[int, ...] = option((1, 6, 12, 24), "hours between snapshots")
    outage_hours: int = option(12, "hours without a trainer")
    catch_up: tuple[int, ...] = option((1, 8, 16, 32), "times the batch size for the backlog")
    rule: str = option("cowclip", "scaling rule for the backlog", choices=tuple(RULES))

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        check_at_least_one({"--rows": self.rows, "--seeds": self.seeds})
        check_at_least_one({"--batch-size": self.batch_size})


class Training:
    """A trainer that scores each batch before its step.

    Args:
        settings: of the benchmark.
        log: features file and events.
        seed: of the model.
        catch_up: times the batch size that `backlog` uses.
    """

    def __init__(self, settings: OutageSettings, log: Log, seed: int, catch_up: int = 1) -> None:
        rate = settings.learning_rate
        run = RunSettings(
            model="deepfm",
            batch_size=settings.batch_size,
            base_batch_size=settings.batch_size,
            overrides={"embedding_lr": rate, "dense_lr": rate, "init_std": 1e-2},
            rule=settings.rule,
            update="lazy",
            mlp=(100, 100),
            seed=seed,
        )
        self._batch_size, self._catch_up = settings.batch_size, catch_up
        self._online = OnlineSettings(run=run, capacity=1 << 20)
        self._features = log.features
        self.trainer: OnlineTrainer | None = None
        self.scores: list[Array] = []

    def start(self) -> None:
        """Begin with a new model."""
        self.trainer = None
        gc.collect()  # a model stays in cycles, with its tables
        self.trainer = OnlineTrainer(self._online, self._features, catch_up=self._catch_up)

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

    def snapshot(self) -> dict[str, Array]:
        """A copy of the state."""
        return {name: np.array(x) for name, x in self.trainer.state().items()}

    def go_back(self, state: dict[str, Array]) -> None:
        """Go on in a new process, so to speak, with a state."""
        self.start()
        self.trainer.restore(state)


@dataclass(frozen=True)
class Log:
    """A generated log.

    Attributes:
        features: its columns.
        events: sorted by time.
        start: time of the first event in seconds.
    """

    features: LogFeatures
    events: Events
    start: int = field(default=0)

    def between(self, first: float, last: float) -> Events:
        """Events from one time to another, in hours since the start."""
        times = [self.start + hours * HOUR for hours in (first, last)]
        a, b = np.searchsorted(self.events.times, times)
        return self.events.filter(slice(int(a), int(b)))


def _log(folder: Path, rows: int, seed: int) -> Log:
    file = folder / f"log{seed}.csv"
    generate_drifting(file, rows=rows, days=DAYS, seed=seed)
    features = load_features(f"{file}.yaml")
    events = Events.concatenate(list(EventLog([file], features)))
    return Log(features, events, int(events.times[0]))


def _batches(events: Events, size: int) -> Iterator[Events]:
    for first in range(0, len(events), size):
        yield events.filter(slice(first, first + size))


def skip_auc(settings: OutageSettings, log: Log, seed: int) -> dict[str, float]:
    """AUC from the first kill on, by hours between snapshots; "none" without kills."""
    random = np.random.default_rng(seed)
    end = DAYS * 24
    kills = np.sort(random.uniform(ONLINE_FROM * 24, end, KILLS)).tolist()
    first = log.between(kills[0], end)
    before = Training(settings, log, seed)
    before.start()
    before.train(log.between(0, ONLINE_FROM * 24))
    learned = before.snapshot()
    auc = {}
    for hours in (math.inf, *settings.snapshot_hours):
        run = Training(settings, log, seed)
        run.go_back(learned)
        _train_with_kills(run, log, kills if hours < math.inf else [], hours, learned, kills[0])
        name = f"{hours} h" if hours < math.inf else "none"
        auc[name] = roc_auc(first.labels, np.concatenate(run.scores))
    return auc


def _train_with_kills(
    run: Training, log: Log, kills: list[float], every: float, saved: dict[str, Array], first: float
) -> None:
    """Train the online days; keep the scores of the events from the first kill on."""
    now, end = ONLINE_FROM * 24.0, DAYS * 24.0
    moments = [(at, "kill") for at in kills] or [(first, "score")]
    if kills:
        count = int((end - now) / every)
        moments += [(now + every * i, "save") for i in range(1, count + 1)]
    scored = False
    for at, what in [*sorted(moments), (end, "end")]:
        run.train(log.between(now, at), scored=scored)
        now = at
        if what == "save":
            saved = run.snapshot()
        elif what == "kill":
            run.go_back(saved)
        scored = scored or what in ("kill", "score")


def backlog_auc(settings: OutageSettings, log: Log, seed: int) -> dict[str, dict[str, float]]:
    """Seconds for the backlog and AUC after it, by K with and without the scaling rule."""
    away, back = ONLINE_FROM * 24, ONLINE_FROM * 24 + settings.outage_hours
    waiting, after = log.between(away, back), log.between(back, back + 12)
    before = Training(settings, log, seed)
    before.start()
    before.train(log.between(0, away))
    learned = before.snapshot()
    found = {}
    for times in settings.catch_up:
        for scaled in (True, False) if times > 1 else (True,):
            run = Training(settings, log, seed, catch_up=times)
            run.go_back(learned)
            seconds = run.backlog(waiting, scaled=scaled)
            run.train(after, scored=True)
            name = f"{times}" if scaled else f"{times}, not scaled"
            auc = roc_auc(after.labels, np.concatenate(run.scores))
            found[name] = {"seconds": seconds, "auc": auc, "events": len(waiting)}
    never = Training(settings, log, seed)
    never.go_back(learned)
    never.train(after, scored=True)
    auc = roc_auc(after.labels, np.concatenate(never.scores))
    found["not trained"] = {"seconds": 0.0, "auc": auc, "events": 0}
    return found


def measure(settings: OutageSettings) -> Result:
    """Measure both parts with each seed."""
    set_up_tensorflow(0, "cpu")
    skip, backlog = [], []
    with TemporaryDirectory() as name:
        for seed in range(1, settings.seeds + 1):
            log = _log(Path(name), settings.rows, seed)
            skip.append(skip_auc(settings, log, seed))
            backlog.append(backlog_auc(settings, log, seed))
    return {
        "what": "outages of an online trainer",
        "kills": KILLS,
        "skip": {name: _spread([each[name] for each in skip], skip) for name in skip[0]},
        "backlog": {name: _backlog(name, backlog) for name in backlog[0]},
        "skip_by_seed": skip,
        "backlog_by_seed": backlog,
    }


def _spread(values: list[float], runs: list[dict[str, float]]) -> dict[str, float]:
    """Mean and standard deviation in percent, also of the difference from runs without kills."""
    differences = [100 * (value - run["none"]) for value, run in zip(values, runs)]
    return {
        "auc": 100 * statistics.mean(values),
        "difference": statistics.mean(differences),
        "spread": statistics.pstdev(differences),
    }


def _backlog(name: str, runs: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    first = next(iter(runs[0]))
    differences = [100 * (run[name]["auc"] - run[first]["auc"]) for run in runs]
    return {
        "seconds": statistics.median(run[name]["seconds"] for run in runs),
        "auc": 100 * statistics.mean(run[name]["auc"] for run in runs),
        "difference": statistics.mean(differences),
        "spread": statistics.pstdev(differences),
    }


def _of(values: dict[str, float]) -> list[str]:
    return [f"{values['auc']:.2f}", f"{values['difference']:+.2f} ±{values['spread']:.2f}"]


def text(result: Result) -> str:
    """Both tables."""
    skip = [[name, *_of(x)] for name, x in result["skip"].items()]
    backlog = [[name, f"{x['seconds']:.1f}", *_of(x)] for name, x in result["backlog"].items()]
    return "\n\n".join(
        [
            markdown(["snapshots every", "AUC %", "difference"], "lrr", skip),
            markdown(["K", "seconds", "AUC % after", "difference"], "lrrr", backlog),
        ]
    )


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=OutageSettings,
    measure=measure,
    text=text,
    device=False,
)

if __name__ == "__main__":
    BENCHMARK.main()
