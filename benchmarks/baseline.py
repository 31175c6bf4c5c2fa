"""Compare the paper's baseline with CowClip at growing batches: epoch time and test AUC.

    python benchmarks/baseline.py [--data DIR | --rows 1000000 --seed 7] [--work DIR]
        [--model deepfm] [--mlp 400,400,400] [--base-batch-size 1024]
        [--multipliers 8,16,32,64,128] [--updates exact,dense]
        [--embedding-lr X --dense-lr X --l2 X ...] [--epochs 3] [--seeds 3] [--rounds 1]
        [--device auto|cpu|gpu] [--json FILE] [--overwrite]

Without --data, a Criteo-format log is generated and prepared once in --work. The lines:

1K baseline  base batch, no scaling, no clip; every step updates all rows of the tables
1K exact     the same numbers, but a step touches only the rows of the batch: the cost of the
             small batch without updates of whole tables
8K CowClip   and so on: rule and clip "cowclip" at multiples of the base batch

"Seconds" are those of the training steps, as in `metrics.csv`: without evaluation, and with the
postponed work of "exact". They are the median over all epochs, seeds and rounds. The first epoch
of a run also compiles the graph. Use at least 3 epochs, so that the median is a later epoch.

Each run trains to its end before the next one starts, so a machine that slows down makes the
later lines slower. Each seed trains all lines once, and --rounds repeats everything. The speedup
is computed within each pass over the lines, from the medians of its epochs. The table shows the
median over the passes. On the CPU, a second round gives the same AUCs.

AUCs are means over the seeds, for the best and the last epoch. The difference is that between the
last epochs of a line and of the baseline with the same seed, in hundredths. "Best" is chosen on the
test rows, so it is too high for all lines.

Finished runs in WORK/runs are reused if they have the same settings and data.
Their checkpoints are deleted at the end of each run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from baseline_settings import BaselineSettings, Configuration
from cowclip_merlin.demo.batch import DemoSettings, prepare_data
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.system.files import read_json
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.training import Stopped, train
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.training.run_settings import OVERRIDES
from cowclip_merlin.types import JsonObject
from harness.benchmark import Benchmark
from harness.errors import exit_with
from harness.rounds import ratios
from harness.tables import markdown

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData

Run = JsonObject


def open_data(settings: BaselineSettings) -> tuple[PreparedData, float | None]:
    """Return the prepared folder, and the best possible AUC on it if that is known."""
    from cowclip_merlin.workflows import PreparedData

    if settings.data is not None:
        data = PreparedData.load(settings.data)
        refuse_several("the baseline", data.targets, "prepare the log with one `label`")
        return data, None
    work = settings.work / f"log-{settings.rows}-{settings.log_seed}"
    work.mkdir(parents=True, exist_ok=True)
    folder = prepare_data(DemoSettings(rows=settings.rows, log_seed=settings.log_seed), work)
    return PreparedData.load(folder), read_json(work / "log.txt.json")["bayes_auc"]


def fitting(settings: BaselineSettings, data: PreparedData) -> list[Configuration]:
    """Return the configurations whose batch fits the training rows; print the others."""
    rows, kept = data.rows["train"], []
    for each in settings.configurations():
        if each.multiplier * settings.base_batch <= rows:
            kept.append(each)
        else:
            print(f"omitted: {each.name} ({each.update}): only {rows:,} training rows")
    return kept


def run(
    settings: BaselineSettings,
    data: PreparedData,
    configuration: Configuration,
    seed: int,
    number: int,
) -> Run:
    """Train one run; return training seconds and test AUC of each epoch."""
    wanted = settings.run_settings(configuration, seed=seed)
    folder = settings.work / "runs" / configuration.folder(seed=seed, number=number)
    done = (folder / "config.json").exists()
    if done:
        _refuse_another(folder, RunConfig.load(folder), wanted.as_dict(), data.fingerprint)
    else:
        print(
            f"\n{configuration.name} ({configuration.update}), seed {seed}, round {number}",
            flush=True,
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        train(data.path, wanted, out=folder, device=settings.device)
        # Checkpoints take three times the size of the tables, and nothing reads them.
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    rows = read_metrics(folder / "metrics.csv", epochs=settings.epochs)
    if len(rows) < settings.epochs:
        raise InputError(f"{folder}: this run is not finished; delete the folder to train it again")
    return {
        "seed": seed,
        "round": number,
        "used_again": done,
        "seconds": [float(row["seconds"]) for row in rows],
        "test_auc": [float(row["test_auc"]) for row in rows],
        "test_log_loss": [float(row["test_log_loss"]) for row in rows],
    }


def _refuse_another(folder: Path, config: RunConfig, wanted: Run, fingerprint: str) -> None:
    if config.settings.as_dict() != wanted or config.fingerprint != fingerprint:
        raise InputError(f"{folder}: has a run with other settings or data; use another --work")


def compare(settings: BaselineSettings) -> JsonObject:
    """Train all runs, round by round; return a result for JSON."""
    data, bayes_auc = open_data(settings)
    configurations = fitting(settings, data)
    if not configurations:
        raise InputError("no batch fits the training rows; use a smaller --base-batch-size")
    runs = _runs(settings, data, configurations)
    same = ("model", "base_batch", "epochs", "seeds", "rounds")
    return {
        "what": "seconds per epoch and test AUC, the paper's baseline and CowClip",
        **{name: getattr(settings, name) for name in same},
        "mlp": list(settings.mlp),
        "overrides": dict(settings.overrides),
        "rows": data.rows,
        "ids": sum(data.tables.values()),
        "best_possible_auc": bayes_auc,
        "results": [_result(settings, each, runs, data.rows["train"]) for each in configurations],
    }


def _runs(
    settings: BaselineSettings, data: PreparedData, configurations: list[Configuration]
) -> dict[Configuration, list[Run]]:
    runs: dict[Configuration, list[Run]] = {each: [] for each in configurations}
    for number in range(1, settings.rounds + 1):
        for seed in range(1, settings.seeds + 1):
            for each in configurations:
                runs[each].append(run(settings, data, each, seed, number))
    return runs


def _result(
    settings: BaselineSettings,
    configuration: Configuration,
    runs: dict[Configuration, list[Run]],
    rows: int,
) -> JsonObject:
    mine, base = runs[configuration], runs[settings.configurations()[0]]
    batch = configuration.multiplier * settings.base_batch
    seconds = [s for r in mine for s in r["seconds"]]
    last = [r["test_auc"][-1] for r in mine]
    lost = [100 * (auc - r["test_auc"][-1]) for auc, r in zip(last, base, strict=True)]
    return {
        "line": configuration.name,
        "batch": batch,
        "rule": configuration.rule,
        "update": configuration.update,
        "steps_per_epoch": steps_per_epoch(rows, batch),
        "seconds_per_epoch": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "speed_up": round(statistics.median(_speed_ups(mine, base)), 3),
        "best_auc": statistics.mean(max(r["test_auc"]) for r in mine),
        "last_auc": statistics.mean(last),
        "auc_points_to_baseline": statistics.mean(lost),
        "runs": mine,
    }


def _speed_ups(mine: list[Run], base: list[Run]) -> list[float]:
    """Divide the baseline's seconds by a configuration's, in each pass over all of them."""
    seconds = [[statistics.median(r["seconds"]) for r in runs] for runs in (base, mine)]
    return ratios(*seconds)


def table(result: JsonObject) -> str:
    """Format the comparison as Markdown."""
    head = ("line", "update", "steps per epoch", "seconds per epoch (min to max)", "speed-up")
    head += ("best AUC %", "last AUC %", "to the baseline")
    return markdown(head, "llrrrrrr", [_cells(r) for r in result["results"]])


def _cells(r: JsonObject) -> tuple[str, ...]:
    return (
        r["line"],
        r["update"],
        f"{r['steps_per_epoch']:,}",
        f"{r['seconds_per_epoch']:.2f} ({r['fastest']:.2f} to {r['slowest']:.2f})",
        f"{r['speed_up']:.2f}",
        f"{100 * r['best_auc']:.2f}",
        f"{100 * r['last_auc']:.2f}",
        f"{r['auc_points_to_baseline']:+.2f}",
    )


def text(result: JsonObject) -> str:
    """Format the table, and the best possible AUC if it is known."""
    best = result["best_possible_auc"]
    known = f"\nbest possible AUC on this log: {100 * best:.2f}%" if best else ""
    return f"\n{table(result)}{known}"


def measure(settings: BaselineSettings) -> JsonObject:
    """Compare; a signal ends the process with a message that names the folder to delete."""
    try:
        return compare(settings)
    except Stopped as stop:
        runs = settings.work / "runs"
        line = f"stopped; delete the last folder in {runs} to start again"
        exit_with(128 + stop.signal_number, line)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    for name in OVERRIDES:
        what = "at the base batch, instead of the preset's"
        parser.add_argument("--" + name.replace("_", "-"), type=float, metavar="X", help=what)


def _read_overrides(args: argparse.Namespace) -> JsonObject:
    if args.data is not None and (args.rows, args.seed) != (None, None):
        raise InputError("--rows and --seed are for a generated log; omit them with --data")
    given = {name: getattr(args, name) for name in OVERRIDES}
    return {"overrides": {name: value for name, value in given.items() if value is not None}}


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=BaselineSettings,
    measure=measure,
    text=text,
    add_options=_add_overrides,
    read_options=_read_overrides,
)

if __name__ == "__main__":
    BENCHMARK.main()
