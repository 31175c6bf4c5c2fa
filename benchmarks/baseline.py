"""The paper's baseline beside CowClip at growing batches: seconds an epoch and test AUC.

    python benchmarks/baseline.py [--data DIR | --rows 1000000 --seed 7] [--work DIR]
        [--model deepfm] [--mlp 400,400,400] [--base-batch-size 1024]
        [--multipliers 8,16,32,64,128] [--updates exact,dense]
        [--embedding-lr X --dense-lr X --l2 X ...] [--epochs 3] [--seeds 3] [--rounds 1]
        [--device auto|cpu|gpu] [--json FILE] [--overwrite]

Without --data a Criteo-format log is generated and prepared once in --work. The lines:

1K baseline  base batch, no scaling, no clip, every row of the tables moved at every step
1K exact     the same numbers, but only the rows of the batch are touched: what the small batch
             costs without the sweeps over the tables
8K CowClip   and so on: rule and clip "cowclip" at multiples of the base batch

"Seconds" are those of the training steps alone, as in `metrics.csv`: no evaluation, and with
"exact" the work that was put off is in them. They are the median over all epochs, seeds and
rounds. The first epoch of a run also compiles the graph: give at least 3 epochs, so that the
median is that of a later one.

A run trains to its end before the next one starts, so a machine that gets slower on the way makes
the later lines slower. The lines are gone through once for every seed, and all of that --rounds
times; the speed-up is computed within each pass over the lines, from the medians of its epochs,
and then the median is taken over the passes. On the CPU a second round gives the same AUCs.

AUCs are means over the seeds: of the best epoch, and of the last one. The difference is that of
the last epoch to the baseline's with the same seed, in points of a hundredth. "Best" is chosen on
the test rows, so it is on the high side, for all lines.

Finished runs in WORK/runs are used again if they have the same settings and data.
Their checkpoints are deleted at the end of each run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baseline_lines import Comparison, Line
from circumstances import circumstances, finish, load_now
from prompt import leave, option, orderly, parser, refuse_no_files

from cowclip_merlin.cli.common_options import whole_numbers
from cowclip_merlin.demo import Demo, prepare_data
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.system.files import read_json
from cowclip_merlin.training import Stopped, train
from cowclip_merlin.training.build import choose_device
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.run_logs import read_metrics
from cowclip_merlin.training.run_settings import MODELS, OVERRIDES

if TYPE_CHECKING:
    from cowclip_merlin.workflows import PreparedData

Run = dict[str, Any]


def open_data(comparison: Comparison) -> tuple[PreparedData, float | None]:
    """The prepared folder, and the best AUC that is possible on it where that is known."""
    from cowclip_merlin.workflows import PreparedData

    if comparison.data is not None:
        return PreparedData.load(comparison.data), None
    work = comparison.work / f"log-{comparison.rows}-{comparison.log_seed}"
    work.mkdir(parents=True, exist_ok=True)
    folder = prepare_data(Demo(rows=comparison.rows, log_seed=comparison.log_seed), work)
    return PreparedData.load(folder), read_json(work / "log.txt.json")["bayes_auc"]


def fitting(comparison: Comparison, data: PreparedData) -> list[Line]:
    """The lines whose batch the training rows fill; the others are named and left out."""
    rows, lines = data.rows["train"], []
    for line in comparison.lines():
        batch = line.multiplier * comparison.base_batch
        if batch <= rows:
            lines.append(line)
        else:
            print(f"left out: {line.name} ({line.update}): only {rows:,} training rows")
    return lines


def run(comparison: Comparison, data: PreparedData, line: Line, seed: int, number: int) -> Run:
    """One run: per epoch, the training seconds and the test AUC."""
    settings = comparison.settings(line, seed=seed)
    folder = comparison.work / "runs" / line.folder(seed=seed, number=number)
    done = (folder / "config.json").exists()
    if done:
        _refuse_another(folder, RunConfig.load(folder), settings.as_dict(), data.fingerprint)
    else:
        print(f"\n{line.name} ({line.update}), seed {seed}, round {number}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        train(data.path, settings, out=folder, device=comparison.device)
        # Three times the tables for each run, and nothing here reads them.
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    rows = read_metrics(folder / "metrics.csv", epochs=comparison.epochs)
    if len(rows) < comparison.epochs:
        raise InputError(f"{folder}: this run is not finished; delete it, it will be made again")
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
        raise InputError(f"{folder}: holds a run of other settings or data; use another --work")


def compare(comparison: Comparison) -> dict[str, Any]:
    """All runs, round by round; ready for JSON."""
    load = load_now()
    data, bayes_auc = open_data(comparison)
    lines = fitting(comparison, data)
    if not lines:
        raise InputError("no batch fits the training rows; use a smaller --base-batch-size")
    runs = _runs(comparison, data, lines)
    same = ("model", "base_batch", "epochs", "seeds", "rounds")
    return {
        "what": "seconds an epoch and test AUC, the paper's baseline and CowClip",
        **{name: getattr(comparison, name) for name in same},
        "mlp": list(comparison.mlp),
        "overrides": dict(comparison.overrides),
        "rows": data.rows,
        "ids": sum(data.cardinalities.values()),
        "best_possible_auc": bayes_auc,
        "results": [_result(comparison, line, runs, data.rows["train"]) for line in lines],
        "load_before": load,
    }


def _runs(comparison: Comparison, data: PreparedData, lines: list[Line]) -> dict[Line, list[Run]]:
    runs: dict[Line, list[Run]] = {line: [] for line in lines}
    for number in range(1, comparison.rounds + 1):
        for seed in range(1, comparison.seeds + 1):
            for line in lines:
                runs[line].append(run(comparison, data, line, seed, number))
    return runs


def _result(
    comparison: Comparison, line: Line, runs: dict[Line, list[Run]], rows: int
) -> dict[str, Any]:
    mine, base = runs[line], runs[comparison.lines()[0]]
    batch = line.multiplier * comparison.base_batch
    seconds = [s for r in mine for s in r["seconds"]]
    pairs = list(zip(mine, base, strict=True))
    lost = [100 * (a["test_auc"][-1] - b["test_auc"][-1]) for a, b in pairs]
    return {
        "line": line.name,
        "batch": batch,
        "rule": line.rule,
        "update": line.update,
        "steps_per_epoch": steps_per_epoch(rows, batch),
        "seconds_per_epoch": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "speed_up": round(statistics.median(_speed_ups(mine, base)), 3),
        "best_auc": statistics.mean(max(r["test_auc"]) for r in mine),
        "last_auc": statistics.mean(r["test_auc"][-1] for r in mine),
        "auc_points_to_baseline": statistics.mean(lost),
        "runs": mine,
    }


def _speed_ups(mine: list[Run], base: list[Run]) -> Iterator[float]:
    """The baseline's seconds over a line's, of each pass over the lines."""
    for a, b in zip(mine, base, strict=True):
        yield statistics.median(b["seconds"]) / statistics.median(a["seconds"])


def table(result: dict[str, Any]) -> str:
    """The comparison as Markdown."""
    lines = [
        "| line | update | steps an epoch | seconds an epoch (min to max) | speed-up "
        "| best AUC % | last AUC % | to the baseline |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r['line']} | {r['update']} | {r['steps_per_epoch']:,} | {r['seconds_per_epoch']:.2f} "
        f"({r['fastest']:.2f} to {r['slowest']:.2f}) | {r['speed_up']:.2f} "
        f"| {100 * r['best_auc']:.2f} | {100 * r['last_auc']:.2f} "
        f"| {r['auc_points_to_baseline']:+.2f} |"
        for r in result["results"]
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    made, known = parser(__doc__), Comparison
    made.add_argument("--data", type=Path, metavar="DIR", help="prepared, not a generated log")
    for flag, default in (("--rows", known.rows), ("--seed", known.log_seed)):
        what = f"of the generated log (default: {default})"
        made.add_argument(flag, type=int, metavar="N", help=what)
    for name in OVERRIDES:
        what = "at the base batch, instead of the preset's"
        made.add_argument("--" + name.replace("_", "-"), type=float, metavar="X", help=what)
    add = partial(option, made)
    add("--work", Path("work/baseline"), "folder of log, data and runs")
    add("--model", known.model, f"one of {', '.join(MODELS)}")
    add("--mlp", known.mlp, "widths of the hidden layers")
    add("--base-batch-size", known.base_batch, "of the baseline, where the rates hold")
    add("--multipliers", known.multipliers, "CowClip's batches, in base batches")
    add("--updates", known.updates, "of CowClip's lines: exact, dense")
    add("--epochs", known.epochs, "passes of every run")
    add("--seeds", known.seeds, "runs of every line, with seeds from 1 on")
    add("--rounds", known.rounds, "times that all runs are gone through")
    return made


def comparison_from(args: argparse.Namespace) -> Comparison:
    """The comparison that the command line asks for."""
    given = {name: getattr(args, name) for name in OVERRIDES}
    same = ("data", "work", "model", "epochs", "seeds", "rounds", "device")
    log = {"rows": args.rows, "log_seed": args.seed}
    log = {name: value for name, value in log.items() if value is not None}
    if args.data is not None and log:
        raise InputError("--rows and --seed are of a generated log; leave them away with --data")
    return Comparison(
        **{name: getattr(args, name) for name in same},
        **log,
        base_batch=args.base_batch_size,
        multipliers=whole_numbers("--multipliers", args.multipliers, like="8,16,32"),
        updates=tuple(args.updates.split(",")),
        mlp=whole_numbers("--mlp", args.mlp, like="400,400,400"),
        overrides={name: value for name, value in given.items() if value is not None},
    )


@orderly()
def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print the table, write JSON."""
    args = _parser().parse_args(arguments)
    comparison = comparison_from(args)
    refuse_no_files(args.json, overwrite=args.overwrite)
    choose_device(args.device)
    try:
        result = compare(comparison)
    except Stopped as stop:
        runs = comparison.work / "runs"
        line = f"stopped; delete the last folder in {runs} to start again"
        leave(128 + stop.signal_number, line)
    result |= circumstances(__file__, arguments, result["load_before"])
    best = result["best_possible_auc"]
    known = f"\nbest possible AUC on this log: {100 * best:.2f}%" if best else ""
    finish(result, f"\n{table(result)}{known}", args.json)


if __name__ == "__main__":
    main()
