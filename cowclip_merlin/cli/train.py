"""`cowclip train`: train a model on a prepared folder."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cowclip_merlin import choices
from cowclip_merlin.cli.options.model_options import (
    HIDDEN,
    LAYERS,
    RULE,
    add_rate_options,
    check_overrides_used,
    model_settings,
)
from cowclip_merlin.cli.options.settings_option import add_settings_option
from cowclip_merlin.errors import InputError
from cowclip_merlin.launcher.call import LaunchSettings
from cowclip_merlin.settings import add_options, values_from
from cowclip_merlin.training.run_settings import SCHEDULE, RunOptions, RunSettings

if TYPE_CHECKING:
    from cowclip_merlin.training.run_logs import Metrics
    from cowclip_merlin.workflows import PreparedData

HELP = "train a model on a prepared folder"
EXAMPLES = """examples:
  cowclip train DATA --out RUN --model deepfm --batch-size 65536
  cowclip train DATA --out RUN1 --model dcnv2 --batch-size 1024 --rule none --epochs 4
  cowclip train DATA --out RUN --model deepfm --batch-size 65536 --resume
  cowclip train DATA --out RUN4 --settings TUNED/settings.yaml --seed 2
  cowclip train DATA --out RUN3 --model deepfm --batch-size 65536 --workers 2 --restarts 3
  cowclip train DATA --out RUN2 --model deepfm --batch-size 65536 --rule none \\
      --optimizer adagrad --embedding-lr 0.02 --dense-lr 0.02 --l2 0 --validation-fraction 0.1
  cowclip train DATA --out RUN4 --model deepfm --batch-size 65536 --validation-fraction 0.1 \\
      --early-stopping 1
  cowclip train NEXT --out RUN2 --from RUN
  cowclip train DATA --out RUN5 --model deepfm --batch-size 65536 --multi-task mmoe --experts 8

