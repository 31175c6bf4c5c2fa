"""The main job end to end on a generated log: `make demo`.

It generates and prepares a raw log in Criteo's format. Then it trains DeepFM at a small batch
without the clip. At a large batch it trains without scaling, with CowClip and with the rule `sde`,
and compares the results.
Batches and rates follow from the number of rows (`cowclip_merlin.experiments.sizing`).
docs/quickstart.md explains the result.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from cowclip_merlin.errors import InputError, exit_code, require
from cowclip_merlin.experiments.sizing import sizing_for
from cowclip_merlin.plotting.colors import BLACK, BLUE, GREEN, VERMILION
from cowclip_merlin.plotting.style import new_figure, save_figure
from cowclip_merlin.system.files import read_json
from cowclip_merlin.system.folders import RUN, holds
from cowclip_merlin.system.signals import exit_on_sigterm
from cowclip_merlin.training import RunSettings, Stopped, train
from cowclip_merlin.training.checkpoint import has_checkpoint
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.run_logs import epoch_seconds, read_metrics
from cowclip_merlin.types import Json, JsonObject

Runs = Mapping[str, RunSettings]


ROWS, LOG_SEED, EPOCHS = 200_000, 7, 3


def plan_runs(train_rows: int) -> Runs:
    """Return the settings of each run by folder name, in the order of the table.

    Raises:
        InputError: if there are too few rows for a large batch.

    >>> runs = plan_runs(180_000)
    >>> [(name, each.batch_size) for name, each in runs.items()]
    [('baseline', 64), ('large-unscaled', 2048), ('large-cowclip', 2048), ('large-sde', 2048)]
    """
    size = sizing_for(train_rows, epochs=EPOCHS)
    small, large = size.base_batch, size.base_batch * size.max_multiplier
    cases = {
        "baseline": ("none", small, size.baseline),
        "large-unscaled": ("none", large, size.baseline),
        "large-cowclip": ("cowclip", large, size.cowclip),
        "large-sde": ("sde", large, size.baseline),
    }
    return {
        name: RunSettings(
            model="deepfm",
            batch_size=batch,
            base_batch_size=small,
            preset="criteo",
            rule=rule,
            update="exact",  # the numbers of "dense", which takes time for all ids
            epochs=EPOCHS,
            overrides=rates,
        )
        for name, (rule, batch, rates) in cases.items()
    }


def prepare_data(rows: int, work: Path) -> Path:
    """Generate and prepare the log, unless they exist; return the prepared folder.

    Raises:
        InputError: if the folder holds another log.
    """
    from cowclip_merlin import workflows
    from cowclip_merlin.synthetic.criteo_log import generate

    log, data = work / "log.txt", work / "data"
    facts = log.with_name(log.name + ".json")
    if facts.exists():
        _check_same_log(read_json(facts), rows, work)
    else:
        if log.exists():
            raise InputError(
                f"{log}: already exists, but is incomplete or not from the demo; delete it, or use "
                "another --work"
            )
        print(f"generating {rows:,} rows of a Criteo-format log: {log}", flush=True)
        generate(log, rows=rows, seed=LOG_SEED, crossed=True)
    if not (data / "dataset.json").exists():
        print(f"preparing it: {data}", flush=True)
        workflows.prepare(workflows.PrepareSettings(kind="criteo", files=(log,), out=data))
    return data


def _check_same_log(there: Mapping[str, Json], rows: int, work: Path) -> None:
    from cowclip_merlin.synthetic.criteo_log import CROSS_NAMES

    other = ""
    if (there["rows"], there["seed"]) != (rows, LOG_SEED):
        other = f"a log of {there['rows']:,} rows, seed {there['seed']}"
    elif there.get("crosses") != CROSS_NAMES:
        other = "a log with other crossed columns, or none, from an earlier version of the demo"
    if other:
        raise InputError(f"{work}: holds {other}; use another --work, or delete it")


def run_or_reuse(name: str, settings: RunSettings, data: Path, work: Path) -> JsonObject:
    """Train a run, or reuse its results; return the last epoch's metrics with the total time.

    Raises:
        InputError: if the folder holds a run with other settings.
    """
    folder = work / "runs" / name
    if (folder / "config.json").exists() and RunConfig.load(folder).settings != settings:
        raise InputError(f"{folder}: trained with other settings; delete it, or use --work")
    rows: list[JsonObject] = list(read_metrics(folder / "metrics.csv", epochs=settings.epochs))
    if len(rows) < settings.epochs:
        print(f"\ntraining {name}", flush=True)
        started = has_checkpoint(folder)
        if holds(folder, RUN) and not started:  # killed before its first checkpoint
            shutil.rmtree(folder)
        rows = train(data, settings, out=folder, resume=started)
    trained = read_json(data / "dataset.json")["rows"]["train"]
    seconds = sum(epoch_seconds(row, trained) for row in rows)
    return dict(rows[-1]) | {
        "seconds": seconds,
        "rows_per_second": len(rows) * trained / seconds,
    }


def format_table(runs: Runs, results: dict[str, JsonObject], bayes_auc: float) -> str:
    """Format the comparison as text."""
    lines = [
        f"{'batch':>8}  {'rule':<10}{'rows/s':>10}{'seconds':>9}{'test AUC':>10}{'log loss':>10}"
    ]
    for name, settings in runs.items():
        row = results[name]
        rows_per_second = float(row["rows_per_second"])
        lines.append(
            f"{settings.batch_size:>8}  {settings.rule:<10}{rows_per_second:>10,.0f}"
            f"{row['seconds']:>9.1f}{100 * float(row['test_auc']):>9.2f}%"
            f"{float(row['test_log_loss']):>10.5f}"
        )
    lines.append(f"best possible AUC on this log (its true probabilities): {100 * bayes_auc:.2f}%")
    return "\n".join(lines)


def draw_auc(rows: int, runs: Runs, work: Path, bayes_auc: float) -> Path:
    """Draw the test AUC after each epoch of every run to `auc.svg`."""
    figure = new_figure(6.4, 3.6)
    axes = figure.add_subplot()
    styles = ((BLACK, "o", "-"), (VERMILION, "s", "--"), (BLUE, "D", "-"), (GREEN, "^", "-."))
    names = {"none": "unscaled", "cowclip": "CowClip", "sde": "sde"}
    for (name, settings), (color, marker, line) in zip(runs.items(), styles, strict=True):
        metrics = read_metrics(work / "runs" / name / "metrics.csv", epochs=settings.epochs)
        auc = [100 * float(row["test_auc"]) for row in metrics]
        rule = "baseline" if name == "baseline" else names[settings.rule]
        axes.plot(
            range(1, len(auc) + 1),
            auc,
            color=color,
            marker=marker,
            linestyle=line,
            label=f"batch {settings.batch_size:,}, {rule}",
        )
    axes.set(xlabel="epoch", ylabel="test AUC, %", xticks=range(1, EPOCHS + 1))
    axes.set_title(f"DeepFM on {rows:,} generated rows (best possible {100 * bayes_auc:.2f}%)")
    axes.grid(True, linewidth=0.4, alpha=0.5)
    axes.legend()
    path = work / "auc.svg"
    save_figure(figure, path)
    return path


def verdict(results: dict[str, JsonObject]) -> str:
    """Describe whether the runs show the effect of CowClip, and what `sde` does."""
    small, unscaled, cowclip, sde = (100 * float(row["test_auc"]) for row in results.values())
    speed = results["baseline"]["seconds"] / results["large-cowclip"]["seconds"]
    shown = small - unscaled > 0.1 and cowclip - small > -0.1
    return (
        f"the large batch without scaling: {unscaled - small:+.2f} AUC points against the small "
        f"batch; with CowClip: {cowclip - small:+.2f}, {speed:.1f} times as fast; "
        f"with sde: {sde - small:+.2f}\n"
        + ("" if shown else "so the expected effect of CowClip is not visible in this run\n")
    )


def run(rows: int, work: Path) -> None:
    """Make what is missing of log, data and runs, and show the comparison.

    Raises:
        InputError: if there are too few rows, or the folder holds something else.
    """
    started = time.perf_counter()
    require("merlin", "tensorflow", by="the demo")
    try:
        plan_runs(int(0.8 * rows))  # about nine tenths are for training
    except InputError:
        raise InputError(f"--rows {rows}: too few; use 10000 or more") from None
    work.mkdir(parents=True, exist_ok=True)
    with exit_on_sigterm():
        data = prepare_data(rows, work)
        runs = plan_runs(read_json(data / "dataset.json")["rows"]["train"])
        results = {name: run_or_reuse(name, each, data, work) for name, each in runs.items()}
    bayes_auc = read_json(work / "log.txt.json")["bayes_auc"]
    print("\n" + format_table(runs, results, bayes_auc))
    print(verdict(results))
    print(f"picture: {draw_auc(rows, runs, work, bayes_auc)}")
    print(f"{time.perf_counter() - started:.0f} seconds in total; all files are in {work}")


def main(argv: list[str] | None = None) -> int:
    """Run the demo; a second run reuses the files of the first one."""
    parser = argparse.ArgumentParser(prog="python -m cowclip_merlin.demo", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("work/demo"), help="folder to work in")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows to generate")
    args = parser.parse_args(argv)
    try:
        return exit_code("demo", lambda: run(args.rows, args.work))
    except Stopped as stop:
        print("demo: stopped; run the same command again to resume", file=sys.stderr)
        return 128 + stop.signal_number
    except KeyboardInterrupt:
        print("demo: interrupted; run the same command again to repeat this part", file=sys.stderr)
        return 130
