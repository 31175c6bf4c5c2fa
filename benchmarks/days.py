"""What training on every day costs against one training over all days: the AUC of the next day.

The log is generated with drift. Each training scores the day after its last one:

each day: extend the data of the day before, start from its run, train one epoch of one day.
all days: a new run on all days so far, one epoch in random order.
in order: `online replay` of the whole log, whose serving copy is synced once a day.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from cowclip_merlin.errors import InputError
from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.online import OnlineSettings, ReplaySettings, replay_log
from cowclip_merlin.online.replaying.replay_results import LABEL, TIME, PredictionFiles
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.synthetic.drifting_log import generate_drifting
from cowclip_merlin.training import RunSettings, train
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PrepareSettings, prepare
from harness import Benchmark, markdown

IDS = ("user", "item", "category", "site", "device", "hour")
DAY = 86_400


@dataclass(frozen=True, kw_only=True)
class DaysSettings(Settings):
    """What is trained."""

    rows: int = option(300_000, "rows of the log", at_least=1)
    days: int = option(6, "days of the log; the last one is only scored")
    seeds: int = option(3, "logs and models", at_least=1)
    batch_size: int = option(256, "rows in a step", at_least=1)

    def __post_init__(self) -> None:
        """Check each value, and the number of days."""
        super().__post_init__()
        if self.days < 3:
            raise InputError(f"--days is {self.days}; give at least 3: two to train, one to score")


class Days:
    """The days of one log, each a file, and the trainings on them, in a folder."""

    def __init__(self, settings: DaysSettings, folder: Path, seed: int) -> None:
        self._count, self._folder = settings.days - 1, folder
        self.log = folder / "log.csv"
        generate_drifting(self.log, rows=settings.rows, days=settings.days, seed=seed)
        log = pd.read_csv(self.log, dtype=str)
        times = log["time"].astype(int)
        self._rows: list[int] = []
        for day, rows in log.groupby((times - times[0]) // DAY):
            rows.to_csv(folder / f"day{day}.csv", index=False)
            self._rows.append(len(rows))
        self._run = RunSettings(
            model="deepfm",
            batch_size=settings.batch_size,
            base_batch_size=settings.batch_size,
            overrides={"embedding_lr": 1e-3, "dense_lr": 1e-3, "init_std": 1e-2},
            rule="none",
            update="lazy",
            epochs=1,
            mlp=(100, 100),
            seed=seed,
        )

    def _trained(self, name: str, days: range, *, before: str | None = None) -> float:
        """Train on these days from the run of that name, if any; return the AUC of the next day."""
        scored = self._rows[days.stop]
        columns = {"label": "click", "categorical": IDS, "continuous": ("price",)}
        known = {"extend": self._folder / f"{before}-data"} if before else columns
        data = prepare(
            PrepareSettings(
                kind="table",
                files=tuple(self._folder / f"day{day}.csv" for day in (*days, days.stop)),
                out=self._folder / f"{name}-data",
                split="time",
                test_fraction=scored / (sum(self._rows[day] for day in days) + scored),
                **known,
            )
        )
        start = self._folder / before if before else None
        out = self._folder / name
        rows = train(data.path, self._run, out=out, warm_start=start, device="cpu")
        return float(rows[-1]["test_auc"])

    def each_day(self) -> list[float]:
        """AUC of days 2, 3, ... of a model that is trained on every day, once."""
        names = [None, *(f"each{day}" for day in range(self._count))]
        return [
            self._trained(names[day + 1], range(day, day + 1), before=names[day])
            for day in range(self._count)
        ]

    def all_days(self) -> list[float]:
        """AUC of days 2, 3, ... of models that are each trained on all days before."""
        return [self._trained(f"all{day}", range(day + 1)) for day in range(self._count)]

    def in_order(self) -> list[float]:
        """AUC of days 2, 3, ... of a model trained in order of time, and synced once a day."""
        out = self._folder / "replay"
        settings = OnlineSettings(run=self._run, capacity=1 << 20)
        once_a_day = ReplaySettings(batch_days=1, sync=("1d",), snapshot_every=0)
        replay_log([self.log], f"{self.log}.yaml", settings, once_a_day, out=out)
        found = PredictionFiles(out / "predictions", ["1d"]).read()
        day = (found[TIME] - found[TIME][0]) // DAY
        return [roc_auc(found[LABEL][day == d], found["1d"][day == d]) for d in range(self._count)]


def measure(settings: DaysSettings) -> JsonObject:
    """Train in the three ways with each seed."""
    runs: list[dict[str, list[float]]] = []
    for seed in range(1, settings.seeds + 1):
        with TemporaryDirectory() as name:
            days = Days(settings, Path(name), seed)
            ways = {"each day": days.each_day, "all days": days.all_days, "in order": days.in_order}
            runs.append({way: train_all() for way, train_all in ways.items()})
    return {"what": "AUC of the next day", "runs": runs}


def text(result: JsonObject) -> str:
    """The table: a row for each day."""
    runs = result["runs"]
    rows = []
    for day in range(len(runs[0]["each day"])):
        aucs = [[100 * run[way][day] for run in runs] for way in runs[0]]
        words = [f"{statistics.mean(x):.2f} ±{statistics.pstdev(x):.2f}" for x in aucs]
        rows.append([str(day + 2), *words])
    return markdown(["scored day", *(f"{way}, AUC %" for way in runs[0])], "lrrr", rows)


BENCHMARK = Benchmark(about=__doc__, settings=DaysSettings, measure=measure, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