The rates that you give (or the preset's) hold at the base batch size. The rule scales them to the
batch size, and the run prints the scaled values. Ctrl-C writes a checkpoint and stops."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip train`."""
    parser.add_argument("data", metavar="DATA", help="folder that cowclip prepare wrote")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    add_settings_option(parser)
    names = ("model", "batch_size", *RULE, "update", "backend", "optimizer", "initial_accumulator")
    of_data: dict[str, dict[str, Any]] = {
        "base_batch_size": {"default": None, "shown": "1024; for your own table by its rows"},
        "preset": {"shown": "that of the data; your own table has values by its rows"},
        "rule": {"default": None, "shown": "cowclip; for your own table sde"},
        "epochs": {"default": None, "shown": "10; for your own table by its rows"},
    }
    add_options(parser, RunSettings, *names, **of_data)
    add_rate_options(parser)
    names = ("epochs", "seed", "tables", "combiner", "class_weight", "multi_task", "experts")
    names += ("pretrained_embeddings", "freeze_embeddings", "mlp", *HIDDEN, *LAYERS)
    add_options(parser, RunSettings, *names, **of_data)
    _add_run_options(parser)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    names = ("checkpoint_every", "diagnostics_every", "device", "data_memory")
    add_options(parser, RunOptions, *names, diagnostics_every={"default": 100})
    names = ("validation_fraction", "validation_split", "evaluate_every", "monitor")
    add_options(parser, RunSettings, *names, "early_stopping", *SCHEDULE)
    add_options(parser, LaunchSettings)
    add_options(parser, RunOptions, "resume", "warm_start")
    text = "with --from: exit with 3 if RUN scored the same rows better; the run folder stays"
    parser.add_argument("--must-improve", action="store_true", help=text)


def settings_from_args(
    args: argparse.Namespace, more: Callable[..., dict[str, Any]] = lambda given: {}
) -> RunSettings:
    """Build the run's settings from the arguments.

    Args:
        args: the arguments.
        more: maps the settings that are given to those that replace the usual defaults, and the
            given ones.
    """
    given = model_settings(args)
    settings = _without_unused_of_file(RunSettings(**given | more(given)), args)
    check_overrides_used(settings)
    return settings


def _defaults_by_data(args: argparse.Namespace) -> Callable[..., dict[str, Any]]:
    """Return what completes the given settings: those of the run to resume, or the recipe's."""
    from cowclip_merlin.training.run_config import RunConfig, local_run
    from cowclip_merlin.workflows import PreparedData

    if _start(args) is not None and not args.resume:
        return lambda given: {}  # those of the run are there
    with suppress(InputError):  # `train` tells what is wrong, also to the other workers
        if args.resume:
            before = RunConfig.load(local_run(args.out)).settings
            names = ("base_batch_size", "rule", "epochs", "preset")
            known = {name: getattr(before, name) for name in names}
            return lambda given: (
                known
                | {name: value for name, value in given.items() if value is not None}
                | {"overrides": {**before.overrides, **given["overrides"]}}
            )
        data = PreparedData.load(args.data)
        return lambda given: _own_table(data, given)
    return lambda given: {}


def _own_table(data: PreparedData, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe's settings for a table of the user's own, and say what they are."""
    from cowclip_merlin.recipe import own_table_defaults

    found = own_table_defaults(data, given)
    if found:
        values = RunSettings(**dict(given) | found).overrides
        rates = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        print(
            f"your own table of {data.rows['train']:,} training rows: {found['epochs']} epochs, "
            f"rule {found['rule']}, at base batch {found['base_batch_size']} {rates}\n"
            "chosen by the number of rows and ids; give options for other values, or "
            "--preset criteo for the paper's"
        )
    return found


def _without_unused_of_file(settings: RunSettings, args: argparse.Namespace) -> RunSettings:
    """Return the settings without the file's rates that an option made useless, as `--clip` may."""
    file = getattr(args, "settings_of_file", {})
    unused = settings.unused_overrides()
    kept = {k: v for k, v in settings.overrides.items() if k not in unused or file.get(k) != v}
    return replace(settings, overrides=kept)


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
    """Train; return 128 + the signal's number after a signal, as shells do.

    Raises:
        InputError: if an input is wrong.
    """
    if args.must_improve and _start(args) is None:
        raise InputError("--must-improve compares with the run of --from; give that, too")
    settings = settings_from_args(args, _defaults_by_data(args))
    from cowclip_merlin.training import Stopped, train

    try:
        rows = train(
            args.data,
            settings,
            out=args.out,
            **values_from(args, RunOptions),
            **values_from(args, LaunchSettings),
        )
    except Stopped as stop:
        print(
            f"cowclip: stopped with a checkpoint in {args.out}; resume with --resume",
            file=sys.stderr,
        )
        return 128 + stop.signal_number
    print(f"{_result(rows, settings)}; run folder {args.out}{(worse := _worse(args, rows))}")
    return 3 if worse and args.must_improve else 0


def _start(args: argparse.Namespace) -> str | None:
    """Return the run to go on from."""
    return values_from(args, RunOptions).get("warm_start")


def _worse(args: argparse.Namespace, rows: Sequence[Metrics]) -> str:
    """Say that the run is worse than the one that it went on from; "" if it is not."""
    if _start(args) is None:
        return ""
    from cowclip_merlin.training.run_config import RunConfig, local_run
    from cowclip_merlin.training.starting.going_on import became_worse

    config = RunConfig.load(local_run(args.out))
    worse = config.start is not None and became_worse(config, rows)
    return f"; worse than {config.start} on the same rows" if worse else ""


def _result(rows: Sequence[Metrics], settings: RunSettings) -> str:
    """Describe the metrics of the weights that the run keeps."""
    from cowclip_merlin.training.several_targets.names import metric_words
    from cowclip_merlin.training.stopping.best_epoch import epoch_words, kept_row

    split, kept = settings.scored_split, kept_row(rows, settings)
    when = f"{rows[-1]['epoch']:.6g} epochs"
    if settings.early_stopping is not None:
        when = epoch_words(rows, settings.monitor)
    if words := metric_words(kept, split):
        return f"{split} {words} after {when}"
    auc, loss = (float(kept[f"{split}_{name}"]) for name in ("auc", "log_loss"))
    return f"{split} AUC {auc:.5f}, log loss {loss:.5f} after {when}"
