"""`cowclip train`: train a model on a prepared folder."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowclip_merlin import choices
from cowclip_merlin.addresses import is_address, path_of
from cowclip_merlin.cli.command import Command, CommandParser, print_json
from cowclip_merlin.cli.options import (
    HIDDEN,
    LAYERS,
    RULE,
    add_rate_options,
    check_overrides_used,
    model_settings,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.launcher.call import LaunchSettings
from cowclip_merlin.recipe import AUTO, HELD_OUT, MODEL, choose
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.settings import add_options, values_from, words_of
from cowclip_merlin.system.console import note
from cowclip_merlin.system.folders import PREPARED, holds, refuse_other_files, set_aside
from cowclip_merlin.training.run_config import CONFIG, RunConfig, local_run
from cowclip_merlin.training.run_folder import HELD_OUT_METRICS, RUN_FILES
from cowclip_merlin.training.run_settings import SCHEDULE, RunOptions, RunSettings
from cowclip_merlin.workflows.prepared.folder import DATA

if TYPE_CHECKING:
    from cowclip_merlin.training.run_logs import Metrics
    from cowclip_merlin.workflows import PreparedData


def add_train_options(parser: CommandParser) -> None:
    """Add the arguments of `cowclip train`, those that matter most first."""
    by_rows = "{}; for your own table by its rows"
    of_data: dict[str, dict[str, Any]] = {
        "model": {"default": None, "shown": MODEL},
        "batch_size": {"default": None, "shown": by_rows.format(1024)},
        "validation_fraction": {"default": None, "shown": ""},
        "early_stopping": {"shown": "0; after prepare --validation 2 for your own table"},
        "update": {"default": AUTO, "shown": "auto: exact where it works, else dense"},
        "base_batch_size": {"default": None, "shown": by_rows.format(1024)},
        "preset": {"shown": "that of the data; your own table has values by its rows"},
        "rule": {"default": None, "shown": "cowclip; for your own table sde"},
        "epochs": {"default": None, "shown": by_rows.format(10)},
        "mlp": {"default": None, "shown": "400,400,400; for your own table 200,200"},
        "validation_split": {
            "default": None,
            "shown": "given if there are such rows; of a split by time last; else random",
        },
    }

    def group(title: str, *names: str) -> argparse._ArgumentGroup:
        made = parser.add_argument_group(title)
        if names:
            add_options(made, RunSettings, *names, **of_data)
        return made

    what = group("what to train")
    what.add_argument("data", metavar="DATA", help="folder that cowclip prepare wrote")
    what.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    names = ("model", "batch_size", "epochs", "update", "seed", "validation_fraction")
    add_options(what, RunSettings, *names, "early_stopping", **of_data)
    text = "then train again on all rows, also those held out, for the best number of epochs"
    what.add_argument("--refit", action="store_true", help=text)
    add_options(what, RunOptions, "resume", "warm_start")
    text = "replace RUN if it is a run; it stays if this training fails, and RUN/data in any case"
    what.add_argument("--overwrite", action="store_true", help=text)
    add_settings_option(parser, what)
    rates = group("batch and rates", *RULE, "optimizer")
    add_rate_options(rates)
    add_options(rates, RunSettings, *SCHEDULE)
    names = ("combiner", "multi_task", "experts", "pretrained_embeddings", "freeze_embeddings")
    names += ("reset_embeddings",)
    group("model", "mlp", *HIDDEN, *LAYERS, *names)
    held_out = group("data", "class_weight", "validation_split", "evaluate_every", "monitor")
    add_options(held_out, RunOptions, "data_memory")
    run = group("run", "backend", "tables")
    names = ("checkpoint_every", "diagnostics_every", "device")
    add_options(run, RunOptions, *names, diagnostics_every={"default": 100})
    text = "with --from: exit with 3 if RUN scored the same rows better; the run folder stays"
    run.add_argument("--must-improve", action="store_true", help=text)
    text = "print the metrics of the weights that RUN keeps as JSON, in the last line"
    run.add_argument("--json", action="store_true", help=text)
    add_options(group("workers"), LaunchSettings)


def add_settings_option(parser: CommandParser, group: argparse._ActionsContainer) -> None:
    """Add the option to a `CommandParser`, which also takes over the settings of a run.

    Args:
        parser: of a command whose options have the names of the file's keys.
        group: of the parser, for the option.
    """
    text = "YAML file of settings, as cowclip tune writes it; options given here replace them"
    group.add_argument("--settings", metavar="FILE", help=text)
    parser.before_parsing = partial(_use_known, parser)


def _use_known(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Make the values of the run and the file the defaults of the other options.

    Raises:
        InputError: if the file or the run is wrong.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--settings", "--from", "--out"):
        first.add_argument(name, nargs="?")
    first.add_argument("--resume", action="store_true")
    given = vars(first.parse_known_args(words)[0])
    values: dict[str, Any] = {}
    if given["from"] or given["resume"]:
        values = _of_run(given)
    if (path := given["settings"]) is not None:
        values |= _of_file(path)
    if not values:
        return
    options = dict(values)
    if "mlp" in options:
        options["mlp"] = ",".join(map(str, options["mlp"]))
    parser.set_defaults(**options, settings_of_file=values)


def _of_file(path: str) -> dict[str, Any]:
    if not path:
        raise InputError("settings is empty; give a value, or set the shell variable")
    from cowclip_merlin.experiments.tuning.settings_file import read_settings

    return dict(read_settings(path_of(path)))


def _of_run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the run to go on from, or of a resumed one its own."""
    from cowclip_merlin.training.run_config import RunConfig, local_run
    from cowclip_merlin.training.starting.going_on import settings_to_go_on

    if not given["resume"]:
        values = settings_to_go_on(given["from"]).as_dict()
        for name in HELD_OUT:  # of the new data, as without `--from`
            del values[name]
    else:
        try:
            values = RunConfig.load(local_run(given["out"] or "")).settings.as_dict()
        except InputError:  # `train` tells what is wrong, also to the other workers
            return {}
    return values.pop("overrides") | values


