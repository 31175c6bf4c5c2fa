"""Compare the paper's baseline with CowClip at growing batches: epoch time and test AUC.

A Criteo-format log is generated and prepared once in --work. DeepFM trains these lines:

1K baseline  base batch, no scaling, no clip; every step updates all rows of the tables
1K exact     the same numbers, but a step touches only the rows of the batch: the cost of the
             small batch without updates of whole tables
8K CowClip   and so on: rule and clip "cowclip" at multiples of the base batch

"Seconds" are those of the training steps, as in `metrics.csv`: without evaluation, and with the
postponed work of "exact". They are the median over all epochs and seeds. The first epoch of a run
also compiles the graph. Use at least 3 epochs, so that the median is a later epoch.

Each run trains to its end before the next one starts, so a machine that slows down makes the
later lines slower. Each seed trains all lines once. The speedup is computed within each seed, from
the medians of its epochs. The table shows the median over the seeds.

AUCs are means over the seeds, for the best and the last epoch. The difference is that between the
last epochs of a line and of the baseline with the same seed, in hundredths. "Best" is chosen on the
test rows, so it is too high for all lines.

Finished runs in WORK/runs are reused if they have the same settings and data.
Their checkpoints are deleted at the end of each run.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cowclip_merlin.demo.batch import DemoSettings, prepare_data
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.settings import Settings, device_option, option
from cowclip_merlin.system.files import read_json
from cowclip_merlin.training import RunSettings, Stopped, train
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PreparedData
from harness import Benchmark, exit_with, layers, ratios, summary, table

RATE = "at the base batch, instead of the preset's"
OVERRIDES = ("embedding_lr", "dense_lr", "l2")


class Line(NamedTuple):
    """A line of the table: its name, batch as a multiple of the base batch, rule and update."""

    name: str
    multiplier: int
    rule: str
    update: str


@dataclass(frozen=True, kw_only=True)
class BaselineSettings(Settings):
    """What is compared."""

    work: Path = option(Path("work/baseline"), "folder of log, data and runs")
    rows: int = option(1_000_000, "of the generated log", at_least=1)
    base_batch: int = option(
        1024, "of the baseline, for which rates are given", flag="--base-batch-size", at_least=1
    )
    multipliers: tuple[int, ...] = option(
        (8, 16, 32, 64, 128), "CowClip's batches, as multiples of the base batch",
        at_least=1, unique=True,
    )  # fmt: skip
    updates: tuple[str, ...] = option(  # lazy is another algorithm
        ("exact",), "of CowClip's lines: {choices}", choices=("dense", "exact"), metavar="A,B",
        unique=True,
    )  # fmt: skip
    embedding_lr: float | None = option(None, RATE, kind=float)
    dense_lr: float | None = option(None, RATE, kind=float)
    l2: float | None = option(None, RATE, kind=float)
    epochs: int = option(3, "epochs of every run", at_least=1)
    seeds: int = option(3, "runs of every line, with seeds from 1 on", at_least=1)
    mlp: tuple[int, ...] = layers()
    device: str = device_option()

    def lines(self) -> list[Line]:
        """Return the lines in the order of the table."""
        base = batch_name(self.base_batch)
        return [
            Line(f"{base} baseline", 1, "none", "dense"),
            Line(f"{base} exact", 1, "none", "exact"),
            *(
                Line(f"{batch_name(times * self.base_batch)} CowClip", times, "cowclip", update)
                for update in self.updates
                for times in self.multipliers
            ),
        ]

    @property
    def overrides(self) -> dict[str, float]:
        """The given rates."""
        given = {name: getattr(self, name) for name in OVERRIDES}
        return {name: value for name, value in given.items() if value is not None}


def batch_name(batch: int) -> str:
    """Format a batch size briefly.

    >>> batch_name(512), batch_name(65536), batch_name(1500)
    ('512', '64K', '1500')
    """
    return str(batch) if batch % 1024 else f"{batch // 1024}K"


def train_line(settings: BaselineSettings, data: PreparedData, line: Line, seed: int) -> JsonObject:
    """Train one run; return training seconds and test AUC of each epoch."""
    wanted = RunSettings(
        model="deepfm",
        batch_size=line.multiplier * settings.base_batch,
        base_batch_size=settings.base_batch,
        rule=line.rule,
        update=line.update,
        epochs=settings.epochs,
        seed=seed,
        mlp=settings.mlp,
        overrides=settings.overrides,
    )
    name = f"{line.rule}-{line.multiplier}x-{line.update}-seed{seed}"
    folder = settings.work / "runs" / name
    done = (folder / "config.json").exists()
    if done:
        config = RunConfig.load(folder)
        if (config.settings.as_dict(), config.fingerprint) != (wanted.as_dict(), data.fingerprint):
            raise InputError(f"{folder}: has a run with other settings or data; use another --work")
    else:
        print(f"\n{line.name} ({line.update}), seed {seed}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        train(data.path, wanted, out=folder, device=settings.device)
        # Checkpoints take three times the size of the tables, and nothing reads them.
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    rows = read_metrics(folder / "metrics.csv", epochs=settings.epochs)
    if len(rows) < settings.epochs:
        raise InputError(f"{folder}: this run is not finished; delete the folder to train it again")
    columns = ("seconds", "test_auc", "test_log_loss")
    found = {name: [float(row[name]) for row in rows] for name in columns}
    return {"seed": seed, "used_again": done, **found}


def measure(settings: BaselineSettings) -> JsonObject:
    """Train all runs, seed by seed; a signal ends with a message that names what to delete."""
    work = settings.work / f"log-{settings.rows}"
    work.mkdir(parents=True, exist_ok=True)
    data = PreparedData.load(prepare_data(DemoSettings(rows=settings.rows), work))
    rows, runs = data.rows["train"], {}
    for line in settings.lines():
        if line.multiplier * settings.base_batch <= rows:
            runs[line] = []
        else:
            print(f"omitted: {line.name} ({line.update}): only {rows:,} training rows")
    if not runs:
        raise InputError("no batch fits the training rows; use a smaller --base-batch-size")
    try:
        for seed in range(1, settings.seeds + 1):
            for line, found in runs.items():
                found.append(train_line(settings, data, line, seed))
    except Stopped as stop:
        folder = settings.work / "runs"
        line = f"stopped; delete the last folder in {folder} to start again"
        exit_with(128 + stop.signal_number, line)
    base = next(iter(runs.values()))
    return {
        "what": "seconds per epoch and test AUC, the paper's baseline and CowClip",
        **{name: getattr(settings, name) for name in ("base_batch", "epochs", "seeds")},
        "mlp": list(settings.mlp),
        "overrides": settings.overrides,
        "rows": data.rows,
        "ids": sum(data.tables.values()),
        "best_possible_auc": read_json(work / "log.txt.json")["bayes_auc"],
        "results": [result_of(settings, x, mine, base, rows) for x, mine in runs.items()],
    }


def result_of(
    settings: BaselineSettings,
    line: Line,
    mine: Sequence[JsonObject],
    base: Sequence[JsonObject],
    rows: int,
) -> JsonObject:
    """Compare the runs of a line with those of the baseline, seed by seed."""
    batch = line.multiplier * settings.base_batch
    faster = ratios(*([statistics.median(r["seconds"]) for r in runs] for runs in (base, mine)))
    last, before = ([r["test_auc"][-1] for r in runs] for runs in (mine, base))
    return {
        "line": line.name,
        "batch": batch,
        "rule": line.rule,
        "update": line.update,
        "steps_per_epoch": steps_per_epoch(rows, batch),
        "seconds_per_epoch": summary([s for r in mine for s in r["seconds"]]),
        "speed_up": round(statistics.median(faster), 3),
        "best_auc": statistics.mean(max(r["test_auc"]) for r in mine),
        "last_auc": statistics.mean(last),
        "auc_points_to_baseline": 100 * (statistics.mean(last) - statistics.mean(before)),
        "runs": list(mine),
    }


def text(result: JsonObject) -> str:
    """Format the comparison as Markdown, and the best possible AUC."""
    seconds = "{seconds_per_epoch[median]:.2f} ({seconds_per_epoch[least]:.2f} to "
    columns = {
        "line": "{line}",
        "update": "{update}",
        "steps per epoch": "{steps_per_epoch:,}",
        "seconds per epoch (min to max)": seconds + "{seconds_per_epoch[most]:.2f})",
        "speed-up": "{speed_up:.2f}",
        "best AUC": "{best_auc:.2%}",
        "last AUC": "{last_auc:.2%}",
        "to the baseline": "{auc_points_to_baseline:+.2f}",
    }
    best = f"best possible AUC on this log: {result['best_possible_auc']:.2%}"
    return f"\n{table(columns, result['results'])}\n{best}"


BENCHMARK = Benchmark(about=__doc__, settings=BaselineSettings, measure=measure, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
