"""`cowclip tune`: search hyper-parameters on validation rows."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from cowclip_merlin.addresses import path_of
from cowclip_merlin.cli.command import Command, CommandParser
from cowclip_merlin.cli.options import (
    HIDDEN,
    LAYERS,
    RULE,
    add_rate_options,
    check_overrides_used,
    model_settings,
)
from cowclip_merlin.recipe import MODEL, choose_search
from cowclip_merlin.settings import add_options
from cowclip_merlin.system.console import note
from cowclip_merlin.training.run_logs import metric_words
from cowclip_merlin.training.run_settings import SCHEDULE, RunOptions, RunSettings

if TYPE_CHECKING:
    from cowclip_merlin.experiments.tuning import Tuned

_MINUTES = 30.0
_UNUSED_RATES = ("bound", "lambda_rel", "lambda_abs")


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `cowclip tune`."""
    what = parser.add_argument_group("what to search")
    what.add_argument("data", metavar="DATA", help="folder that cowclip prepare wrote")
    what.add_argument("--out", required=True, metavar="TUNED", help="folder to write")
    what.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help=f"time to search; the running trial ends with its epoch (default: {_MINUTES:g} "
        "without --trials)",
    )
    trials = "number of trials in all, those before --resume included (default: no limit)"
    what.add_argument("--trials", type=int, metavar="N", help=trials)
    changes = _differences()
    names = ("model", "batch_size", "epochs", "seed", "validation_fraction")
    add_options(what, RunSettings, *names, **changes)
    what.add_argument("--resume", action="store_true", help="go on with the search in TUNED")
    rates = parser.add_argument_group("batch and rates")
    add_options(rates, RunSettings, *RULE, "optimizer", **changes)
    add_rate_options(rates, without=_UNUSED_RATES)
    add_options(rates, RunSettings, *SCHEDULE, **changes)
    model, run = parser.add_argument_group("model"), parser.add_argument_group("run")
    names = ("mlp", *HIDDEN, *LAYERS, "multi_task", "experts", "reset_embeddings")
    add_options(model, RunSettings, *names, **changes)
    add_options(run, RunSettings, "update", "backend", **changes)
    add_options(run, RunOptions, "device")


def _differences() -> dict[str, dict[str, Any]]:
    """Return how the options differ from those of `cowclip train`."""
    updates = "rows that a step updates: dense, exact or lazy; see cowclip train"
    held_out = "fraction of the train rows to hold out and score, the last ones of a split by time"
    by_rows = "1024; for your own table by its rows"
    return {
        "model": {"default": None, "shown": MODEL},
        "batch_size": {"default": None, "shown": by_rows},
        "base_batch_size": {"default": None, "shown": by_rows},
        "preset": {"shown": "that of the data; criteo for your own table"},
        "rule": {"default": "sde"},
        "clip": {"choices": ("none", "cowclip"), "shown": "both are tried"},
        "update": {"default": "exact", "help": updates},
        "mlp": {"default": None, "shown": "400,400,400; for your own table 200,200"},
        "epochs": {"help": "most passes over the training rows in a trial"},
        "seed": {"help": "seed of the search, the initial weights, the row order"},
        "lr_schedule": {"help": "how both learning rates fall: constant, step or plateau"},
        "validation_fraction": {
            "default": None,
            "shown": "0.1, or the rows of prepare --validation",
            "help": held_out,
        },
    }


def run(args: argparse.Namespace) -> int:
    """Search; return 128 + the signal's number after a signal."""
    from cowclip_merlin.workflows import PreparedData

    settings, words = choose_search(PreparedData.load(args.data), model_settings(args))
    if words and not args.resume:
        note(words)
    if args.clip is not None:  # else some trials have the clip that uses them
        check_overrides_used(settings, ("none", "cowclip"))
    from cowclip_merlin.experiments.tuning import tune
    from cowclip_merlin.training import Stopped

    minutes = _MINUTES if args.minutes is None and args.trials is None else args.minutes
    try:
        found = tune(
            args.data,
            settings,
            out=args.out,
            trials=args.trials,
            minutes=minutes,
            resume=args.resume,
            device=args.device,
        )
    except Stopped as stop:
        print(f"cowclip: stopped; go on with --resume, trials are in {args.out}", file=sys.stderr)
        return 128 + stop.signal_number
    print(_summary(found, args.data, args.out))
    return 0


def _summary(found: Tuned, data: str, out: str) -> str:
    ended = ", ".join(f"{number} {how}" for how, number in found.ended.items())
    lines = [
        f"best validation AUC {found.validation_auc:.5f} in epoch {found.best_epoch} of trial "
        f"{found.trial}; {found.trials} trials ended by: {ended}"
    ]
    if words := metric_words(found.targets, "validation"):
        lines.append(f"by label: {words}")
    if found.starts:
        starts = ", ".join(f"{name} {auc:.5f}" for name, auc in found.starts.items())
        lines.append(f"the settings tried first: {starts}")
    lines.append(f"{out}: settings.yaml, trials.csv, history.svg")
    words = ["cowclip", "train", data, "--settings", str(path_of(out) / "settings.yaml")]
    command = shlex.join([*words, "--out", "RUN"])
    return "\n".join([*lines, "to train with the best settings on all train rows:", f"  {command}"])


TUNE = Command(
    help="search rates, L2, the clip and the number of epochs on validation rows, with Optuna",
    settings=add_arguments,
    run=run,
    examples="""examples:
  cowclip tune DATA --out TUNED
  cowclip tune DATA --out TUNED --resume
  cowclip tune DATA --out TUNED2 --model dcnv2 --batch-size 65536 --clip cowclip --trials 40
  cowclip train DATA --settings TUNED/settings.yaml --out RUN

All trials have one batch size. The searched rates hold at the base batch size, and the
rule scales them. A rate or clip that you give is kept and not searched. No test row is read. Of
several labels, the first one decides.
Needs Optuna: pip install 'cowclip-merlin[tune]'.""",
)