def settings_from_args(args: argparse.Namespace, data: PreparedData | None = None) -> RunSettings:
    """Build the run's settings from the arguments, and print what was chosen.

    Args:
        args: the arguments.
        data: the prepared folder, if it can be read.
    """
    goes_on = _start(args) is not None or args.resume
    settings, words = choose(data, model_settings(args), go_on=goes_on)
    settings = _without_unused_of_file(settings, args)
    check_overrides_used(settings)
    if words and not args.resume:
        paper = not goes_on and settings.rule != "cowclip"
        hint = ", or --preset criteo for the paper's rates" if paper else ""
        note(f"{words}\ngive options for other values{hint}")
    return settings


def _readable(path: str) -> PreparedData | None:
    """Return the prepared folder; None if it is wrong, as training tells all workers together."""
    from cowclip_merlin.workflows import PreparedData

    with suppress(InputError):
        return PreparedData.load(path)
    return None


def _without_unused_of_file(settings: RunSettings, args: argparse.Namespace) -> RunSettings:
    """Return the settings without the file's rates that an option made useless, as `--clip` may."""
    file = getattr(args, "settings_of_file", {})
    unused = settings.unused_overrides()
    kept = {k: v for k, v in settings.overrides.items() if k not in unused or file.get(k) != v}
    return replace(settings, overrides=kept)


def train_command(settings: RunSettings) -> str:
    """Return the command that trains with these settings; DATA and RUN stand for the folders.

    >>> train_command(RunSettings(model="dcn", batch_size=8, mlp=(4, 2), overrides={"l2": 0.5}))
    'cowclip train DATA --out RUN --model dcn --batch-size 8 --update dense --mlp 4,2 --l2 0.5'
    """
    usual = RunSettings(model=choices.MODELS[0], batch_size=1).as_dict()
    usual |= {"model": "", "batch_size": 0, "update": ""}
    given = {k: v for k, v in settings.as_dict().items() if k != "overrides" and v != usual[k]}
    unused = settings.unused_overrides()
    used = {k: v for k, v in settings.overrides.items() if k not in unused}
    words = words_of(RunSettings, given) + words_of(Hyperparameters, used)
    return shlex.join(["cowclip", "train", "DATA", "--out", "RUN", *words])


def run_train(args: argparse.Namespace) -> int:
    """Train; return 128 + the signal's number after a signal, as shells do.

    Raises:
        InputError: if an input is wrong.
    """
    if args.must_improve and _start(args) is None:
        raise InputError("--must-improve compares with the run of --from; give that, too")
    data = _readable(args.data)
    settings = settings_from_args(args, data)
    from cowclip_merlin.training import Stopped, train

    try:
        with _replaced(args):
            rows = train(
                args.data,
                settings,
                out=args.out,
                refit=args.refit,
                **values_from(args, RunOptions),
                **values_from(args, LaunchSettings),
            )
    except Stopped as stop:
        words = f"resume with --resume{' --refit' * args.refit}"
        print(f"cowclip: stopped with a checkpoint in {args.out}; {words}", file=sys.stderr)
        return 128 + stop.signal_number
    if args.refit:
        settings = RunConfig.load(local_run(args.out)).settings
    worse = _worse(args, rows)
    if args.json:
        from cowclip_merlin.training.stopping.early_stopping import kept_row

        print_json({"run": args.out, "worse": bool(worse), **kept_row(rows, settings)})
        return 3 if worse and args.must_improve else 0
    print(f"{_result(rows, settings)}; run folder {args.out}{worse}")
    if data is not None and settings.scored_split == "validation" and data.rows["test"]:
        words = shlex.join(["cowclip", "evaluate", args.out, args.data])
        note(f"to score the {data.rows['test']:,} test rows: {words}")
    return 3 if worse and args.must_improve else 0


