"""`cowclip train`: train a model on a prepared folder."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.cli.options.common_options import add_device_option
from cowclip_merlin.cli.options.model_options import (
    add_architecture_options,
    add_backend_option,
    add_option,
    add_rate_options,
    add_rule_options,
    check_overrides_used,
    model_settings,
)
from cowclip_merlin.training.run_settings import RunSettings

HELP = "train a model on a prepared folder"
EXAMPLES = """examples:
  cowclip train DATA --out RUN --model deepfm --batch-size 65536
  cowclip train DATA --out RUN1 --model dcnv2 --batch-size 1024 --rule none --epochs 4
  cowclip train DATA --out RUN --model deepfm --batch-size 65536 --resume
  cowclip train DATA --out RUN3 --model deepfm --batch-size 65536 --workers 2 --restarts 3
  cowclip train DATA --out RUN2 --model deepfm --batch-size 65536 --rule none \\
      --optimizer adagrad --embedding-lr 0.02 --dense-lr 0.02 --l2 0 --validation-fraction 0.1
  cowclip train DATA --out RUN4 --model deepfm --batch-size 65536 --validation-fraction 0.1 \\
      --early-stopping 1

The rates that you give (or the preset's) hold at the base batch size. The rule scales them to the
batch size, and the run prints the scaled values. Ctrl-C writes a checkpoint and stops."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip train`."""
    parser.add_argument("data", metavar="DATA", help="folder that cowclip prepare wrote")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    add_rule_options(parser, preset="the data's kind; criteo for a table")
    updates = (
        "rows that a step updates: dense (all), exact (the same result, updated when needed) or "
        "lazy (those of the batch)"
    )
    add_option(parser, "update", "dense", "UPDATE", updates)
    add_backend_option(parser)
    add_option(parser, "optimizer", "adam", "NAME", ", ".join(choices.OPTIMIZERS))
    parser.add_argument(
        "--initial-accumulator",
        type=float,
        metavar="X",
        help="initial value of Adagrad's accumulators (default: Keras's 0.1)",
    )
    add_rate_options(parser)
    _add_model_options(parser)
    _add_run_options(parser)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "epochs", 10, "N", "passes over the training rows")
    add_option(parser, "seed", 1234, "N", "seed of initial weights and row order")
    tables = "fused (one table for all fields), per_field or sharded (rows divided among workers)"
    add_option(parser, "tables", "fused", "HOW", tables)
    add_architecture_options(parser)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    checkpoints = "steps between checkpoints within an epoch; 0: only after each epoch"
    add_option(parser, "checkpoint-every", 0, "STEPS", checkpoints)
    probes = "steps between records of clip and norms for cowclip inspect; 0: no records"
    add_option(parser, "diagnostics-every", 100, "STEPS", probes)
    add_device_option(parser)
    parser.add_argument(
        "--data-memory",
        type=float,
        metavar="MB",
        help="device memory for rows; larger data is streamed (default: the free memory of a GPU, "
        "no limit on the CPU)",
    )
    parser.add_argument(
        "--validation-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="fraction of the train rows to hold out and score instead of the test rows; the same "
        "rows for every seed",
    )
    parser.add_argument(
        "--early-stopping",
        type=int,
        metavar="N",
        help="stop after N epochs without a higher AUC of the held-out rows, and keep the weights "
        "of the best epoch (default: train all epochs)",
    )
    _add_worker_options(parser)
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")


def _add_worker_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that share every batch, each with a GPU of its own if there are GPUs "
        "(default: 1, or with --scheduler all of its workers)",
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="running Dask scheduler whose workers train"
    )
    restarts = "how often to restart all workers from the last checkpoint after one fails"
    add_option(parser, "restarts", 0, "K", restarts)


def settings_from_args(args: argparse.Namespace) -> RunSettings:
    """Build the run's settings from the arguments."""
    settings = RunSettings(
        **model_settings(args),
        update=args.update,
        epochs=args.epochs,
        tables=args.tables,
        optimizer=args.optimizer,
        initial_accumulator=args.initial_accumulator,
        validation_fraction=args.validation_fraction,
        early_stopping=args.early_stopping,
    )
    check_overrides_used(settings)
    return settings


def train_command(settings: RunSettings) -> str:
    """Return the command that trains with these settings; DATA and RUN stand for the folders.

    >>> train_command(RunSettings(model="dcn", batch_size=8, mlp=(4, 2), overrides={"l2": 0.5}))
    'cowclip train DATA --out RUN --model dcn --batch-size 8 --mlp 4,2 --l2 0.5'
    """
    usual = RunSettings(model=choices.MODELS[0], batch_size=1).as_dict() | {
        "model": "",
        "batch_size": 0,
    }
    words = ["cowclip", "train", "DATA", "--out", "RUN"]
    given = {k: v for k, v in settings.as_dict().items() if k != "overrides" and v != usual[k]}
    unused = settings.unused_overrides()
    used = {k: v for k, v in settings.overrides.items() if k not in unused}
    for name, value in {**given, **used}.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{name.replace('_', '-')}"] + ([text] if value is not True else [])
    return shlex.join(words)


def run(args: argparse.Namespace) -> int:
    """Train; return 128 + the signal's number after a signal, as shells do."""
    settings = settings_from_args(args)
    from cowclip_merlin.training import Stopped, train

    try:
        rows = train(
            args.data,
            settings,
            out=args.out,
            resume=args.resume,
            checkpoint_every=args.checkpoint_every,
            device=args.device,
            data_memory=args.data_memory,
            diagnostics_every=args.diagnostics_every,
            workers=args.workers,
            scheduler=args.scheduler,
            restarts=args.restarts,
        )
    except Stopped as stop:
        print(
            f"cowclip: stopped with a checkpoint in {args.out}; resume with --resume",
            file=sys.stderr,
        )
        return 128 + stop.signal_number
    print(f"{_result(rows, settings)}; run folder {args.out}")
    return 0


def _result(rows: Sequence[Mapping[str, Any]], settings: RunSettings) -> str:
    """Describe the metrics of the weights that the run keeps."""
    from cowclip_merlin.training.stopping.best_epoch import best_row, epoch_words

    split, kept, when = settings.scored_split, rows[-1], f"{rows[-1]['epoch']} epochs"
    if settings.early_stopping is not None:
        kept, when = best_row(rows, split), epoch_words(rows)
    auc, loss = (float(kept[f"{split}_{name}"]) for name in ("auc", "log_loss"))
    return f"{split} AUC {auc:.5f}, log loss {loss:.5f} after {when}"