@contextmanager
def _replaced(args: argparse.Namespace) -> Iterator[None]:
    """Put the run aside that `--overwrite` replaces."""
    if not args.overwrite:
        yield
        return
    if args.resume:
        raise InputError("--overwrite begins a new run, and --resume goes on; omit one")
    if is_address(args.out) or "TF_CONFIG" in os.environ:
        raise InputError("--overwrite needs a folder of this machine, and no TF_CONFIG; omit it")
    out = Path(args.out)
    start = _start(args)
    if start and not is_address(start) and out.resolve() == Path(start).resolve():
        raise InputError(f"--overwrite would replace {start}, which --from reads; omit one")
    check_replaced(out)
    with set_aside(out, CONFIG, "run", keep=(DATA,)):
        yield


def check_replaced(out: Path) -> None:
    """Refuse to replace a run whose folder has files that no command has written.

    The rows that `cowclip fit` prepared are no such files.
    """
    known = (DATA,) if holds(out / DATA, PREPARED) else ()
    ours = (*RUN_FILES, CONFIG, "reliability.csv", "figures", HELD_OUT_METRICS, *known)
    refuse_other_files(out, ours)


def _start(args: argparse.Namespace) -> str | None:
    """Return the run to go on from."""
    return values_from(args, RunOptions).get("warm_start")


def _worse(args: argparse.Namespace, rows: Sequence[Metrics]) -> str:
    """Say that the run is worse than the one that it went on from; "" if it is not."""
    if _start(args) is None:
        return ""
    from cowclip_merlin.training.starting.going_on import became_worse

    config = RunConfig.load(local_run(args.out))
    worse = config.start is not None and became_worse(config, rows)
    return f"; worse than {config.start} on the same rows" if worse else ""


def _result(rows: Sequence[Metrics], settings: RunSettings) -> str:
    """Describe the metrics of the weights that the run keeps."""
    from cowclip_merlin.training.run_logs import metric_words
    from cowclip_merlin.training.stopping.early_stopping import epoch_words, kept_row

    split, kept = settings.scored_split, kept_row(rows, settings)
    epoch = float(rows[-1]["epoch"])
    when = f"{epoch:.6g} epoch{'s'[: epoch != 1]}"
    if settings.early_stopping is not None:
        when = epoch_words(rows, settings.monitor)
    if words := metric_words(kept, split):
        return f"{split} {words} after {when}"
    auc, loss = (float(kept[f"{split}_{name}"]) for name in ("auc", "log_loss"))
    return f"{split} AUC {auc:.5f}, log loss {loss:.5f} after {when}"


TRAIN = Command(
    help="train a model on a prepared folder",
    settings=add_train_options,
    run=run_train,
    examples="""examples:
  cowclip train DATA --out RUN
  cowclip train DATA --out RUN --model deepfm --batch-size 65536
  cowclip train DATA --out RUN1 --model dcnv2 --batch-size 1024 --rule none --epochs 4
  cowclip train DATA --out RUN --resume
  cowclip train DATA --out RUN --overwrite --epochs 3
  cowclip train DATA --out RUN4 --settings TUNED/settings.yaml --seed 2
  cowclip train DATA --out RUN3 --model deepfm --batch-size 65536 --workers 2 --restarts 3
  cowclip train DATA --out RUN2 --model deepfm --batch-size 65536 --rule none \\
      --optimizer adagrad --embedding-lr 0.02 --dense-lr 0.02 --l2 0 --validation-fraction 0.1
  cowclip train DATA --out RUN4 --model deepfm --batch-size 65536 --validation-fraction 0.1 \\
      --early-stopping 1
  cowclip train NEXT --out RUN2 --from RUN
  cowclip train DATA --out RUN5 --model deepfm --batch-size 65536 --multi-task mmoe --experts 8

The rates that you give (or the preset's) hold at the base batch size. The rule scales them to the
batch size, and the run prints the scaled values. Ctrl-C writes a checkpoint and stops.""",
)
